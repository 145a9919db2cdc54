package tensor

import (
	"sync"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// An open scope holds its tensors by strong references, which cost nothing, until a sweep. A sweep replaces the
// entries by weak pointers, runs the collector once, frees the tensors that have become unreachable and makes
// the other entries strong again. Meanwhile the scope remains usable: new tensors are added after the weak
// entries, and Release and Close find entries of either kind. A tensor that an operator uses on another
// goroutine is reachable from that goroutine. A graph has its own references to what it holds, so it loses
// nothing when a handle is freed.

// weakEntry is an entry of a scope during a sweep.
type weakEntry struct {
	t    weak.Pointer[Tensor]
	h    cshim.Handle
	un   *unscopedRef // where the tensor was outside scopes before
	gone bool         // set if released or moved meanwhile
}

// handle is the handle to free once the tensor is unreachable.
func (e *weakEntry) handle() cshim.Handle {
	if e.un != nil {
		return e.un.take()
	}
	return e.h
}

// sweeping holds the scopes between prepare and collect. Only the current sweep, of which there is one at a
// time, accesses it.
var sweeping []*Scope

func init() {
	reclaim.Weaken, reclaim.Collect, reclaim.Scoped = weaken, collect, scopedCount
}

// marking is locked while a sweep's collection marks, from weaken to collect. Reading a weak pointer during that time, or
// holding a tensor for a moment, keeps an unreachable tensor alive. Code that reads the tensors of scopes and lists
// therefore locks marking for reading: reports wait for it, find and add only try.
var marking sync.RWMutex

func weaken() {
	marking.Lock()
	scopes.each(func(s *Scope) {
		if s.weaken() {
			sweeping = append(sweeping, s)
		}
	})
}

// scopedCount also counts entries that were released during a sweep: policies call it often, so it does not walk
// through the entries.
func scopedCount() (n int64) {
	scopes.each(func(s *Scope) {
		s.mu.Lock()
		n += int64(len(s.entries) + len(s.weak))
		s.mu.Unlock()
	})
	return n
}

func collect() {
	marking.Unlock()
	for i, s := range sweeping {
		s.strengthen()
		sweeping[i] = nil
	}
	sweeping = sweeping[:0]
}

func (s *Scope) weaken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.weak != nil || len(s.entries) == 0 {
		return false
	}
	s.weak = make([]weakEntry, len(s.entries))
	for i, t := range s.entries {
		s.weak[i] = weakEntry{t: weak.Make(t), h: t.h}
		if a := t.anchor.Load(); a != nil {
			s.weak[i].un = a.unscopedRef
		}
	}
	clear(s.entries)
	s.entries = s.entries[:0]
	return true
}

// attached tells a sweep that t, an entry, has an anchor now: otherwise both the scope and the anchor would free it.
func (s *Scope) attached(t *Tensor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := int(t.slot); t.inScope() == s && at < len(s.weak) {
		s.weak[at].un = t.anchor.Load().unscopedRef
	}
}

func (s *Scope) strengthen() {
	s.mu.Lock()
	if s.weak == nil {
		s.mu.Unlock()
		return // the scope was closed meanwhile
	}
	var dead []cshim.Handle
	fresh := s.entries
	all := entriesPool.get()
	for i := range s.weak {
		e := &s.weak[i]
		if e.gone {
			continue
		}
		if t := e.t.Value(); t != nil {
			t.slot = int32(len(all))
			all = append(all, t)
		} else if h := e.handle(); h != 0 {
			dead = append(dead, h)
		}
	}
	for _, t := range fresh {
		t.slot = int32(len(all))
		all = append(all, t)
	}
	s.entries, s.weak = all, nil
	s.mu.Unlock()
	s.swept.Add(int64(len(dead)))
	entriesPool.put(fresh)
	// Freed in reverse order of creation, as when a scope closes.
	for i, j := 0, len(dead)-1; i < j; i, j = i+1, j-1 {
		dead[i], dead[j] = dead[j], dead[i]
	}
	cshim.TensorsFree(dead)
}

// drainWeak removes the remaining entries of a sweep while the scope closes; s.mu is held. It returns the live
// tensors and the handles of the others.
func (s *Scope) drainWeak() (live []*Tensor, dead []cshim.Handle) {
	for i := range s.weak {
		e := &s.weak[i]
		if e.gone {
			continue
		}
		if t := e.t.Value(); t != nil {
			live = append(live, t)
		} else if h := e.handle(); h != 0 {
			dead = append(dead, h)
		}
	}
	s.weak = nil
	return live, dead
}

func (s *Scope) hasClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// boundary is called before an operator once memory has grown.
func boundary() { reclaim.Boundary() }
