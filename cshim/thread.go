package cshim

import (
	"runtime"
	"sync/atomic"
)

// An operator that uses several threads runs them in libgomp's pool, and each OS thread that calls one gets a pool of its
// own. With more threads in pools than there are processors libgomp no longer spins between operators, it sleeps: from
// then on a loop of operators of half a millisecond takes an eighth longer, until the process ends. So a goroutine that
// computes alone keeps its OS thread through a call, even where the Go scheduler has nothing to run it on when the call
// returns, and where it yields. Where others compute too, to be handed over costs more than that, and nobody keeps theirs. See
// docs/decisions/0008-threads.md.
var calls struct {
	_        [64]byte
	parallel atomic.Bool  // an operator may use several threads
	inside   atomic.Int32 // goroutines in a call
	crowded  atomic.Int32 // calls to come that keep no thread, since several goroutines were in one at once
	_        [64]byte
}

// crowdedFor is how many calls keep no thread after two goroutines were in one at once.
const crowdedFor = 1024

// call is what leave needs of enter.
type call uint8

const (
	uncounted call = iota
	counted
	kept
)

// enter stands before a call that may compute.
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

// leave stands behind it; word is the scope word that came with the result, or 0.
func (c call) leave(word uint64) {
	if c != uncounted || word&ScopeLong != 0 {
		c.end(word&ScopeLong != 0)
	}
}

// leaveLong is leave for what computes long and gives no scope.
func (c call) leaveLong() { c.leave(scopeFlags()) }

// end also ends the goroutine's turn where that has been long. It does so while the thread is still kept: Go would take
// the turn from it a moment later, and hand the goroutine to another thread.
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

// A callback is away from the call that it comes from until it is back: what it calls itself is not beside that.
func away() { calls.inside.Add(-1) }
func back() { calls.inside.Add(1) }
