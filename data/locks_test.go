package data

import (
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
	"github.com/linstock-ml/linstock/tensor"
)

// loader returns a loader of n samples.
func loader(t *testing.T, n int) *Loader {
	t.Helper()
	x := tensor.Zeros([]int{n, 1})
	t.Cleanup(x.Release)
	d, err := NewTensorDataset(x)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(d)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLocks tests that each method locks what it reads and writes, by running it beside another under the race
// detector.
func TestLocks(t *testing.T) {
	leak.Check(t)
	l := loader(t, 4)
	for _, f := range []func(){
		func() { l.State() },
		func() { _ = l.SetState(State{}) },
		func() { _ = l.begin("Batches", false) },
		l.end,
		func() { l.advance(false) },
	} {
		unordered.Go(f, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			state, running := l.state, l.running
			l.state, l.running = state, running
		})
	}
}

// TestEmptyRestLocks tests that a loop locks the position when DropLast omits all that is left of an epoch.
func TestEmptyRestLocks(t *testing.T) {
	leak.Check(t)
	x := tensor.Zeros([]int{8, 1})
	defer x.Release()
	d, err := NewTensorDataset(x)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewDistributedSampler(8, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(d, WithSampler(s), BatchSize(4), DropLast(true))
	if err != nil {
		t.Fatal(err)
	}
	unordered.Go(func() {
		if err := l.SetState(State{Seen: 6}); err != nil {
			t.Error(err)
		}
		if err := l.run(t.Context(), func(Batch, error) bool { return false }); err != nil {
			t.Error(err)
		}
	}, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		state := l.state
		l.state = state
	})
	if s := l.State(); s.Epoch != 1 || s.Seen != 0 {
		t.Errorf("after an epoch without batches: %+v", s)
	}
}

// TestSamplerLocks tests that a sampler locks the generator that loaders share.
func TestSamplerLocks(t *testing.T) {
	leak.Check(t)
	d := &drawn{n: 3, draw: func(g *generator) []int { return g.perm(3) }}
	unordered.Go(func() { _, _ = d.epoch(t.Context(), 0) }, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.g, d.next, d.before = newGenerator(1), 0, generator{}
	})
}

// TestSamplerDrawsNoEpochTwice tests that a sampler that is asked for an epoch again draws no earlier one again.
func TestSamplerDrawsNoEpochTwice(t *testing.T) {
	leak.Check(t)
	draws := 0
	d := &drawn{n: 5, draw: func(g *generator) []int { draws++; return g.perm(5) }}
	var all [][]int
	for epoch := range 8 {
		all = append(all, slices.Collect(d.Indices(epoch)))
	}
	draws = 0
	for _, c := range []struct{ epoch, draws int }{{7, 1}, {7, 1}, {8, 1}, {7, 8}, {7, 1}, {0, 1}, {0, 1}, {1, 1}} {
		before := draws
		got := slices.Collect(d.Indices(c.epoch))
		if n := draws - before; n != c.draws || c.epoch < len(all) && !slices.Equal(got, all[c.epoch]) {
			t.Errorf("epoch %d: %v after %d draws, want %d", c.epoch, got, n, c.draws)
		}
	}
}
