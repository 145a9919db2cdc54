package cshim

import (
	"runtime"
	"sync/atomic"
)

// An operator with several threads runs them in a pool of libgomp, and each OS thread that calls operators has
// its own pool. Once the pools have more threads than there are processors, libgomp's threads sleep between
// operators instead of spinning: from then on a loop of operators of half a millisecond takes an eighth longer,
// until the process ends. So a goroutine that computes alone keeps its OS thread during a call and while it
// yields, even if the Go scheduler has no processor for it when the call returns. If several goroutines
// compute, the handover of threads costs more than that, and none keeps its thread. See
// docs/decisions/0008-threads.md.
var calls struct {
	_        [64]byte
	parallel atomic.Bool  // operators may use several threads
	inside   atomic.Int32 // number of goroutines in a call
	crowded  atomic.Int32 // number of further calls that keep no thread, since several goroutines were in calls at once
	_        [64]byte
}

// crowdedFor is the number of calls that keep no thread after two goroutines were in calls at once.
const crowdedFor = 1024

// call is the state that enter passes to leave.
type call uint8

const (
	uncounted call = iota
	counted
	kept
)

// enter is called before a call that may compute.
func enter() call {
	if !calls.parallel.Load() {
		return uncounted
	}
	if calls.inside.Add(1) > 1 {
		if calls.crowded.Load() < crowdedFor/2 {
			calls.crowded.Store(crowdedFor)
		}
		return counted
	}
	if calls.crowded.Load() > 0 {
		calls.crowded.Add(-1)
		return counted
	}
	runtime.LockOSThread()
	return kept
}

// leave is called after it. word is the scope word of the result, or 0.
func (c call) leave(word uint64) {
	if c != uncounted || word&ScopeLong != 0 {
		c.end(word&ScopeLong != 0)
	}
}

// leaveLong is leave for calls that compute for a long time and return no scope word.
func (c call) leaveLong() { c.leave(scopeFlags()) }

// end also yields if the goroutine has run for long. It yields while the thread is still kept: otherwise Go
// would preempt the goroutine a moment later and move it to another thread.
func (c call) end(long bool) {
	if c != uncounted {
		calls.inside.Add(-1)
	}
	if long {
		ScopeSet(ScopeGet()) // without the flag
		if c == kept && calls.inside.Load() > 0 {
			c = counted
			runtime.UnlockOSThread()
		}
		runtime.Gosched()
	}
	if c == kept {
		runtime.UnlockOSThread()
	}
}

// A goroutine in a callback does not count as being in the call that called back: its own calls are not
// concurrent with it.
func away() { calls.inside.Add(-1) }
func back() { calls.inside.Add(1) }
