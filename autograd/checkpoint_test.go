package autograd_test

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

type function = func(in ...*tensor.Tensor) *tensor.Tensor

// call calls f, with or without a checkpoint.
func call(checkpointed bool, f function, in ...*tensor.Tensor) *tensor.Tensor {
	if checkpointed {
		return autograd.Checkpoint(f, in...)
	}
	return f(in...)
}

// compare computes gradients with and without checkpoints from the same random state, and checks that the gradients and
// the random state afterwards are bit-identical.
func compare(t *testing.T, grads func(checkpointed bool) ([]*tensor.Tensor, error)) {
	t.Helper()
	run := func(checkpointed bool) (all [][]float32) {
		err := tensor.WithScope(func() error {
			if err := tensor.ManualSeed(3); err != nil {
				return err
			}
			gs, err := grads(checkpointed)
			if err != nil {
				return err
			}
			for _, g := range append(gs, tensor.Rand([]int{4})) {
				if g == nil {
					t.Errorf("checkpointed %v: a gradient is missing", checkpointed)
				}
				data, err := tensor.Data[float32](g)
				if err != nil {
					return err
				}
				all = append(all, data)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("checkpointed %v: %v", checkpointed, err)
		}
		return all
	}
	want, got := run(false), run(true)
	for i := range want {
		if !slices.Equal(want[i], got[i]) {
			t.Errorf("gradient %d of %d differs:\n%v, checkpointed\n%v", i, len(want)-1, want[i], got[i])
		}
	}
}

func weights(n int) (ws []*tensor.Tensor) {
	for range n {
		ws = append(ws, tensor.Randn([]int{4, 4}).RequiresGrad_())
	}
	return ws
}

func gradsOf(ts []*tensor.Tensor) []*tensor.Tensor {
	gs := make([]*tensor.Tensor, len(ts))
	for i, t := range ts {
		gs[i] = t.Grad()
	}
	return gs
}

// TestCheckpointOfRawData tests the first block of a model: its input requires no gradient, but its parameters do.
func TestCheckpointOfRawData(t *testing.T) {
	leak.Check(t)
	compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
		ws := weights(2)
		x := tensor.Randn([]int{3, 4})
		y := call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor {
			return in[0].MatMul(ws[0]).Tanh().Dropout(0.3, tensor.Train(true)).MatMul(ws[1]).Sigmoid()
		}, x)
		err := y.Sum().Backward()
		return gradsOf(ws), err
	})
}

// TestCheckpointsThatShareATensor tests two checkpoints that capture the same computed tensor.
func TestCheckpointsThatShareATensor(t *testing.T) {
	leak.Check(t)
	compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
		ws := weights(3)
		x := tensor.Randn([]int{3, 4}).RequiresGrad_()
		shared := ws[0].MatMul(ws[0]).Exp()
		use := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].MatMul(shared).Mul(in[0]).Tanh() }
		y := call(checkpointed, use, call(checkpointed, use, x))
		err := y.Sum().Backward()
		return gradsOf([]*tensor.Tensor{ws[0], x}), err
	})
}

func TestCheckpointsNest(t *testing.T) {
	leak.Check(t)
	compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
		ws := weights(3)
		inner := func(w *tensor.Tensor) function {
			return func(in ...*tensor.Tensor) *tensor.Tensor {
				return in[0].MatMul(w).Tanh().Dropout(0.2, tensor.Train(true)).Mul(in[0])
			}
		}
		outer := func(in ...*tensor.Tensor) *tensor.Tensor {
			h := in[0].Sin()
			h = call(checkpointed, inner(ws[0]), h).Exp()
			h = call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor {
				return call(checkpointed, inner(ws[1]), in[0].Cos()).Sigmoid()
			}, h)
			return h.MatMul(ws[2]).Sigmoid()
		}
		x := tensor.Randn([]int{3, 4})
		err := call(checkpointed, outer, call(checkpointed, outer, x)).Sum().Backward()
		return gradsOf(ws), err
	})
}

// TestCheckpointThatSetsTheGenerator tests that random numbers are repeated, and the generator left alone, although its
// state after f is that before f.
func TestCheckpointThatSetsTheGenerator(t *testing.T) {
	leak.Check(t)
	dropped := func(x *tensor.Tensor) *tensor.Tensor { return x.Dropout(0.5, tensor.Train(true)) }
	forked := func(x *tensor.Tensor) (y *tensor.Tensor) {
		if err := tensor.ForkRNG(func() error { y = dropped(x); return y.Err() }); err != nil {
			return tensor.Failed(err)
		}
		return y
	}
	for name, f := range map[string]func(x, w *tensor.Tensor) *tensor.Tensor{
		"ForkRNG": func(x, w *tensor.Tensor) *tensor.Tensor { return forked(x.MatMul(w)).Tanh() },
		"ForkRNG in what is kept": func(x, w *tensor.Tensor) *tensor.Tensor {
			h := autograd.KeepInCheckpoint(func() *tensor.Tensor { return forked(x.MatMul(w)) })
			return forked(h.Sin()).Tanh()
		},
		"SetRNGState": func(x, w *tensor.Tensor) *tensor.Tensor {
			state := tensor.RNGState()
			y := dropped(x.MatMul(w)).Tanh()
			if err := tensor.SetRNGState(state); err != nil {
				return tensor.Failed(err)
			}
			return y
		},
		"ManualSeed": func(x, w *tensor.Tensor) *tensor.Tensor {
			if err := tensor.ManualSeed(3); err != nil {
				return tensor.Failed(err)
			}
			// The recomputation has all that it needs before the second number is drawn.
			return dropped(x.MatMul(w)).Tanh().Add(dropped(x))
		},
	} {
		t.Run(name, func(t *testing.T) {
			compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
				w, x := tensor.Full([]int{4, 4}, 0.25).RequiresGrad_(), tensor.Ones([]int{3, 4})
				for range 2 { // draws what the function that seeds draws, after the same seed
					dropped(x)
				}
				y := call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor { return f(in[0], w) }, x)
				dropped(x)
				err := y.Sum().Backward()
				return []*tensor.Tensor{w.Grad()}, err
			})
		})
	}
}

// TestCheckpointRegistersHooks tests that f may register the first hook of a tensor in the pass that computes f again,
// also if it was called in another pass before.
func TestCheckpointRegistersHooks(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		var hooked *tensor.Tensor
		calls := 0
		f := func(in ...*tensor.Tensor) *tensor.Tensor {
			if calls++; calls%2 == 0 {
				if err := hooked.RetainGrad(); err != nil {
					return tensor.Failed(err)
				}
			}
			return in[0].Exp().Mul(in[0])
		}
		hooked = points(4).Mul(2)
		if err := autograd.Checkpoint(f, hooked).Sum().Backward(); err != nil {
			t.Errorf("in a pass: %v", err)
		} else if hooked.Grad() == nil {
			t.Error("in a pass: the tensor has not retained its gradient")
		}

		x := points(4)
		y := applied(&either{backward: func() ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{autograd.Checkpoint(f, x)}, nil
		}})(x)
		g, err := autograd.Grad([]*tensor.Tensor{y.Sum()}, []*tensor.Tensor{x}, tensor.CreateGraph(true))
		if err != nil {
			return err
		}
		hooked = g[0].Mul(2)
		sum := hooked.Sum()
		// Within another pass, which may have the memory of the first one.
		outer := points(4)
		if _, err := outer.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, sum.Backward() }); err != nil {
			return err
		}
		if err := outer.Sum().Backward(); err != nil || calls != 4 || x.Grad() == nil {
			t.Errorf("%d calls; in a pass through the graph of another: %v, the gradient %v", calls, err, x.Grad())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheckpointWithGrad(t *testing.T) {
	leak.Check(t)
	compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
		ws := weights(2)
		x := tensor.Randn([]int{3, 4}).RequiresGrad_()
		y := call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor {
			return in[0].MatMul(ws[0]).Tanh().MatMul(ws[1]).Sigmoid()
		}, x)
		return autograd.Grad([]*tensor.Tensor{y.Sum()}, []*tensor.Tensor{ws[1], x})
	})
}

// TestCheckpointBackwardTwice tests that each pass over a retained graph computes f again, and that what a pass did not
// use is freed after it.
func TestCheckpointBackwardTwice(t *testing.T) {
	leak.Check(t)
	compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
		ws := weights(2)
		calls := 0
		x := tensor.Randn([]int{3, 4})
		out := call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor {
			calls++
			return in[0].MatMul(ws[0]).Tanh().Dropout(0.3, tensor.Train(true)).MatMul(ws[1]).Sigmoid()
		}, x)
		y := out.Sum()
		before, err := vram.Stats(vram.CPU)
		if err != nil {
			return nil, err
		}
		// The gradient of the second weight needs only a part of what is computed again.
		g, err := autograd.Grad([]*tensor.Tensor{y}, ws[1:], tensor.RetainGraph(true))
		if err != nil {
			return nil, err
		}
		g[0].Release()
		if after, err := vram.Stats(vram.CPU); err != nil || checkpointed && after.Allocated != before.Allocated {
			t.Errorf("checkpointed %v: %d bytes before the pass and %d after it, %v", checkpointed, before.Allocated, after.Allocated, err)
		}
		runtime.KeepAlive(out) // a collection must not free a tensor between the two readings
		runtime.KeepAlive(x)
		for _, retain := range []bool{true, false} {
			if err := y.Backward(tensor.RetainGraph(retain)); err != nil {
				return nil, err
			}
		}
		if want := 4; checkpointed && calls != want {
			t.Errorf("%d calls, want %d", calls, want)
		}
		if err := y.Backward(); err == nil {
			t.Errorf("checkpointed %v: a third pass through a freed graph gives no error", checkpointed)
		}
		return gradsOf(ws), nil
	})
}

func TestCheckpointCreateGraph(t *testing.T) {
	leak.Check(t)
	compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
		ws := weights(2)
		x := tensor.Randn([]int{3, 4}).RequiresGrad_()
		y := call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor {
			return in[0].MatMul(ws[0]).Tanh().Mul(in[0]).MatMul(ws[1]).Sigmoid()
		}, x)
		gs, err := autograd.Grad([]*tensor.Tensor{y.Sum()}, []*tensor.Tensor{x, ws[0]}, tensor.CreateGraph(true))
		if err != nil {
			return nil, err
		}
		err = gs[0].Mul(gs[0]).Sum().Add(gs[1].Mul(gs[1]).Sum()).Backward()
		return gradsOf(append(ws, x)), err
	})
}

// TestCheckpointOfAFunctionThatDifferentiates tests a function that computes gradients itself, of its own results and
// through the graph.
func TestCheckpointOfAFunctionThatDifferentiates(t *testing.T) {
	leak.Check(t)
	for _, create := range []bool{false, true} {
		compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
			ws := weights(1)
			x := tensor.Randn([]int{4, 4}).RequiresGrad_()
			y := call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor {
				z := in[0].Sin().MatMul(ws[0]).Cos()
				g, err := autograd.Grad([]*tensor.Tensor{z.Sum()}, in, tensor.CreateGraph(create))
				if err != nil {
					return tensor.Failed(err)
				}
				return in[0].Cos().Mul(g[0]).Mul(ws[0])
			}, x)
			err := y.Sum().Backward()
			return gradsOf(append(ws, x)), err
		})
	}
}

// TestCheckpointAll tests Go functions, hooks and several results inside a checkpoint.
func TestCheckpointAll(t *testing.T) {
	leak.Check(t)
	compare(t, func(checkpointed bool) ([]*tensor.Tensor, error) {
		ws := weights(2)
		f := func(in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
			out, err := autograd.Apply(&cube{}, in[0].MatMul(ws[0]).To(tensor.Float64))
			if err != nil {
				return nil, err
			}
			y := out[0].To(tensor.Float32)
			return []*tensor.Tensor{y.Tanh(), in[1], y.MatMul(ws[1]).Sigmoid()}, y.Err()
		}
		in := []*tensor.Tensor{tensor.Randn([]int{3, 4}), tensor.Randn([]int{3, 4}).RequiresGrad_()}
		out, err := f(in...)
		if checkpointed {
			out, err = autograd.CheckpointAll(f, in...)
		}
		if err != nil {
			return nil, err
		}
		err = out[0].Mul(out[1]).Add(out[2]).Sum().Backward()
		return gradsOf(append(ws, in[1])), err
	})
}

// TestCheckpointInNoGrad tests that f is not computed again if gradients are not recorded.
func TestCheckpointInNoGrad(t *testing.T) {
	leak.Check(t)
	for name, mode := range map[string]func(func() error) error{"NoGrad": autograd.NoGrad, "Inference": autograd.Inference} {
		err := tensor.WithScope(func() error {
			return mode(func() error {
				w := weights(1)[0]
				calls := 0
				y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { calls++; return in[0].MatMul(w) }, w)
				if y.Err() != nil || calls != 1 || y.RequiresGrad() {
					t.Errorf("%s: %v, %d calls, requires a gradient: %v", name, y.Err(), calls, y.RequiresGrad())
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckpointModes tests that f is computed again in the modes of its first run, not in those of the backward pass.
func TestCheckpointModes(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(3)
		var recorded []bool
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
			recorded = append(recorded, tensor.GradEnabled(), tensor.InferenceEnabled())
			err := autograd.NoGrad(func() error { recorded = append(recorded, in[0].Mul(in[0]).RequiresGrad()); return nil })
			if err != nil {
				return tensor.Failed(err)
			}
			return in[0].Exp().Mul(in[0])
		}, x)
		if err := autograd.NoGrad(func() error { return y.Sum().Err() }); err != nil {
			return err
		}
		s := y.Sum()
		if err := autograd.NoGrad(func() error { return s.Backward() }); err != nil {
			return err
		}
		if want := []bool{true, false, false, true, false, false}; !slices.Equal(recorded, want) {
			t.Errorf("the modes were %v, want %v", recorded, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointLevels tests that f has tangents when it is computed again if the backward pass does: its first run may
// have been in another level, or in none.
func TestCheckpointLevels(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(3)
		var levels []bool
		run := func() *tensor.Tensor {
			return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				err := autograd.MakeDual(x.Detach(), x.Detach()).Err()
				levels = append(levels, err == nil)
				return in[0].Exp().Mul(in[0])
			}, x)
		}
		level := func(f func() error) {
			t.Helper()
			if err := autograd.DualLevel(f); err != nil {
				t.Error(err)
			}
		}
		var inside *tensor.Tensor
		level(func() error { inside = run(); return inside.Err() })
		outside := run()
		level(func() error { return outside.Sum().Backward() })
		open, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			level(func() error { open <- struct{}{}; <-open; return nil })
		}()
		<-open
		err := inside.Sum().Backward()
		open <- struct{}{}
		<-over
		if want := []bool{true, false, true, false}; !slices.Equal(levels, want) {
			t.Errorf("the runs were in a level: %v, want %v", levels, want)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointDifferentiatesForward tests that a function which enters a level is an error when a backward pass
// within a level computes it again. It waited for this level for ever.
func TestCheckpointDifferentiatesForward(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		// From the first level of a process on, its threads have no tangents.
		if err := autograd.DualLevel(func() error { return nil }); err != nil {
			return err
		}
		x := points(3)
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
			square := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[0]) }
			_, dy, err := autograd.JVP(square, in, []*tensor.Tensor{x.Detach()}, autograd.ForwardMode(), autograd.CreateGraph())
			if err != nil {
				return tensor.Failed(err)
			}
			return dy.Mul(in[0])
		}, x)
		s := y.Sum()
		err := autograd.DualLevel(func() error { return s.Backward(tensor.RetainGraph(true)) })
		if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "levels do not nest") {
			t.Errorf("in a level: %v", err)
		}
		if err := s.Backward(); err != nil {
			return err
		}
		ok, err := x.Grad().AllClose(x.Detach().Mul(x.Detach()).Mul(4))
		if err == nil && !ok {
			t.Errorf("the gradient is %v", x.Grad())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

var errInside = errors.New("an error on purpose")

// TestCheckpointErrors tests that a failure of f is an error of Checkpoint or of the backward pass and names both
// lines.
func TestCheckpointErrors(t *testing.T) {
	leak.Check(t)
	_, file, _, _ := runtime.Caller(0)
	line := func() string { _, _, line, _ := runtime.Caller(1); return fmt.Sprintf("%s:%d", file, line) }
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 3}).RequiresGrad_()
		double := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(2) }
		if err := autograd.Checkpoint(nil, x).Err(); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil function: %v", err)
		}
		if _, err := autograd.CheckpointAll(nil, x); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil function: %v", err)
		}
		if err := autograd.Checkpoint(double, x, nil).Err(); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil input: %v", err)
		}
		if err := autograd.Checkpoint(double, tensor.Failed(errInside)).Err(); !errors.Is(err, errInside) {
			t.Errorf("a failed input: %v", err)
		}
		if err := autograd.Checkpoint(func(...*tensor.Tensor) *tensor.Tensor { return nil }, x).Err(); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil result: %v", err)
		}
		var at string
		fails := []struct {
			name string
			f    function
			is   error
		}{
			{"an operator", func(in ...*tensor.Tensor) *tensor.Tensor { at = line(); return in[0].MatMul(in[0]) }, tensor.ErrArgument},
			{"an error", func(...*tensor.Tensor) *tensor.Tensor { at = ""; return tensor.Failed(errInside) }, errInside},
			{"a panic", func(...*tensor.Tensor) *tensor.Tensor { at = "panic: "; panic(errInside) }, errInside},
		}
		for _, f := range fails {
			err := autograd.Checkpoint(f.f, x).Err()
			if !errors.Is(err, f.is) || !strings.Contains(err.Error(), at) {
				t.Errorf("%s: %v; want %v at %s", f.name, err, f.is, at)
			}
			var p *autograd.PanicError
			if errors.As(err, &p) != (f.name == "a panic") || p != nil && !strings.Contains(string(p.Stack), "checkpoint_test.go") {
				t.Errorf("%s: %v has the panic %v, without a stack that names this file", f.name, err, p)
			}
			n := 0
			y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				if n++; n > 1 {
					return f.f(in...)
				}
				return in[0].Exp().Mul(in[0])
			}, x).Sum()
			// Existing results stay usable, and a second pass fails like the first.
			for range 2 {
				called := line()
				err := y.Backward(tensor.RetainGraph(true))
				var e *tensor.Error
				if !errors.Is(err, f.is) || !strings.Contains(err.Error(), at) || !errors.As(err, &e) || e.Op != "Backward" {
					t.Fatalf("%s when computed again: %v; want %v at %s", f.name, err, f.is, at)
				}
				if want := nextLine(called); e.Caller != want {
					t.Errorf("%s when computed again: at %s, want %s", f.name, e.Caller, want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func nextLine(at string) string {
	i := strings.LastIndexByte(at, ':')
	var n int
	_, _ = fmt.Sscan(at[i+1:], &n)
	return fmt.Sprintf("%s:%d", at[:i], n+1)
}

// TestCheckpointNotDeterministic tests that the error names the difference if f computes something else the second
// time.
func TestCheckpointNotDeterministic(t *testing.T) {
	leak.Check(t)
	first := func(x *tensor.Tensor) *tensor.Tensor { return x.Exp().Mul(x).Tanh() }
	for _, c := range []struct {
		name, want string
		then       func(x *tensor.Tensor) *tensor.Tensor
	}{
		{"fewer", "saved 1 tensors", func(x *tensor.Tensor) *tensor.Tensor { return x.Exp() }},
		{"none", "saved 0 tensors", func(x *tensor.Tensor) *tensor.Tensor { return x.Neg() }},
		{"another shape", "float32(2) on cpu as tensor 0, and float32(2, 3)", func(x *tensor.Tensor) *tensor.Tensor { return first(x.Sum(tensor.Dim(1))) }},
		{"another dtype", "float64(2, 3) on cpu as tensor 0, and float32(2, 3)", func(x *tensor.Tensor) *tensor.Tensor { return first(x.To(tensor.Float64)) }},
		{"more", "", func(x *tensor.Tensor) *tensor.Tensor { return first(x).Exp().Mul(x) }},
	} {
		err := tensor.WithScope(func() error {
			n := 0
			x := tensor.Ones([]int{2, 3}).RequiresGrad_()
			y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				if n++; n > 1 {
					return c.then(in[0])
				}
				return first(in[0])
			}, x)
			err := y.Sum().Backward()
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v; want %q", c.name, err, c.want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestCheckpointOfAnInputThatChanges tests that changing an input in place is an error.
func TestCheckpointOfAnInputThatChanges(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w := tensor.Ones([]int{3}).RequiresGrad_()
		x := tensor.Ones([]int{3})
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul_(w).Exp() }, x)
		if err := y.Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "its input 0 in place") {
			t.Errorf("by the function: %v", err)
		}
		if err := x.Sum().Backward(); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("backward through what is left of it: %v", err)
		}
		x = tensor.Ones([]int{3})
		y = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(w).Exp() }, x)
		x.Zero_()
		if err := y.Sum().Backward(); err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
			t.Errorf("after the function: %v", err)
		}
		// Nothing has to be computed again here.
		x = tensor.Ones([]int{3})
		return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Add_(w) }, x).Sum().Backward()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointOfASavedTensorThatChanges tests that changing a tensor in place that the function has saved is an error,
// as without a checkpoint, unless the recomputation ends before.
func TestCheckpointOfASavedTensorThatChanges(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		buffer := tensor.Ones([]int{3})
		for name, f := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
			"a result": func(x *tensor.Tensor) *tensor.Tensor {
				y := x.Exp()
				y.Mul_(2)
				return y.Sin()
			},
			"a buffer": func(x *tensor.Tensor) *tensor.Tensor {
				y := x.Mul(buffer.Fill_(3))
				buffer.Zero_()
				return y.Sin()
			},
			"a buffer, after all else": func(x *tensor.Tensor) *tensor.Tensor {
				y := x.Mul(buffer.Fill_(3))
				buffer.Zero_()
				return y
			},
			"a result that the function differentiates": func(x *tensor.Tensor) *tensor.Tensor {
				leaf := x.Detach().RequiresGrad_()
				y := leaf.Exp()
				y.Mul_(2)
				g, err := autograd.Grad([]*tensor.Tensor{y.Sum()}, []*tensor.Tensor{leaf})
				if err != nil {
					return tensor.Failed(err)
				}
				return x.Mul(g[0]).Sin()
			},
		} {
			for _, checkpointed := range []bool{false, true} {
				x := tensor.Ones([]int{3}).RequiresGrad_()
				err := call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor { return f(in[0]) }, x).Sum().Backward()
				if err == nil || !strings.Contains(err.Error(), "inplace operation") && !strings.Contains(err.Error(), "was changed in place") {
					t.Errorf("%s, checkpointed %t: %v", name, checkpointed, err)
				}
			}
		}

		// The exponential is computed again, but not what follows.
		x := tensor.Ones([]int{3}).RequiresGrad_()
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Exp().Mul_(2) }, x)
		if err := y.Sum().Backward(); err != nil {
			return err
		}
		if diff, err := x.Grad().Sub(x.Exp().Mul(2)).Abs().Max().Item(); err != nil || diff != 0 {
			t.Errorf("the gradient is %v, %v", x.Grad(), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointStopsEarly tests that the operators of f stop once the backward pass has what it needs, even if f
// ignores their errors.
func TestCheckpointStopsEarly(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(4)
		for name, answer := range map[string]func(error) *tensor.Tensor{
			"passed on":       tensor.Failed,
			"replaced":        func(error) *tensor.Tensor { return tensor.Failed(errInside) },
			"made a panic":    func(err error) *tensor.Tensor { panic(err) },
			"made a result":   func(error) *tensor.Tensor { return tensor.Ones([]int{4}) },
			"not taken for 1": func(error) *tensor.Tensor { return x.Exp().Mul(x).Sin() },
		} {
			calls, after := 0, 0
			y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				calls++
				h := in[0].Exp() // saves its result
				if err := h.Err(); err != nil {
					if !errors.Is(err, tensor.ErrStopRecomputation) {
						t.Errorf("%s: %v", name, err)
					}
					return answer(err)
				}
				after++
				return h.Add(1)
			}, x)
			g, err := autograd.Grad([]*tensor.Tensor{y.Sum()}, []*tensor.Tensor{x})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if equal, err := g[0].Sub(x.Exp()).Abs().Max().Item(); err != nil || equal != 0 {
				t.Errorf("%s: the gradient is %v, %v", name, g[0], err)
			}
			if calls != 2 || after != 1 {
				t.Errorf("%s: %d calls, %d ran to the end", name, calls, after)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointLeavesNothing tests that a step frees all native memory without a garbage collection, and leaves
// nothing that keeps Go memory reachable.
func TestCheckpointLeavesNothing(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	const steps, kept = 1000, 64 << 10
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	w := tensor.Randn([]int{8, 8}).Keep().RequiresGrad_()
	defer w.Release()
	x := tensor.Randn([]int{4, 8}).Keep()
	defer x.Release()
	step := func(backward bool) error {
		held := make([]byte, kept)
		f := func(in ...*tensor.Tensor) *tensor.Tensor {
			held[0]++
			return in[0].MatMul(w).Dropout(0.5, tensor.Train(true)).Tanh()
		}
		// Without a scope, release each tensor explicitly.
		y := autograd.Checkpoint(f, x)
		z := autograd.Checkpoint(f, y)
		s := z.Sum()
		defer func() {
			for _, t := range []*tensor.Tensor{s, z, y} {
				t.Release()
			}
		}()
		if backward {
			return s.Backward()
		}
		return s.Err()
	}
	if err := errors.Join(step(true), step(false)); err != nil {
		t.Fatal(err)
	}
	live := func() (native, heap int64) {
		s, err := vram.Stats(vram.CPU)
		if err != nil {
			t.Fatal(err)
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return s.Allocated, int64(m.HeapAlloc)
	}
	native, heap := live()
	for i := range steps {
		if err := step(i%2 == 0); err != nil {
			t.Fatal(err)
		}
		if s, err := vram.Stats(vram.CPU); err != nil || s.Allocated != native {
			t.Fatalf("%d native bytes before step %d, %d after it, %v", native, i, s.Allocated, err)
		}
	}
	if n, h := live(); n != native || h > heap+steps*kept/20 {
		t.Errorf("after %d steps %d native bytes and %d of Go's are live; before %d and %d", steps, n, h, native, heap)
	}
}

// TestCheckpointOnManyGoroutines tests that backward passes and checkpoints on many goroutines do not interfere.
func TestCheckpointOnManyGoroutines(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		shared := points(8)
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Exp().Mul(in[0]) }, shared).Sum()
		if err := y.Err(); err != nil {
			return err
		}
		want, err := autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{shared}, tensor.RetainGraph(true))
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				err := tensor.WithScope(func() error {
					for range 20 {
						// Each goroutine uses its own graph, and all use a shared one.
						x := tensor.Full([]int{4}, float64(g), tensor.Float64).RequiresGrad_()
						cubed := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
							return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[0]) }, in...).Mul(in[0])
						}, x)
						if err := cubed.Sum().Backward(); err != nil {
							return err
						}
						if d, err := tensor.Data[float64](x.Grad()); err != nil || d[0] != float64(3*g*g) {
							return fmt.Errorf("the gradient of %d cubed is %v, %w", g, d, err)
						}
						got, err := autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{shared}, tensor.RetainGraph(true))
						if err != nil {
							return err
						}
						if d, err := got[0].Sub(want[0]).Abs().Max().Item(); err != nil || d != 0 {
							return fmt.Errorf("a shared graph's gradient is off by %v, %w", d, err)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointThatEndsUnexpectedly tests that later operators work after f ended its goroutine or left scopes open or
// closed.
func TestCheckpointThatEndsUnexpectedly(t *testing.T) {
	leak.Check(t)
	for _, f := range []function{
		func(...*tensor.Tensor) *tensor.Tensor { runtime.Goexit(); return nil },
		func(...*tensor.Tensor) *tensor.Tensor {
			_, err := tensor.NewScope() //linstockvet:ignore scopeclose the test is about that
			return tensor.Failed(err)
		},
		func(...*tensor.Tensor) *tensor.Tensor { return tensor.Failed(tensor.CurrentScope().Close()) },
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = autograd.Checkpoint(f, points(3))
		}()
		<-done
		err := tensor.WithScope(func() error {
			x := points(3)
			if err := x.Exp().Mul(x).Sum().Backward(); err != nil {
				return err
			}
			return x.Grad().Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	if err := vram.Collect(); err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointGolden compares with PyTorch's values, including dropout and the random state afterwards.
func TestCheckpointGolden(t *testing.T) {
	leak.Check(t)
	type array struct {
		Shape []int
		Data  []float64
	}
	type result struct {
		Tensors map[string]array
		Seed    uint64
		Loss    float64
		Grads   map[string]array
		Next    []float64
	}
	var file struct{ MLP, GPT result }
	golden.Read(t, "checkpoint.json", &file)
	run := func(name string, want result, forward func(ts map[string]*tensor.Tensor) *tensor.Tensor) {
		err := tensor.WithScope(func() error {
			ts := map[string]*tensor.Tensor{}
			for k, a := range want.Tensors {
				ts[k] = tensor.FromSlice(a.Data, a.Shape).To(tensor.Float32)
				if _, has := want.Grads[k]; has {
					ts[k] = ts[k].RequiresGrad_()
				}
			}
			if err := tensor.ManualSeed(want.Seed); err != nil {
				return err
			}
			loss := forward(ts)
			if err := loss.Backward(); err != nil {
				return err
			}
			golden.Near(t, name+": loss", loss, []float64{want.Loss}, 0, 1e-5)
			for k, g := range want.Grads {
				golden.Near(t, name+": gradient of "+k, ts[k].Grad(), g.Data, 1e-5, 1e-4)
			}
			golden.Near(t, name+": random numbers after backward", tensor.Rand([]int{4}), want.Next, 0, 0)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	dropout := func(x *tensor.Tensor, p float64) *tensor.Tensor { return x.Dropout(p, tensor.Train(true)) }
	run("mlp", file.MLP, func(ts map[string]*tensor.Tensor) *tensor.Tensor {
		x := ts["x"]
		for _, i := range []string{"0", "1", "2"} {
			x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				return dropout(in[0].MatMul(ts["w"+i]).Add(ts["b"+i]).Tanh(), 0.25)
			}, x)
		}
		return x.Pow(2).Sum()
	})
	run("gpt", file.GPT, func(ts map[string]*tensor.Tensor) *tensor.Tensor {
		const width, heads = 16, 4
		norm := func(x, g *tensor.Tensor) *tensor.Tensor { return x.LayerNorm([]int{width}, g, nil) }
		block := func(in ...*tensor.Tensor) *tensor.Tensor {
			x := in[0]
			qkv, err := norm(x, ts["g1"]).MatMul(ts["qkv"].T()).Chunk(3, tensor.Dim(2))
			if err != nil {
				return tensor.Failed(err)
			}
			for i, y := range qkv {
				qkv[i] = y.View(2, 6, heads, width/heads).Transpose(1, 2)
			}
			y := tensor.ScaledDotProductAttention(qkv[0], qkv[1], qkv[2], tensor.IsCausal(true))
			x = x.Add(dropout(y.Transpose(1, 2).Reshape(2, 6, width).MatMul(ts["proj"].T()), 0.1))
			return x.Add(autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				return dropout(in[0].MatMul(ts["up"].T()).GELU().MatMul(ts["down"].T()), 0.1)
			}, norm(x, ts["g2"])))
		}
		return autograd.Checkpoint(block, ts["x"]).Pow(2).Mean()
	})
}

// TestCheckpointPeak tests that a training step of a model with 16 layers uses as much memory as in PyTorch.
func TestCheckpointPeak(t *testing.T) {
	leak.Check(t)
	var file struct {
		Peak struct{ Plain, Checkpointed int64 }
	}
	golden.Read(t, "checkpoint.json", &file)
	const layers, rows, width = 16, 8192, 64
	peak := func(checkpointed bool) (bytes int64) {
		err := tensor.WithScope(func() error {
			var ws [][2]*tensor.Tensor
			for range layers {
				ws = append(ws, [2]*tensor.Tensor{tensor.Randn([]int{width, 4 * width}).RequiresGrad_(), tensor.Randn([]int{4 * width, width}).RequiresGrad_()})
			}
			x := tensor.Randn([]int{rows, width})
			h := x.Alias()
			before, err := vram.Stats(vram.CPU)
			if err != nil {
				return err
			}
			if err := vram.ResetPeak(vram.CPU); err != nil {
				return err
			}
			for _, w := range ws {
				last := h
				h = call(checkpointed, func(in ...*tensor.Tensor) *tensor.Tensor {
					return in[0].MatMul(w[0]).GELU().MatMul(w[1])
				}, last)
				last.Release() // as Python does; the graph still holds it
			}
			if err := h.Sum().Backward(); err != nil {
				return err
			}
			after, err := vram.Stats(vram.CPU)
			bytes = after.Peak - before.Allocated
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	got, plain := peak(true), peak(false)
	t.Logf("peak %d, checkpointed %d; PyTorch's %d and %d", plain, got, file.Peak.Plain, file.Peak.Checkpointed)
	if want := file.Peak.Checkpointed; float64(got) > 1.02*float64(want) {
		t.Errorf("the peak is %d bytes, PyTorch's %d", got, want)
	}
	if got > plain/4 {
		t.Errorf("the peak is %d bytes, and %d without checkpoints", got, plain)
	}
}
