package tensor

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// unscopedRef frees a tensor outside every scope. It must not reference the Tensor.
//
// Such a tensor is detected through a weak pointer, like the entries of a scope. A cleanup for each tensor would not
// do: the runtime runs all cleanups on one goroutine per four processors, and a cleanup of the program may block it.
type unscopedRef struct {
	h    atomic.Uintptr // 0 once it has been taken
	life weak.Pointer[anchor]
	next *unscopedRef // next in the queue of pending frees
	slot int32        // index in the shard's list, guarded by the shard's lock; -1 if absent
}

// anchor is referenced only by its Tensor, and becomes unreachable with it. A weak pointer to the Tensor itself would
// become nil as soon as a finalizer that the program set on the Tensor is queued, although the finalizer may still use
// the tensor.
type anchor struct {
	*unscopedRef
	held map[*any]struct{} // values of hold, guarded by holding
	// Making a weak pointer, the runtime searches those of the objects in the same span. Larger objects mean fewer of
	// them.
	_ [48]byte
}

var holding sync.Mutex

// hold makes v reachable for as long as t is, or until drop is called. v may refer to t: both are Go objects.
func hold(t *Tensor, v any) (drop func()) {
	if !t.pin() { // released: a new anchor would free its handle again
		return func() {}
	}
	defer t.unpin()
	t.attach()
	if s := t.inScope(); s != nil {
		s.attached(t)
	}
	a, key := t.anchor.Load(), &v
	holding.Lock()
	defer holding.Unlock()
	if a.held == nil {
		a.held = map[*any]struct{}{}
	}
	a.held[key] = struct{}{}
	return func() {
		holding.Lock()
		defer holding.Unlock()
		delete(a.held, key)
	}
}

// attach makes t be freed once it is unreachable.
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

// take returns the handle to the one caller that must free it, and 0 to others.
func (u *unscopedRef) take() cshim.Handle { return cshim.Handle(u.h.Swap(0)) }

// registry lists the tensors outside scopes.
var registry unscopedList

type unscopedList struct {
	shards [16]shard
	armed  atomic.Bool // the next collection calls collected

	mu    sync.Mutex // held while the list is searched
	cycle uint64     // number of collections that had ended at the last search
}

type shard struct {
	mu   sync.Mutex
	list []*unscopedRef
	_    [32]byte // pads the shard to its own cache line
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

// removeAt moves the last entry to index i. s.mu must be held.
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

// find moves tensors that collections have found unreachable since the last call to the queue of pending frees. If
// another goroutine is doing so, it waits for it. While a sweep's collection marks it does nothing: another collection has
// just ended, and find would keep tensors alive through this one.
func (r *unscopedList) find() {
	if !marking.TryRLock() {
		return
	}
	defer marking.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := [1]metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(ended[:])
	// Reading a weak pointer keeps its object alive during a collection. Search only once for each collection that has
	// ended.
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

// arm makes the next collection call collected, through a cleanup of an unreachable object. Sweeps, Flush and the pacer
// do not depend on it: it only lets the next operator free what other collections find.
func (r *unscopedList) arm() {
	if r.armed.CompareAndSwap(false, true) {
		runtime.AddCleanup(new(sentinel), (*unscopedList).collected, r)
	}
}

type sentinel struct {
	_ *sentinel
	_ [7]uint64 // large enough to be allocated by itself, not with other tiny objects
}

// collected runs on a cleanup goroutine of the runtime.
func (r *unscopedList) collected() {
	reclaim.Sentinels.Add(1)
	r.armed.Store(false)
	if r.find(); !r.empty() {
		r.arm()
	}
}
