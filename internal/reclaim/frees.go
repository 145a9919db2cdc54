package reclaim

import (
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// freeing counts the goroutines that take tensors off a list to free them. If the runtime suspends one in between, its tensors
// are on no list and not yet freed. A sweep that may lead to an out-of-memory error waits for them.
var freeing struct {
	phase atomic.Uint32
	under [2]atomic.Int64 // running frees by phase; AwaitFrees changes the phase and waits for those of the phase before
}

// FreesBegin is called before tensors are taken off a list, and FreesEnd, with its result, after they have been freed.
func FreesBegin() uint32 {
	for {
		phase := freeing.phase.Load()
		freeing.under[phase].Add(1)
		if freeing.phase.Load() == phase {
			return phase
		}
		freeing.under[phase].Add(-1)
	}
}

// FreesEnd must be called after the frees, with the result of FreesBegin.
func FreesEnd(phase uint32) { freeing.under[phase].Add(-1) }

// AwaitFrees waits until all frees that are running have ended, for limit at most, and reports whether they have. Only the
// goroutine that sweeps may call it.
func AwaitFrees(limit time.Duration) bool {
	until := time.Now().Add(limit)
	before := freeing.phase.Load()
	if !awaitFrees(1-before, until) { // those that an earlier call has not waited for long enough
		return false
	}
	freeing.phase.Store(1 - before)
	return awaitFrees(before, until)
}

func awaitFrees(phase uint32, until time.Time) bool {
	for freeing.under[phase].Load() != 0 {
		if time.Now().After(until) {
			return false
		}
		cshim.Nap(50 * time.Microsecond)
	}
	return true
}
