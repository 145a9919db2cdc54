package vram

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/pacer"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// sweeper is held by the goroutine that sweeps. One sweeps at a time.
var sweeper sweepLock

type sweepLock struct {
	sync.Mutex
	last swept // guarded by Mutex

	gate sync.Mutex
	done chan struct{} // closed when the holder unlocks; nil: nobody waits
}

// swept is what a sweep has found.
type swept struct {
	began time.Time
	took  time.Duration
	// totals are the bytes ever allocated on each device when its collection began; nil: there was none.
	totals map[*account]int64
	// complete: the collector has ended, and nobody is still freeing. What is live is reachable.
	complete bool
	// cutShort: enough was freed before the collector had ended.
	cutShort bool
	// exhausted: complete, and reclaimers and cleanups have run. An allocation that does not fit then fails.
	exhausted bool
}

// released returns a channel that is closed when the current holder unlocks. The caller found it held afterwards.
func (s *sweepLock) released() <-chan struct{} {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
	}
	return s.done
}

func (s *sweepLock) Unlock() {
	s.Mutex.Unlock()
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.done != nil {
		close(s.done)
		s.done = nil
	}
}

// finish tells the pacer of a sweep, and charges its time. requests are the bytes that waited for it.
func (r swept) finish(requests map[*account]int64) {
	if r.totals == nil {
		replanAll()
		return
	}
	sweepTime.Lock()
	sweepTime.Charge(now(), r.took, scannable())
	sweepTime.Unlock()
	for a, total := range r.totals {
		a.finished(pacer.Cycle{Total: total, Complete: r.complete, CutShort: r.cutShort, Request: requests[a]})
	}
}

// sweep frees what it can; the caller holds the sweeper. want is the bytes that wait for it. It ends early where enough,
// unless that is nil, reports true.
func sweep(depth Depth, want int64, enough func() bool) (r swept) {
	// Its own allocations must not wait for it.
	runtime.LockOSThread()
	was := cshim.SweepingSet(true)
	r.began = time.Now()
	before := liveEverywhere()
	defer func() {
		cshim.SweepingSet(was)
		runtime.UnlockOSThread()
		counts.freed.Add(max(0, before-liveEverywhere()))
		r.took = time.Since(r.began)
		counts.sweeping.Add(int64(r.took))
		sweeper.last = r
	}()
	satisfied := func() bool { return enough != nil && enough() }
	queue.run(reclaim.Drain)
	if depth < Full || satisfied() {
		counts.sweeps[Light].Add(1)
		return r
	}
	counts.sweeps[depth].Add(1)
	ended := r.collect(enough)
	until := time.Now().Add(othersTime)
	if ended && depth == Deep && !satisfied() {
		ended = r.askProgram(want, until, enough)
	}
	if ended && depth == Deep && !satisfied() { // an error may rest on it
		if !cleanups.await(until) {
			cleanups.giveUp()
		}
		r.exhausted = reclaim.AwaitFrees(time.Second)
		queue.run(reclaim.Drain)
	}
	return r
}

// collect runs the Go collector once and frees the tensors that it finds unreachable. It returns false where enough has
// ended it before the collector's end.
func (r *swept) collect(enough func() bool) (ended bool) {
	reclaim.Weaken()
	r.totals = map[*account]int64{}
	for _, a := range known() {
		if m, err := cshim.MemoryPace(a.word); err == nil {
			r.totals[a] = m.Total
		}
	}
	start, strengthened := time.Now(), false
	free := func() {
		queue.run(reclaim.Drain)
		if !strengthened {
			strengthened = true
			scopes.run(reclaim.Collect)
		}
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
	r.complete, r.cutShort = false, !ended
	if ended {
		free()
		r.complete = reclaim.AwaitFrees(10 * time.Millisecond)
	}
	return ended
}

// askProgram calls the program's reclaimers, until then, and collects what they have dropped. It returns false where enough
// has ended it.
func (r *swept) askProgram(want int64, until time.Time, enough func() bool) (ended bool) {
	var prepared []*registered
	called := false
	for _, reg := range registrations() {
		switch {
		case reg.Prepare != nil:
			if called = true; reg.call(reg.Prepare, until) {
				prepared = append(prepared, reg)
			}
		case reg.Reclaim != nil:
			called = true
			reg.call(func() { reg.Reclaim(want) }, until)
			if enough != nil && enough() {
				return false
			}
		}
	}
	if !called {
		return true
	}
	if !r.collect(enough) {
		return false
	}
	for _, reg := range prepared {
		if reg.Reclaim != nil {
			reg.call(func() { reg.Reclaim(want) }, until)
		}
	}
	return true
}

// collectUntil runs the Go collector. As soon as it has marked, and again while it sweeps the Go heap, which takes longer
// where that is large, done is asked. Where done reports true the collector goes on alone and false is returned.
func collectUntil(done func() bool) (ended bool) {
	proofs := newProofs()
	cycles := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(cycles)
	seen := cycles[0].Value.Uint64()
	begun, finished := make(chan struct{}), make(chan struct{})
	go func() {
		close(begun)
		// The collector yields after every page that it sweeps. A goroutine that is locked to its thread is away for longer
		// each time, and leaves the work to the runtime's own, which does not yield.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(finished)
		runtime.GC()
	}()
	<-begun // a nap right away would keep the processor that the other needs
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

// proof is an object that nothing references. A collection that frees it has begun after it was made: one that was under
// way then, of somebody else's, would have kept it. To look at one keeps it, too; so there are several.
type proof struct {
	_ *proof
	_ [7]uint64 // so that it shares its place with nothing
}

//go:noinline
func newProofs() []weak.Pointer[proof] {
	ps := make([]weak.Pointer[proof], 4)
	for i := range ps {
		ps[i] = weak.Make(new(proof))
	}
	return ps
}

// Collect sweeps now: the Go collector runs, and what is unreachable is freed. It is what gc.collect() is in Python;
// programs need it only before they read the figures.
func Collect() error {
	if err := cshim.Load(); err != nil {
		return err
	}
	sweeper.Lock()
	defer sweeper.Unlock()
	r := sweep(Full, 0, nil)
	cleanups.await(time.Now().Add(10 * time.Millisecond)) // those of the program's objects may release tensors
	r.finish(nil)
	return nil
}
