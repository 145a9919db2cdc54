package vram

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
)

// setPacer sets what the purse holds and the CPU's summit, and gives what they were.
func setPacer(spare time.Duration, summit int64) (time.Duration, int64) {
	time5.mu.Lock()
	time5.spare, spare = spare, time5.spare
	time5.mu.Unlock()
	a := accountOf(cpuWord)
	a.mu.Lock()
	a.summit, summit = summit, a.summit
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
		if _, err := cshim.MemoryPace(cpuWord); err != nil { // forgets the largest block so far
			t.Fatal(err)
		}
		a.mu.Lock()
		a.next = 0
		a.mu.Unlock()
		h := ofData(t, make([]float32, c.block/4))
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
		{4 * ms, 256, 1, false}, // what is left is for large blocks
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
