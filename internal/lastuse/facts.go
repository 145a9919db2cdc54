package lastuse

import (
	"bytes"
	"encoding/gob"
	"go/types"
	"slices"
	"strings"
)

// Facts maps the full names of functions, such as "(*example.com/m/model.Net).Forward", to their facts.
type Facts map[string]*Func

// Func is the facts of a function. The receiver counts as the first parameter; a variadic parameter stands for
// all its arguments.
type Func struct {
	Retains []bool // by parameter
	Results []Result

	// resultsOfArg: the results are those of the function that is the last argument (tensor.Tidy), or with calledWith the
	// first one, which is called with the others (autograd.Checkpoint).
	resultsOfArg, calledWith bool
}

// Result describes the origin of the handles in a result. The zero Result has only new handles, or none.
type Result struct {
	From  []int // parameters whose handles may be in the result
	Other bool  // it may contain other handles
	Old   bool  // it has no new handles
}

func (f *Func) retains(i int) bool {
	if len(f.Retains) == 0 {
		return false
	}
	return f.Retains[min(i, len(f.Retains)-1)]
}

func (f *Func) result(i int) Result {
	if i < len(f.Results) {
		return f.Results[i]
	}
	return Result{Other: true}
}

// borrows reports whether the method Forward with these facts keeps the contract of nn.Layer.
func (f *Func) borrows() bool {
	r := f.result(0)
	return !f.retains(1) && !r.Other && !slices.Contains(r.From, 0)
}

func (f *Func) equal(g *Func) bool {
	return g != nil && slices.Equal(f.Retains, g.Retains) && slices.EqualFunc(f.Results, g.Results, func(a, b Result) bool {
		return a.Other == b.Other && a.Old == b.Old && slices.Equal(a.From, b.From)
	})
}

// Encode returns the facts as bytes. Equal facts have equal bytes.
func (f Facts) Encode() ([]byte, error) {
	type entry struct {
		Name string
		Func Func
	}
	list := make([]entry, 0, len(f))
	for name, fn := range f {
		list = append(list, entry{name, *fn})
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.Name, b.Name) })
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(list)
	return b.Bytes(), err
}

// Decode adds encoded facts to f.
func (f Facts) Decode(data []byte) error {
	var list []struct {
		Name string
		Func Func
	}
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&list); err != nil {
		return err
	}
	for _, e := range list {
		f[e.Name] = &e.Func
	}
	return nil
}

// of returns the facts of a function or method, or nil if there are none.
func (f Facts) of(fn *types.Func) *Func {
	fn = fn.Origin()
	if fact, ok := library(fn); ok {
		return fact
	}
	return f[fn.FullName()]
}
