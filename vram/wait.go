package vram

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

func init() {
	cshim.OnLoad(start)
	reclaim.Boundary = func() { boundary(false) }
	reclaim.BeforeBackward, reclaim.AfterBackward = beforeBackward, afterBackward
	reclaim.Relieve = relieve
	reclaim.OutOfMemory = outOfMemory
}

// counts are of the whole process.
var counts struct {
	sweeps                      [Deep + 1]atomic.Int64
	freed, sweeping, collecting atomic.Int64 // bytes; nanoseconds
	asked, rounds               atomic.Int64
	waits, waiting, overdue     atomic.Int64 // of operators before they begin; those within them are the shim's
	classes                     [len(Counts{}.waits)]atomic.Int64
}

// start runs once, when libtorch has been loaded.
func start() {
	started.Store(time.Now().UnixNano())
	cshim.SamplesSetRate(DefaultProfileRate)
	setDefaults()
	if cshim.PressureAttach() {
		go pace()
	}
	replanAll()
}

// pace is the pacer's goroutine: it serves allocations that wait.
func pace() {
	// Its thread is marked as one that sweeps, and must not become another goroutine's.
	runtime.LockOSThread()
	var idle idleCache
	var p cshim.Pressure
	keep := newKeepalive()
	timers.Store(keep)
	waits := counts.waits.Load()
	for {
		switch cshim.PressureNext(&p, 2000) {
		case -1:
			return
		case 0:
			now := counts.waits.Load()
			keep.setShort(now != waits)
			waits = now
			Flush()
			idle.tick()
		case 1:
			keep.setShort(true)
			serve(p.Waiters())
		}
	}
}

// serve is one round: it frees for the allocations that wait, and gives each device's the verdict.
func serve(waiters []cshim.Waiters) {
	asked := time.Now()
	counts.rounds.Add(1)
	sweeper.Lock()
	defer sweeper.Unlock()
	if last := sweeper.last; last.began.After(asked) { // another goroutine's sweep may have served them
		for i := range waiters {
			waiters[i].Verdict = verdict(last.exhausted, cshim.VerdictExhausted)
		}
		return
	}
	depth, want, requests := None, int64(0), map[*account]int64{}
	var before []int64 // the progress of devices at a limit
	for i := range waiters {
		w := &waiters[i]
		a := accountOf(w.Device)
		a.waited(w.Largest)
		requests[a] = w.Bytes
		before = append(before, a.progress())
		if w.Reason != cshim.WaitTarget {
			depth, want = Deep, want+w.Bytes
		} else if d, admit := admits(w); !admit {
			depth = max(depth, d)
		}
	}
	if depth == None {
		return
	}
	// At a limit the round is over as soon as anything was freed there: allocations that do not fit yet ask for another.
	// At the soft limit it is complete, since the goal follows from what is reachable.
	var enough func() bool
	if depth == Deep {
		enough = func() bool {
			for i, w := range waiters {
				a := accountOf(w.Device)
				if w.Reason != cshim.WaitTarget && a.progress() <= before[i] && !(w.Reason == cshim.WaitLimit && a.fits(w.Bytes)) {
					return false
				}
			}
			return true
		}
	}
	r := sweep(depth, want, enough)
	r.finish(requests)
	for i := range waiters {
		w := &waiters[i]
		if w.Reason != cshim.WaitTarget {
			w.Verdict = verdict(r.exhausted && !accountOf(w.Device).returnIdleHeap(w.Bytes), cshim.VerdictExhausted)
		}
		if r.complete {
			admits(w)
		}
	}
}

func verdict(on bool, v int32) int32 {
	if on {
		return v
	}
	return 0
}

// admits asks the policy whether the allocations that wait at a device's soft limit may pass it, and gives them that verdict.
// Where they fit below the limit as it is now they try again instead: others may have taken the room meanwhile.
func admits(w *cshim.Waiters) (depth Depth, admit bool) {
	a := accountOf(w.Device)
	s, err := a.state()
	if err != nil {
		w.Verdict |= cshim.VerdictAdmit
		return None, true
	}
	s.Request, s.Largest = w.Bytes, w.Largest
	d := policy.Load().Decide(s)
	if d.Sweep != None {
		return d.Sweep, false
	}
	if d.Wait == 0 || w.Bytes > d.Wait {
		w.Verdict |= cshim.VerdictAdmit
	}
	a.replan()
	return None, true
}

// beforeBackward is reclaim.BeforeBackward.
func beforeBackward() {
	if cshim.Path() != "" && !quiet() {
		boundary(true)
	}
}

// afterBackward is reclaim.AfterBackward: the graph has been freed, so the next decision is due far below.
func afterBackward() {
	if cshim.Path() != "" && !quiet() {
		replanAll()
	}
}

// quiet spares small programs the questions around their backward passes.
func quiet() bool {
	for _, a := range known() {
		if !a.quiet.Load() {
			return false
		}
	}
	return !cshim.Due()
}

// boundary is what an operator, or a backward pass, does before it begins: it asks the policy, and sweeps or waits.
func boundary(backward bool) {
	box := policy.Load()
	if !backward {
		cshim.SetDue(box.every > 0)
		if box.every > 0 && counted.Add(1)%box.every != 0 {
			return
		}
	}
	counts.asked.Add(1)
	var until time.Time
	for range 16 { // others may have taken the room again
		depth, full, requests := ask(box, backward)
		if depth == None || cshim.Capturing() { // a sweep would free on this thread
			return
		}
		done := sweeper.released()
		if sweeper.TryLock() {
			sweep(depth, 0, nil).finish(requests)
			sweeper.Unlock()
			return
		}
		// Another goroutine sweeps, and this one goes on while there is room. Where there is none it waits here: one that
		// waits within an operator, in C, keeps a processor of Go's until the runtime's monitor takes that away, which may
		// sleep for 10 ms. The goroutine that sweeps itself may run a reclaimer's operators.
		if !full || cshim.Sweeping() {
			return
		}
		if until.IsZero() {
			until = time.Now().Add(maxBoundaryWait)
		}
		if !waitForSweep(done, until) {
			return
		}
	}
}

// ask asks the policy for every device. full reports whether the operator may have to wait for memory within.
func ask(box *policyBox, backward bool) (depth Depth, full bool, requests map[*account]int64) {
	requests = map[*account]int64{}
	for _, a := range known() {
		s, err := a.state()
		if err != nil {
			continue
		}
		s.Backward, s.Operators = backward, box.every
		d := box.Decide(s)
		if !backward {
			a.plan(s, d)
		}
		if d.Sweep != None {
			depth, requests[a] = max(depth, d.Sweep), s.Request
			full = full || d.Wait > 0 && s.Request > d.Wait || s.Limit > 0 && s.Live+s.Request > s.Limit
		}
	}
	return depth, full, requests
}

// maxBoundaryWait is how long an operator waits before it begins: as long as an allocation at the soft limit.
const maxBoundaryWait = 250 * time.Millisecond

// waitForSweep waits for a sweep until then, and reports whether it has ended; it counts among the waits for memory.
func waitForSweep(done <-chan struct{}, until time.Time) bool {
	counts.waits.Add(1)
	if keep := timers.Load(); keep != nil { // after it was counted: the pacer looks
		keep.setShort(true)
	}
	start := time.Now()
	ended := ends(done, until)
	if !ended {
		counts.overdue.Add(1)
	}
	took := time.Since(start)
	counts.waiting.Add(int64(took))
	class := int(math.Ceil(4 * math.Log2(max(1, float64(took)/1000))))
	counts.classes[min(class, len(counts.classes)-1)].Add(1)
	return ended
}
