package vram

import (
	"sync/atomic"
	"time"
)

// A beat has a timer of Go's due soon, always. Where the world is to stop, Go 1.26 looks once at the threads that are in C;
// one that is just about to enter is left to the runtime's monitor, and that sleeps until the next timer, for a minute
// where there is none. If it enters C to wait for memory, nobody frees any before it gives up: the collection cannot
// begin before it comes back. A timer that has come due and not been served keeps the monitor awake. Two, since one that
// is being served is not due (docs/decisions/0006).
type beat struct {
	first, second atomic.Pointer[time.Timer]
	quick         atomic.Bool
}

func newBeat() *beat {
	b := new(beat)
	b.first.Store(time.AfterFunc(time.Hour, b.again))
	b.second.Store(time.AfterFunc(time.Hour, b.again))
	b.again()
	return b
}

func (b *beat) again() {
	first, second := 2*time.Second, 3*time.Second
	if b.quick.Load() {
		first, second = 10*time.Millisecond, 100*time.Millisecond
	}
	b.first.Load().Reset(first)
	b.second.Load().Reset(second)
}

// hurry says whether somebody waits for memory, or has of late.
func (b *beat) hurry(yes bool) {
	if b.quick.Load() != yes && b.quick.Swap(yes) != yes && yes {
		b.again()
	}
}

// pulse is the pacer's; nil before that runs.
var pulse atomic.Pointer[beat]
