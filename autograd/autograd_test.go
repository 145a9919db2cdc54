package autograd_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// cube computes x³ and can be differentiated any number of times.
type cube struct{ wrong float64 }

func (c *cube) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SaveForBackward(in[0], nil)
	ctx.Set("factor", 3+c.wrong)
	return []*tensor.Tensor{in[0].Mul(in[0]).Mul(in[0])}, nil
}

func (c *cube) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	saved := ctx.Saved()
	if len(saved) != 2 || saved[1] != nil || !ctx.NeedsInputGrad(0) || ctx.NeedsInputGrad(7) {
		return nil, errors.New("the context is not as Forward left it")
	}
	x := saved[0]
	return []*tensor.Tensor{grads[0].Mul(x).Mul(x).Mul(ctx.Value("factor"))}, nil
}

// cubeAndSlope computes x³ and its derivative 3x², as in PyTorch's tutorial of double backward.
type cubeAndSlope struct{ nils bool }

func (c cubeAndSlope) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SaveForBackward(in[0])
	if c.nils {
		ctx.SetMaterializeGrads(false)
	}
	square := in[0].Mul(in[0])
	return []*tensor.Tensor{square.Mul(in[0]), square.Mul(3)}, nil
}

func (c cubeAndSlope) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	x := ctx.Saved()[0]
	if c.nils {
		if (grads[0] == nil) == (grads[1] == nil) {
			return nil, fmt.Errorf("gradients %v, want one that is nil", grads)
		}
		if grads[1] == nil {
			return []*tensor.Tensor{grads[0].Mul(x).Mul(x).Mul(3)}, nil
		}
		return []*tensor.Tensor{grads[1].Mul(x).Mul(6)}, nil
	}
	return []*tensor.Tensor{grads[0].Mul(x).Mul(x).Mul(3).Add(grads[1].Mul(x).Mul(6))}, nil
}

// An output that receives no gradient gets zeros, or nil if Forward asks for it.
func TestGradientsOfUnusedOutputs(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		for _, nils := range []bool{false, true} {
			for i, want := range []float64{12, 12} { // 3x² and 6x
				x := tensor.Full([]int{}, 2, tensor.Float64).RequiresGrad_()
				ys, err := autograd.Apply(cubeAndSlope{nils}, x)
				if err != nil {
					return err
				}
				if err := ys[i].Backward(); err != nil {
					return fmt.Errorf("output %d, nil gradients %t: %w", i, nils, err)
				}
				if got, err := x.Grad().Item(); err != nil || got != want {
					t.Errorf("output %d, nil gradients %t: gradient %v, want %v; %v", i, nils, got, want, err)
				}
			}
		}
		x := points(2)
		return errors.Join(autograd.GradCheck(applied(cubeAndSlope{}), []*tensor.Tensor{x}),
			autograd.GradGradCheck(applied(cubeAndSlope{}), []*tensor.Tensor{x}))
	})
	if err != nil {
		t.Error(err)
	}
}

// layouts doubles its input, also as a sparse tensor, and returns no gradient but that of the dense output.
type layouts struct{ got []tensor.Layout }

func (*layouts) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	double := in[0].Mul(2)
	return []*tensor.Tensor{double, double.ToSparse()}, nil
}

func (l *layouts) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	for _, g := range grads {
		l.got = append(l.got, g.Layout())
	}
	return []*tensor.Tensor{grads[0].Add(grads[1]).Mul(2)}, nil
}

// The zeros of a sparse output are sparse, as in PyTorch.
func TestGradientsOfUnusedSparseOutputs(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x, l := tensor.Ones([]int{3}).RequiresGrad_(), &layouts{}
		ys, err := autograd.Apply(l, x)
		if err != nil {
			return err
		}
		if err := ys[0].Sum().Backward(); err != nil {
			return err
		}
		if !slices.Equal(l.got, []tensor.Layout{tensor.Strided, tensor.SparseCOO}) {
			t.Errorf("the gradients have the layouts %v", l.got)
		}
		if got, err := tensor.Data[float32](x.Grad()); err != nil || !slices.Equal(got, []float32{2, 2, 2}) {
			t.Errorf("the gradient is %v, %v", got, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// either behaves as its fields say.
type either struct {
	forward, backward func() ([]*tensor.Tensor, error)
}

func (e *either) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if e.forward != nil {
		return e.forward()
	}
	return []*tensor.Tensor{in[0].Mul(2)}, nil
}

func (e *either) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if e.backward != nil {
		return e.backward()
	}
	return grads, nil
}

func applied(f autograd.Function) func(in ...*tensor.Tensor) *tensor.Tensor {
	return func(in ...*tensor.Tensor) *tensor.Tensor {
		out, err := autograd.Apply(f, in...)
		if err != nil {
			return tensor.Failed(err)
		}
		return out[0]
	}
}

func points(shape ...int) *tensor.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return tensor.Linspace(-1.5, 2, n, tensor.Float64).Reshape(shape...).RequiresGrad_()
}

func TestGradAndBackward(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float64{2, 3}, nil).RequiresGrad_()
		y := x.Mul(x).Sum()
		g, err := autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{x}, tensor.RetainGraph(true))
		if err != nil {
			return err
		}
		if d, err := tensor.Data[float64](g[0]); err != nil || d[0] != 4 || d[1] != 6 {
			t.Errorf("Grad returns %v, %v", d, err)
		}
		if x.Grad() != nil {
			t.Error("Grad changed x.Grad")
		}
		if err := autograd.Backward([]*tensor.Tensor{y, x.Sum()}); err != nil {
			return err
		}
		if d, err := tensor.Data[float64](x.Grad()); err != nil || d[0] != 5 || d[1] != 7 {
			t.Errorf("Backward computes %v, %v", d, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestModes(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(3)
		recorded := func() bool { return x.Mul(2).RequiresGrad() }
		return autograd.NoGrad(func() error {
			if recorded() || tensor.GradEnabled() {
				t.Error("NoGrad records")
			}
			if err := autograd.EnableGrad(func() error {
				if !recorded() {
					t.Error("EnableGrad does not record")
				}
				return nil
			}); err != nil {
				return err
			}
			return autograd.Inference(func() error {
				if !x.Mul(2).IsInference() {
					t.Error("Inference does not make inference tensors")
				}
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	own := errors.New("mine")
	if err := autograd.NoGrad(func() error { return own }); !errors.Is(err, own) {
		t.Errorf("NoGrad returns %v", err)
	}
	for _, f := range []func(func() error) error{autograd.NoGrad, autograd.EnableGrad, autograd.Inference} {
		if err := f(nil); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil function returns %v", err)
		}
	}
	func() {
		defer func() { _ = recover() }()
		_ = autograd.NoGrad(func() error { panic("out") })
	}()
	if !tensor.GradEnabled() {
		t.Error("a panic left gradients off")
	}
}

func TestFunction(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(2, 3)
		if err := autograd.GradCheck(applied(&cube{}), []*tensor.Tensor{x}); err != nil {
			return err
		}
		if err := autograd.GradGradCheck(applied(&cube{}), []*tensor.Tensor{x}); err != nil {
			return err
		}
		err := autograd.GradCheck(applied(&cube{wrong: 0.5}), []*tensor.Tensor{x})
		if err == nil || !strings.Contains(err.Error(), "input 0, element [0 0], output element 0") {
			t.Errorf("GradCheck of a wrong gradient returns %v", err)
		}
		product := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[1]).Mul(in[2]) }
		for _, same := range []*tensor.Tensor{x, x.Mul(2)} {
			in := []*tensor.Tensor{same, same, same.View(2, 3)}
			if err := errors.Join(autograd.GradCheck(product, in), autograd.GradGradCheck(product, in)); err != nil {
				t.Errorf("one tensor as several inputs: %v", err)
			}
		}
		// Without an input that requires a gradient, Apply connects nothing to the graph.
		out, err := autograd.Apply(&cube{}, x.Detach())
		if err != nil {
			return err
		}
		if out[0].RequiresGrad() {
			t.Error("the output requires a gradient")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFunctionGraphs tests that a retained graph used twice, and a graph never used, free everything.
func TestFunctionGraphs(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(4)
		y := applied(&cube{})(x).Sum()
		for range 2 {
			if err := y.Backward(tensor.RetainGraph(true)); err != nil {
				return err
			}
		}
		if d, err := tensor.Data[float64](x.Grad()); err != nil || d[3] != 24 {
			t.Errorf("two passes compute %v, %v", d, err)
		}
		if err := applied(&cube{})(x).Err(); err != nil {
			return err
		}
		same, err := autograd.Apply(&either{forward: func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{x}, nil }}, x)
		if err != nil {
			return err
		}
		if same[0] == x || !same[0].RequiresGrad() || same[0].IsLeaf() {
			t.Error("an input that is an output is not a view of it")
		}
		return same[0].Sum().Backward()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// saver returns what its forward function computes, and saves it. Its derivative is the product with what it saved.
type saver func(x *tensor.Tensor) (*tensor.Tensor, error)

func (f saver) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	y, err := f(in[0])
	ctx.SaveForBackward(y)
	return []*tensor.Tensor{y}, err
}

func (f saver) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{grads[0].ToDense().Mul(ctx.Saved()[0].ToDense())}, nil
}

// TestFunctionOutputs tests outputs that Forward keeps, that have no view, that are other handles of an input, and that
// have a graph of their own.
func TestFunctionOutputs(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		eye, outer := tensor.Eye(2).ToSparse(), tensor.CurrentScope()
		for name, f := range map[string]saver{
			"kept":            func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Exp().Keep(), nil },
			"moved":           func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Exp().MoveOut(), nil },
			"adopted":         func(x *tensor.Tensor) (*tensor.Tensor, error) { y := x.Exp(); return y, outer.Adopt(y) },
			"kept sparse":     func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.ToSparse().Keep(), nil },
			"captured sparse": func(*tensor.Tensor) (*tensor.Tensor, error) { return eye, nil },
			"kept oneDNN": func(x *tensor.Tensor) (*tensor.Tensor, error) {
				y, err := tensor.Call("aten::to_mkldnn", x)
				if err != nil {
					return nil, err
				}
				return y[0].(*tensor.Tensor).Keep(), nil
			},
		} {
			x := tensor.Eye(2).RequiresGrad_()
			out, err := autograd.Apply(f, x)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			y := out[0]
			want, err := tensor.Data[float32](y.Detach().ToDense())
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := y.ToDense().Sum().Backward(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if g, err := tensor.Data[float32](x.Grad()); err != nil || !slices.Equal(g, want) {
				t.Errorf("%s: the gradient is %v, %v, want %v", name, g, err, want)
			}
			if y.Layout() == tensor.Strided {
				if err := y.Mul_(2).Err(); err != nil {
					t.Errorf("%s: a write to the output: %v", name, err)
				}
			}
			if strings.HasPrefix(name, "kept") {
				y.Release()
			}
		}

		for name, f := range map[string]saver{
			"Contiguous": func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Contiguous(), nil },
			"To":         func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.To(x.DType()), nil },
			"Alias":      func(x *tensor.Tensor) (*tensor.Tensor, error) { return x.Alias(), nil },
		} {
			x := tensor.Full([]int{}, 3, tensor.Float64).RequiresGrad_()
			out, err := autograd.Apply(f, x)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			// x, whose derivative is 1.
			first, err := autograd.Grad(out, []*tensor.Tensor{x}, tensor.CreateGraph(true))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			second, err := autograd.Grad(first, []*tensor.Tensor{x})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if d, err := second[0].Item(); err != nil || d != 1 {
				t.Errorf("%s: the second derivative is %v, %v", name, d, err)
			}
		}

		w, x := tensor.Ones([]int{100}).RequiresGrad_(), tensor.Ones([]int{100}).RequiresGrad_()
		var added [2]uint64
		for i, mode := range []func(func() error) error{autograd.NoGrad, autograd.EnableGrad} {
			before, err := vram.Stats(vram.CPU)
			if err != nil {
				return err
			}
			out, err := autograd.Apply(saver(func(x *tensor.Tensor) (y *tensor.Tensor, err error) {
				err = mode(func() error { y = w.Exp().Sin().Exp(); return y.Err() })
				return y, err
			}), x)
			if err != nil {
				return err
			}
			after, err := vram.Stats(vram.CPU)
			if err != nil {
				return err
			}
			added[i] = uint64(after.Allocated - before.Allocated)
			if err := out[0].Sum().Backward(); err != nil || w.Grad() != nil {
				t.Errorf("a result with a graph of its own: %v; its weight has the gradient %v", err, w.Grad())
			}
		}
		if added[0] != added[1] {
			t.Errorf("a result has %d bytes, and with a graph of its own %d", added[0], added[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFunctionReturnsViews tests that a view of a captured tensor, and no longer the tensor, is the result of a function.
func TestFunctionReturnsViews(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w, buffer, x := tensor.Ones([]int{2}).RequiresGrad_(), tensor.Ones([]int{2}), tensor.Ones([]int{2}).RequiresGrad_()
		for _, captured := range []*tensor.Tensor{w, buffer} {
			for name, f := range map[string]func() *tensor.Tensor{
				"View":  func() *tensor.Tensor { return captured.View(2) },
				"Clone": func() *tensor.Tensor { return captured.Clone() },
			} {
				records := captured.RequiresGrad()
				out, err := autograd.Apply(&either{forward: func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{f()}, nil }}, x)
				if err != nil {
					return err
				}
				if !captured.IsLeaf() || captured.RequiresGrad() != records {
					t.Errorf("after a %s of it, a captured tensor is part of the graph", name)
				}
				if err := out[0].Mul(captured).Sum().Backward(); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		for what, g := range map[string]*tensor.Tensor{"w, 2": w.Grad(), "x, 4": x.Grad()} {
			if d, err := tensor.Data[float32](g); err != nil || fmt.Sprint(d[0]) != what[3:] {
				t.Errorf("the gradient of %s: %v, %v", what, d, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFunctionReturnsARetainedTensor tests a write to a captured tensor that retained its gradient, and has become the
// result of a function.
func TestFunctionReturnsARetainedTensor(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2}).RequiresGrad_()
		y := tensor.Ones([]int{2}).RequiresGrad_().Mul(2)
		if err := y.RetainGrad(); err != nil {
			return err
		}
		out, err := autograd.Apply(&either{forward: func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{y}, nil }}, x)
		if err != nil {
			return err
		}
		if err := errors.Join(out[0].Mul_(3).Err(), out[0].Sum().Backward()); err != nil {
			return err
		}
		if g, err := tensor.Data[float32](x.Grad()); err != nil || g[0] != 3 {
			t.Errorf("the gradient is %v, %v", g, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFunctionInPlace tests that Apply refuses a Forward that writes to an input, unless no gradient is recorded.
func TestFunctionInPlace(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x, buffer := points(2), tensor.Ones([]int{2}, tensor.Float64)
		y := x.Mul(3)
		for name, f := range map[string]func() ([]*tensor.Tensor, error){
			"input 0": func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{y.Mul_(2)}, nil },
			"view":    func() ([]*tensor.Tensor, error) { y.View(2, 1).Mul_(2); return []*tensor.Tensor{y.Clone()}, nil },
			"input 1": func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{buffer.Mul_(2)}, nil },
		} {
			want := name
			if name == "view" {
				want = "input 0"
			}
			_, err := autograd.Apply(&either{forward: f}, y, buffer)
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "Forward of *autograd_test.either changed "+want+" in place") {
				t.Errorf("%s: %v", name, err)
			}
		}
		out, err := autograd.Apply(&either{forward: func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{buffer.Mul_(2)}, nil }}, buffer)
		if err != nil || out[0].RequiresGrad() {
			t.Errorf("without gradients: %v, %v", out, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFailedPassLeaksNothing tests that the graph, not the thread, holds what a failed pass has not reached, so that
// it is freed with the graph.
func TestFailedPassLeaksNothing(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error { // start the engine's threads
		return tensor.Ones([]int{2}).RequiresGrad_().Exp().Sum().Backward()
	})
	if err != nil {
		t.Fatal(err)
	}
	own := errors.New("mine")
	err = tensor.WithScope(func() error {
		x := tensor.Randn([]int{1000}).RequiresGrad_()
		later := x.Mul(x.Exp()).Sum()
		first := applied(&either{backward: func() ([]*tensor.Tensor, error) { return nil, own }})(x).Sum()
		return later.Add(first).Backward()
	})
	if !errors.Is(err, own) {
		t.Fatalf("%v is not the error of the function", err)
	}
}

// exponential saves its output and, if it has two inputs, the second one.
type exponential struct{}

func (exponential) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	y := in[0].Exp()
	ctx.SaveForBackward(append([]*tensor.Tensor{y}, in[1:]...)...)
	return []*tensor.Tensor{y}, nil
}

func (exponential) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{grads[0].Mul(ctx.Saved()[0]), nil}[:len(ctx.Saved())], nil
}

// TestFunctionThatSavesNothing tests that a second pass needs no RetainGraph, as for an operator that saves nothing.
func TestFunctionThatSavesNothing(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(3)
		y := applied(&either{})(x).Sum()
		if err := errors.Join(y.Backward(), y.Backward()); err != nil {
			t.Error(err)
		} else if got, err := tensor.Data[float64](x.Grad()); err != nil || !slices.Equal(got, []float64{2, 2, 2}) {
			t.Errorf("the gradient of two passes is %v, %v, want 2", got, err)
		}
		y = applied(&cube{})(x).Sum()
		if err := y.Backward(); err != nil {
			return err
		}
		if err := y.Backward(); err == nil {
			t.Error("a second pass through a Function that has saved a tensor gives no error")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFunctionThatCannotSave tests that a Function whose tensors cannot be saved leaves nothing behind, although its output,
// which is one of them, has the graph's node already. At the end of a recomputation that is so in each step.
func TestFunctionThatCannotSave(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(3)
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return applied(exponential{})(in[0].Mul(0.5)) }, x)
		if err := y.Sum().Backward(); err != nil {
			return err
		}
		if ok, err := x.Grad().AllClose(y.Mul(0.5)); err != nil || !ok {
			t.Errorf("the gradient is %v, %v", x.Grad(), err)
		}
		var inference *tensor.Tensor
		if err := autograd.Inference(func() error {
			inference = tensor.Ones([]int{3})
			return inference.Err()
		}); err != nil {
			return err
		}
		if _, err := autograd.Apply(exponential{}, x, inference); err == nil || !strings.Contains(err.Error(), "Inference tensors cannot be saved for backward") {
			t.Errorf("a tensor of inference mode is saved: %v", err)
		}
		// The node of a Function whose output is an input keeps what it has saved.
		z := applied(exponential{})(x)
		if _, err := autograd.Apply(&either{forward: func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{z.Alias()}, nil }}, z); err != nil {
			return err
		}
		return z.Sum().Backward()
	})
	if err != nil {
		t.Error(err)
	}
}

func TestFunctionErrors(t *testing.T) {
	leak.Check(t)
	own := errors.New("mine")
	var none *tensor.Tensor
	released := tensor.Ones([]int{2})
	released.Release()
	err := tensor.WithScope(func() error {
		x := points(2)
		forwards := map[string]func() ([]*tensor.Tensor, error){
			"error": func() ([]*tensor.Tensor, error) { _ = tensor.Ones([]int{9}); return nil, own },
			"panic": func() ([]*tensor.Tensor, error) { panic("out of luck") },
			//lint:ignore SA5000 the panic is what is tested
			"nil map":  func() ([]*tensor.Tensor, error) { var m map[string]int; m["a"] = 1; return nil, nil },
			"index":    func() ([]*tensor.Tensor, error) { var s []*tensor.Tensor; return s[3:4], nil },
			"nothing":  func() ([]*tensor.Tensor, error) { return nil, nil },
			"nil":      func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{nil}, nil },
			"released": func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{released}, nil },
			"failed":   func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{x.View(7)}, nil },
		}
		for name, f := range forwards {
			for _, in := range []*tensor.Tensor{x, x.Detach()} {
				if out, err := autograd.Apply(&either{forward: f}, in); err == nil || out != nil {
					t.Errorf("forward, %s: %v, %v", name, out, err)
				}
			}
		}
		backwards := map[string]func() ([]*tensor.Tensor, error){
			"error":      func() ([]*tensor.Tensor, error) { return nil, own },
			"panic":      func() ([]*tensor.Tensor, error) { panic(own) },
			"too many":   func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{x, x}, nil },
			"released":   func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{released}, nil },
			"failed":     func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{x.View(7)}, nil },
			"wrong size": func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{tensor.Ones([]int{5}, tensor.Float64)}, nil },
			"scalar":     func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{tensor.Ones(nil, tensor.Float64)}, nil },
		}
		for name, f := range backwards {
			err := applied(&either{backward: f})(x).Sum().Backward()
			if err == nil {
				t.Errorf("backward, %s: no error", name)
			}
			if (name == "error" || name == "panic") && !errors.Is(err, own) {
				t.Errorf("backward, %s: %v is not the error of the function", name, err)
			}
			if err != nil && !strings.Contains(err.Error(), "Backward of *autograd_test.either") {
				t.Errorf("backward, %s: %v does not name the function", name, err)
			}
		}
		for name, in := range map[string]*tensor.Tensor{"nil": none, "released": released, "failed": x.View(9)} {
			ran := false
			f := &either{forward: func() ([]*tensor.Tensor, error) { ran = true; return []*tensor.Tensor{x}, nil }}
			if _, err := autograd.Apply(f, in); err == nil || ran {
				t.Errorf("%s input: error %v, forward has run: %v", name, err, ran)
			}
			if err := autograd.GradCheck(applied(&cube{}), []*tensor.Tensor{in}); err == nil {
				t.Errorf("GradCheck, %s input: no error", name)
			}
		}
		_, err := autograd.Apply(&cube{}, none)
		if !errors.Is(err, tensor.ErrNil) || !strings.Contains(err.Error(), "Apply") {
			t.Errorf("nil input: %v", err)
		}
		_, err = autograd.Apply(nil, x)
		if !errors.Is(err, tensor.ErrNil) {
			t.Errorf("nil function: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGradCheckOfTooManyElements tests that an input or output with more elements than fit into memory is an error.
func TestGradCheckOfTooManyElements(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1}, tensor.Float64).Expand(1 << 50).RequiresGrad_()
		y := points(2)
		for name, f := range map[string]func(in ...*tensor.Tensor) *tensor.Tensor{
			"the output":         func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].View(-1) },
			"a gradient":         func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Select(0, 1) },
			"an unused input":    func(...*tensor.Tensor) *tensor.Tensor { return y.Select(0, 1) },
			"without a gradient": func(...*tensor.Tensor) *tensor.Tensor { return y.Detach().Select(0, 1) },
		} {
			if err := autograd.GradCheck(f, []*tensor.Tensor{x}); !errors.Is(err, tensor.ErrOutOfMemory) {
				t.Errorf("%s: %v", name, err)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, tensor.ErrOutOfMemory) {
		t.Error(err)
	}
}

// TestGradCheckOptions tests the step and the tolerances with x^3 at 1: the numerical derivative is 3+eps^2.
func TestGradCheckOptions(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1}, tensor.Float64).RequiresGrad_()
		cubed := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Pow(3) }
		for i, c := range []struct {
			opts []autograd.CheckOption
			want string // "": no error
		}{
			{nil, ""},
			{[]autograd.CheckOption{autograd.Eps(0.1)}, "is 3.01"},
			{[]autograd.CheckOption{autograd.Eps(0.1), autograd.Atol(0.02)}, ""},
			{[]autograd.CheckOption{autograd.Eps(0.1), autograd.Rtol(0.01)}, ""},
			{[]autograd.CheckOption{autograd.Eps(0.01)}, ""},
			{[]autograd.CheckOption{autograd.Eps(0.01), autograd.Rtol(0)}, "is 3.0000"},
			{[]autograd.CheckOption{autograd.Eps(0)}, "eps must be positive"},
			{[]autograd.CheckOption{autograd.Atol(-1)}, "at least 0"},
			{[]autograd.CheckOption{autograd.Rtol(-1)}, "at least 0"},
		} {
			err := autograd.GradCheck(cubed, []*tensor.Tensor{x}, c.opts...)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("case %d: got %v, want %q", i, err, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGradCheckOfNothing tests that a function with an empty output passes.
func TestGradCheckOfNothing(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		in := []*tensor.Tensor{points(3, 2)}
		for _, shape := range [][]int{{0, 2}, {0}, {2, 0, 3}} {
			f := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[0]).Narrow(0, 0, 0).Reshape(shape...) }
			if err := autograd.GradCheck(f, in); err != nil {
				t.Errorf("%v: GradCheck: %v", shape, err)
			}
			if err := autograd.GradGradCheck(f, in); err != nil {
				t.Errorf("%v: GradGradCheck: %v", shape, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestGradGradCheckErrors tests that the errors of GradGradCheck name it, and what the caller gave.
func TestGradGradCheckErrors(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x, y, w := points(2), points(2), points(2)
		first := func(f autograd.Function) func(in ...*tensor.Tensor) *tensor.Tensor {
			return func(in ...*tensor.Tensor) *tensor.Tensor { return applied(f)(in[0]) }
		}
		for name, c := range map[string]struct {
			f    func(in ...*tensor.Tensor) *tensor.Tensor
			want string
		}{
			"of an input":     {first(square{}), "input 0, element [0], gradient element 0: the backward pass gives 0"},
			"of the gradient": {first(double{}), "the gradient of the output, element [0], gradient element 0: the backward pass gives 0"},
			"dtype":           {func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].To(tensor.Float32) }, "the output is float32"},
			"constant":        {func(...*tensor.Tensor) *tensor.Tensor { return w.Detach() }, "the output depends on no input that requires a gradient"},
			"captured":        {func(...*tensor.Tensor) *tensor.Tensor { return w.Mul(2) }, "the output depends on no input that requires a gradient"},
			"size": {func() func(in ...*tensor.Tensor) *tensor.Tensor {
				calls := 0
				return func(in ...*tensor.Tensor) *tensor.Tensor {
					if calls++; calls > 2 {
						return in[0].Mul(in[0])
					}
					return in[0].Mul(in[1])
				}
			}(), "the gradient's size changes from 4 to 2"},
		} {
			err := autograd.GradGradCheck(c.f, []*tensor.Tensor{x, y})
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "GradGradCheck: "+c.want) {
				t.Errorf("%s: got %v, want %q", name, err, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// square has a gradient that has none with respect to the input.
type square struct{}

func (square) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SaveForBackward(in[0])
	return []*tensor.Tensor{in[0].Mul(in[0])}, nil
}

func (square) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{grads[0].Mul(ctx.Saved()[0].Detach()).Mul(2)}, nil
}

// double has a gradient that has none with respect to that of the output.
type double struct{}

func (double) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{in[0].Mul(2)}, nil
}

func (double) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{grads[0].Detach().Mul(2)}, nil
}

func TestGradCheckOperators(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		a, b := points(2, 3), points(3, 2)
		f := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].MatMul(in[1]).Tanh() }
		if err := autograd.GradCheck(f, []*tensor.Tensor{a, b}); err != nil {
			return err
		}
		return autograd.GradGradCheck(f, []*tensor.Tensor{a, b})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestContextOnManyGoroutines tests that goroutines that Forward starts may use its Context.
func TestContextOnManyGoroutines(t *testing.T) {
	leak.Check(t)
	f := &shared{}
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2}).RequiresGrad_()
		ys, err := autograd.Apply(f, x)
		if err != nil {
			return err
		}
		return ys[0].Sum().Backward()
	})
	if err != nil {
		t.Error(err)
	}
}

type shared struct{}

func (*shared) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 50 {
				ctx.Set(g, g)
				_ = ctx.Value(g)
				ctx.SaveForBackward(in...)
				_ = ctx.Saved()
			}
		})
	}
	wg.Wait()
	return []*tensor.Tensor{in[0].Mul(2)}, nil
}

func (*shared) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{grads[0].Mul(2)}, nil
}

// TestOperatorBackwardIsRefused tests that libtorch's operator that starts a backward pass cannot be called as an
// operator, because hooks could not run in it.
func TestOperatorBackwardIsRefused(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := points(3)
		if _, err := x.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, nil }); err != nil {
			return err
		}
		_, err := tensor.Call("aten::_backward", x.Mul(2).Sum(), []*tensor.Tensor{x}, nil, false, false)
		if !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("got %v", err)
		}
		if _, err := tensor.Call("aten::retain_grad", x.Mul(2)); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("retain_grad: got %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestErrorsOfBackwardNameItsLine tests that an error of a backward pass names the line that started it.
func TestErrorsOfBackwardNameItsLine(t *testing.T) {
	leak.Check(t)
	_, file, _, _ := runtime.Caller(0)
	err := tensor.WithScope(func() error {
		x := points(3)
		y := x.Mul(x).Sum()
		if err := y.Backward(); err != nil {
			return err
		}
		line := func() int { _, _, n, _ := runtime.Caller(1); return n }
		ys, xs := []*tensor.Tensor{y}, []*tensor.Tensor{x}
		for name, pass := range map[string]func() (int, error){
			"Tensor.Backward": func() (int, error) { return line(), y.Backward() },
			"Backward":        func() (int, error) { return line(), autograd.Backward(ys) },
			"Grad":            func() (int, error) { _, err := autograd.Grad(ys, xs); return line(), err },
		} {
			n, err := pass()
			var e *tensor.Error
			if want := fmt.Sprintf("%s:%d", file, n); !errors.As(err, &e) || e.Caller != want {
				t.Errorf("%s: %v, want an error at %s", name, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
