package vram

import (
	"runtime"
	"runtime/metrics"
	"time"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/pacer"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// sweeper is the lock of the goroutine that sweeps. It is a channel because some wait for it for a limited time.
var sweeper = sweepLock{held: make(chan struct{}, 1)}

type sweepLock struct {
	held chan struct{} // full while the lock is held
	last sweepResult   // guarded by the lock
}

func (s *sweepLock) Lock()   { s.held <- struct{}{} }
func (s *sweepLock) Unlock() { <-s.held }

func (s *sweepLock) TryLock() bool {
	select {
	case s.held <- struct{}{}:
		return true
	default:
		return false
	}
}

// lockWithin locks s, and reports whether that was possible in the time.
func (s *sweepLock) lockWithin(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case s.held <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// sweepResult is the outcome of a sweep.
type sweepResult struct {
	began time.Time
	clock runClock
	// cost is charged to the budget: the process's running time in the Go collector and for the tensors that the sweep
	// has kept. Freeing the others would take as long at the end of their scopes. The cost is measured on the clock
	// that fills the budget, so that a sweep delayed by other processes costs no more.
	cost time.Duration
	// totals is the bytes allocated in total on each device when the collection began; nil: a light sweep.
	totals map[*account]int64
	// outcome is Exhausted if reclaimers and cleanup functions have run, too: an allocation that does not fit now fails.
	outcome pacer.Outcome
}

// finish charges the time budget for the sweep and records it in the accounts. requests is the bytes that waited for it.
func (r sweepResult) finish(requests map[*account]int64) {
	if r.totals == nil {
		for _, a := range known() {
			a.finishedLight()
		}
		return
	}
	timeBudget.Lock()
	timeBudget.Charge(timeBudget.clock.now(), r.cost, scannable())
	timeBudget.Unlock()
	for a, total := range r.totals {
		a.finished(pacer.Cycle{Total: total, Outcome: r.outcome, Request: requests[a]})
	}
}

// sweep frees unreachable tensors. The caller holds the sweeper. want is the number of bytes that reclaimers are asked for.
// If enough is not nil, the sweep ends as soon as enough returns true.
func sweep(depth Depth, want int64, enough func() bool) (r sweepResult) {
	defer markSweeping()()
	r.began = time.Now()
	began := r.clock.now()
	before, handles := liveEverywhere(), liveHandles()
	defer func() {
		counts.freed.Add(max(0, before-liveEverywhere()))
		counts.sweeping.Add(int64(time.Since(r.began)))
		tensors := r.clock.now() - began - r.cost
		r.cost += time.Duration(float64(tensors) * float64(min(handles, liveHandles())) / float64(max(1, handles)))
		sweeper.last = r
	}()
	satisfied := func() bool { return enough != nil && enough() }
	queue.run(drain)
	if depth < Full || satisfied() {
		counts.sweeps[Light].Add(1)
		return r
	}
	counts.sweeps[depth].Add(1)
	executed := programCleanups()
	ended := r.collect(enough)
	until := time.Now().Add(othersTime)
	if ended && depth == Deep && !satisfied() {
		casts.run(func() { handle.ForgetCasts(true) })
	}
	if ended && depth == Deep && !satisfied() {
		dropped := callDrops() // beside the reclaimers, because one that blocks must not keep their time
		if ended = r.askProgram(want, &until, enough); ended {
			returnedBy(dropped, until)
		}
	}
	// The allocation may fail after this. Each collection may find one more link in a chain of finalizers.
	for links := 0; ended && depth == Deep && !satisfied(); links++ {
		if left := cleanups.await(until); left > 0 {
			cleanups.giveUp(left)
		}
		if reclaim.AwaitFrees(othersTime) {
			r.outcome = pacer.Exhausted
		}
		queue.run(drain)
		before := executed
		if executed = programCleanups(); executed == before || links == maxChain || time.Now().After(until) {
			break
		}
		// Objects to which the completed functions referred may be unreachable now.
		ended = r.collectAgain(&until, enough)
	}
	return r
}

// markSweeping marks the thread of a goroutine that has locked the sweeper, until end is called: its allocations, and Collect,
// must not wait for the sweeper.
func markSweeping() (end func()) {
	runtime.LockOSThread()
	was := cshim.SweepingSet(true)
	return func() {
		cshim.SweepingSet(was)
		runtime.UnlockOSThread()
	}
}

// maxChain is the number of collections that a sweep runs because cleanup functions have run. Functions that wait for every
// collection would keep it busy for othersTime.
const maxChain = 10

// freesTime is how long a collection waits for other goroutines' frees, which take less unless they are preempted.
const freesTime = 10 * time.Millisecond

// drain frees what was found unreachable.
func drain() {
	reclaim.Drain()
	reclaim.DrainDevices()
}

// collect runs the Go collector once and frees the tensors that it finds unreachable. It returns false if it ended early.
func (r *sweepResult) collect(enough func() bool) (ended bool) {
	reclaim.Weaken()
	r.totals = map[*account]int64{}
	for _, a := range known() {
		r.totals[a] = a.counters().Total
	}
	start, strengthened := time.Now(), false
	began, freeing := r.clock.now(), time.Duration(0)
	free := func() {
		began := r.clock.now()
		defer func() { freeing += r.clock.now() - began }()
		if !strengthened {
			strengthened = true
			scopes.run(reclaim.Collect) // drain finds nothing before
		}
		queue.run(drain)
	}
	ended = true
	if enough == nil {
		runtime.GC()
	} else {
		ended = collectUntil(func() bool {
			free()
			return enough()
		})
	}
	counts.collecting.Add(int64(time.Since(start)))
	r.cost += r.clock.now() - began - freeing
	if !ended {
		r.outcome = pacer.CutShort
		return false
	}
	free()
	r.outcome = pacer.Freeing
	if reclaim.AwaitFrees(freesTime) {
		r.outcome = pacer.Complete
	}
	return true
}

// collectAgain is collect while the program has time until `until`. It adds its own time to that, which is the collector's.
func (r *sweepResult) collectAgain(until *time.Time, enough func() bool) (ended bool) {
	start := time.Now()
	ended = r.collect(enough)
	*until = until.Add(time.Since(start))
	return ended
}

// askProgram calls the program's reclaimers and then collects the tensors that they have dropped. It gives up waiting at
// `until`, which the collection moves. It returns false if it ended early.
func (r *sweepResult) askProgram(want int64, until *time.Time, enough func() bool) (ended bool) {
	var prepared []*registered
	defer func() {
		for _, reg := range prepared {
			still := want
			if enough != nil && enough() {
				still = 0
			}
			reg.call(func() { reg.Reclaim(still) }, *until)
		}
	}()
	called := false
	for _, reg := range registrations() {
		switch {
		case reg.Prepare != nil:
			if called = true; reg.prepare(*until) && reg.Reclaim != nil {
				prepared = append(prepared, reg)
			}
		case reg.Reclaim != nil:
			called = true
			reg.call(func() { reg.Reclaim(want) }, *until)
			if enough != nil && enough() {
				return false
			}
		}
	}
	return !called || r.collectAgain(until, enough)
}

// collectUntil runs the Go collector. When marking has finished it calls done repeatedly, while the collector sweeps the Go
// heap, which takes long if the heap is large. If done returns true, collectUntil returns false at once and the collector
// continues in the background.
func collectUntil(done func() bool) (ended bool) {
	proofs := newProofs()
	cycles := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(cycles)
	seen := cycles[0].Value.Uint64()
	begun, finished := make(chan struct{}), make(chan struct{})
	go func() {
		close(begun)
		// The collector yields after every page that it sweeps. On a goroutine that is locked to its thread each yield takes
		// longer, so that the runtime's background sweeper, which does not yield, does the work.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(finished)
		runtime.GC()
	}()
	<-begun // Nap blocks in C and keeps the processor, which the other goroutine needs to start
	for marked := false; ; cshim.Nap(20 * time.Microsecond) {
		select {
		case <-finished:
			return true
		default:
		}
		if metrics.Read(cycles); !marked && cycles[0].Value.Uint64() != seen && len(proofs) > 0 {
			seen = cycles[0].Value.Uint64()
			marked = proofs[0].Value() == nil
			proofs = proofs[1:]
		}
		if marked && done() {
			return false
		}
	}
}

// proof is an object without references. A collection that frees it began after it was made; a collection that was already
// running keeps it. Reading its weak pointer during marking keeps it, too, so there are several.
type proof struct {
	_ *proof
	_ [7]uint64 // large enough not to share a block of the tiny allocator
}

//go:noinline
func newProofs() []weak.Pointer[proof] {
	ps := make([]weak.Pointer[proof], 4)
	for i := range ps {
		ps[i] = weak.Make(new(proof))
	}
	return ps
}

// Collect runs a full sweep: it runs the Go collector and frees the unreachable tensors. Programs need it only before they
// read counters. In a reclaimer it does nothing: a sweep is already under way. Collect frees on the calling thread, like
// [Flush], also while that captures a CUDA graph: call it before the capture. Python: gc.collect.
func Collect() error {
	if err := cshim.Load(); err != nil {
		return err
	}
	if cshim.Sweeping() {
		return nil
	}
	collectAll()
	reclaim.CallDrops()
	return nil
}

func collectAll() {
	sweeper.Lock()
	defer sweeper.Unlock()
	r := sweep(Full, 0, nil)
	cleanups.await(time.Now().Add(freesTime)) // cleanup functions of the program may release tensors
	reclaim.DrainDevices()
	r.finish(nil)
}
