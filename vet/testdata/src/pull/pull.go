package pull

import (
	"iter"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/tensor"
)

func direct(l *data.Loader) {
	next, stop := iter.Pull2(l.Batches()) // want `Pull2 runs a scoped iterator on another goroutine`
	defer stop()
	next()
}

func resumed(l *data.Loader) {
	next, stop := iter.Pull2(l.Resume()) // want `Pull2 runs a scoped iterator on another goroutine`
	defer stop()
	next()
}

func variable(l *data.Loader, skip bool) {
	batches := l.Batches()
	if skip {
		batches = func(func(data.Batch, error) bool) {}
	}
	next, stop := iter.Pull2(batches) // want `Pull2 runs a scoped iterator`
	defer stop()
	next()
}

// inputs gives the batches' inputs, in the batches' scopes.
func inputs(l *data.Loader) iter.Seq[*tensor.Tensor] {
	return func(yield func(*tensor.Tensor) bool) {
		for b := range l.Batches() {
			if !yield(b.Inputs) {
				return
			}
		}
	}
}

func wrapped(l *data.Loader) {
	next, stop := iter.Pull(inputs(l)) // want `Pull runs a scoped iterator`
	defer stop()
	next()
}

// steps opens a scope itself, in a function that it calls.
func steps(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if !one(i, yield) {
				return
			}
		}
	}
}

func one(i int, yield func(int) bool) bool {
	s, err := tensor.NewScope()
	if err != nil {
		return false
	}
	defer s.Close()
	return yield(i)
}

func within(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		_ = tensor.WithScope(func() error {
			yield(n)
			return nil
		})
	}
}

func own() {
	next, stop := iter.Pull(steps(3)) // want `Pull runs a scoped iterator`
	defer stop()
	next()
	pairs(within(1)) // want `pairs runs a scoped iterator`
}

func pairs(seq iter.Seq[int]) {
	next, stop := iter.Pull(seq)
	defer stop()
	next()
}

// values computes each in a scope that is closed before it is given.
func values(n int) iter.Seq[float64] {
	return func(yield func(float64) bool) {
		for range n {
			var v float64
			err := tensor.WithScope(func() (err error) {
				v, err = tensor.Zeros(1).Item()
				return err
			})
			if err != nil || !yield(v) {
				return
			}
		}
	}
}

// closed opens a scope for each value and closes it before it yields.
func closed(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			s, err := tensor.NewScope()
			if err != nil {
				return
			}
			if s.Close() != nil || !yield(i) {
				return
			}
		}
	}
}

func literals(l *data.Loader) {
	go func(seq iter.Seq2[data.Batch, error]) { // want `this function runs a scoped iterator`
		next, stop := iter.Pull2(seq)
		defer stop()
		next()
	}(l.Batches())
	first := func(seq iter.Seq[*tensor.Tensor]) {
		next, stop := iter.Pull(seq)
		defer stop()
		next()
	}
	first(inputs(l)) // want `this function runs a scoped iterator`
}

func fine(l *data.Loader) {
	ones, last := iter.Pull(closed(3))
	defer last()
	ones()
	next, stop := iter.Pull(values(3))
	defer stop()
	next()
	more, end := iter.Pull(l.Sizes())
	defer end()
	more()
	pairs(l.Sizes())
}
