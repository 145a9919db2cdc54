package nn

import (
	"sync/atomic"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
	"github.com/linstock-ml/linstock/tensor"
)

// Each test runs functions beside another that takes the same lock, so that the race detector reports a missing lock.

func TestLocksOfHooks(t *testing.T) {
	leak.Check(t)
	h := &Hooked{Layer: &Identity{}}
	touch := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		before, after := h.before, h.after
		h.before, h.after = before, after
	}
	hook := func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, nil }
	remove, err := h.RegisterForwardPreHook(hook)
	if err != nil {
		t.Fatal(err)
	}
	x := tensor.Ones([]int{1})
	defer x.Release()
	for _, f := range []func(){
		func() { h.Forward(x) },
		func() { _, _ = h.RegisterForwardPreHook(hook) },
		remove,
	} {
		unordered.Go(f, touch)
	}
	var b backwardHooks
	unordered.Go(func() { b.swap(nil) }, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		e := b.entered
		b.entered = e
	})
}

// A module's mode may be set while another goroutine copies it.
func TestCopiesOfModes(t *testing.T) {
	leak.Check(t)
	type counter struct {
		Mode
		n     [2]atomic.Int64
		value atomic.Value
		at    atomic.Pointer[int]
	}
	p := WeightNorm(NewLinear(2, 2), "weight")
	defer Release(p)
	m := &struct {
		Drop    *Dropout
		Counter counter
		P       *Parametrized
	}{NewDropout(0.5), counter{}, p}
	m.Counter.n[1].Store(7)
	m.Counter.at.Store(new(3))
	x := tensor.Ones([]int{1, 2})
	defer x.Release()
	drop := &Parametrized{Layer: m.Drop}
	for _, f := range []func(){
		func() { Release(Clone(m)) },
		func() { drop.Forward(x).Release() },
	} {
		unordered.Go(f, func() { Eval(m) })
	}
	c := Clone(m)
	defer Release(c)
	if c.Drop.Training() || c.Counter.Training() || c.Counter.n[1].Load() != 7 || c.Counter.value.Load() != nil || *c.Counter.at.Load() != 3 {
		t.Errorf("the copy is %+v", c)
	}
}

func TestLocksOfLazyLayers(t *testing.T) {
	leak.Check(t)
	l := NewLazyLinear(2)
	defer func() { Release(l.Module) }()
	touch := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		m := l.Module
		l.Module = m
	}
	for _, f := range []func(){
		func() { _ = l.Err() },
		func() { _, _ = l.become(3) },
		func() { l.Forward(nil) },
	} {
		unordered.Go(f, touch)
	}
}

func TestLocksOfParametrizations(t *testing.T) {
	leak.Check(t)
	l := &ParametrizationList{}
	p := &Parametrized{Lists: []*ParametrizationList{l}}
	touch := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		caching, cached := l.caching, l.cached
		l.caching, l.cached = caching, cached
	}
	unordered.Go(func() { _ = Cached(p, func() error { return nil }) }, touch)
	// Within Cached, a value is computed once.
	begun := make(chan struct{})
	end := make(chan struct{})
	done := make(chan struct{})
	go func() {
		_ = Cached(p, func() error { close(begun); <-end; return nil })
		close(done)
	}()
	<-begun
	unordered.Go(func() { l.value() }, touch)
	close(end)
	<-done
}
