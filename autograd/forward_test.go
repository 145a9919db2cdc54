package autograd_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

func functionalData(t *testing.T) (want map[string]any) {
	t.Helper()
	data, err := os.ReadFile("../tests/golden/functional.json")
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// functionalCase returns the inputs, directions and functions of functional.py.
func functionalCase() (in, v []*tensor.Tensor, f, g func(in ...*tensor.Tensor) *tensor.Tensor) {
	x := tensor.Arange(0, 6, tensor.Float64).Reshape(2, 3).Sub(2).Div(4)
	w := tensor.Arange(1, 4, tensor.Float64).Div(5)
	f = func(in ...*tensor.Tensor) *tensor.Tensor {
		x, w := in[0], in[1]
		return tensor.Stack([]*tensor.Tensor{x.Exp().Mul(w).Sum(tensor.Dim(1)).Tanh(), x.Mul(x).Sum(tensor.Dim(1))})
	}
	g = func(in ...*tensor.Tensor) *tensor.Tensor {
		x, w := in[0], in[1]
		return x.Exp().Mul(w).Sum().Pow(2).Add(w.Pow(3).Sum())
	}
	return []*tensor.Tensor{x, w}, []*tensor.Tensor{x.Flip(0).Add(0.5), w.Flip(0)}, f, g
}

// TestDual compares tangents with PyTorch, and tests that they end with the level.
func TestDual(t *testing.T) {
	leak.Check(t)
	want := functionalData(t)
	err := tensor.WithScope(func() error {
		in, v, _, _ := functionalCase()
		x, w, vx := in[0], in[1], v[0]
		leaf := x.Detach().RequiresGrad_()
		var left *tensor.Tensor
		err := autograd.DualLevel(func() error {
			dual := autograd.MakeDual(x, vx)
			y, dy := autograd.UnpackDual(dual.LayerNorm([]int{3}, w, nil).Softmax(1).MM(w.Mul(dual).T().Tanh()))
			same(t, "dual", []any{y, dy}, want["dual"])
			written := x.Clone()
			written.Narrow(1, 1, 2).Mul_(dual.Narrow(1, 0, 2))
			y, dy = autograd.UnpackDual(written)
			same(t, "dual_in_place", []any{y, dy}, want["dual_in_place"])
			left = written

			if err := autograd.NoGrad(func() error {
				if _, dy := autograd.UnpackDual(dual.Mul(2)); dy == nil {
					t.Error("no tangent without the recording of gradients")
				}
				return nil
			}); err != nil {
				return err
			}
			if _, dy := autograd.UnpackDual(dual.Detach()); dy != nil {
				t.Error("Detach keeps the tangent")
			}
			_, dy = autograd.UnpackDual(autograd.MakeDual(leaf, vx).Pow(3).Sum())
			grads, err := autograd.Grad([]*tensor.Tensor{dy}, []*tensor.Tensor{leaf})
			if err != nil {
				return err
			}
			same(t, "backward_of_tangent", grads, want["backward_of_tangent"])

			// Tangents are this goroutine's.
			var wait sync.WaitGroup
			wait.Add(1)
			go func() {
				defer wait.Done()
				_ = tensor.WithScope(func() error {
					if _, dy := autograd.UnpackDual(dual.Mul(2)); dy != nil {
						t.Error("another goroutine has a tangent")
					}
					if err := autograd.MakeDual(x, vx).Err(); !errors.Is(err, tensor.ErrArgument) {
						t.Errorf("MakeDual on another goroutine: %v", err)
					}
					return nil
				})
			}()
			wait.Wait()
			return nil
		})
		if err != nil {
			return err
		}
		y, dy := autograd.UnpackDual(left)
		if y.Err() != nil || dy != nil {
			t.Errorf("after the level: %v, %v", y.Err(), dy)
		}
		return autograd.DualLevel(func() error {
			if _, dy := autograd.UnpackDual(left); dy != nil {
				t.Error("a later level has the tangent of an earlier one")
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPrintDual tests that a tensor prints its tangent, as in PyTorch, and that printing leaves nothing behind.
func TestPrintDual(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{1, 2}, nil)
		w := x.Clone().RequiresGrad_()
		var after *tensor.Tensor
		err := autograd.DualLevel(func() error {
			dual := autograd.MakeDual(x, tensor.FromSlice([]float32{3, 4}, nil))
			tied := autograd.MakeDual(w, tensor.FromSlice([]float32{0.5, 1e6}, nil))
			after = dual
			for _, c := range []struct {
				x    *tensor.Tensor
				want string
			}{
				{x, "tensor([1., 2.])"},
				{dual, "tensor([1., 2.], tangent=tensor([3., 4.]))"},
				{dual.Mul(2).To(tensor.Float64).Reshape(2, 1), `tensor([[2.],
        [4.]], dtype=torch.float64,
       tangent=tensor([[6.],
        [8.]], dtype=torch.float64))`},
				{autograd.MakeDual(tensor.FromScalar(1.), tensor.FromScalar(0.1)), "tensor(1., tangent=0.10000000149011612)"},
				{autograd.MakeDual(tensor.FromScalar(1i), tensor.FromScalar(3+0i)), "tensor(0.+1.j, tangent=(3+0j))"},
				{tied.Mul(w), `tensor([1., 4.], grad_fn=<MulBackward0>,
       tangent=tensor([5.0000e-01, 2.0000e+06], grad_fn=<AddBackward0>))`},
			} {
				had := tensor.CurrentScope().Len()
				if got := c.x.String(); got != c.want {
					t.Errorf("got\n%s\nwant\n%s", got, c.want)
				}
				if n := tensor.CurrentScope().Len(); n > had {
					t.Errorf("the scope had %d tensors, and %d after printing", had, n)
				}
			}
			return nil
		})
		if got := after.String(); got != "tensor([1., 2.])" {
			t.Errorf("after the level: %s", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestForwardMode compares the forward mode of the functional API with PyTorch.
func TestForwardMode(t *testing.T) {
	leak.Check(t)
	want := functionalData(t)
	err := tensor.WithScope(func() error {
		in, v, f, g := functionalCase()
		forward := autograd.ForwardMode(true)
		check := func(name string, got any, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			same(t, name, got, want[name])
		}
		out, product, err := autograd.JVP(f, in, v, forward)
		check("func_jvp", []any{out, product}, err)
		js, err := autograd.Jacobian(f, in, forward)
		check("jacfwd", js, err)
		check("jacobian_forward", js, err)
		h, err := autograd.Hessian(g, in, forward)
		check("hessian_forward", h, err)
		out, products, err := autograd.HVP(g, in, v, forward)
		check("hvp", []any{out, products}, err)
		out, products, err = autograd.VHP(g, in, v, forward)
		check("vhp", []any{out, products}, err)

		// With the graph, the products lead to inputs that require gradients.
		leaf := in[0].Detach().RequiresGrad_()
		cube := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Pow(3).Sum() }
		_, product, err = autograd.JVP(cube, []*tensor.Tensor{leaf}, v[:1], forward, autograd.CreateGraph(true))
		if err != nil {
			return err
		}
		grads, err := autograd.Grad([]*tensor.Tensor{product}, []*tensor.Tensor{leaf})
		check("backward_of_tangent", grads, err)

		constant := func(...*tensor.Tensor) *tensor.Tensor { return tensor.Ones([]int{2}, tensor.Float64) }
		_, product, err = autograd.JVP(constant, in, v, forward)
		if err != nil {
			return err
		}
		if d, err := tensor.Data[float64](product); err != nil || d[0] != 0 || d[1] != 0 {
			t.Errorf("the derivative of a constant is %v, %v", d, err)
		}
		js, err = autograd.Jacobian(f, []*tensor.Tensor{in[0].T().Contiguous().T(), in[1]}, forward)
		check("jacfwd", js, err) // of a transposed input
		js, err = autograd.Jacobian(f, []*tensor.Tensor{tensor.Ones([]int{2, 0}), tensor.Ones([]int{1, 0})}, forward)
		if err != nil || len(js) != 2 || js[0].Dim() != 4 || js[0].Numel() != 0 {
			t.Errorf("the Jacobian with respect to nothing: %v, %v", js, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestForwardOverBackward differentiates backward passes forward that compute values again, or get them from elsewhere.
func TestForwardOverBackward(t *testing.T) {
	leak.Check(t)
	want := functionalData(t)
	err := tensor.WithScope(func() error {
		in, v, _, g := functionalCase()
		for name, f := range map[string]func(in ...*tensor.Tensor) *tensor.Tensor{
			"a checkpoint": func(in ...*tensor.Tensor) *tensor.Tensor { return autograd.Checkpoint(g, in...) },
			"a checkpoint that keeps a result": func(in ...*tensor.Tensor) *tensor.Tensor {
				return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
					a := autograd.KeepInCheckpoint(func() *tensor.Tensor { return in[0].Exp() })
					return a.Mul(in[1]).Sum().Pow(2).Add(in[1].Pow(3).Sum())
				}, in...)
			},
			"a saved-tensor policy": func(in ...*tensor.Tensor) *tensor.Tensor {
				return autograd.SavedTensors(autograd.SaveOnCPU(), func() *tensor.Tensor { return g(in...) })
			},
		} {
			output, products, err := autograd.HVP(f, in, v, autograd.ForwardMode(true))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			same(t, name, []any{output, products}, want["hvp"])
		}

		// A pass outside of a level may enter one.
		leaf := in[0].Detach().RequiresGrad_()
		f := &either{backward: func() ([]*tensor.Tensor, error) {
			_, d, err := autograd.JVP(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Exp() }, []*tensor.Tensor{in[0]}, v[:1], autograd.ForwardMode(true))
			return []*tensor.Tensor{d}, err
		}}
		out, err := autograd.Apply(f, leaf)
		if err != nil {
			return err
		}
		if err := out[0].Sum().Backward(); err != nil {
			return err
		}
		if ok, err := leaf.Grad().AllClose(in[0].Exp().Mul(v[0])); err != nil || !ok {
			t.Errorf("the derivative of a level in a backward pass is %v, %v", leaf.Grad(), err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLevelIsLeft tests that a level ends when its function fails or panics, and that goroutines take turns.
func TestLevelIsLeft(t *testing.T) {
	leak.Check(t)
	bad := errors.New("bad")
	if err := autograd.DualLevel(func() error { return bad }); err != bad {
		t.Errorf("DualLevel returns %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = autograd.DualLevel(func() error { panic("bad") })
	}()
	square := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[0]) }
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for k := range 20 {
				err := tensor.WithScope(func() error {
					x := tensor.Full([]int{3}, float64(i*20+k), tensor.Float64)
					_, d, err := autograd.JVP(square, []*tensor.Tensor{x}, []*tensor.Tensor{x.OnesLike()}, autograd.ForwardMode(true))
					if err != nil {
						return err
					}
					if v, err := tensor.Data[float64](d); err != nil || v[2] != float64(2*(i*20+k)) {
						t.Errorf("the derivative is %v, %v, want %d", v, err, 2*(i*20+k))
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wait.Wait()
}

// TestDualWhileOthersUseIt uses duals of levels that end meanwhile.
func TestDualWhileOthersUseIt(t *testing.T) {
	leak.Check(t)
	duals := make(chan *tensor.Tensor, 64)
	var wait sync.WaitGroup
	for range 2 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for d := range duals {
				_ = tensor.WithScope(func() error {
					y := d.Mul(3).Exp()
					if err := y.Err(); err != nil {
						t.Error(err)
					}
					if _, dy := autograd.UnpackDual(d); dy != nil {
						t.Error("a tangent on another goroutine")
					}
					return autograd.Inference(func() error { return d.Add(1).Err() })
				})
				d.Release()
			}
		}()
	}
	for range 300 {
		if err := autograd.DualLevel(func() error {
			return tensor.WithScope(func() error {
				x := tensor.Ones([]int{100})
				for range 4 {
					duals <- autograd.MakeDual(x, x).Mul(2).Keep()
				}
				return nil
			})
		}); err != nil {
			t.Error(err)
		}
	}
	close(duals)
	wait.Wait()
}

// TestUnpackErrorIsReportedOnce tests that the scope does not return the error of UnpackDual again if the program has
// read it from one of the results.
func TestUnpackErrorIsReportedOnce(t *testing.T) {
	leak.Check(t)
	for i := range 2 {
		if err := tensor.WithScope(func() error {
			y, dy := autograd.UnpackDual(nil)
			if err := []*tensor.Tensor{y, dy}[i].Err(); !errors.Is(err, tensor.ErrNil) {
				t.Errorf("result %d has the error %v", i, err)
			}
			return nil
		}); err != nil {
			t.Errorf("the scope returns %v, which result %d has returned", err, i)
		}
	}
}

func TestForwardErrors(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		x := tensor.Ones([]int{2})
		want := func(what string, err, kind error, text string) {
			t.Helper()
			if !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v; want %q", what, err, text)
			}
		}
		want("nil", autograd.DualLevel(nil), tensor.ErrNil, "DualLevel")
		want("no level", autograd.MakeDual(x, x).Err(), tensor.ErrArgument, "DualLevel")
		y, dy := autograd.UnpackDual(x)
		if y.Err() != nil || dy != nil {
			t.Errorf("UnpackDual outside a level: %v, %v", y.Err(), dy)
		}
		y, dy = autograd.UnpackDual(nil)
		want("unpack nil", y.Err(), tensor.ErrNil, "UnpackDual")
		want("unpack nil", dy.Err(), tensor.ErrNil, "UnpackDual")
		err := autograd.DualLevel(func() error {
			want("nested", autograd.DualLevel(func() error { return nil }), tensor.ErrArgument, "do not nest")
			want("nested functional", second(autograd.Jacobian(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0] }, []*tensor.Tensor{x}, autograd.ForwardMode(true))), tensor.ErrArgument, "do not nest")
			dual := autograd.MakeDual(x, x)
			want("twice", autograd.MakeDual(dual, x).Err(), tensor.ErrArgument, "forward gradient")
			want("nil", autograd.MakeDual(nil, x).Err(), tensor.ErrNil, "MakeDual")
			want("a tangent with a tangent", autograd.MakeDual(x, dual).Err(), tensor.ErrArgument, "forward gradient")
			want("a nil tangent", autograd.MakeDual(x, nil).Err(), tensor.ErrNil, "MakeDual")
			want("integers", autograd.MakeDual(tensor.Ones([]int{2}, tensor.Int64), x).Err(), tensor.ErrArgument, "floating-point")
			want("a shape", autograd.MakeDual(x, tensor.Ones([]int{3})).Err(), tensor.ErrArgument, "[3]")
			want("a dtype", autograd.MakeDual(x, x.To(tensor.Float64)).Err(), tensor.ErrArgument, "float64")
			want("a device", autograd.MakeDual(x, tensor.Ones([]int{2}, tensor.Meta)).Err(), tensor.ErrArgument, "meta")
			q := tensor.Ones([]int{1, 1, 2, 8})
			q = autograd.MakeDual(q, q)
			want("attention", tensor.ScaledDotProductAttention(q, q, q).Err(), tensor.ErrNotImplemented, "Hint: attention in nn.SDPAKernel")
			return autograd.Inference(func() error {
				want("inference", autograd.MakeDual(x, x).Err(), tensor.ErrArgument, "inference")
				want("a level in inference mode", autograd.DualLevel(func() error { return nil }), tensor.ErrArgument, "inference")
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		for _, leaf := range []*tensor.Tensor{x, x.Clone().RequiresGrad_()} {
			want("Apply", autograd.DualLevel(func() error {
				return second(autograd.Apply(&cube{}, autograd.MakeDual(leaf, x)))
			}), tensor.ErrNotImplemented, "forward derivative")
		}
		sum := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Sum() }
		one, forward := []*tensor.Tensor{x}, autograd.ForwardMode(true)
		want("strict", second(autograd.Jacobian(sum, one, forward, autograd.Strict(true))), tensor.ErrArgument, "Strict")
		_, _, err = autograd.VJP(sum, one, nil, forward)
		want("VJP", err, tensor.ErrArgument, "ForwardMode")
		_, _, err = autograd.JVP(sum, one, []*tensor.Tensor{x, x}, forward)
		want("directions", err, tensor.ErrArgument, "v has 2")
		_, _, err = autograd.HVP(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0] }, one, one, forward)
		want("HVP", err, tensor.ErrArgument, "one element")
		want("a function's error", second(autograd.Hessian(func(...*tensor.Tensor) *tensor.Tensor { return nil }, one, forward)), tensor.ErrNil, "")
		want("integers", second(autograd.Jacobian(sum, []*tensor.Tensor{tensor.Ones([]int{2}, tensor.Int64)}, forward)), tensor.ErrArgument, "floating-point")
		mixed := []*tensor.Tensor{x, tensor.Ones([]int{2}, tensor.Complex64)}
		want("complex", second(autograd.Jacobian(sum, mixed, forward)), tensor.ErrArgument, "input 1 is complex64: ForwardMode needs real inputs")
		want("complex", second(autograd.Hessian(sum, mixed, forward)), tensor.ErrArgument, "input 1 is complex64: ForwardMode needs real inputs")
		return nil
	})
}

func second[T any](_ T, err error) error { return err }
