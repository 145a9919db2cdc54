package vram

import (
	"sync/atomic"
	"time"
)

// keepalive keeps two runtime timers pending, so that the runtime's monitor does not sleep while a thread waits in C. When
// the world is to stop, Go 1.26 looks once at the threads that are in C; one that is just entering is left to the monitor,
// which sleeps until the next timer, or for a minute. If that thread enters C to wait for memory, nothing is freed before
// it gives up, since the collection waits for it. A timer that is due and was not run keeps the monitor awake; there are
// two, since one that is running is not due (docs/decisions/0006).
type keepalive struct {
	first, second atomic.Pointer[time.Timer]
	short         atomic.Bool
}

func newKeepalive() *keepalive {
	k := new(keepalive)
	k.first.Store(time.AfterFunc(time.Hour, k.reset))
	k.second.Store(time.AfterFunc(time.Hour, k.reset))
	k.reset()
	return k
}

func (k *keepalive) reset() {
	first, second := 2*time.Second, 3*time.Second
	if k.short.Load() {
		first, second = 10*time.Millisecond, 100*time.Millisecond
	}
	k.first.Load().Reset(first)
	k.second.Load().Reset(second)
}

// setShort makes the periods short while anything waits for memory.
func (k *keepalive) setShort(on bool) {
	if k.short.Load() != on && k.short.Swap(on) != on && on {
		k.reset()
	}
}

// timers are the pacer's; nil before it runs.
var timers atomic.Pointer[keepalive]
