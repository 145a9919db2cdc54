package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"

	"github.com/linstock-ml/linstock/tensor"
)

// A pair is a use of a tensor by one goroutine and its release by another, unordered. Goroutines work in groups of
// eight. One makes a row of tensors; then all start at once: the first releases the tensors one by one, or all by
// closing their scope, and the others iterate over the same row and use each. A tensor that seven goroutines use while
// one releases it counts as seven pairs. The uses before and after the release are counted: neither may be rarer than
// 5 %.
//
// Of 32 uses 12 read metadata, 8 make a view, 6 add, 4 make an alias, and 2 read the value. Each result must be correct
// or ErrReleased. Tensors computed from another one must stay usable after that one is released.
const (
	groupSize = 8
	rowLength = 128
	rowRounds = 24
)

func pairs(r *round) error {
	groups := max(1, r.goroutines/groupSize)
	var results, released atomic.Int64
	errs := make(chan error, groups*groupSize)
	all := make(chan struct{})
	for g := range groups {
		group := newGroup()
		for i := range groupSize {
			go func() {
				<-all
				errs <- group.member(i, r.rand(g*groupSize+i), &results, &released)
			}()
		}
	}
	close(all)
	var err error
	for range groups * groupSize {
		err = errors.Join(err, <-errs)
	}
	r.notes["results"] += results.Load()
	r.notes["released"] += released.Load()
	r.work.Add(results.Load() + released.Load())
	return err
}

// group is eight goroutines with their row of tensors.
type group struct {
	row   [rowLength]*tensor.Tensor
	begin [groupSize]chan struct{}
	ended chan struct{}
}

func newGroup() *group {
	g := &group{ended: make(chan struct{}, groupSize)}
	for i := range g.begin {
		g.begin[i] = make(chan struct{}, 1)
	}
	return g
}

const value = 3

func (g *group) member(i int, rng *rand.Rand, results, released *atomic.Int64) error {
	if i == 0 {
		return g.lead(rng)
	}
	var got, gone int64
	defer func() { results.Add(got); released.Add(gone) }()
	var first error
	for range rowRounds {
		<-g.begin[i]
		// The scope frees what this makes; the collector would have too much to do.
		err := tensor.WithScope(func() error {
			for k := range g.row {
				switch err := use(g.row[k], rng.IntN(32)); {
				case err == nil:
					got++
				case errors.Is(err, tensor.ErrReleased):
					gone++
				default:
					return err
				}
			}
			return nil
		})
		if first == nil {
			first = unless(err, tensor.ErrReleased)
		}
		g.ended <- struct{}{}
	}
	return first
}

// lead makes the rows and releases them.
func (g *group) lead(rng *rand.Rand) (first error) {
	for n := range rowRounds {
		scope, err := tensor.NewScope()
		if err != nil {
			return err
		}
		one := tensor.Full([]int{1}, float64(value))
		for k := range g.row {
			x := one.Alias()
			if k%8 == 0 {
				x = one.Clone()
			}
			g.row[k] = x //linstockvet:ignore scopeescape the test uses it after its scope
		}
		if n%2 == 0 {
			one.Release()
		}
		for i := 1; i < groupSize; i++ {
			g.begin[i] <- struct{}{}
		}
		// Let the other goroutines start at different times before the release.
		for range rng.IntN(4) {
			runtime.Gosched()
		}
		if n%2 == 0 {
			for _, x := range g.row {
				// As slow as theirs, so that all progress together. Only this goroutine releases x.
				if err := use(x, rng.IntN(32)); first == nil {
					first = err
				}
				x.Release()
			}
		}
		err = scope.Close()
		for range groupSize - 1 {
			<-g.ended
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// use uses x in one of 32 ways. The error is ErrReleased if x was released.
func use(x *tensor.Tensor, how int) error {
	right := func(y *tensor.Tensor, want float64) error {
		v, err := tensor.Item[float64](y)
		if err == nil && v != want {
			err = fmt.Errorf("the value is %v, want %v", v, want)
		}
		return err
	}
	switch {
	case how < 12:
		switch n := x.Numel(); n { // 0 if it was released
		case 1:
			return nil
		case 0:
			return tensor.ErrReleased
		default:
			return fmt.Errorf("a tensor of one element has %d", n)
		}
	case how < 20:
		return x.View(1, 1).Err()
	case how < 26:
		y := x.Add(x)
		if how != 20 {
			return y.Err()
		}
		return lasts(y, func() error { return right(y, 2*value) })
	case how < 30:
		y := x.Alias()
		if how != 26 {
			return y.Err()
		}
		return lasts(y, func() error { return right(y, value) })
	}
	return right(x, value)
}

// lasts returns the error of y, which was computed from a tensor that another goroutine may release. Without one y must
// be readable after that release, too: ErrReleased from read becomes an error of another kind.
func lasts(y *tensor.Tensor, read func() error) error {
	if err := y.Err(); err != nil {
		return err
	}
	err := read()
	if errors.Is(err, tensor.ErrReleased) {
		err = fmt.Errorf("a tensor was released with the one that it was computed from: %v", err)
	}
	return err
}
