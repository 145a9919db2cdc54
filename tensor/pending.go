package tensor

import (
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/vram"
)

// pendingQueue holds what must not be freed where it was let go: cleanups run on the runtime's goroutine, which no
// free may hold up. It is a stack without locks, of boxes that exist anyhow: adding allocates nothing and never waits.
// The next operator drains it, or the pacer.
type pendingQueue struct {
	top atomic.Pointer[netBox]
}

var pending pendingQueue

func (q *pendingQueue) add(b *netBox) {
	for !q.put(b, q.top.Load()) {
	}
}

// put lays b on what was on top, if that still is.
func (q *pendingQueue) put(b, top *netBox) bool {
	b.next = top
	return q.top.CompareAndSwap(top, b)
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
	defer vram.FreesEnd(vram.FreesBegin())
	b := q.top.Swap(nil)
	var batch [64]cshim.Handle
	n := 0
	for ; b != nil; b = b.next {
		// Whoever swaps the handle out frees it.
		if h := b.h.Swap(0); h != 0 {
			batch[n] = cshim.Handle(h)
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
	vram.Register(vram.Reclaimer{Name: "waiting frees", Rank: vram.RankQueue, Reclaim: func(int64) { Flush() }})
}

// Flush frees what the garbage collector has found unreachable and what waits to be freed. Operators do it by
// themselves; a program that stops computing may call it. [vram.Flush] does it for all who have such a queue.
func Flush() {
	if cshim.Load() != nil {
		return
	}
	pending.drain()
	reapOrphans()
	forgetDropped()
}
