package vram

import (
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// Whoever takes tensors off a list to free them may be held up in between, by a collection or where others want the
// processor, too: then nothing finds them, and they are not freed. A sweep on which an error may rest waits for those.
var freeing struct {
	phase atomic.Uint32
	under [2]atomic.Int64 // way in each phase; the sweep changes the phase, and waits for those of the one before
}

// FreesBegin is called by package tensor before it takes tensors off a list; FreesEnd, with what it returns, after they
// have been freed.
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

// FreesEnd ends what FreesBegin has begun.
func FreesEnd(phase uint32) { freeing.under[phase].Add(-1) }

// awaitFrees waits, for so long at most, for all that are under way; the caller holds the sweeper. It says whether they
// have ended.
func awaitFrees(patience time.Duration) bool {
	before := freeing.phase.Load()
	freeing.phase.Store(1 - before)
	for start := time.Now(); freeing.under[before].Load() != 0; cshim.Nap(50 * time.Microsecond) {
		if time.Since(start) > patience {
			return false
		}
	}
	return true
}
