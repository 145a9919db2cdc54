package tensor

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/unordered"
)

// Each test runs a function beside another that takes the same lock, so that the race detector reports a missing lock.

func TestLocksOfAScope(t *testing.T) {
	begin(t)
	entered := func(s *Scope) *Tensor {
		x := &Tensor{}
		s.mu.Lock()
		defer s.mu.Unlock()
		x.setScope(s)
		s.enter(x)
		return x
	}
	for _, f := range []func(s *Scope, x *Tensor){
		func(s *Scope, x *Tensor) { _ = s.Close() },
		func(s *Scope, x *Tensor) { s.add(&Tensor{}) },
		func(s *Scope, x *Tensor) { s.addNew(&Tensor{}) },
		func(s *Scope, x *Tensor) { s.forget(x) },
		func(s *Scope, x *Tensor) { s.give(entered(s)) },
		func(s *Scope, x *Tensor) { s.remember(&failure{}) },
		func(s *Scope, x *Tensor) { s.Len() },
		func(s *Scope, x *Tensor) { s.Contains(x) },
		func(s *Scope, x *Tensor) { s.Statistics() },
		func(s *Scope, x *Tensor) { s.weaken() },
		func(s *Scope, x *Tensor) { s.strengthen() },
		func(s *Scope, x *Tensor) { s.hasClosed() },
		func(s *Scope, x *Tensor) { _ = s.releaseAll(false) },
		func(s *Scope, x *Tensor) { _ = s.ReleaseExcept(x) },
		func(s *Scope, x *Tensor) { _ = s.Join(func() error { return nil }) },
		func(s *Scope, x *Tensor) { new(scopeTally).closed(s) },
	} {
		s := &Scope{closed: true}
		x := &Tensor{slot: 7} // an index that the scope does not have
		x.setScope(s)
		unordered.Go(func() { f(s, x) }, s.touch)
	}
	s := open(t)
	defer s.Close()
	unordered.Go(func() { ReadStatistics() }, s.touch)
	unordered.Go(func() { inScopes(false, func(reclaim.Storage) {}) }, s.touch)
}

// touch writes the fields that methods read.
func (s *Scope) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, weak, errs, moves, closed := s.entries, s.weak, s.errs, s.moves, s.closed
	s.entries, s.weak, s.errs, s.moves, s.closed = entries, weak, errs, moves, closed
}

func TestLocksOfTables(t *testing.T) {
	begin(t)
	var tab scopeTable
	one := &Scope{}
	if err := tab.enter(one); err != nil {
		t.Fatal(err)
	}
	touch := func() {
		tab.mu.Lock()
		defer tab.mu.Unlock()
		free, used, count := tab.free, tab.used, tab.count
		tab.free, tab.used, tab.count = free, used, count
	}
	unordered.Go(func() { _ = tab.enter(&Scope{}) }, touch)
	unordered.Go(func() { tab.leave(one.word) }, touch)
	unordered.Go(func() { tab.each(func(*Scope) {}) }, touch)

	var st scopeTally
	unordered.Go(func() { st.closed(&Scope{}) }, func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		sum := st.sum
		st.sum = sum
	})
	unordered.Go(func() { ReadStatistics() }, func() {
		tally.mu.Lock()
		defer tally.mu.Unlock()
		sum := tally.sum
		tally.sum = sum
	})

	for _, f := range []func(){func() { Track("a test's") }, func() { unscoped() }, func() { categories() }, func() { gradients(func(reclaim.Storage) {}) }} {
		unordered.Go(f, func() {
			tracker.mu.Lock()
			defer tracker.mu.Unlock()
			lists := tracker.lists
			tracker.lists = lists
		})
	}
	var l weakList
	for _, f := range []func(){func() { l.add(nil) }, func() { l.each(func(*Tensor) {}) }} {
		unordered.Go(f, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			list := l.list
			l.list = list
		})
	}
}

// A tensor enters the registry once.
func TestTwoAttachAtOnce(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	registered := func() (n int) {
		for i := range registry.shards {
			shard := &registry.shards[i]
			shard.mu.Lock()
			n += len(shard.list)
			shard.mu.Unlock()
		}
		return n
	}
	xs := make([]*Tensor, 10000)
	for i := range xs {
		xs[i] = Ones([]int{1})
	}
	before := registered()
	unordered.AtOnce(len(xs), func(i, _ int) { xs[i].attach() })
	if n := registered() - before; n > len(xs) {
		t.Errorf("%d entries of %d tensors", n, len(xs))
	}
}

// The count of a ScriptObject's users is exact.
func TestScriptObjectsCountTheirUsers(t *testing.T) {
	begin(t)
	o := &ScriptObject{}
	o.uses.Store(1)
	unordered.AtOnce(100000, func(int, int) {
		if o.acquire() {
			o.uses.Add(-1)
		}
	})
	if n := o.uses.Load(); n != 1 {
		t.Errorf("%d users are left, want the one until Release", n)
	}
}
