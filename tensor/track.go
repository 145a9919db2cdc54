package tensor

import (
	"sync"
	"weak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/vram"
)

// Track assigns tensors to a category of [vram.Explain], for example a cache, for as long as they live. A storage in
// several categories counts in one: weights take precedence over gradients, then optimizer state, loader, buffers and
// other names. Track does not keep the tensors alive.
func Track(category string, ts ...*Tensor) {
	tracker.mu.Lock()
	list := tracker.lists[category]
	if list == nil {
		list = &weakList{}
		tracker.lists[category] = list
		vram.RegisterCategory(vram.Category{Name: category, Rank: ranks[category], Each: func(yield func(vram.Storage)) {
			list.each(func(t *Tensor) { t.claim(yield) })
		}})
	}
	tracker.mu.Unlock()
	list.add(ts)
}

const (
	rankGradients   = -40
	rankActivations = 100
	rankTemporaries = 101
)

var ranks = map[string]int{vram.Weights: -50, vram.OptimizerState: -30, vram.Loader: -20, vram.Buffers: -10}

var tracker = struct {
	mu    sync.Mutex
	lists map[string]*weakList
}{lists: map[string]*weakList{}}

func init() {
	vram.RegisterCategory(vram.Category{Name: vram.Gradients, Rank: rankGradients, Each: gradients})
	vram.RegisterCategory(vram.Category{Name: vram.Activations, Rank: rankActivations, Each: func(yield func(vram.Storage)) {
		inScopes(true, yield)
	}})
	vram.RegisterCategory(vram.Category{Name: vram.Temporaries, Rank: rankTemporaries, Each: func(yield func(vram.Storage)) {
		inScopes(false, yield)
	}})
}

func init() { reclaim.Unscoped = unscoped }

// unscoped returns the number of handles that are in neither a scope nor a category.
func unscoped() int64 {
	s := ReadStatistics()
	n := s.TotalCount - s.LiveInScopes
	tracker.mu.Lock()
	defer tracker.mu.Unlock()
	seen := map[*Tensor]bool{}
	for _, list := range tracker.lists {
		list.each(func(t *Tensor) {
			if !seen[t] && t.inScope() == nil && t.state.Load()&released == 0 {
				seen[t] = true
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
	if len(l.list) <= max(l.room, 64) {
		return
	}
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

func (l *weakList) each(f func(*Tensor)) {
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
func (t *Tensor) claim(yield func(vram.Storage)) {
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

func yieldStorage(m *cshim.Meta, yield func(vram.Storage)) {
	if m.Data != 0 && m.Bytes != 0 {
		yield(vram.Storage{Device: vram.Name(deviceOf(m).String()), Address: m.Data, Bytes: int64(m.Bytes)})
	}
}

func gradients(yield func(vram.Storage)) {
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
		r := cshim.GradOf(t.h)
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
func inScopes(recorded bool, yield func(vram.Storage)) {
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
