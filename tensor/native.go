package tensor

import (
	"runtime"
	"sync/atomic"
)

// native is an object of the shim that belongs to no scope: Release frees it when the calls that use it have returned, or
// else the Go collector after the last use. Any goroutine may use it.
type native[H any] struct {
	h        H
	free     func(H)
	released atomic.Bool
	uses     atomic.Int64 // the calls that use it, and one until Release; 0: it is freed
	cleanup  runtime.Cleanup
}

// own takes over the object h, which free frees.
func (n *native[H]) own(h H, free func(H)) {
	n.h, n.free = h, free
	n.uses.Store(1)
	n.cleanup = runtime.AddCleanup(n, free, h)
}

// acquire keeps the object until drop. It reports whether it could: not if the object is released.
func (n *native[H]) acquire() bool {
	for uses := n.uses.Load(); uses > 0 && !n.released.Load(); uses = n.uses.Load() {
		if n.uses.CompareAndSwap(uses, uses+1) {
			return true
		}
	}
	return false
}

func (n *native[H]) drop() {
	if n.uses.Add(-1) == 0 {
		n.cleanup.Stop()
		n.free(n.h)
		runtime.KeepAlive(n)
	}
}

// release frees the object when the calls that use it have returned. A second release does nothing.
func (n *native[H]) release() {
	if !n.released.Swap(true) {
		n.drop()
	}
}
