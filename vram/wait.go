package vram

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/pacer"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

func init() {
	go pace()
	cshim.OnLoad(start)
	reclaim.Boundary = func() { boundary(false) }
	reclaim.BeforeBackward, reclaim.AfterBackward = beforeBackward, afterBackward
	reclaim.Relieve = relieve
	reclaim.OutOfMemory = outOfMemory
	reclaim.MachineMemory = machineMemory
}

// counts are the counters of the process, for [ReadCounts]. The shim has the others.
var counts struct {
	sweeps                      [Deep + 1]atomic.Int64
	freed, sweeping, collecting atomic.Int64 // bytes; nanoseconds
	asked, rounds               atomic.Int64
	waits                       atomic.Int64 // that operators have begun; the shim counts them when they end
}

// start is called once, when libtorch has been loaded.
func start() {
	started.Store(int64(now()))
	cshim.SamplesSetRate(DefaultProfileRate)
	setDefaults()
	close(defaultsSet)
	if cshim.PressureAttach() {
		close(attached)
	}
	replanAll()
}

// idlePeriod is the time between two ticks of the pacer, in which it frees unused memory. Rounds do not delay them.
const idlePeriod = 2 * time.Second

// attached is closed when libtorch has been loaded and allocations can wait for the pacer.
var attached = make(chan struct{})

// pace is the pacer's goroutine. It serves allocations that wait. It begins with the program, because the goroutine that
// loads libtorch may be in a bubble of testing/synctest, whose clock would stand still while the pacer waits in C.
func pace() {
	<-attached
	// The shim marks the thread as the pacer's. No other goroutine may run on it.
	runtime.LockOSThread()
	var idle idleCache
	var p cshim.Pressure
	keep := newKeepalive()
	timers.Store(keep)
	waits := counts.waits.Load()
	tick := time.Now().Add(idlePeriod)
	for {
		switch cshim.PressureNext(&p, time.Until(tick)) {
		case -1:
			return
		case 0:
			tick = time.Now().Add(idlePeriod)
			now := counts.waits.Load()
			keep.setShort(now != waits)
			waits = now
			queue.run(drain)
			callDrops()
			idle.tick()
		case 1:
			keep.setShort(true)
			serve(p.Waiters())
			callDrops()
		}
	}
}

// callDrops calls functions that tensor.FromMapped was given. They are the program's, so it does not wait for them: done is
// closed when they have returned.
func callDrops() (done <-chan struct{}) {
	returned := make(chan struct{})
	if !reclaim.DropsWaiting() {
		close(returned)
		return returned
	}
	go func() {
		defer close(returned)
		for reclaim.DropsWaiting() {
			func() {
				defer func() { _ = recover() }() // the program cannot recover a panic on this goroutine
				reclaim.CallDrops()
			}()
		}
	}()
	return returned
}

// serve is one round: it frees memory for the allocations that wait and sets the verdict of each device.
func serve(waiters []cshim.Waiters) {
	asked := time.Now()
	counts.rounds.Add(1)
	sweeper.Lock()
	defer sweeper.Unlock()
	if last := sweeper.last; last.began.After(asked) { // another goroutine has swept meanwhile
		for i := range waiters {
			last.judge(&waiters[i])
		}
		return
	}
	depth, want, requests := None, int64(0), map[*account]int64{}
	atLimit := false
	var freed []int64 // bytes ever freed on each device
	for i := range waiters {
		w := &waiters[i]
		a := accountOf(w.Device)
		a.waited(w.Largest)
		requests[a] = w.Bytes
		freed = append(freed, a.counters().Freed)
		want += w.Bytes
		if w.Reason != cshim.WaitTarget {
			depth, atLimit = Deep, true
		} else {
			depth = max(depth, admit(w))
		}
	}
	if depth == None {
		return
	}
	// At a limit the round ends when there was room for the largest allocation; those that still do not fit ask for another
	// round. At the wait trigger the sweep is complete, because the goal depends on what is reachable.
	var enough func() bool
	if atLimit {
		enough = func() bool {
			for i := range waiters {
				if !enoughFor(&waiters[i], freed[i]) {
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
		r.judge(w)
		if r.outcome >= pacer.Complete {
			admit(w)
		}
	}
}

// judge gives a device's allocations at a limit the verdict that they fail if they do not fit after the sweep, unless
// idle pages of the Go heap may make room.
func (r sweepResult) judge(w *cshim.Waiters) {
	if r.outcome == pacer.Exhausted && w.Reason != cshim.WaitTarget && (w.Exhaust != 0 || !accountOf(w.Device).returnIdleHeap(w.Bytes)) {
		w.Verdict = cshim.VerdictExhausted
	}
}

// enoughFor reports whether a sweep at a limit has freed enough for a device's allocations. It counts the room that there was
// at any time in the round, because another goroutine may have taken it. Counting freed bytes is not enough, because
// other goroutines free what they have just allocated. If the system has refused the memory, it is unknown how much is
// enough: in the first rounds of an allocation, any byte is.
func enoughFor(w *cshim.Waiters, freed int64) bool {
	m := accountOf(w.Device).counters()
	switch w.Reason {
	case cshim.WaitLimit:
		return m.Limit == 0 || w.Largest <= m.Limit-m.Low
	case cshim.WaitSystem:
		return w.Exhaust == 0 && m.Freed > freed
	}
	return true
}

// admit asks the policy about a device's allocations that wait at the wait trigger. If the policy wants no sweep they get the
// verdict that they may pass the trigger, unless they fit below the new one and try again: another goroutine may have
// taken the room.
func admit(w *cshim.Waiters) Depth {
	a := accountOf(w.Device)
	s := a.state()
	s.Request, s.Largest = w.Bytes, w.Largest
	d := s.decide(State.askApart)
	if d.Sweep != None {
		return d.Sweep
	}
	if d.Wait == 0 || w.Bytes > d.Wait {
		w.Verdict |= cshim.VerdictAdmit
	}
	a.replan()
	return None
}

// beforeBackward is reclaim.BeforeBackward.
func beforeBackward() {
	if cshim.Path() != "" && !farFromDue() {
		boundary(true)
	}
}

// afterBackward is reclaim.AfterBackward: the graph has been freed, so the triggers may be lower.
func afterBackward() {
	if cshim.Path() != "" && !farFromDue() {
		replanAll()
	}
}

// farFromDue reports whether the policy need not be asked around a backward pass, because the program is small.
func farFromDue() bool {
	for _, a := range known() {
		if !a.far.Load() {
			return false
		}
	}
	return !cshim.Due()
}

// boundary is called before an operator or a backward pass. It asks the policy, and sweeps or waits if the policy says so.
func boundary(backward bool) {
	if !backward {
		cshim.SetDue(false)
	}
	counts.asked.Add(1)
	depth, full, requests := ask(backward)
	if depth == None || cshim.Capturing() { // a sweep would free on this thread
		return
	}
	if sweeper.TryLock() {
		defer sweeper.Unlock()
	} else {
		// Another goroutine sweeps. While there is room this goroutine continues. Otherwise it waits here, in Go: a
		// thread that waits in C keeps its processor until the runtime's monitor retakes it, which may take 10 ms.
		// Operators of a reclaimer, on a thread that sweeps, do not wait.
		start := time.Now()
		if !full || cshim.Sweeping() || !waitForSweep() {
			return
		}
		defer sweeper.Unlock() // also if the policy ends this goroutine
		// If a sweep began during the wait, this operator begins without another. Otherwise each of several
		// goroutines that wait would sweep again, and the last of them would wait for all of these sweeps.
		if sweeper.last.began.After(start) {
			depth = None
		} else {
			defer markSweeping()() // the policy of vram/plan calls Collect
			depth, _, requests = ask(backward)
		}
	}
	if depth != None {
		sweep(depth, 0, nil).finish(requests)
	}
}

// ask asks the policy about every device. full reports whether the operator may have to wait for memory while it runs.
func ask(backward bool) (depth Depth, full bool, requests map[*account]int64) {
	requests = map[*account]int64{}
	for _, a := range known() {
		s := a.state()
		s.Backward = backward
		d := s.decide(State.ask)
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

// waitForSweep waits until no other goroutine sweeps and locks the sweeper, within cshim.TargetWait. It reports whether it
// has. It counts as a wait for memory.
func waitForSweep() bool {
	counts.waits.Add(1)
	if keep := timers.Load(); keep != nil { // after the count, which the pacer reads
		keep.setShort(true)
	}
	start := time.Now()
	locked := sweeper.lockWithin(cshim.TargetWait)
	cshim.PressureWaited(time.Since(start), !locked)
	return locked
}
