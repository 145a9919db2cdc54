package vram

import (
	"sync/atomic"
	"time"
)

// keepalive keeps two runtime timers pending, so that the runtime's monitor (sysmon) does not sleep while a thread waits for
// memory in C. To stop the world, Go 1.26 looks at the threads that are in C once. A thread that is just entering C is left
// to the monitor, which may sleep until the next timer, or for a minute. If that thread waits for memory, the collection
// that would free some waits for the thread. A timer that is due keeps the monitor awake. There are two timers because a
// timer whose function runs is not due (docs/decisions/0006).
type keepalive struct {
	first, second *time.Timer
	short         atomic.Bool
}

func newKeepalive() *keepalive {
	k := new(keepalive)
	k.first, k.second = time.AfterFunc(time.Hour, k.reset), time.AfterFunc(time.Hour, k.reset)
	k.reset()
	return k
}

func (k *keepalive) reset() {
	first, second := 2*time.Second, 3*time.Second
	if k.short.Load() {
		first, second = 10*time.Millisecond, 100*time.Millisecond
	}
	k.first.Reset(first)
	k.second.Reset(second)
}

// setShort sets whether the periods are short, as they are while anything waits for memory.
func (k *keepalive) setShort(on bool) {
	if k.short.Load() != on && k.short.Swap(on) != on && on {
		k.reset()
	}
}

// timers is the pacer's keepalive; nil before the pacer runs.
var timers atomic.Pointer[keepalive]
