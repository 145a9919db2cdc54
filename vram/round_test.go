package vram

import (
	"runtime"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/pacer"
)

// sweepsOf returns the number of sweeps so far.
func sweepsOf() (n int64) {
	for i := range counts.sweeps {
		n += counts.sweeps[i].Load()
	}
	return n
}

// TestRoundWithRoom tests that a round whose sweep ends early, because there is room, gives no verdict: the allocation
// tries again.
func TestRoundWithRoom(t *testing.T) {
	balance.Hold(t, func() {})
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	defer SetPolicy(SetPolicy(Off{}))
	w := []cshim.Waiters{{Bytes: 1, Largest: 1, Device: cpuWord, Reason: cshim.WaitLimit, Exhaust: 1}}
	if serve(w); w[0].Verdict != 0 {
		t.Errorf("the verdict is %d", w[0].Verdict)
	}
}

// alwaysDeep is a policy that always runs a deep sweep.
type alwaysDeep struct{}

func (alwaysDeep) Decide(State) Decision { return Decision{Sweep: Deep} }

// TestDeepRoundBelowTheLimit tests that a policy's deep sweep runs for allocations below the limit, too, and asks
// reclaimers for their bytes.
func TestDeepRoundBelowTheLimit(t *testing.T) {
	balance.Hold(t, func() {})
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	defer SetPolicy(SetPolicy(alwaysDeep{}))
	wants := make(chan int64, 1)
	defer Register(Reclaimer{Name: "test", Reclaim: func(want int64) { wants <- want }})()
	before := counts.sweeps[Deep].Load()
	serve([]cshim.Waiters{{Bytes: 3, Largest: 2, Device: cpuWord, Reason: cshim.WaitTarget}})
	if n := counts.sweeps[Deep].Load() - before; n != 1 {
		t.Fatalf("%d deep sweeps, want 1", n)
	}
	if want := <-wants; want != 3 {
		t.Errorf("asked for %d bytes, want 3", want)
	}
}

// TestRoundBehindASweep tests that a round takes the outcome of a sweep that another goroutine began after the request,
// and does not sweep again. Allocations below the limit get no verdict, nor those for which idle pages of the Go heap
// may make room in the cgroup, unless they have waited for rounds before.
func TestRoundBehindASweep(t *testing.T) {
	balance.Hold(t, func() {})
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	a := accountOf(cpuWord)
	defer a.follows.Store(a.follows.Load())
	for _, c := range []struct {
		outcome pacer.Outcome
		w       cshim.Waiters
		follows bool
		want    int32
	}{
		{pacer.Exhausted, cshim.Waiters{Reason: cshim.WaitLimit}, false, cshim.VerdictExhausted},
		{pacer.Complete, cshim.Waiters{Reason: cshim.WaitLimit}, false, 0},
		{pacer.Exhausted, cshim.Waiters{Reason: cshim.WaitTarget}, false, 0},
		{pacer.Exhausted, cshim.Waiters{Reason: cshim.WaitLimit}, true, 0},
		{pacer.Exhausted, cshim.Waiters{Reason: cshim.WaitLimit, Exhaust: 1}, true, cshim.VerdictExhausted},
	} {
		c.w.Bytes, c.w.Largest, c.w.Device = 1<<50, 1<<50, cpuWord
		w := []cshim.Waiters{c.w}
		a.follows.Store(c.follows)
		clear(make([]byte, 64<<20))
		runtime.GC() // these bytes are idle pages then
		sweeper.Lock()
		last, sweeps, rounds := sweeper.last, sweepsOf(), counts.rounds.Load()
		done := make(chan struct{})
		go func() {
			defer close(done)
			serve(w)
		}()
		for counts.rounds.Load() == rounds {
			time.Sleep(time.Millisecond)
		}
		sweeper.last = sweepResult{began: time.Now(), outcome: c.outcome}
		sweeper.Unlock()
		<-done
		if w[0].Verdict != c.want || sweepsOf() != sweeps {
			t.Errorf("%+v: the verdict is %d; %d sweeps, want 0", c, w[0].Verdict, sweepsOf()-sweeps)
		}
		sweeper.Lock()
		sweeper.last = last
		sweeper.Unlock()
	}
}

// TestGiveUpKeepsTheFirst tests that the function that blocks is the one that a sweep gave up on first.
func TestGiveUpKeepsTheFirst(t *testing.T) {
	balance.Hold(t, func() {})
	var q cleanupQueue
	q.giveUp(2)
	late := q.late
	if q.giveUp(3); q.left != 2 || !q.late.Equal(late) {
		t.Errorf("%d functions since %v, want 2 since %v", q.left, q.late, late)
	}
}
