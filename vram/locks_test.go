package vram

import (
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/pacer"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/unordered"
)

// Each of these functions holds the lock of what it reads and writes. The race detector would report one that
// does not.

func TestLocksOfAnAccount(t *testing.T) {
	balance.Hold(t, func() {})
	a := accountOf(cpuWord)
	touch := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		soft, percent, capacity, pacer := a.soft, a.percent, a.capacity, a.pacer
		a.soft, a.percent, a.capacity, a.pacer = soft, percent, capacity, pacer
		a.peakOther, a.light = 0, 0
	}
	for _, f := range []func(){
		func() { a.setSoftLimit(a.size() / 10 * 8) },
		func() { a.setPercent(100) },
		func() { a.size() },
		func() { a.waited(1) },
		func() { a.finished(pacer.Cycle{}) },
		func() { a.finishedLight() },
		func() { a.state() },
		func() { _, _ = Stats(CPU) },
		func() { _ = ResetPeak(CPU) },
		func() { a.replan() },
		func() { _ = Collect() },
		func() { _ = outOfMemory(&cshim.Error{}) },
	} {
		unordered.Go(f, touch)
	}

	for _, f := range []func(){func() { a.state() }, func() { sweepResult{totals: map[*account]int64{}}.finish(nil) }, func() { State{}.decide(State.ask) }} {
		unordered.Go(f, func() {
			timeBudget.Lock()
			defer timeBudget.Unlock()
			budget := timeBudget.Budget
			timeBudget.Budget = budget
		})
	}
}

func TestLocksOfCleanups(t *testing.T) {
	balance.Hold(t, func() {})
	var q cleanupQueue
	touch := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		late, left := q.late, q.left
		q.late, q.left = late, left
	}
	unordered.Go(func() { q.giveUp(1) }, touch)
	unordered.Go(func() { q.blocked() }, touch)
}

// The list of reclaimers is read and changed under its lock.
func TestLockOfReclaimers(t *testing.T) {
	balance.Hold(t, func() {})
	waits(t, "Register", &reclaimers, func() { Register(Reclaimer{})() })
	waits(t, "BlockedCalls", &reclaimers, func() { BlockedCalls() })
	unregister := Register(Reclaimer{})
	waits(t, "the function that Register returns", &reclaimers, unregister)
}

// waits fails the test unless f waits for a lock.
func waits(t *testing.T, what string, mu sync.Locker, f func()) {
	t.Helper()
	done := make(chan struct{})
	mu.Lock()
	go func() { defer close(done); f() }()
	select {
	case <-done:
		t.Errorf("%s does not wait for its lock", what)
	case <-time.After(20 * time.Millisecond):
	}
	mu.Unlock()
	<-done
}

// always is a policy that always sweeps.
type always struct{}

func (always) Decide(State) Decision { return Decision{Sweep: Full} }

// While one goroutine sweeps, the others continue.
func TestOneGoroutineSweeps(t *testing.T) {
	balance.Hold(t, func() {})
	before := SetPolicy(always{})
	defer SetPolicy(before)
	sweeps := counts.sweeps[Full].Load()
	sweeper.Lock()
	boundary(true)
	sweeper.Unlock()
	if n := counts.sweeps[Full].Load() - sweeps; n != 0 {
		t.Errorf("%d sweeps while another goroutine sweeps", n)
	}
	boundary(true)
	if n := counts.sweeps[Full].Load() - sweeps; n != 1 {
		t.Errorf("%d sweeps when no other goroutine sweeps, want 1", n)
	}
}

// ofData returns a CPU tensor with these values.
func ofData(t *testing.T, data []float32) cshim.Handle {
	t.Helper()
	const float = 6
	r := cshim.TensorFromData(float, []int{len(data)}, unsafe.Pointer(unsafe.SliceData(data)), 4*len(data))
	if r.Err != nil {
		t.Fatal(cshim.Take(r.Err))
	}
	return r.Handle
}

// request makes the estimated request of the next operator this many bytes, as if no sweep had run yet.
func request(bytes int64) {
	a := accountOf(cpuWord)
	a.mu.Lock()
	a.pacer = pacer.Controller{}
	a.mu.Unlock()
	a.waited(bytes)
}

// If there is no room, an operator waits before it begins for another goroutine's sweep, for at most 250 ms.
func TestOperatorWithoutRoomWaitsForTheSweep(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := SetLimit(CPU, Share(0.9)); err != nil {
			t.Error(err)
		}
	}()
	const mib = 1 << 20
	const block = 256 * mib
	h := ofData(t, make([]float32, block/4))
	defer cshim.TensorFree(h)
	m, err := cshim.MemoryPace(cpuWord)
	if err != nil {
		t.Fatal(err)
	}
	none, some := Bytes(m.Live+mib), Bytes(m.Live+64*mib)
	type waited struct{ waits, within, overdue int64 }
	count := func() waited {
		c := ReadCounts()
		return waited{c.Waits, c.Waits - counts.waits.Load(), c.Timeouts}
	}
	for _, c := range []struct {
		what   string
		policy Policy
		limit  Amount
		held   time.Duration // how long the other goroutine sweeps; 0: until boundary returns
		want   waited
		sweeps bool // the operator's own thread is the one that sweeps
	}{
		{"no room", nil, none, 30 * time.Millisecond, waited{1, 0, 0}, false},
		{"no room, whatever the policy", always{}, none, 30 * time.Millisecond, waited{1, 0, 0}, false},
		{"no room and no end", always{}, none, 0, waited{1, 0, 1}, false},
		{"room", always{}, some, 0, waited{}, false},
		{"room on the device", always{}, Share(0.9), 0, waited{}, false},
		{"a reclaimer's operator", always{}, none, 0, waited{}, true},
	} {
		before := SetPolicy(c.policy)
		if err := SetLimit(CPU, c.limit); err != nil {
			t.Fatal(err)
		}
		request(block / 32)
		keep := timers.Load()
		keep.setShort(false)
		sweeper.Lock()
		earlier, sweeps := count(), counts.sweeps[Full].Load()
		start := time.Now()
		done := make(chan time.Duration)
		go func() {
			if c.sweeps {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				defer cshim.SweepingSet(cshim.SweepingSet(true))
			}
			boundary(false)
			done <- time.Since(start)
		}()
		var took time.Duration
		if c.held > 0 {
			time.Sleep(c.held)
			sweeper.Unlock()
			took = <-done
		} else {
			took = <-done
			sweeper.Unlock()
		}
		now := count()
		if got := (waited{now.waits - earlier.waits, now.within - earlier.within, now.overdue - earlier.overdue}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
		if took < c.held || c.want.overdue > 0 && took < cshim.TargetWait || c.want.waits == 0 && took > cshim.TargetWait/2 {
			t.Errorf("%s: it took %v", c.what, took)
		}
		if c.want.waits > 0 && !keep.short.Load() {
			t.Errorf("%s: the timers are not short", c.what)
		}
		// After the wait the policy is called again. By then enough bytes have been allocated since the last sweep
		// that another one is due.
		if n, want := counts.sweeps[Full].Load()-sweeps, min(c.held, 1); n != int64(want) {
			t.Errorf("%s: %d sweeps, want %d", c.what, n, want)
		}
		SetPolicy(before)
	}
}

// An operator of a reclaimer that finds no memory does not wait for the sweep that waits for it, nor does Collect.
func TestAReclaimerDoesNotWaitForItsSweep(t *testing.T) {
	balance.Hold(t, func() {})
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"an operator": func() {
			if relieve(cpuWord, 0) {
				t.Error("it has freed memory")
			}
		},
		"Collect": func() { _ = Collect() },
	} {
		done := make(chan struct{})
		sweeper.Lock()
		go func() {
			defer close(done)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			defer cshim.SweepingSet(cshim.SweepingSet(true))
			f()
		}()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Errorf("%s waits", name)
		}
		sweeper.Unlock()
		<-done
	}
}

// One sweep serves all operators that wait for it before they begin.
func TestOneSweepForAllOperatorsThatWait(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	const block = 256 * mib
	h := ofData(t, make([]float32, block/4))
	defer cshim.TensorFree(h)
	m, err := cshim.MemoryPace(cpuWord)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := SetLimit(CPU, Share(0.9)); err != nil {
			t.Error(err)
		}
	}()
	if err := SetLimit(CPU, Bytes(m.Live+mib)); err != nil {
		t.Fatal(err)
	}
	defer SetPolicy(SetPolicy(always{}))
	request(block / 32) // more is not taken as an estimate
	const operators = 8
	waits, timeouts, sweeps := counts.waits.Load(), ReadCounts().Timeouts, counts.sweeps[Full].Load()
	sweeper.Lock()
	var wg sync.WaitGroup
	for range operators {
		wg.Go(func() { boundary(false) })
	}
	for deadline := time.Now().Add(cshim.TargetWait / 2); counts.waits.Load() < waits+operators && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(5 * time.Millisecond) // the last of them is counted before it waits
	sweeper.Unlock()
	wg.Wait()
	if n := counts.waits.Load() - waits; n != operators {
		t.Fatalf("%d operators waited, want %d", n, operators)
	}
	if n := ReadCounts().Timeouts - timeouts; n != 0 {
		t.Fatalf("%d of %d operators waited for %v", n, operators, cshim.TargetWait)
	}
	if n := counts.sweeps[Full].Load() - sweeps; n != 1 {
		t.Errorf("%d sweeps for %d operators that waited, want 1", n, operators)
	}
}

// A sweep stays on its thread, whose allocations do not wait.
func TestASweepStaysOnItsThread(t *testing.T) {
	balance.Hold(t, func() {})
	strayed := false
	weaken := reclaim.Weaken
	set := func(f func()) {
		sweeper.Lock() // the sweeping goroutine calls it
		defer sweeper.Unlock()
		reclaim.Weaken = f
	}
	defer set(weaken)
	set(func() {
		for range 100 {
			elsewhere.Thread()
			strayed = strayed || !cshim.SweepingSet(true)
		}
		weaken()
	})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	if strayed {
		t.Error("the sweep has gone to another thread")
	}
	if cshim.SweepingSet(false) {
		t.Error("a thread is still marked after its sweep")
	}
}

// If marking is enough, a sweep does not wait until the collector has swept the Go heap.
func TestASweepEndsBeforeTheCollector(t *testing.T) {
	balance.Hold(t, func() {})
	heap := make([]*[32]uint64, 400_000)
	for i := range heap {
		heap[i] = new([32]uint64)
	}
	defer runtime.KeepAlive(heap)
	for range 30 {
		if !collectUntil(func() bool { return true }) {
			return
		}
	}
	t.Error("it has waited each time")
}

// A sweep that is exhausted has waited for the functions that its last collection has queued, too.
func TestAnExhaustedSweepLeavesNoFunction(t *testing.T) {
	balance.Hold(t, func() {})
	type object struct{ _ *object }
	var stopped atomic.Bool
	var again func(*object)
	again = func(o *object) { // runs after every collection
		if time.Sleep(10 * time.Millisecond); !stopped.Load() {
			runtime.SetFinalizer(o, again)
		}
	}
	runtime.SetFinalizer(new(object), again)
	sweeper.Lock()
	r := sweep(Deep, 0, nil)
	queued, executed := cleanupCounts()
	stopped.Store(true)
	sweeper.Unlock()
	if r.outcome == pacer.Exhausted && executed < queued && time.Since(r.began) < othersTime {
		t.Errorf("%d functions have not run", queued-executed)
	}
}

func TestLocksOfTables(t *testing.T) {
	balance.Hold(t, func() {})
	for _, f := range []func(){
		func() { _, _ = Profile() },
		func() { _ = RecordHistory(0) },
		func() { _ = SetProfileRate(DefaultProfileRate) },
		func() { _ = Snapshot(io.Discard) },
	} {
		unordered.Go(f, func() {
			history.Lock()
			defer history.Unlock()
			rate := history.rate
			history.rate = rate
		})
	}
	for _, f := range []func(){
		func() { _ = Collect() },
		func() { relieve(cpuWord, 0) },
		func() { serve(nil) },
	} {
		unordered.Go(f, func() {
			sweeper.Lock()
			defer sweeper.Unlock()
			last := sweeper.last
			sweeper.last = last
		})
	}
}
