package tensor

import (
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// pendingQueue holds tensors outside scopes that were found unreachable where they must not be freed: on the goroutine
// of the runtime's cleanups, which no free may hold up. It is a stack without locks; to add allocates nothing and never
// waits. The next operator drains it, or the pacer.
type pendingQueue struct {
	top atomic.Pointer[unscopedRef]
}

var pending pendingQueue

func (q *pendingQueue) add(u *unscopedRef) {
	for !q.put(u, q.top.Load()) {
	}
}

// put lays u on what was on top, if that still is.
func (q *pendingQueue) put(u, top *unscopedRef) bool {
	u.next = top
	return q.top.CompareAndSwap(top, u)
}

func (q *pendingQueue) waiting() bool { return q.top.Load() != nil }

// settle drains what waits, but not while this thread captures a CUDA graph: what a free calls there could end up in the
// graph, or end the capture.
func (q *pendingQueue) settle() {
	if !cshim.Capturing() {
		q.drain()
	}
}

func (q *pendingQueue) drain() {
	defer reclaim.FreesEnd(reclaim.FreesBegin())
	u := q.top.Swap(nil)
	var batch [64]cshim.Handle
	n := 0
	for ; u != nil; u = u.next {
		if h := u.take(); h != 0 {
			batch[n] = h
			if n++; n == len(batch) {
				cshim.TensorsFree(batch[:n])
				n = 0
			}
		}
	}
	if n != 0 {
		cshim.TensorsFree(batch[:n])
	}
}

func init() {
	reclaim.Drain = Flush
}

// Flush frees what the garbage collector has found unreachable and what waits to be freed. Operators do it by
// themselves; a program that stops computing may call it. [vram.Flush] does it for all who have such a queue.
func Flush() {
	if cshim.Load() != nil {
		return
	}
	registry.find()
	pending.drain()
	reapOrphans()
	forgetDropped()
}
