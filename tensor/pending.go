package tensor

import (
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
)

// pendingQueue holds handles that must not be freed where they were let go: cleanups run on the runtime's
// goroutine, which no free may hold up. The next operator drains it.
type pendingQueue struct {
	waiting atomic.Int64
	mu      sync.Mutex
	handles []cshim.Handle
}

var pending pendingQueue

func (q *pendingQueue) add(h cshim.Handle) {
	q.mu.Lock()
	q.handles = append(q.handles, h)
	q.waiting.Store(int64(len(q.handles)))
	q.mu.Unlock()
}

func (q *pendingQueue) drain() {
	q.mu.Lock()
	all := q.handles
	q.handles = nil
	q.waiting.Store(0)
	q.mu.Unlock()
	cshim.TensorsFree(all)
}

// Flush frees what the garbage collector has found unreachable and what waits to be freed. Operators do it by
// themselves; a program that stops computing may call it.
func Flush() {
	if cshim.Load() != nil {
		return
	}
	pending.drain()
	reapOrphans()
	forgetDropped()
}
