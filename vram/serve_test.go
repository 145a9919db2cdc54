package vram

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
)

// setPacer sets what the purse holds and the CPU's summit, that of what sweeps have left included, and gives what they were.
func setPacer(spare time.Duration, summit int64) (time.Duration, int64) {
	time5.mu.Lock()
	time5.spare, spare = spare, time5.spare
	time5.mu.Unlock()
	a := accountOf(cpuWord)
	a.mu.Lock()
	a.summit, summit = summit, a.summit
	a.highest = min(a.highest, a.summit)
	a.mu.Unlock()
	return spare, summit
}

// ofData is a tensor of its own on the CPU with these values.
func ofData(t *testing.T, data []float32) cshim.Handle {
	t.Helper()
	const float = 6
	r := cshim.TensorFromData(float, []int{len(data)}, unsafe.Pointer(unsafe.SliceData(data)), 4*len(data))
	if r.Err != nil {
		t.Fatal(cshim.Take(r.Err))
	}
	return r.Handle
}

// An allocation that would make a new peak, far below the limit, waits until the sweep has freed something or all: tensors
// outside of scopes go by cleanups, which run after the collector has marked.
func TestANewPeakWaitsForCleanups(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	live := func() int64 {
		m, err := cshim.MemoryPace(cpuWord)
		if err != nil {
			t.Fatal(err)
		}
		return m.Live
	}
	type owner struct{ _ *owner } // with a pointer: not in a place with others
	data := make([]float32, 1<<18)
	before := live()
	for range 50 {
		func() {
			runtime.AddCleanup(new(owner), func(h cshim.Handle) { cshim.TensorFree(h) }, ofData(t, data))
		}()
		setPacer(time.Second, 0) // anything would be a new peak, and a sweep can be paid
		serve(&cshim.Pressure{Device: cpuWord, Bytes: 1 << 20})
		if now := live(); now != before {
			t.Fatalf("%d bytes that nobody can reach are live after the round", now-before)
		}
	}
}

// A block that no sweep is paid for says nothing of what can be reached: were it counted, one sweep that could not be
// paid would have the peak of every later step be higher.
func TestABlockThatIsJustGivenIsNoSummit(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	defer setPacer(setPacer(-time.Second, 0))
	before := ReadCounts()
	serve(&cshim.Pressure{Device: cpuWord, Bytes: 1 << 20})
	if c := ReadCounts(); c.Full != before.Full {
		t.Error("a sweep that cannot be paid has run")
	}
	if s, err := accountOf(cpuWord).state(); err != nil || s.summit > 0 {
		t.Errorf("the summit was 0 and is %d, %v", s.summit, err)
	}
}

// A loop whose block met the line is asked before the next one does: else each of its sweeps would be a round, for
// which the operator that waits keeps its processor idle.
func TestWhoMeetsTheLineIsAskedBeforeIt(t *testing.T) {
	balance.Hold(t, func() {})
	collect := func() { // so that the line is the least
		if err := Collect(); err != nil {
			t.Fatal(err)
		}
	}
	collect()
	a := accountOf(cpuWord)
	const never = 1<<63 - 1
	for _, c := range []struct{ block, want int }{
		{64 << 20, 0}, // a large one: operators far below the line would be swept for the next
		{4 << 20, 4 << 20},
	} {
		if err := cshim.MemorySetLines(cpuWord, never, never, never); err != nil { // no other round
			t.Fatal(err)
		}
		if _, err := cshim.MemoryLargest(cpuWord); err != nil { // forgets the largest block so far
			t.Fatal(err)
		}
		a.mu.Lock()
		a.next = 0
		a.mu.Unlock()
		h := ofData(t, make([]float32, c.block/4))
		// As the pacer does now and then, which takes the largest block away from nobody.
		liveEverywhere()
		serve(&cshim.Pressure{Device: cpuWord, Bytes: floor}) // many that wait for more than one block
		s, err := a.state()
		cshim.TensorFree(h)
		if want := int64(c.want); err != nil || s.Next < want || s.Next > want+want/4 {
			t.Errorf("the next block is expected to have %d bytes, %v; want %d", s.Next, err, want)
		}
		collect()
	}
}

// The same for a block that would make a new peak.
func TestWhoWouldMakeANewPeakIsAskedBeforeIt(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	a := accountOf(cpuWord)
	expect := func(bytes int64) {
		a.mu.Lock()
		a.ahead = bytes
		a.mu.Unlock()
	}
	defer cshim.TensorFree(ofData(t, make([]float32, 8<<20)))
	defer expect(0)
	for _, c := range []struct{ block, want int64 }{
		{1 << 20, 1 << 20},
		{16 << 20, 0}, // a large one: operators far below the summit would be swept for the next
	} {
		expect(0)
		spare, summit := setPacer(time.Second, 0)
		serve(&cshim.Pressure{Device: cpuWord, Bytes: c.block})
		setPacer(spare, summit)
		if s, err := a.state(); err != nil || s.ahead != c.want {
			t.Errorf("after a block of %d bytes as many as %d are expected, %v; want %d", c.block, s.ahead, err, c.want)
		}
	}
}

// How far below the line and the summit an operator is swept for: by the block that is expected, where that is small.
func TestBeforeTheLineAndTheSummit(t *testing.T) {
	balance.Hold(t, func() {})
	for _, c := range []struct {
		live, next, summit, ahead int64         // MiB
		spare                     time.Duration // 0: only the line counts
		want                      Depth
	}{
		{239, 8, 0, 0, 0, None},
		{250, 8, 0, 0, 0, Full},
		{239, 72, 0, 0, 0, None}, // a large block waits at the line itself
		{241, 72, 0, 0, 0, Full},
		{236, 1, 240, 0, time.Second, None},
		{236, 1, 240, 8, time.Second, Full},
		{230, 1, 240, 8, time.Second, None},
		{224, 1, 240, 64, time.Second, None}, // no more than a sixteenth
		{226, 1, 240, 64, time.Second, Full},
	} {
		d := Paced{}.Decide(State{
			Live: c.live << 20, Highest: 128 << 20, Reachable: 128 << 20, Next: c.next << 20, Allocated: c.live << 20,
			Percent: 100, Spare: c.spare, Cost: time.Millisecond, summit: c.summit << 20, ahead: c.ahead << 20,
		})
		// Asked again before it would be due.
		due := 256 - min(c.next, 16)
		if c.spare > 0 {
			due = min(due, c.summit-min(c.ahead, c.live/16))
		}
		if d.Sweep != c.want || d.Sweep == None && d.Again > max(1, due-c.live)<<20 {
			t.Errorf("%+v: %+v", c, d)
		}
	}
}

// What sweeps have left is no new peak, though no block has waited there.
func TestWhatSweepsHaveLeftIsNoNewPeak(t *testing.T) {
	balance.Hold(t, func() {})
	for _, c := range []struct {
		live int64 // MiB
		want Depth
	}{{215, None}, {230, None}, {233, Full}} {
		d := Paced{}.Decide(State{
			Live: c.live << 20, Highest: 240 << 20, Reachable: 200 << 20, Next: 1 << 20, Allocated: c.live << 20,
			Percent: 100, Spare: time.Second, Cost: time.Millisecond, summit: 200 << 20, ahead: 8 << 20,
		})
		if d.Sweep != c.want || d.Sweep == None && d.Again > max(1, 232-c.live)<<20 {
			t.Errorf("%+v: %+v", c, d)
		}
	}
}

// Where a sweep is not worth its price yet the question comes when it is, before a block waits for it.
func TestAskedWhenASweepIsWorthIt(t *testing.T) {
	balance.Hold(t, func() {})
	s := State{
		Live: 240 << 20, Highest: 200 << 20, Reachable: 200 << 20, Next: 1 << 20, Percent: 100,
		Spare: 6 * time.Millisecond, Cost: time.Millisecond,
	}
	s.Allocated = s.promise() - 2<<20
	if d := (Paced{}).Decide(s); d.Sweep != None || d.Again != 2<<20 {
		t.Errorf("2 MiB before: %+v", d)
	}
	s.Allocated += 3 << 20
	if d := (Paced{}).Decide(s); d.Sweep != Full {
		t.Errorf("1 MiB after: %+v", d)
	}
}

// Past the peak a small block does not wait for what the next operator is asked.
func TestASmallBlockPastThePeakIsLeftToTheNextOperator(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	a := accountOf(cpuWord)
	defer cshim.TensorFree(ofData(t, make([]float32, 36<<20)))
	defer setPacer(setPacer(time.Second, 0))
	line := func(ahead int64) int64 {
		a.mu.Lock()
		a.ahead = ahead
		a.mu.Unlock()
		a.aimAt(Decision{Again: 1 << 30})
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.waits
	}
	if with, without := line(4<<20), line(0); with != without+4<<20 {
		t.Errorf("blocks wait at %d bytes where 4 MiB are expected, and at %d where nothing is", with, without)
	}
}

// Sweeps below what is let pass for being little gain nothing: a GRU that reached the same peak in every pass was swept
// 24 MiB below it. What has come besides, when nothing could be paid, counts for a sixteenth at most.
func TestWhatIsLetPassIsThePeak(t *testing.T) {
	balance.Hold(t, func() {})
	a := accountOf(cpuWord)
	for _, c := range []struct{ left, met, want int64 }{ // MiB
		{160, 140, 140},
		{160, 165, 165},
		{160, 400, 170},
	} {
		spare, summit := setPacer(time.Second, 0)
		sweeper.Lock()
		a.mu.Lock()
		a.reach, a.met = c.left<<20, c.met<<20
		a.mu.Unlock()
		swept(0)
		sweeper.Unlock()
		s, err := a.state()
		setPacer(spare, summit)
		if err != nil || s.peak() != c.want<<20 {
			t.Errorf("%d MiB left, then %d live: the peak is %d bytes, %v; want %d MiB", c.left, c.met, s.peak(), err, c.want)
		}
	}
	if err := Collect(); err != nil { // so that the line is the least again
		t.Fatal(err)
	}
}

// What has been learned stays while a policy is in force that learns nothing, and sinks under one that does.
func TestThePeakStaysUnderOtherPolicies(t *testing.T) {
	balance.Hold(t, func() {})
	defer use(CurrentPolicy())
	defer setPacer(setPacer(0, 1<<40))
	for _, c := range []struct {
		p    Policy
		want int64
	}{{Off{}, 1 << 40}, {Paced{}, 7 << 37}} {
		use(c.p)
		setPacer(0, 1<<40)
		tick()
		if s, err := accountOf(cpuWord).state(); err != nil || s.summit != c.want {
			t.Errorf("%T: the summit of %d is %d after a tick, %v; want %d", c.p, int64(1<<40), s.summit, err, c.want)
		}
	}
}

// A sweep is billed a quarter more than it takes.
func TestABillHasWhatASweepCostsOthers(t *testing.T) {
	balance.Hold(t, func() {})
	defer setPacer(setPacer(50*time.Millisecond, 0))
	_, cost := time5.look()
	setPacer(50*time.Millisecond, 0)
	sweeper.Lock()
	swept(cost)
	sweeper.Unlock()
	if spare, _ := time5.look(); spare > 50*time.Millisecond-cost*6/5 || spare < 50*time.Millisecond-cost*5/4 {
		t.Errorf("a sweep of %v was billed %v", cost, 50*time.Millisecond-spare)
	}
}

// Where sweeps find little that can be reached, spare time is kept until 256 MiB are live.
func TestSpareTimeIsForProgramsThatReachMuch(t *testing.T) {
	balance.Hold(t, func() {})
	for _, c := range []struct {
		live, highest int64 // MiB
		want          Depth
	}{
		{200, 0, Full}, // not known yet
		{200, 31, None},
		{200, 33, Full},
		{120, 33, None},
		{260, 31, Full},
	} {
		d := Paced{}.Decide(State{
			Live: c.live << 20, Highest: c.highest << 20, Reachable: c.highest << 20, Next: 4 << 20, Allocated: c.live << 20,
			Percent: 100, Spare: 100 * time.Millisecond, Cost: time.Millisecond,
		})
		if d.Sweep != c.want || d.Sweep == None && d.Again > (256-c.live)<<20 {
			t.Errorf("%+v: %+v", c, d)
		}
	}
}

// What a sweep is paid for: the poorer the purse the more must it promise, but before a large block it need not be rich.
func TestAffords(t *testing.T) {
	balance.Hold(t, func() {})
	const ms = time.Millisecond
	for _, c := range []struct {
		spare     time.Duration
		allocated int64 // since the last sweep, of 256 live
		bytes     int64
		want      bool
	}{
		{100 * ms, 16, 1, true},
		{100 * ms, 10, 1, false}, // it would find little
		{14 * ms, 24, 1, false},
		{14 * ms, 32, 1, true},
		{5 * ms, 40, 1, false},
		{5 * ms, 48, 1, true},
		{3 * ms, 60, 1, false}, // not all at once none
		{3 * ms, 68, 1, true},
		{2 * ms, 80, 1, false},
		{2 * ms, 90, 1, true},
		{2*ms - 1, 256, 1, false}, // what is left is for large blocks
		{1 * ms, 2, 16, true},
		{1 * ms, 1, 16, false}, // nothing to be found
		{ms / 2, 256, 256, false},
		{-1 * ms, 256, 256, false},
	} {
		s := State{Live: 256 << 20, Cost: ms, Spare: c.spare, Allocated: c.allocated << 20}
		if got := s.affords(c.bytes << 20); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
