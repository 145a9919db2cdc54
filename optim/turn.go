package optim

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// turn is a lock for work that calls functions of the user, which may find that their own goroutine holds it.
type turn struct {
	mu     sync.Mutex
	holder atomic.Uint64 // its goroutine's number
}

// take waits for the lock. It returns false if the goroutine holds it already, and then give must not be called.
func (t *turn) take() bool {
	me := goroutine()
	if t.holder.Load() == me {
		return false
	}
	t.mu.Lock()
	t.holder.Store(me)
	return true
}

func (t *turn) give() {
	t.holder.Store(0)
	t.mu.Unlock()
}

// goroutine returns the number of the calling goroutine, larger than 0.
func goroutine() uint64 {
	var buf [40]byte // "goroutine 18 [running]: …"
	fields := strings.Fields(string(buf[:runtime.Stack(buf[:], false)]))
	n, _ := strconv.ParseUint(fields[1], 10, 64)
	return n
}
