package tensor

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
)

// unscopedRef is what frees a tensor outside every scope. It must not reference the Tensor.
//
// Such a tensor is found through a weak pointer, as a scope's entries are. A cleanup of its own would not do: the runtime
// has one goroutine per four processors for all cleanups, and one of the program's may block it.
type unscopedRef struct {
	h    atomic.Uintptr // 0: somebody has taken it
	life weak.Pointer[anchor]
	next *unscopedRef // in the queue of pending frees
	slot int32        // in its shard's list, under the shard's lock; -1: not there
}

// anchor is referenced by one Tensor alone, and is unreachable once the tensor is. A weak pointer to the Tensor itself
// would become nil already when a finalizer that the program has set on it is queued, which may still use the tensor.
type anchor struct {
	*unscopedRef
	// To make a weak pointer the runtime looks through those of the objects beside it: with larger ones there are fewer.
	_ [56]byte
}

// attach has t freed once it is unreachable.
func (t *Tensor) attach() {
	if t.anchor.Load() != nil {
		return
	}
	u := &unscopedRef{slot: -1}
	u.h.Store(uintptr(t.h))
	a := &anchor{unscopedRef: u}
	u.life = weak.Make(a)
	if t.anchor.CompareAndSwap(nil, a) {
		registry.add(u)
	}
}

// take returns the handle to the one caller that has to free it, 0 to others.
func (u *unscopedRef) take() cshim.Handle { return cshim.Handle(u.h.Swap(0)) }

// registry lists the tensors outside scopes.
var registry unscopedList

type unscopedList struct {
	shards [16]shard
	armed  atomic.Bool // a collection will call collected

	mu    sync.Mutex // held while the list is looked through
	cycle uint64     // collections that had ended when it was last looked through
}

type shard struct {
	mu   sync.Mutex
	list []*unscopedRef
	_    [32]byte // a cache line of its own
}

func (r *unscopedList) shard(u *unscopedRef) *shard {
	return &r.shards[uintptr(unsafe.Pointer(u))/unsafe.Sizeof(*u)%uintptr(len(r.shards))]
}

func (r *unscopedList) add(u *unscopedRef) {
	s := r.shard(u)
	s.mu.Lock()
	u.slot = int32(len(s.list))
	s.list = append(s.list, u)
	s.mu.Unlock()
	if !r.armed.Load() {
		r.arm()
	}
}

func (r *unscopedList) remove(u *unscopedRef) {
	s := r.shard(u)
	s.mu.Lock()
	if u.slot >= 0 {
		s.removeAt(int(u.slot))
	}
	s.mu.Unlock()
}

// removeAt moves the last entry to place i; s.mu is held.
func (s *shard) removeAt(i int) {
	last := len(s.list) - 1
	s.list[i].slot = -1
	if i != last {
		s.list[i] = s.list[last]
		s.list[i].slot = int32(i)
	}
	s.list[last] = nil
	s.list = s.list[:last]
}

// find moves what collections have found unreachable since the last call to the queue of pending frees. It returns once
// that is done, also where another goroutine was at it.
func (r *unscopedList) find() {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := [1]metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(ended[:])
	// A look keeps what it finds reachable for a collection that is under way: one look for each that has ended.
	if ended[0].Value.Uint64() == r.cycle {
		return
	}
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		for at := len(s.list) - 1; at >= 0; at-- {
			if u := s.list[at]; u.life.Value() == nil {
				s.removeAt(at)
				pending.add(u)
			}
		}
		if n := len(s.list); cap(s.list) > 1024 && n < cap(s.list)/4 {
			s.list = append(make([]*unscopedRef, 0, 2*n), s.list...)
		}
		s.mu.Unlock()
	}
	r.cycle = ended[0].Value.Uint64()
}

// empty reports whether no tensor is outside scopes.
func (r *unscopedList) empty() bool {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		n := len(s.list)
		s.mu.Unlock()
		if n != 0 {
			return false
		}
	}
	return true
}

// arm has the next collection call collected: an object that nothing references has a cleanup. Sweeps, Flush and the
// pacer do not depend on it: it only lets the next operator free what other collections find.
func (r *unscopedList) arm() {
	if r.armed.CompareAndSwap(false, true) {
		runtime.AddCleanup(new(sentinel), (*unscopedList).collected, r)
	}
}

type sentinel struct {
	_ *sentinel
	_ [7]uint64 // so that the runtime frees it alone
}

// collected runs on a goroutine of the runtime's.
func (r *unscopedList) collected() {
	r.armed.Store(false)
	if r.find(); !r.empty() {
		r.arm()
	}
}
