package tensor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/handle"
)

func leaf(vs ...float64) *Tensor { return FromSlice(vs, nil).RequiresGrad_() }

func wantValues(t testing.TB, what string, x *Tensor, want ...float64) {
	t.Helper()
	if x == nil {
		t.Errorf("%s: got no tensor, want %v", what, want)
		return
	}
	if got := values(t, x); !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestHooks(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(1, 2)
		y := x.Mul(3)
		seen := 0
		remove, err := y.RegisterHook(func(g *Tensor) (*Tensor, error) {
			seen++
			wantValues(t, "the hook's gradient", g, 1, 1)
			return g.Mul(10), nil // made in the hook's scope
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := y.Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "replaced", x.Grad(), 30, 30)
		remove()
		remove()
		if err := ZeroGrads([]*Tensor{x}, true); err != nil {
			t.Fatal(err)
		}
		if err := x.Mul(3).Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "without", x.Grad(), 3, 3)
		equal(t, "calls", seen, 1)

		// A hook that returns nil.
		looks := 0
		if _, err := x.RegisterHook(func(*Tensor) (*Tensor, error) { looks++; return nil, nil }); err != nil {
			t.Fatal(err)
		}
		if err := x.Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "looked at", x.Grad(), 4, 4)
		equal(t, "looks", looks, 1)
	})
}

// TestRemoveHookOfAnotherList tests that a hook is removed, and no other, after writes in place and releases.
func TestRemoveHookOfAnotherList(t *testing.T) {
	begin(t)
	scoped(t, func() {
		var calls []string
		add := func(t *testing.T, name string, x *Tensor) func() {
			remove, err := x.RegisterHook(func(*Tensor) (*Tensor, error) { calls = append(calls, name); return nil, nil })
			if err != nil {
				t.Fatal(err)
			}
			return remove
		}
		for _, c := range []struct {
			name, want string
			f          func(t *testing.T) *Tensor
		}{
			{"a new grad_fn", "b", func(t *testing.T) *Tensor {
				y := leaf(1, 2).Mul(1)
				removeA := add(t, "a", y)
				y.Mul_(2)
				add(t, "b", y)
				removeA()
				return y
			}},
			{"the later of two", "a", func(t *testing.T) *Tensor {
				y := leaf(1, 2).Mul(1)
				add(t, "a", y)
				y.Mul_(2)
				add(t, "b", y)()
				return y
			}},
			{"a view of a base that is written to", "b", func(t *testing.T) *Tensor {
				y := leaf(1, 2).Mul(1)
				v := y.View(2, 1)
				removeA := add(t, "a", v)
				y.Mul_(2)
				add(t, "b", v)
				removeA()
				return v
			}},
			{"a leaf after a step", "b", func(t *testing.T) *Tensor {
				x := leaf(1, 2)
				removeA := add(t, "a", x)
				add(t, "b", x)
				if err := withGrad(false, func() error { return x.Mul_(2).Err() }); err != nil {
					t.Fatal(err)
				}
				removeA()
				return x
			}},
			{"a released handle", "b", func(t *testing.T) *Tensor {
				y := leaf(1, 2).Mul(1)
				alias := y.Alias()
				removeA := add(t, "a", alias)
				add(t, "b", y)
				alias.Release()
				removeA()
				return y
			}},
			{"an operand that is released", "", func(t *testing.T) *Tensor {
				y := leaf(1, 2).Mul(1)
				removeA := add(t, "a", y)
				z := y.Mul(2)
				y.Release()
				removeA()
				return z
			}},
		} {
			t.Run(c.name, func(t *testing.T) {
				begin(t)
				scoped(t, func() {
					calls = nil
					if err := c.f(t).Sum().Backward(); err != nil {
						t.Fatal(err)
					}
					equal(t, "calls", strings.Join(calls, " "), c.want)
				})
			})
		}
		// A removed hook holds nothing.
		y := leaf(1, 2).Mul(1)
		held := make(chan struct{})
		func() {
			big := new([1 << 10]byte)
			runtime.AddCleanup(big, func(c chan struct{}) { close(c) }, held)
			remove, err := y.RegisterHook(func(*Tensor) (*Tensor, error) { big[0]++; return nil, nil })
			if err != nil {
				t.Fatal(err)
			}
			y.Mul_(2)
			remove()
		}()
		for range 50 {
			runtime.GC()
			select {
			case <-held:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
		t.Error("a removed hook is not freed")
	})
}

// TestFirstHookDuringAPass tests that the first hook of a non-leaf tensor is refused while another goroutine's pass
// may run its grad_fn, and no other one.
func TestFirstHookDuringAPass(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(1, 2)
		y, other := x.Mul(3), x.Mul(4)
		z := y.Mul(5)
		look := func(*Tensor) (*Tensor, error) { return nil, nil }
		add := func(x *Tensor) (err error) { _, err = x.RegisterHook(look); return err }
		var inside, shared, retain, input, apart, leafs error
		if _, err := z.RegisterHook(func(*Tensor) (*Tensor, error) {
			parallel(1, func(int) {
				shared, retain, apart, leafs = add(y), y.RetainGrad(), add(other), add(x)
				input = WithScope(func() error { return y.Mul(2).Sum().Backward(Inputs(y), RetainGraph(true)) })
			})
			inside = add(y)
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := z.Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "a hook of the pass's graph", shared, ErrArgument)
		wantErr(t, "RetainGrad in the pass's graph", retain, ErrArgument)
		wantErr(t, "Inputs in the pass's graph", input, ErrArgument)
		if input != nil && !strings.Contains(input.Error(), "Backward: input 0 of Inputs: linstock: RetainGrad: another goroutine runs a backward pass") {
			t.Errorf("Inputs in the pass's graph: %v", input)
		}
		if err := errors.Join(inside, apart, leafs); err != nil {
			t.Errorf("a hook in the pass itself, of another graph or of a leaf: %v", err)
		}
		if err := errors.Join(add(y), y.RetainGrad()); err != nil {
			t.Errorf("after the pass: %v", err)
		}
	})
}

// TestSetDataDuringAPass tests that a leaf gets no other data while another goroutine's pass may read it.
func TestSetDataDuringAPass(t *testing.T) {
	begin(t)
	scoped(t, func() {
		set := func(x *Tensor, d DType) error {
			_, err := CallUnchecked("aten::set_data", x, Ones([]int{2}, d))
			return err
		}
		x, apart, converted, inner := leaf(1, 2), leaf(1, 2), leaf(1, 2), leaf(1, 2)
		y := x.Mul(converted).Mul(inner)
		// The graph keeps the leaf, for which libtorch would make another node now.
		if err := errors.Join(set(converted, Float32), set(converted, Float64)); err != nil {
			t.Fatal(err)
		}
		var shared, other, inside error
		again := errors.New("not called")
		if _, err := y.RegisterHook(func(*Tensor) (*Tensor, error) {
			parallel(1, func(int) { shared, again, other = set(x, Float64), set(converted, Float64), set(apart, Float32) })
			inside = set(inner, Float64)
			return nil, nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := y.Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "a leaf of the pass's graph", shared, ErrArgument)
		wantErr(t, "a leaf that was converted before the pass", again, ErrArgument)
		if err := errors.Join(other, inside, set(x, Float64)); err != nil {
			t.Errorf("in another graph, in the pass itself or after it: %v", err)
		}
		wantValues(t, "the gradient, of the data that the pass found", x.Grad(), 1, 1)
	})
}

// TestRemovedHooksLeaveNothing tests that hooks that were removed do not slow the passes that follow.
func TestRemovedHooksLeaveNothing(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(1, 2)
		y := x.Sum()
		pass := func() time.Duration {
			best := time.Hour
			for range 20 {
				start := time.Now()
				if err := y.Backward(RetainGraph(true)); err != nil {
					t.Fatal(err)
				}
				best = min(best, time.Since(start))
			}
			return best
		}
		before := pass()
		for range 500_000 {
			remove, err := x.RegisterHook(func(*Tensor) (*Tensor, error) { return nil, nil })
			if err != nil {
				t.Fatal(err)
			}
			remove()
		}
		if after := pass(); after > 5*before+100*time.Microsecond {
			t.Errorf("a pass takes %v after 500,000 hooks were removed, and took %v", after, before)
		}
	})
}

func TestPostAccumulateGradHook(t *testing.T) {
	begin(t)
	mine := errors.New("mine")
	scoped(t, func() {
		x := leaf(1, 2)
		var calls []string
		add := func(name string, f func(leaf *Tensor) error) func() {
			remove, err := x.RegisterPostAccumulateGradHook(func(leaf *Tensor) error {
				calls = append(calls, name)
				return f(leaf)
			})
			if err != nil {
				t.Fatal(err)
			}
			return remove
		}
		look := add("look", func(leaf *Tensor) error { wantValues(t, "the sum of both uses", leaf.Grad(), 7, 7); return nil })
		drop := add("drop", func(leaf *Tensor) error { return leaf.SetGrad(nil) })
		backward := func() error { return x.Mul(3).Sum().Add(x.Mul(4).Sum()).Backward() }
		if err := backward(); err != nil {
			t.Fatal(err)
		}
		equal(t, "calls", strings.Join(calls, " "), "look drop")
		if x.Grad() != nil {
			t.Errorf("the gradient is %v", x.Grad())
		}
		// Grad accumulates nothing.
		if _, err := runGrad([]*Tensor{x.Sum()}, []*Tensor{x}); err != nil {
			t.Fatal(err)
		}
		look()
		look()
		drop()
		if err := backward(); err != nil {
			t.Fatal(err)
		}
		equal(t, "calls after the hooks are removed", len(calls), 2)
		for _, f := range []func(*Tensor) error{func(*Tensor) error { return mine }, func(*Tensor) error { panic(mine) }} {
			remove := add("fails", f)
			if err := backward(); !errors.Is(err, mine) {
				t.Errorf("a hook that fails: %v", err)
			}
			remove()
		}
		for name, y := range map[string]*Tensor{"not a leaf": x.Mul(2), "no gradient": Ones([]int{1})} {
			if _, err := y.RegisterPostAccumulateGradHook(func(*Tensor) error { return nil }); !errors.Is(err, ErrArgument) {
				t.Errorf("%s: %v", name, err)
			}
		}
		// A hook of a released handle.
		alias := x.Alias()
		remove, err := alias.RegisterPostAccumulateGradHook(func(*Tensor) error { calls = append(calls, "removed"); return nil })
		if err != nil {
			t.Fatal(err)
		}
		alias.Release()
		calls = nil
		remove()
		if err := backward(); err != nil {
			t.Fatal(err)
		}
		equal(t, "calls after the hook of a released handle is removed", len(calls), 0)
		if remove, err := x.RegisterPostAccumulateGradHook(nil); !errors.Is(err, ErrNil) {
			t.Errorf("no function: %v", err)
		} else {
			remove()
		}
	})
}

// A hook may hand the gradient to another goroutine and wait for it.
func TestPostAccumulateGradHookWaits(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(1, 2)
		var elsewhere []float64
		if _, err := x.RegisterPostAccumulateGradHook(func(leaf *Tensor) (err error) {
			parallel(1, func(int) { elsewhere, err = Data[float64](leaf.Grad()) })
			return errors.Join(err, ZeroGrads([]*Tensor{leaf}, true))
		}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := x.Mul(3).Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			equal(t, "the gradient on another goroutine", fmt.Sprint(elsewhere), "[3 3]")
		}
		if x.Grad() != nil {
			t.Errorf("the gradient is %v", x.Grad())
		}
	})
}

// A pass that another goroutine runs reads without a lock whether a leaf has such hooks.
func TestFirstPostAccumulateGradHook(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, before, other := leaf(1, 2), leaf(1, 2), leaf(1, 2)
		register := func(x *Tensor) error {
			_, err := x.RegisterPostAccumulateGradHook(func(*Tensor) error { return nil })
			return err
		}
		if err := register(before); err != nil {
			t.Fatal(err)
		}
		y := x.Mul(before)
		if _, err := y.RegisterHook(func(*Tensor) (*Tensor, error) {
			var errs [3]error
			parallel(1, func(int) { errs = [3]error{register(x), register(before), register(other)} })
			if !errors.Is(errs[0], ErrArgument) || !strings.Contains(errs[0].Error(), "another goroutine runs a backward pass") {
				t.Errorf("the first hook of a leaf of the pass: %v", errs[0])
			}
			return nil, errors.Join(errs[1], errs[2], register(x))
		}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(y.Sum().Backward(), register(x)); err != nil {
			t.Error(err)
		}
	})
}

// RetainGrad follows a tensor that is changed in place, and adds the gradients of several passes.
func TestRetainGrad(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(1, 3)
		_, mean := x.VarMean()
		mean = mean.Add(0)
		if err := mean.RetainGrad(); err != nil {
			t.Fatal(err)
		}
		mean.Mul_(5)
		for range 2 {
			if err := mean.Mul(7).Backward(RetainGraph(true)); err != nil {
				t.Fatal(err)
			}
		}
		wantValues(t, "of the mean", mean.Grad(), 14)
		wantValues(t, "of the leaf", x.Grad(), 35, 35)
		_, second := x.VarMean()
		if err := errors.Join(second.RetainGrad(), second.Mul(3).Backward()); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "of a second output", second.Grad(), 3)
	})
}

// TestInputsThatAreNoLeaves tests that an operator's result keeps its gradient from the first pass on that has it as an
// input. The values are PyTorch's.
func TestInputsThatAreNoLeaves(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, w := leaf(1, 2), leaf(5, 7)
		y := x.Mul(3)
		z := y.Mul(y).Mul(w).Sum()
		if err := z.Backward(Inputs(w, y), RetainGraph(true)); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "y, an input", y.Grad(), 30, 84)
		wantValues(t, "w, an input", w.Grad(), 9, 36)
		if x.Grad() != nil {
			t.Errorf("x, no input: %v", x.Grad())
		}
		if err := z.Backward(); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "y, no input", y.Grad(), 60, 168)
		wantValues(t, "x, a leaf", x.Grad(), 90, 252)

		err := x.Mul(2).Sum().Backward(Inputs(x, x.Detach()))
		wantErr(t, "an input without gradients", err, ErrArgument)
		if err == nil || !strings.Contains(err.Error(), "Backward: input 1 of Inputs does not require gradients") {
			t.Errorf("an input without gradients: %v", err)
		}
		wantValues(t, "x, after a refusal", x.Grad(), 90, 252)
	})
}

func TestHookFailures(t *testing.T) {
	begin(t)
	mine := errors.New("mine")
	for name, c := range map[string]struct {
		hook func(g *Tensor) (*Tensor, error)
		want func(error) bool
	}{
		"error": {func(*Tensor) (*Tensor, error) { return nil, mine }, func(err error) bool { return errors.Is(err, mine) }},
		"panic": {func(*Tensor) (*Tensor, error) { panic("out of my mind") }, func(err error) bool {
			return strings.HasPrefix(err.Error(), "linstock: Backward: panic: out of my mind [operands")
		}},
		"operator": {func(g *Tensor) (*Tensor, error) { return g.Add(Ones([]int{7})), nil }, func(err error) bool { return strings.HasPrefix(err.Error(), "linstock: Backward: Add: ") }},
		"shape":    {func(g *Tensor) (*Tensor, error) { return Ones([]int{7}, Float64), nil }, func(err error) bool { return err != nil }},
		"unseen":   {func(g *Tensor) (*Tensor, error) { _ = g.Add(Ones([]int{7})); return nil, nil }, func(err error) bool { return strings.Contains(err.Error(), "Add") }},
		"released": {func(g *Tensor) (*Tensor, error) { g.Release(); return g, nil }, func(err error) bool { return errors.Is(err, ErrReleased) }},
	} {
		t.Run(name, func(t *testing.T) {
			begin(t)
			scoped(t, func() {
				x := leaf(1, 2)
				y := x.Mul(2)
				if _, err := y.RegisterHook(c.hook); err != nil {
					t.Fatal(err)
				}
				err := y.Sum().Backward()
				var e *Error
				if err == nil || !c.want(err) || !errors.As(err, &e) || e.Op != "Backward" {
					t.Errorf("got %v", err)
				}
				// The engine works afterwards.
				if err := x.Mul(2).Sum().Backward(); err != nil {
					t.Error(err)
				}
			})
		})
	}
	scoped(t, func() {
		x := Ones([]int{2})
		if _, err := x.RegisterHook(nil); !errors.Is(err, ErrNil) {
			t.Error(err)
		}
		if _, err := x.RegisterHook(func(g *Tensor) (*Tensor, error) { return g, nil }); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	})
}

func TestBackwardRoots(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, y := leaf(1, 2), leaf(3, 4)
		a, b := x.Mul(y), x.Sum()
		if err := runBackward([]*Tensor{a, b}, Gradient(FromSlice([]float64{1, 10}, nil), nil)); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "x", x.Grad(), 3+1, 40+1)
		wantValues(t, "y", y.Grad(), 1, 20)
		// Restrict the gradients to some leaves.
		if err := x.Mul(y).Sum().Backward(Inputs(x)); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "x", x.Grad(), 7, 45)
		wantValues(t, "y", y.Grad(), 1, 20)
		gs, err := Grads([]*Tensor{x, leaf(1)})
		if err != nil || len(gs) != 2 || gs[1] != nil {
			t.Error(gs, err)
		}
		wantValues(t, "Grads", gs[0], 7, 45)
		if err := ZeroGrads([]*Tensor{x}, false); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "zeroed", x.Grad(), 0, 0)
		for what, err := range map[string]error{
			"no roots": runBackward(nil), "not a scalar": x.Mul(2).Backward(), "no gradient": Ones([]int{}).Backward(), "counts": runBackward([]*Tensor{a, b}, Gradient(nil)),
			"shape": x.Mul(2).Backward(Gradient(Ones([]int{3}))), "twice": func() error {
				z := x.Exp().Sum()
				return errors.Join(z.Backward(Inputs(y, x)), z.Backward())
			}(), "nil input": x.Sum().Backward(Inputs(nil)), "no inputs": x.Sum().Backward(Inputs()),
			"AllowUnused of Backward": x.Sum().Backward(AllowUnused()),
			"Inputs of Grad": func() error {
				_, err := runGrad([]*Tensor{x.Sum()}, []*Tensor{x}, Inputs(y))
				return err
			}(),
			"no inputs of a list": x.Sum().Backward(Inputs([]*Tensor(nil)...)),
			"a shape to sum":      x.Mul(2).Backward(Gradient(Ones([]int{3, 2}, Float64))),
			"a shape to squeeze":  x.Mul(2).Backward(Gradient(Ones([]int{1, 2}, Float64))),
			"a shape to expand":   runBackward([]*Tensor{x.Sum(), x.Mul(2)}, Gradient(nil, Ones([]int{}, Float64))),
			"a shape of Grad": func() error {
				_, err := runGrad([]*Tensor{x.Mul(2)}, []*Tensor{x}, Gradient(Ones([]int{3, 2}, Float64)))
				return err
			}(),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
	})
}

func TestRetainAndCreate(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(2)
		y := x.Pow(3).Sum()
		for range 2 {
			if err := y.Backward(RetainGraph(true)); err != nil {
				t.Fatal(err)
			}
		}
		wantValues(t, "twice", x.Grad(), 24)
		// Second and third derivatives of x⁴.
		z := x.Pow(4).Sum()
		want := []float64{32, 48, 48}
		for i, w := range want {
			gs, err := runGrad([]*Tensor{z}, []*Tensor{x}, CreateGraph(true))
			if err != nil {
				t.Fatal(err)
			}
			wantValues(t, fmt.Sprintf("derivative %d", i+1), gs[0], w)
			z = gs[0].Sum()
		}
		wantValues(t, "untouched", x.Grad(), 24)
		// A gradient that has a graph refers to its leaf, and the leaf to it: Backward(CreateGraph) would make a cycle.
		unused := leaf(1)
		if _, err := runGrad([]*Tensor{x.Sum()}, []*Tensor{unused}); err == nil {
			t.Error("an unused input has no gradient")
		}
		gs, err := runGrad([]*Tensor{x.Sum()}, []*Tensor{unused, x}, AllowUnused(true))
		if err != nil || gs[0] != nil {
			t.Fatal(gs, err)
		}
		wantValues(t, "used", gs[1], 1)
		if _, err := runGrad([]*Tensor{x.Sum()}, nil); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	})
}

func TestLeaves(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(1, 2)
		y := x.Mul(2)
		if !x.IsLeaf() || y.IsLeaf() || !y.RequiresGrad() || y.GradFn() != "MulBackward0" || x.GradFn() != "" {
			t.Error("the graph is not as expected", x, y)
		}
		if err := y.RetainGrad(); err != nil {
			t.Fatal(err)
		}
		if err := y.Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "retained", y.Grad(), 1, 1)
		if x.Detach().RequiresGrad() || !x.Detach().SharesStorage(x) {
			t.Error("Detach")
		}
		if err := y.RequiresGrad_(false).Err(); err == nil {
			t.Error("a tensor that is not a leaf can stop requiring gradients")
		}
		if err := Ones([]int{1}, Int64).RequiresGrad_().Err(); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
		if err := x.SetGrad(Ones([]int{2}, Float64)); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "set", x.Grad(), 1, 1)
		for what, g := range map[string]*Tensor{"shape": Ones([]int{3}, Float64), "dtype": Ones([]int{2}), "itself": x} {
			if err := x.SetGrad(g); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		if err := x.SetGrad(nil); err != nil || x.Grad() != nil {
			t.Error(err)
		}
		// A write to a tensor that the backward pass needs is detected.
		v := x.Clone()
		s := v.Mul(v).Sum()
		before := v.Version()
		v.Add_(1)
		equal(t, "version", v.Version(), before+1)
		if err := s.Backward(); err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
			t.Error(err)
		}
	})
}

// TestLeafWhoseBaseChanges tests a view that a write to its base connects to the graph: it is then not a leaf, although
// libtorch makes its grad_fn only when it is asked for.
func TestLeafWhoseBaseChanges(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := leaf(2)
		view := func() *Tensor {
			base := Ones([]int{3, 3}, Float64)
			v := base.Diagonal()
			if !v.IsLeaf() {
				t.Error("a view without a graph is not a leaf")
			}
			if err := base.Mul_(x).Err(); err != nil {
				t.Fatal(err)
			}
			return v
		}
		if v := view(); v.IsLeaf() || !v.RequiresGrad() {
			t.Error("the view is a leaf")
		}
		_, err := view().RegisterPostAccumulateGradHook(func(*Tensor) error { return nil })
		wantErr(t, "a post-accumulate hook", err, ErrArgument)
		wantErr(t, "RequiresGrad_(false)", view().RequiresGrad_(false).Err(), ErrArgument)
		v := view()
		if err := errors.Join(v.RetainGrad(), v.Sum().Backward()); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "retained", v.Grad(), 1, 1, 1)
		wantValues(t, "x", x.Grad(), 3)
		// A view of several, which refuses its grad_fn, still has its metadata.
		base := Ones([]int{2, 2}, Float64)
		parts, err := base.Unbind()
		if err := errors.Join(err, base.Mul_(x).Err()); err != nil {
			t.Fatal(err)
		}
		if p := parts[0]; p.IsLeaf() || !slices.Equal(p.Shape(), []int{2}) {
			t.Errorf("part of %v is a leaf, or has shape %v", base, p.Shape())
		}
	})
}

func TestFunctions(t *testing.T) {
	begin(t)
	mine := errors.New("mine")
	scoped(t, func() {
		x := leaf(2, 3)
		square := func(f nativeFunction) *Tensor {
			y := x.Detach().Mul(x.Detach())
			outs, err := tieFunction([]*Tensor{x}, []*Tensor{y}, []*Tensor{x}, false, f)
			if err != nil {
				t.Fatal(err)
			}
			return outs[0]
		}
		y := square(func(grads, saved []*Tensor, needs []bool) ([]*Tensor, error) {
			if len(grads) != 1 || len(saved) != 1 || len(needs) != 1 || !needs[0] {
				return nil, fmt.Errorf("got %v %v %v", grads, saved, needs)
			}
			return []*Tensor{grads[0].Mul(saved[0]).Mul(2)}, nil
		})
		if err := y.Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "x", x.Grad(), 4, 6)
		for what, f := range map[string]nativeFunction{
			"mine":                     func(_, _ []*Tensor, _ []bool) ([]*Tensor, error) { return nil, mine },
			"panic":                    func(_, _ []*Tensor, _ []bool) ([]*Tensor, error) { panic("panic") },
			"0 gradients for 1 inputs": func(_, _ []*Tensor, _ []bool) ([]*Tensor, error) { return nil, nil },
			"size":                     func(_, _ []*Tensor, _ []bool) ([]*Tensor, error) { return []*Tensor{Ones([]int{7})}, nil },
		} {
			if err := square(f).Sum().Backward(); err == nil {
				t.Errorf("%s: no error", what)
			} else if what != "size" && !strings.Contains(err.Error(), what) {
				t.Errorf("%s: got %v", what, err)
			}
		}
		if y := square(func(_, _ []*Tensor, _ []bool) ([]*Tensor, error) { return []*Tensor{nil}, nil }); y.Sum().Backward() != nil {
			t.Error("nil stands for no gradient")
		}
	})
}

// TestBackwardOnManyGoroutines runs hooks on the engine's thread while many goroutines run backward passes.
func TestBackwardOnManyGoroutines(t *testing.T) {
	begin(t)
	parallel(16, func(g int) {
		for range 20 {
			err := WithScope(func() error {
				x := leaf(float64(g), 1)
				y := x.Mul(2)
				calls := 0
				if _, err := y.RegisterHook(func(grad *Tensor) (*Tensor, error) { calls++; return grad.Mul(g), nil }); err != nil {
					return err
				}
				if err := y.Mul(y).Sum().Backward(); err != nil {
					return err
				}
				v, err := x.Grad().Index(0).Item()
				if want := float64(8 * g * g); err == nil && (v != want || calls != 1) {
					err = fmt.Errorf("got %v after %d calls, want %v", v, calls, want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestFusedAdamChecks tests that adamStep rejects invalid lists, which the fused kernel does not check.
func TestFusedAdamChecks(t *testing.T) {
	begin(t)
	scoped(t, func() {
		step := func(p, g, avg, sq *Tensor) error {
			if g != nil {
				if err := p.SetGrad(g); err != nil {
					t.Fatal(err)
				}
			}
			return adamStep(handle.Adam{LR: 1}, []*Tensor{p}, []*Tensor{avg}, []*Tensor{sq}, nil, []*Tensor{Zeros([]int{})})
		}
		p := Zeros([]int{2, 2}).RequiresGrad_()
		if err := step(p, nil, Zeros([]int{2, 2}), Zeros([]int{2, 2})); err != nil {
			t.Error("a parameter without a gradient is left alone", err)
		}
		// A gradient with another memory layout is read correctly: Adam moves by its sign.
		g := FromSlice([]float32{1, -1, 1, -1}, []int{2, 2}).T()
		if err := step(p, g, Zeros([]int{2, 2}), Zeros([]int{2, 2})); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "moved", p.Detach(), -1, -1, 1, 1)
		for what, s := range map[string]*Tensor{"shape": Zeros([]int{1}), "dtype": Zeros([]int{2, 2}, Float64), "strides": Zeros([]int{2, 2}).T()} {
			wantErr(t, what, step(p, g, s, Zeros([]int{2, 2})), ErrArgument)
			wantErr(t, what, step(p, g, Zeros([]int{2, 2}), s), ErrArgument)
		}
		wide := Zeros([]int{1}).Expand(4).RequiresGrad_()
		wantErr(t, "overlapping", step(wide, Ones([]int{4}), Zeros([]int{4}), Zeros([]int{4})), ErrArgument)
	})
}
