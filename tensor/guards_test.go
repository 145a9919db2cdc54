package tensor

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/vram"
)

// The tests in this file detect mutants of tests/mutate that no other test detects.

func TestNilScopesAndTensors(t *testing.T) {
	begin(t)
	var none *Scope
	var x *Tensor
	equal(t, "String", none.String(), "no scope")
	equal(t, "Contains nil", none.Contains(x), false)
	outside := Ones([]int{2})
	equal(t, "Contains", none.Contains(outside), false)
	outside.Release()
	equal(t, "Statistics", none.Statistics(), Statistics{})
	wantErr(t, "ReleaseExcept", none.ReleaseExcept(), ErrNil)
	wantErr(t, "Join", none.Join(func() error { return nil }), ErrNil)
	literal, kept := &Scope{}, Ones([]int{2})
	wantErr(t, "Close of a literal", literal.Close(), ErrScope)
	wantErr(t, "Join of a literal", literal.Join(func() error { t.Error("joined a literal"); return nil }), ErrScope)
	wantErr(t, "Adopt of a literal", literal.Adopt(kept), ErrScope)
	wantErr(t, "ReleaseExcept of a literal", literal.ReleaseExcept(), ErrScope)
	kept.Release()
	wantErr(t, "MoveOut", x.MoveOut().Err(), ErrNil)
	wantErr(t, "Err", x.Err(), ErrNil)
	x.Release()
	s := open(t)
	defer s.Close()
	equal(t, "Contains nil", s.Contains(nil), false)
	wantErr(t, "Join without a function", s.Join(nil), ErrArgument)
	if Tidy(func() *Tensor { return nil }) != nil {
		t.Error("Tidy made a tensor of none")
	}
	if ts, err := TidyAll(func() ([]*Tensor, error) { return []*Tensor{nil, Failed(errors.New("mine"))}, nil }); err != nil || len(ts) != 2 {
		t.Errorf("TidyAll: %v, %v", ts, err)
	}
}

func TestTooManyScopes(t *testing.T) {
	begin(t)
	outer := open(t)
	n := 1
	for ; ; n++ {
		if _, err := NewScope(); err != nil { //linstockvet:ignore scopeclose they end with the outer one
			wantErr(t, "one too many", err, ErrScope)
			break
		}
		if n > 128*128 {
			t.Fatal("more scopes than there are places")
		}
	}
	x := Ones([]int{2})
	if err := outer.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, "after the close", x.Add(1).Err(), ErrReleased)
	if CurrentScope() != nil {
		t.Error("a scope is left")
	}
}

// TestClosedScopeAcceptsNothing tests that nothing is added to a scope after it was closed.
func TestClosedScopeAcceptsNothing(t *testing.T) {
	begin(t)
	s := open(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	x := Ones([]int{2})
	defer x.Release()
	if s.addNew(x) || s.add(x) {
		t.Error("a closed scope has taken a tensor")
	}
	equal(t, "entries", s.Len(), 0)
	wantErr(t, "Adopt", s.Adopt(x), ErrScope)
	wantErr(t, "ReleaseExcept", s.ReleaseExcept(), ErrScope)
	wantErr(t, "Join", s.Join(func() error { t.Error("joined"); return nil }), ErrScope)
	if s.weaken() {
		t.Error("a closed scope takes part in a sweep")
	}
}

// TestScopeDuringSweep tests tensors that are released, moved, emptied and closed between the two halves
// of a sweep: each is freed once.
func TestScopeDuringSweep(t *testing.T) {
	begin(t)
	counted(t)
	for name, f := range map[string]func(s *Scope, old, kept *Tensor){
		"Release": func(s *Scope, old, kept *Tensor) {
			equal(t, "contains", s.Contains(old), true)
			equal(t, "contains", s.Contains(kept), true)
			old.Release()
			old.Release()
			equal(t, "entries", s.Len(), 22) // including unreachable entries
			equal(t, "contains", s.Contains(old), false)
			equal(t, "live", s.Statistics().LiveInScopes, 22)
			s.strengthen()
			equal(t, "entries", s.Len(), 2)
		},
		"Keep": func(s *Scope, old, kept *Tensor) {
			old.Keep()
			if s.weaken() {
				t.Error("two sweeps at once")
			}
			s.strengthen()
			if err := old.Add(1).Err(); err != nil {
				t.Error(err)
			}
			old.Release()
		},
		"ReleaseExcept": func(s *Scope, old, kept *Tensor) {
			if err := s.ReleaseExcept(kept); err != nil {
				t.Error(err)
			}
			wantErr(t, "old", old.Add(1).Err(), ErrReleased)
			if err := kept.Add(1).Err(); err != nil {
				t.Error(err)
			}
			s.strengthen()
		},
		"Close": func(s *Scope, old, kept *Tensor) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			s.strengthen()
			wantErr(t, "old", old.Add(1).Err(), ErrReleased)
		},
	} {
		s := open(t)
		old := Ones([]int{2})
		makeGarbage(10)
		kept := Ones([]int{2})
		if !s.weaken() {
			t.Fatalf("%s: the scope is not in the sweep", name)
		}
		runtime.GC()
		fresh := Ones([]int{2})
		f(s, old, kept)
		runtime.KeepAlive(old)
		runtime.KeepAlive(kept)
		runtime.KeepAlive(fresh)
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHeldDuringSweepIsFreedOnce tests that a tensor is freed once if it gets its anchor between the two halves of a
// sweep and is then unreachable.
func TestHeldDuringSweepIsFreedOnce(t *testing.T) {
	begin(t)
	before := handlesNow(t)
	s := open(t)
	defer s.Close()
	x := Ones([]int{2})
	func() {
		y := Ones([]int{2})
		if !s.weaken() {
			t.Fatal("the scope is not in the sweep")
		}
		hold(y, 0)
	}()
	runtime.GC()
	s.strengthen()
	Flush()
	equal(t, "entries", s.Len(), 1)
	equal(t, "handles", handlesNow(t), before+1)
	runtime.KeepAlive(x)
}

// TestContainsWhileMoved tests, under the race detector, that Contains reads a tensor that moves under a lock.
func TestContainsWhileMoved(t *testing.T) {
	begin(t)
	a := open(t)
	defer a.Close()
	b := open(t)
	defer b.Close()
	x := Ones([]int{2})
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			a.Contains(x)
			b.Contains(x)
		}
	})
	for range 20000 {
		if err := errors.Join(a.Adopt(x), b.Adopt(x)); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// TestMovesRace moves tensors between scopes and releases them on many goroutines.
func TestMovesRace(t *testing.T) {
	begin(t)
	for range 50 {
		from := open(t)
		var xs [8]*Tensor
		for i := range xs {
			xs[i] = Ones([]int{4})
		}
		var wg sync.WaitGroup
		var others [4]*Scope
		var ready, done sync.WaitGroup
		ready.Add(len(others))
		done.Add(1)
		for g := range others {
			wg.Go(func() {
				own, err := NewScope()
				others[g] = own
				ready.Done()
				if err != nil {
					t.Error(err)
					return
				}
				ready.Wait()
				for k := range 32 {
					x := xs[(g+k)%len(xs)]
					switch k % 4 {
					case 0:
						_ = own.Adopt(x)
					case 1:
						_ = others[(g+1)%len(others)].Adopt(x)
					case 2:
						_ = x.Add(x)
					case 3:
						if k > 20 {
							x.Release()
						}
					}
					_ = from.Close() // returns an error
				}
				done.Wait()
				if err := own.Close(); err != nil && !errors.Is(err, ErrReleased) {
					t.Error(err)
				}
			})
		}
		ready.Wait()
		if err := from.Close(); err != nil {
			t.Error(err)
		}
		done.Done()
		wg.Wait()
		for _, x := range xs {
			x.Release()
		}
	}
}

// TestQueueAndReleaseFreeOnce tests that the handle is freed once if both the queue of pending frees and Release
// free it.
func TestQueueAndReleaseFreeOnce(t *testing.T) {
	begin(t)
	handles := func() int64 {
		m, err := cshim.MemoryStats(CPU.word())
		if err != nil {
			t.Fatal(err)
		}
		return m.Handles
	}
	before := handles()
	x := Ones([]int{2}) // outside scopes
	a := x.anchor.Load()
	x.Keep()
	if x.anchor.Load() != a {
		t.Error("a second anchor")
	}
	pending.add(a.unscopedRef) // as find does with an unreachable tensor
	x.Release()
	pending.drain()
	equal(t, "handles", handles(), before)
}

// TestPinnedTensorOutlivesItsScope tests that a tensor pinned by an operator when its scope closes is freed when the
// operator ends, and not before.
func TestPinnedTensorOutlivesItsScope(t *testing.T) {
	begin(t)
	counted(t)
	before := handlesNow(t)
	s := open(t)
	x := Ones([]int{2})
	if !x.pin() {
		t.Fatal("a new tensor cannot be pinned")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	equal(t, "handles while it is pinned", handlesNow(t), before+1)
	x.unpin()
	equal(t, "handles", handlesNow(t), before)
}

// TestTensorsOfACallOfAnotherPackage tests that withHandles keeps the tensors until the function returns, also with an
// error, and no longer.
func TestTensorsOfACallOfAnotherPackage(t *testing.T) {
	begin(t)
	counted(t)
	before := handlesNow(t)
	x, y := Ones([]int{2}), Ones([]int{2})
	mine := errors.New("mine")
	if err := withHandles("call", []*Tensor{x, y}, func(h []cshim.Handle) error {
		x.Release()
		equal(t, "handles of the call", len(h), 2)
		equal(t, "handles during the call", handlesNow(t), before+2)
		return mine
	}); err != mine {
		t.Errorf("got %v", err)
	}
	equal(t, "handles after the call", handlesNow(t), before+1)
	y.Release()
	equal(t, "handles", handlesNow(t), before)
	if err := withHandles("call", []*Tensor{y}, nil); !errors.Is(err, ErrReleased) {
		t.Errorf("a released tensor: %v", err)
	}
}

// TestRemadeTensors tests that a graph keeps nothing of a source of withRemade, and that the backward pass that cannot make
// it again fails.
func TestRemadeTensors(t *testing.T) {
	begin(t)
	mine := errors.New("mine")
	source := func() *Tensor { return FromSlice([]float64{0, 1, 2, 3}, nil) }
	for _, test := range []struct {
		again func(int) (*Tensor, error)
		want  string // the error of the backward pass
	}{
		{func(int) (*Tensor, error) { return source(), nil }, ""},
		{func(int) (*Tensor, error) { return nil, nil }, "was not made again"},
		{func(int) (*Tensor, error) { return source().To(Float32), nil }, "with another dtype"},
		{func(int) (*Tensor, error) { return nil, mine }, "mine"},
	} {
		if err := WithScope(func() error {
			x, w := leaf(1, 1, 1, 1), source()
			var y *Tensor
			if err := withRemade([]*Tensor{w}, test.again, func() error {
				y = x.Mul(w).Sum()
				return y.Err()
			}); err != nil {
				return err
			}
			w.Zero_()
			err := y.Backward()
			if test.want == "" {
				if err != nil {
					return err
				}
				wantValues(t, "the gradient", x.Grad(), 0, 1, 2, 3)
				return nil
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	dense := Eye(2, CPU)
	defer dense.Release()
	out, err := Call("aten::to_sparse", dense)
	if err != nil {
		t.Fatal(err)
	}
	sparse := out[0].(*Tensor)
	defer sparse.Release()
	if err := withRemade([]*Tensor{sparse}, nil, func() error { return nil }); !errors.Is(err, ErrArgument) {
		t.Errorf("a source without a storage: %v", err)
	}
}

// TestNoMoveFromAClosingScope tests that a move fails once the scope has taken the tensor off its list to release it.
func TestNoMoveFromAClosingScope(t *testing.T) {
	begin(t)
	outer := open(t)
	for name, move := range map[string]func(x *Tensor) error{
		"Keep":    func(x *Tensor) error { return x.Keep().Err() },
		"MoveOut": func(x *Tensor) error { return x.MoveOut().Err() },
		"Adopt":   func(x *Tensor) error { return outer.Adopt(x) },
	} {
		s := open(t)
		x := Ones([]int{2})
		s.mu.Lock()
		entries := s.entries
		s.entries = nil
		s.mu.Unlock()
		if err := move(x); !errors.Is(err, ErrReleased) {
			t.Errorf("%s: %v", name, err)
		}
		if err := x.Err(); !errors.Is(err, ErrReleased) {
			t.Errorf("after %s: %v", name, err)
		}
		s.entries = entries
		_ = s.Close()
	}
	_ = outer.Close()
}

// TestMovedTensorIsLeftAlone tests that Release and a sweep ignore the place of another tensor, and that TidyAll leaves
// what its function did not make in its scope.
func TestMovedTensorIsLeftAlone(t *testing.T) {
	begin(t)
	outer := open(t)
	defer outer.Close()
	s := open(t)
	x := Ones([]int{2})
	// Give it the slot of another tensor.
	z := Ones([]int{2})
	at := z.slot
	z.slot = x.slot
	equal(t, "forget at the place of another", s.forget(z), false)
	z.slot = at
	s.weaken()
	z.slot = x.slot
	equal(t, "forget at the place of another, in a sweep", s.forget(z), false)
	z.slot = at
	s.weak[at].gone = true
	equal(t, "forget twice", s.forget(z), false)
	s.weak[at].gone = false
	s.strengthen()
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	// A result that the function did not make stays in its scope.
	x = Ones([]int{2})
	if ts, err := TidyAll(func() ([]*Tensor, error) { return []*Tensor{x, x.Add(1)}, nil }); err != nil || !outer.Contains(ts[0]) || !outer.Contains(ts[1]) {
		t.Errorf("TidyAll moved what it had not made: %v", err)
	}
	if Tidy(func() *Tensor { return x }); !outer.Contains(x) {
		t.Error("Tidy moved what it had not made")
	}
}

// TestJoinWithWordWithoutScope tests that a scope word that names no scope, such as a mode's, ends the search for
// scopes left open.
func TestJoinWithWordWithoutScope(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Join(func() error { cshim.ScopeSet(marker); return nil }); err != nil {
			t.Error(err)
		}
		if cshim.ScopeGet() != 0 {
			t.Error("a scope is left")
		}
	})
	wg.Wait()
}

// TestInScope tests which goroutines are in a scope: the one that opened it and those that have joined it, also in scopes
// that they open inside.
func TestInScope(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	in := func() bool { return handle.InScope(s) }
	inside := func() (nested bool) {
		_ = WithScope(func() error {
			nested = in()
			return nil
		})
		return nested
	}
	if !in() || !inside() {
		t.Error("the goroutine that opened the scope is not in it")
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if in() || inside() {
			t.Error("another goroutine is in the scope")
		}
		_ = s.Join(func() error {
			if !in() || !inside() {
				t.Error("a goroutine that has joined the scope is not in it")
			}
			return nil
		})
	})
	wg.Wait()
	if err := s.Close(); err != nil || in() {
		t.Errorf("after Close: %v, %v", in(), err)
	}
}

// TestAnyOperandReleased releases each operand of a typed entry in turn; the others are unpinned.
func TestAnyOperandReleased(t *testing.T) {
	begin(t)
	scoped(t, func() {
		make3 := func() [3]*Tensor { return [3]*Tensor{Ones([]int{2, 3}), Ones([]int{3}), Ones([]int{3})} }
		for i := range 3 {
			ts := make3()
			ts[i].Release()
			wantErr(t, "LayerNorm", ts[0].LayerNorm([]int{3}, ts[1], ts[2]).Err(), ErrReleased)
		}
		ts := make3()
		ts[2].Release()
		wantErr(t, "without a weight", ts[0].LayerNorm([]int{3}, nil, ts[2]).Err(), ErrReleased)
	})
}

// TestAnyElementReleased tests that a list with one released element is an error, wherever the element is.
func TestAnyElementReleased(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for i := range 3 {
			ts := []*Tensor{Ones([]int{2}), Ones([]int{2}), Ones([]int{2})}
			ts[i].Release()
			wantErr(t, "Cat", Cat(ts).Err(), ErrReleased)
			_, err := Call("aten::cat", ts, 0)
			wantErr(t, "Call", err, ErrReleased)
		}
	})
}

// TestNoResult tests that an operator that returns no tensor is an error.
func TestNoResult(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{2})
		for what, y := range map[string]func() *Tensor{
			"wrapResult": func() *Tensor { return wrapResult("Add", cshim.Result{}) },
			"done1":      func() *Tensor { x.pin(); return done1(&opAdd, cshim.Result{}, x) },
			"done2":      func() *Tensor { x.pin(); x.pin(); return done2(&opAdd, cshim.Result{}, x, x) }, //linstockvet:ignore keepalive x is pinned twice
			"done3":      func() *Tensor { x.pin(); return done3(&opAdd, cshim.Result{}, x, nil, nil) },
		} {
			wantErr(t, what, y().Err(), ErrArgument)
		}
	})
}

// TestCallbacksOfFreedFunctions tests that a callback whose Go function was freed does nothing or returns an error.
func TestCallbacksOfFreedFunctions(t *testing.T) {
	begin(t)
	if out, failed := runHook(1<<63, 0); out != 0 || failed != 0 {
		t.Errorf("a freed hook returned %v and failure %d", out, failed)
	}
	failed := runFunction(1<<63, nil, nil, nil, nil)
	if failed == 0 {
		t.Fatal("a function that is gone has run")
	}
	equal(t, "error", takeCallbackError(failed).Error(), "the function has been freed")
}

// TestHookIsRemovedOnce tests that the function that removes a hook does so once, because another hook may use its
// slot later.
func TestHookIsRemovedOnce(t *testing.T) {
	begin(t)
	counted(t)
	x := Ones([]int{2}).RequiresGrad_()
	defer x.Release()
	remove, err := x.RegisterHook(func(*Tensor) (*Tensor, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		disarm := arm(t, cshim.Fault{Point: cshim.FaultEntry, Skip: 1 << 40, Times: 1})
		remove()
		calls, _ := cshim.FaultEntry.Counts()
		disarm()
		if (calls != 0) != (i == 0) {
			t.Errorf("removal %d makes %d native calls", i, calls)
		}
	}
}

// TestOutputWithoutGradient tests that a Function's backward receives nil for an output without a gradient.
func TestOutputWithoutGradient(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{2}).RequiresGrad_()
		ran := false
		out, err := tieFunction([]*Tensor{x}, []*Tensor{Ones([]int{2}), Ones([]int{2})}, nil, false, func(grads, _ []*Tensor, _ []bool) ([]*Tensor, error) {
			ran = true
			if len(grads) != 2 || grads[0].Err() != nil || grads[1] != nil {
				t.Errorf("the gradients are %v, want one and nil", grads)
			}
			return grads[:1], nil
		})
		if err != nil {
			t.Error(err)
			return
		}
		if err := out[0].Sum().Backward(); err != nil || !ran {
			t.Errorf("backward: %v, it has run: %v", err, ran)
		}
	})
}

// TestListsOfPinsAreReused tests that pinning a list allocates nothing after a list of the same length was pinned.
func TestListsOfPinsAreReused(t *testing.T) {
	begin(t)
	counted(t)
	if raceEnabled {
		t.Skip("under the race detector a pool forgets")
	}
	scoped(t, func() {
		ts := []*Tensor{Ones([]int{2}), Ones([]int{2})}
		if got := testing.AllocsPerRun(100, func() {
			p, err := pinAll("pins", ts, false)
			if err != nil {
				t.Error(err)
			}
			p.unpin()
		}); got != 0 {
			t.Errorf("%v allocations", got)
		}
	})
}

// TestShapeOfScalar tests that it is empty and not nil, which stands for one dimension in FromSlice.
func TestShapeOfScalar(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones(nil)
		if s, p := x.Shape(), x.Stride(); s == nil || len(s) != 0 || p == nil || len(p) != 0 {
			t.Errorf("the shape of a scalar is %#v, its stride %#v, want empty slices", s, p)
		}
		y := FromSlice([]float32{2}, x.Shape())
		if y.Err() != nil || y.Dim() != 0 {
			t.Errorf("of the shape of a scalar: %d dimensions, %v", y.Dim(), y.Err())
		}
		if z := FromSlice([]float32{2}, nil); !slices.Equal(z.Shape(), []int{1}) {
			t.Errorf("of no shape: %v, %v", z.Shape(), z.Err())
		}
		if got := testing.AllocsPerRun(100, func() { x.Shape() }); got != 0 {
			t.Errorf("the shape of a scalar takes %v allocations", got)
		}
		broken := Failed(errors.New("mine"))
		gone := Ones(nil)
		gone.Release()
		for _, bad := range []*Tensor{nil, broken, gone} {
			if bad.Shape() != nil || bad.Stride() != nil {
				t.Errorf("%v has the shape %#v, the stride %#v", bad, bad.Shape(), bad.Stride())
			}
		}
		if broken.Err() == nil {
			t.Error("a failed tensor has no error")
		}
	})
}

// TestQueueLosesNothing adds to the queue from two goroutines: both succeed, and draining empties the queue.
func TestQueueLosesNothing(t *testing.T) {
	begin(t)
	var q pendingQueue
	a, b := &unscopedRef{}, &unscopedRef{}
	top := q.top.Load()
	q.add(a)
	if q.put(b, top) {
		t.Fatal("an entry is pushed although the top has changed")
	}
	q.add(b)
	if q.top.Load() != b || b.next != a || a.next != nil {
		t.Error("a box is lost")
	}
	q.drain()
	equal(t, "waiting", q.waiting(), false)
}

// TestScopeIsCountedOnce tests that a scope is counted once between its entry in the sum of closed scopes and its
// removal from the table.
func TestScopeIsCountedOnce(t *testing.T) {
	begin(t)
	sum := tally.sum
	defer func() { tally.sum = sum }()
	s := &Scope{moves: moves{disposed: 3}}
	if err := scopes.enter(s); err != nil {
		t.Fatal(err)
	}
	defer scopes.leave(s.word)
	before := ReadStatistics().DisposedInScopes
	tally.closed(s)
	tally.closed(s)
	equal(t, "disposed", ReadStatistics().DisposedInScopes, before)
}

// yielded reports whether f yields x's storage.
func yielded(x *Tensor, f func(yield func(reclaim.Storage))) (found bool) {
	var m cshim.Meta
	if err := x.meta("yielded", &m); err != nil {
		return false
	}
	f(func(s reclaim.Storage) { found = found || s.Address == m.Data })
	return found
}

// TestGradientsOfReleasedWeights tests that gradients are attributed only to weights that are not released, even if an
// operator keeps their native tensors alive.
func TestGradientsOfReleasedWeights(t *testing.T) {
	begin(t)
	counted(t)
	before := handlesNow(t)
	bare, w := Ones([]int{2}).RequiresGrad_(), Ones([]int{2}).RequiresGrad_()
	g := Ones([]int{2})
	if err := w.SetGrad(g); err != nil {
		t.Fatal(err)
	}
	Track(vram.Weights, w, bare)
	equal(t, "of a weight", yielded(g, gradients), true)
	if !w.pin() {
		t.Fatal("a weight cannot be pinned")
	}
	w.Release()
	equal(t, "of a released one", yielded(g, gradients), false)
	w.unpin()
	bare.Release()
	g.Release()
	equal(t, "handles", handlesNow(t), before)
}

// TestTensorsOfSweepingScope tests that a tensor that left its scope after the first half of a sweep is not attributed
// to the scope.
func TestTensorsOfSweepingScope(t *testing.T) {
	begin(t)
	s := open(t)
	x, y := Ones([]int{2}), Ones([]int{2})
	s.weaken()
	y.Keep()
	scopesHold := func(yield func(reclaim.Storage)) { inScopes(false, yield) }
	equal(t, "x", yielded(x, scopesHold), true)
	equal(t, "y", yielded(y, scopesHold), false)
	x.Release()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	equal(t, "statistics", s.Statistics(), Statistics{CreatedInScopes: 2, DisposedInScopes: 1, Detached: 1})
	y.Release()
}

// TestUnscopedTensors tests that live tensors outside scopes that have a category are not counted as unscoped.
func TestUnscopedTensors(t *testing.T) {
	begin(t)
	counted(t)
	before := unscoped()
	x := Ones([]int{2})
	equal(t, "one", unscoped(), before+1)
	gone := Ones([]int{2})
	s := open(t)
	inside := Ones([]int{2})
	bad := Failed(errors.New("mine"))
	_ = bad.Err() // read the error
	Track("a test's", gone, inside, bad, nil)
	gone.Release()
	equal(t, "beside what is in a category", unscoped(), before+1)
	Track("a test's", x)
	equal(t, "in a category", unscoped(), before)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	x.Release()
	runtime.KeepAlive([]*Tensor{gone, inside, bad})
}

// TestReleasedTensorsAreRemovedFromTheirCategory tests that released tensors do not make a category's list grow.
func TestReleasedTensorsAreRemovedFromTheirCategory(t *testing.T) {
	begin(t)
	var ts []*Tensor
	for i := range 100 {
		ts = append(ts, Ones([]int{1}))
		if i%2 == 0 {
			ts[i].Release()
		}
	}
	var l weakList
	l.add(ts)
	equal(t, "listed", len(l.list), 50)
	for _, x := range ts {
		x.Release()
	}
}

// TestFusedStepWithoutParameters tests that a step without parameters does not call libtorch, which may be missing.
func TestFusedStepWithoutParameters(t *testing.T) {
	begin(t)
	disarm := arm(t, cshim.Fault{Point: cshim.FaultEntry, Skip: 1 << 40, Times: 1})
	err := adamStep(handle.Adam{}, nil, nil, nil, nil, nil)
	calls, _ := cshim.FaultEntry.Counts()
	disarm()
	if err != nil || calls != 0 {
		t.Errorf("%d native calls, error %v", calls, err)
	}
}
