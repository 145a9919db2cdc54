// Package sharding records which parameters are one process's parts of larger ones, whose other parts other processes have.
// Package dist records them, so that what is computed from all gradients, such as their norm, is computed from all parts.
package sharding

import (
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/linstock-ml/linstock/tensor"
)

// A Group is the processes that have the parts of the same parameters. Groups are compared by ==.
type Group interface {
	// AllReduce sets t to the sum of the processes' tensors or to their maximum. All processes must call it.
	AllReduce(t *tensor.Tensor, maximum bool) error
}

var (
	mu     sync.RWMutex
	groups = map[weak.Pointer[tensor.Tensor]][]Group{}
	held   = map[weak.Pointer[tensor.Tensor]]struct{}{}
)

// Hold records that p is rows of a parameter that a dist.FSDPModule makes whole in p's module for each pass. It does so
// for neither a copy of p nor another tensor in its place.
func Hold(p *tensor.Tensor) {
	mu.Lock()
	defer mu.Unlock()
	at := weak.Make(p)
	if _, again := held[at]; again {
		return
	}
	held[at] = struct{}{}
	runtime.AddCleanup(p, func(at weak.Pointer[tensor.Tensor]) {
		mu.Lock()
		defer mu.Unlock()
		delete(held, at)
	}, at)
}

// Held reports whether Hold was called for p.
func Held(p *tensor.Tensor) bool {
	mu.RLock()
	defer mu.RUnlock()
	if len(held) == 0 {
		return false
	}
	_, ok := held[weak.Make(p)]
	return ok
}

// Mark records that p is a part of a parameter that g's processes have. A part may be divided again, by another group.
func Mark(p *tensor.Tensor, g Group) {
	mu.Lock()
	defer mu.Unlock()
	at := weak.Make(p)
	if groups[at] == nil {
		runtime.AddCleanup(p, func(at weak.Pointer[tensor.Tensor]) {
			mu.Lock()
			defer mu.Unlock()
			delete(groups, at)
		}, at)
	}
	groups[at] = append(slices.Clip(groups[at]), g)
}

// Groups returns the groups that divide p; none if p is whole.
func Groups(p *tensor.Tensor) []Group {
	mu.RLock()
	defer mu.RUnlock()
	if len(groups) == 0 {
		return nil
	}
	return groups[weak.Make(p)]
}

// GroupsOf returns the groups that divide any of params, each once.
func GroupsOf(params []*tensor.Tensor) (all []Group) {
	for _, p := range params {
		for _, g := range Groups(p) {
			if !slices.Contains(all, g) {
				all = append(all, g)
			}
		}
	}
	return all
}

// Part is parameters that the same groups divide.
type Part struct {
	Groups []Group
	Params []*tensor.Tensor
}

// Split divides params by their groups, in the order of the first parameter of each part.
func Split(params []*tensor.Tensor) (parts []Part) {
	for _, p := range params {
		by := Groups(p)
		i := slices.IndexFunc(parts, func(q Part) bool { return slices.Equal(q.Groups, by) })
		if i < 0 {
			i, parts = len(parts), append(parts, Part{Groups: by})
		}
		parts[i].Params = append(parts[i].Params, p)
	}
	return parts
}
