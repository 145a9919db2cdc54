package tensor

import (
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/vram"
)

// Track assigns tensors to a category of [vram.Explain], for example a cache, for as long as they live. A storage in
// several categories counts in one: weights take precedence over gradients, then optimizer state, loader, buffers and
// other names. Track does not keep the tensors alive, but every name: use a fixed set of names.
func Track(category string, ts ...*Tensor) {
	tracker.mu.Lock()
	list := tracker.lists[category]
	if list == nil {
		list = &weakList{}
		tracker.lists[category] = list
		tracker.names = append(tracker.names, category)
	}
	tracker.mu.Unlock()
	list.add(ts)
}

var tracker = struct {
	mu    sync.Mutex
	lists map[string]*weakList
	names []string // in the order of the first Track
}{lists: map[string]*weakList{}}

func init() { reclaim.Categories, reclaim.Unscoped = categories, unscoped }

// categories is reclaim.Categories: those of Track in the order of its precedence, then the tensors in open scopes.
func categories() []reclaim.Category {
	tracker.mu.Lock()
	defer tracker.mu.Unlock()
	first := []string{vram.Weights, vram.Gradients, vram.OptimizerState, vram.Loader, vram.Buffers}
	all := []reclaim.Category{}
	add := func(name string, each func(func(reclaim.Storage))) {
		all = append(all, reclaim.Category{Name: name, Each: each})
	}
	tracked := func(name string) {
		if list := tracker.lists[name]; list != nil {
			add(name, func(yield func(reclaim.Storage)) { list.each(func(t *Tensor) { t.claim(yield) }) })
		}
	}
	for _, name := range first {
		if tracked(name); name == vram.Gradients {
			add(name, gradients)
		}
	}
	for _, name := range tracker.names {
		if !slices.Contains(first, name) {
			tracked(name)
		}
	}
	add(vram.Activations, func(yield func(reclaim.Storage)) { inScopes(true, yield) })
	add(vram.Temporaries, func(yield func(reclaim.Storage)) { inScopes(false, yield) })
	return all
}

// unscoped returns the number of handles that are in neither a scope nor a category.
func unscoped() int64 {
	s := ReadStatistics()
	n := s.TotalCount - s.LiveInScopes
	tracker.mu.Lock()
	lists := slices.Collect(maps.Values(tracker.lists))
	tracker.mu.Unlock()
	seen := map[cshim.Handle]bool{}
	for _, list := range lists {
		list.each(func(t *Tensor) {
			if !seen[t.h] && t.inScope() == nil && t.state.Load()&released == 0 {
				seen[t.h] = true
				n--
			}
		})
	}
	return max(0, n)
}

// weakList is a list of weak pointers to tensors.
type weakList struct {
	mu   sync.Mutex
	list []weak.Pointer[Tensor]
	room int // length at which dead entries are removed next
}

func (l *weakList) add(ts []*Tensor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range ts {
		if t != nil && t.h != 0 {
			l.list = append(l.list, weak.Make(t))
		}
	}
	if len(l.list) <= max(l.room, 64) || !marking.TryRLock() {
		return
	}
	defer marking.RUnlock()
	seen := make(map[weak.Pointer[Tensor]]bool, len(l.list))
	kept := l.list[:0]
	for _, w := range l.list {
		if t := w.Value(); t != nil && t.state.Load()&released == 0 && !seen[w] {
			seen[w] = true
			kept = append(kept, w)
		}
	}
	clear(l.list[len(kept):])
	l.list, l.room = kept, 2*len(kept)
}

// each calls f with every tensor of the list. f must not keep it, and must not wait for memory or for a sweep.
func (l *weakList) each(f func(*Tensor)) {
	marking.RLock()
	defer marking.RUnlock()
	l.mu.Lock()
	list := append([]weak.Pointer[Tensor]{}, l.list...)
	l.mu.Unlock()
	for _, w := range list {
		if t := w.Value(); t != nil {
			f(t)
		}
	}
}

// claim yields the storage of t, unless t is released.
func (t *Tensor) claim(yield func(reclaim.Storage)) {
	t.look(func(m *cshim.Meta) { yieldStorage(m, yield) })
}

// look pins t and calls f with its metadata.
func (t *Tensor) look(f func(m *cshim.Meta)) {
	if !t.pin() {
		return
	}
	defer t.unpin()
	var m cshim.Meta
	if ref := cshim.TensorMeta(t.h, &m); ref != nil {
		cshim.Take(ref)
		return
	}
	f(&m)
}

// yieldStorage yields the storage of a tensor if the device's account has its bytes.
func yieldStorage(m *cshim.Meta, yield func(reclaim.Storage)) {
	if m.Counted && m.Data != 0 && m.Bytes != 0 {
		yield(reclaim.Storage{Device: deviceOf(m).word(), Address: m.Data, Bytes: int64(m.Bytes)})
	}
}

// gradients yields the gradients of the weights, except those that other threads read or write at this moment: it must
// not wait for a backward pass, whose allocation may be waiting for it.
func gradients(yield func(reclaim.Storage)) {
	tracker.mu.Lock()
	weights := tracker.lists[vram.Weights]
	tracker.mu.Unlock()
	if weights == nil {
		return
	}
	weights.each(func(t *Tensor) {
		if !t.pin() {
			return
		}
		defer t.unpin()
		r := cshim.TryGradOf(t.h)
		cshim.Take(r.Err)
		if r.Handle == 0 {
			return
		}
		var m cshim.Meta
		if ref := cshim.TensorMeta(r.Handle, &m); ref != nil {
			cshim.Take(ref)
		} else {
			yieldStorage(&m, yield)
		}
		cshim.TensorFree(r.Handle)
	})
}

// inScopes yields the storages of tensors in open scopes: if recorded, of those that have a grad_fn, and otherwise of
// the others.
func inScopes(recorded bool, yield func(reclaim.Storage)) {
	marking.RLock()
	defer marking.RUnlock()
	scopes.each(func(s *Scope) {
		s.mu.Lock()
		ts := append([]*Tensor{}, s.entries...)
		for i := range s.weak {
			if !s.weak[i].gone {
				ts = append(ts, s.weak[i].t.Value())
			}
		}
		s.mu.Unlock()
		for _, t := range ts {
			t.look(func(m *cshim.Meta) {
				if (m.RequiresGrad && !m.IsLeaf) == recorded {
					yieldStorage(m, yield)
				}
			})
		}
	})
}
