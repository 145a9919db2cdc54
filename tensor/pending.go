package tensor

import (
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// pendingQueue holds tensors outside scopes that were found unreachable on a goroutine where they must not be freed:
// that of the runtime's cleanups, which must not block. It is a lock-free stack; adding to it neither allocates nor
// waits. The next operator or the pacer drains it.
type pendingQueue struct {
	top atomic.Pointer[unscopedRef]
}

var pending pendingQueue

func (q *pendingQueue) add(u *unscopedRef) {
	for !q.put(u, q.top.Load()) {
	}
}

// put pushes u if the top of the stack is still top.
func (q *pendingQueue) put(u, top *unscopedRef) bool {
	u.next = top
	return q.top.CompareAndSwap(top, u)
}

func (q *pendingQueue) waiting() bool { return q.top.Load() != nil }

// settle drains the queue unless this thread is capturing a CUDA graph, because a free could be recorded in the graph
// or end the capture.
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
	reclaim.Drain = drain
}

// Flush frees the tensors outside scopes that the garbage collector has found unreachable, and those whose release is
// pending. Operators do this themselves; a program that stops computing may call it. [vram.Flush] calls it too.
func Flush() {
	if cshim.Load() != nil {
		return
	}
	drain()
	drops.call()
}

// drain is Flush without code of the program.
func drain() {
	registry.find()
	pending.drain()
	reapOrphans()
	takeDropped()
}
