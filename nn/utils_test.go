package nn_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// withGrads returns the parameters of torch_utils.py with their gradients.
func withGrads(t *testing.T) []*tensor.Tensor {
	t.Helper()
	a := tensor.Arange(0.0, 6.0, tensor.Float32).Reshape(2, 3).Detach().RequiresGrad_()
	b := tensor.FromSlice([]float32{1, -7}, nil).RequiresGrad_()
	if err := errors.Join(a.Sub(2).Pow(2).Sum().Backward(), b.Mul(b).Mul(0.5).Sum().Backward()); err != nil {
		t.Fatal(err)
	}
	return tensors(a, b)
}

func joined(ts ...*tensor.Tensor) *tensor.Tensor {
	for i, t := range ts {
		ts[i] = t.Detach().Reshape(-1).To(tensor.Float32)
	}
	return tensor.Cat(ts)
}

// TestUtils compares functions of nn.utils with PyTorch.
func TestUtils(t *testing.T) {
	leak.Check(t)
	var want map[string][]float64
	golden.Read(t, "torch_utils.json", &want)
	near := func(name string, got *tensor.Tensor) {
		t.Helper()
		golden.Near(t, name, got, want[name], 1e-6, 1e-5)
	}
	err := tensor.WithScope(func() error {
		for name, kind := range map[string]float64{"2": 2, "1": 1, "0.5": 0.5, "inf": math.Inf(1)} {
			p := withGrads(t)
			near("norm "+name, nn.GetTotalNorm(tensors(p[0].Grad(), p[1].Grad()), nn.NormType(kind)))
			norm := nn.ClipGradNorm_(p, 1.5, nn.NormType(kind), nn.ErrorIfNonfinite())
			near("clip "+name, joined(norm, p[0].Grad(), p[1].Grad()))
		}
		p := withGrads(t)
		if err := nn.ClipGradsWithNorm_(p, 2, tensor.ScalarTensor(8.0)); err != nil {
			return err
		}
		near("clip with norm", joined(p[0].Grad(), p[1].Grad()))
		v := nn.ParametersToVector(p)
		near("vector", v)
		if err := nn.VectorToParameters(v.Mul(2), p); err != nil {
			return err
		}
		near("vector", nn.ParametersToVector(p).Mul(0.5))
		p[1].Grad().Fill_(math.Inf(1))
		before := p[0].Grad().Clone()
		for _, y := range []*tensor.Tensor{nn.ClipGradNorm_(p, 1, nn.ErrorIfNonfinite()), nn.ClipGradNorm_(p, 1, nn.NormType(math.NaN())), nn.ClipGradNorm_(p, 1, nn.NoBias()),
			nn.GetTotalNorm(tensors(p[1].Grad()), nn.ErrorIfNonfinite()), nn.GetTotalNorm(tensors(nil)), nn.ParametersToVector(nil), nn.ParametersToVector(tensors(nil))} {
			if y.Err() == nil {
				t.Error("a fault is no error")
			}
		}
		for _, err := range []error{nn.ClipGradsWithNorm_(p, -1, before), nn.ClipGradsWithNorm_(p, 1, before), nn.ClipGradsWithNorm_(p, 1, nil), nn.VectorToParameters(v, p[:1]),
			nn.VectorToParameters(nil, p), nn.VectorToParameters(v, tensors(nil)), nn.VectorToParameters(p[0], p[:1])} {
			if err == nil {
				t.Error("a fault is no error")
			}
		}
		golden.Near(t, "the gradient after errors", p[0].Grad(), data(t, before), 0, 0)
		if n, err := nn.GetTotalNorm(nil).Item(); n != 0 || err != nil {
			t.Errorf("the norm of nothing is %v, %v", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func data(t *testing.T, x *tensor.Tensor) []float64 {
	t.Helper()
	v, err := tensor.Data[float64](x.Detach().To(tensor.Float64))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// filled sets parameters and statistics as torch_utils.py does.
func filled[M nn.Layer](t *testing.T, m M, norm bool) M {
	t.Helper()
	err := tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			for _, n := range nn.StateDict(m) {
				low, high := -1.0, 1.0
				switch {
				case n.Name == "num_batches_tracked":
					continue
				case norm && n.Name == "weight":
					low, high = 0.3, 1.7
				case norm && n.Name == "bias":
					low, high = 2, -1
				case n.Name == "running_var":
					low, high = 0.5, 2
				}
				if err := n.Tensor.Copy_(tensor.Linspace(low, high, n.Tensor.Numel()).Reshape(n.Tensor.Shape()...)).Err(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	nn.Eval(m)
	t.Cleanup(func() { nn.Release(m) })
	return m
}

// TestFuse compares fused layers with PyTorch's, and with the two layers that they stand for.
func TestFuse(t *testing.T) {
	leak.Check(t)
	var want map[string][]float64
	golden.Read(t, "torch_utils.json", &want)
	check := func(name string, fused nn.Layer, err error, layer, bn nn.Layer, shape ...int) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		defer nn.Release(fused)
		err = tensor.WithScope(func() error {
			s := nn.StateDict(fused).Map()
			w, b := s["weight"], s["bias"]
			on := func(x *tensor.Tensor) *tensor.Tensor {
				return tensor.Full([]int{1}, map[bool]float64{true: 1}[x.RequiresGrad()])
			}
			golden.Near(t, name, joined(w, b, on(w), on(b)), want["fuse "+name], 1e-6, 1e-5)
			x := tensor.Linspace(-1, 2, 24).Reshape(shape...)
			golden.Near(t, name, fused.Forward(x), data(t, bn.Forward(layer.Forward(x))), 1e-5, 1e-4)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	conv, bn2 := filled(t, nn.NewConv2d(2, 3, 2), false), filled(t, nn.NewBatchNorm2d(3), true)
	fused, err := nn.FuseConvBNEval(conv, bn2)
	check("conv", fused, err, conv, bn2, 1, 2, 3, 4)
	plain, bn1 := filled(t, nn.NewConv1d(2, 3, 2, nn.NoBias()), false), filled(t, nn.NewBatchNorm1d(3, nn.NoAffine()), true)
	fused1, err := nn.FuseConvBNEval(plain, bn1)
	check("conv plain", fused1, err, plain, bn1, 1, 2, 12)
	back, bn := filled(t, nn.NewConvTranspose1d(2, 3, 2), false), filled(t, nn.NewBatchNorm1d(3), true)
	fused2, err := nn.FuseConvBNEval(back, bn)
	check("transposed", fused2, err, back, bn, 1, 2, 12)
	linear := filled(t, nn.NewLinear(2, 3), false)
	fused3, err := nn.FuseLinearBNEval(linear, bn)
	check("linear", fused3, err, linear, bn, 12, 2)
	if _, err := nn.FuseConvBNEval(linear, bn); err == nil {
		t.Error("a Linear is fused as a convolution")
	}
	for what, f := range map[string]func() error{
		"no statistics": func() error {
			_, err := nn.FuseConvBNEval(conv, nn.NewBatchNorm2d(3, nn.NoRunningStats(), nn.NoAffine()))
			return err
		},
		"no norm":    func() error { _, err := nn.FuseConvBNEval(conv, conv); return err },
		"nil":        func() error { _, err := nn.FuseConvBNEval(conv, nil); return err },
		"nil linear": func() error { _, err := nn.FuseLinearBNEval(nil, bn); return err },
		"another width": func() error {
			other := filled(t, nn.NewBatchNorm2d(4), true)
			_, err := nn.FuseConvBNEval(conv, other)
			return err
		},
		"training": func() error { nn.Train(bn2); _, err := nn.FuseConvBNEval(conv, bn2); return err },
	} {
		if f() == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestFuseLinearWeights tests that a Linear is fused with PyTorch's formula for it, which does not round as that of a
// convolution does.
func TestFuseLinearWeights(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		from := func(v ...float32) *tensor.Tensor { return tensor.FromSlice(v, nil) }
		// The scale 1.005859375 is 1.0078125 in bfloat16; a convolution's weight is 1.7578125.
		weight, _ := nn.FuseLinearBNWeights(tensor.Full([]int{1, 1}, 1.75, tensor.BFloat16), nil, from(0), from(3.75), 0.25, from(2.01171875), from(0))
		if v, err := weight.Item(); err != nil || v != 1.765625 || weight.DType() != tensor.BFloat16 {
			t.Errorf("the weight is %v, PyTorch's 1.765625: %v", weight, err)
		}
		bias, mean, variance := tensor.Linspace(-3, 5, 16), tensor.Linspace(0.1, 0.7, 16), tensor.Linspace(0.3, 4, 16)
		bnWeight, bnBias := tensor.Linspace(-1.1, 1.3, 16), tensor.Linspace(-0.5, 0.9, 16)
		want := bias.Sub(mean).Mul(bnWeight.Mul(variance.Add(1e-5).RSqrt())).Add(bnBias)
		_, got := nn.FuseLinearBNWeights(tensor.Ones([]int{16, 2}), bias, mean, variance, 1e-5, bnWeight, bnBias)
		if same, err := got.Equal(want); err != nil || !same {
			t.Errorf("the bias is %v, PyTorch's %v: %v", got, want, err)
		}
		weight, got = nn.FuseLinearBNWeights(nil, bias, mean, variance, 1e-5, bnWeight, bnBias)
		if err := weight.Err(); err == nil || got.Err() == nil || !strings.Contains(err.Error(), "FuseLinearBNWeights") {
			t.Errorf("a nil weight: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestEmpty tests ToEmpty, SkipInit and the layout of weights.
func TestEmpty(t *testing.T) {
	leak.Check(t)
	l, err := nn.SkipInit(func(o nn.Option) *nn.Sequential {
		shared := nn.NewLinear(3, 3, o)
		return nn.NewSequential(shared, shared, nn.NewBatchNorm1d(3, o), nn.NewLSTM(3, 2, o), nn.WeightNorm(nn.NewLinear(3, 2, o), "weight"))
	}, tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(l)
	if l.Layers[0] != l.Layers[1] || l.Layers[0].(*nn.Linear).Weight.Device() != tensor.CPU {
		t.Error("the shared layer is not one")
	}
	if err := nn.Check(l); err != nil {
		t.Error(err)
	}
	for _, n := range nn.StateDict(l) {
		if n.Tensor.Device() != tensor.CPU || n.Tensor.RequiresGrad() == strings.Contains(n.Name, "running") && n.Tensor.DType().IsFloat() {
			t.Errorf("%s is on %v and requires a gradient: %v", n.Name, n.Tensor.Device(), n.Tensor.RequiresGrad())
		}
	}
	if err := nn.ToEmpty(struct{ W *tensor.Tensor }{nn.Parameters(l)[0]}, tensor.CPU); err == nil {
		t.Error("ToEmpty changes a struct that is passed by value")
	}
	kept := nn.NewLinear(2, 2)
	defer nn.Release(kept)
	weight := kept.Weight
	if err := nn.ToEmpty([]any{kept, struct{ W *tensor.Tensor }{nn.Parameters(l)[0]}}, tensor.CPU); err == nil || kept.Weight != weight || weight.Err() != nil {
		t.Errorf("a failed ToEmpty changes a module: %v, %v", err, kept.Weight.Err())
	}
	if _, err := nn.SkipInit[*nn.Linear](nil, tensor.CPU); err == nil {
		t.Error("SkipInit accepts nil")
	}
	if m, err := nn.SkipInit(func(o nn.Option) *nn.Linear { return nn.NewLinear(2, 2, o) }, tensor.CUDA(99)); err == nil {
		t.Error("a device that is not there")
	} else {
		nn.Release(m)
	}
	model := nn.NewSequential(nn.NewConv2d(3, 4, 2), nn.NewConvTranspose2d(4, 3, 2), nn.NewConv3d(3, 4, 2))
	defer nn.Release(model)
	w := model.Layers[0].(*nn.Conv2d).Weight
	before := data(t, w)
	strides := func() string {
		var s [][]int
		for _, l := range model.Layers {
			s = append(s, nn.Parameters(l)[0].Stride())
		}
		return fmt.Sprint(s)
	}
	usual := strides()
	if err := errors.Join(nn.ConvertConv2dWeightMemoryFormat(model, true), nn.ConvertConv3dWeightMemoryFormat(model, true)); err != nil {
		t.Fatal(err)
	}
	if got := strides(); got != "[[12 1 6 3] [12 1 6 3] [24 1 12 6 3]]" || !slices.Equal(data(t, w), before) {
		t.Errorf("the strides are %s", got)
	}
	if err := errors.Join(nn.ConvertConv2dWeightMemoryFormat(model, false), nn.ConvertConv3dWeightMemoryFormat(model, false)); err != nil || strides() != usual {
		t.Errorf("%v: the strides are %s, want %s", err, strides(), usual)
	}
}

// TestFunctionalCall tests that gradients flow through tensors that replace parameters, and that the module is unchanged.
func TestFunctionalCall(t *testing.T) {
	leak.Check(t)
	shared := nn.NewLinear(2, 2)
	m := nn.NewSequential(shared, &nn.Tanh{}, shared)
	defer nn.Release(m)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1, 2})
		scale := tensor.ScalarTensor(2.0).RequiresGrad_()
		w := shared.Weight.Detach().Mul(scale)
		f, err := nn.FunctionalCall(m, map[string]*tensor.Tensor{"0.weight": w})
		if err != nil {
			return err
		}
		y := f.Forward(x)
		want := x.Linear(w, shared.Bias).Tanh().Linear(w, shared.Bias)
		golden.Near(t, "y", y, data(t, want), 0, 0)
		if err := y.Sum().Backward(); err != nil {
			return err
		}
		if scale.Grad() == nil || shared.Weight.Grad() != nil || shared.Bias.Grad() == nil {
			t.Error("the gradients did not reach the given tensor and the bias")
		}
		if nn.Parameters(m)[0] != shared.Weight || f.Layers[0] != f.Layers[2] {
			t.Error("the module changed, or the copy does not share its layer")
		}
		for what, state := range map[string]map[string]*tensor.Tensor{"another name": {"x": w}, "another shape": {"0.weight": x}, "nil": {"0.weight": nil},
			"two tensors for one": {"0.weight": w, "2.weight": w.Mul(1)}} {
			if _, err := nn.FunctionalCall(m, state); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// guarded is a user-defined layer with its own mutex.
type guarded struct {
	Inner *nn.Linear
	Hooks nn.Hooked `nn:"-"`
	mu    sync.Mutex
}

func (g *guarded) Forward(x *tensor.Tensor) *tensor.Tensor {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.Inner.Forward(x)
}

// TestCopiesBesideForward tests that a module can be copied while other goroutines apply it: a copy whose mutex was
// copied in its locked state would wait forever.
func TestCopiesBesideForward(t *testing.T) {
	leak.Check(t)
	for what, m := range map[string]nn.Layer{
		"hooked":               nn.NewHooked(nn.NewLinear(4, 3)),
		"parametrized":         nn.WeightNorm(nn.NewLinear(4, 3), "weight"),
		"lazy":                 nn.NewSequential(nn.NewLazyLinear(3)),
		"a user's":             &guarded{Inner: nn.NewLinear(4, 3)},
		"a user's, wrapped":    nn.NewHooked(&guarded{Inner: nn.NewLinear(4, 3)}),
		"parametrized, hooked": nn.NewHooked(nn.SpectralNorm(nn.NewLinear(4, 3), "weight")),
	} {
		t.Run(what, func(t *testing.T) {
			defer nn.Release(m)
			x := tensor.Ones([]int{2, 4})
			defer x.Release()
			m.Forward(x).Release()
			var workers sync.WaitGroup
			stop := make(chan struct{})
			work := func(f func() error) {
				workers.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := tensor.WithScope(f); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for range 2 {
				work(func() error { return m.Forward(x).Err() })
			}
			if h, ok := m.(*nn.Hooked); ok {
				work(func() error {
					remove, err := h.RegisterForwardHook(func(_, _ *tensor.Tensor) (*tensor.Tensor, error) { return nil, nil })
					if err == nil {
						remove()
					}
					return err
				})
			}
			work(func() error { return nn.Cached(m, func() error { return nil }) })
			for range 500 {
				err := tensor.WithScope(func() error {
					f, err := nn.FunctionalCall(m, nil)
					if err != nil {
						return err
					}
					c := nn.Clone(m)
					defer nn.Release(c)
					return errors.Join(f.Forward(x).Err(), c.Forward(x).Err())
				})
				if err != nil {
					t.Error(err)
					break
				}
			}
			close(stop)
			workers.Wait()
		})
	}
}

// TestCachedBesideForward tests that the end of Cached does not release the parameter of passes on other goroutines.
func TestCachedBesideForward(t *testing.T) {
	leak.Check(t)
	m := nn.WeightNorm(nn.NewLinear(4, 3), "weight")
	defer nn.Release(m)
	x := tensor.Ones([]int{2, 4})
	defer x.Release()
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for range 3000 {
				if err := tensor.WithScope(func() error { return m.Forward(x).Err() }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3000 {
		err := nn.Cached(m, func() error { return tensor.WithScope(func() error { return m.Forward(x).Err() }) })
		if err != nil {
			t.Error(err)
			break
		}
	}
	workers.Wait()
	var held nn.Layer
	err := tensor.WithScope(func() error {
		err := nn.Cached(m, func() (err error) {
			held, err = m.Module()
			return err
		})
		if err != nil {
			return err
		}
		return held.Forward(x).Err()
	})
	if err != nil {
		t.Errorf("a Module after the end of Cached: %v", err)
	}
}

// TestCachedWithoutRecording tests that a parameter which was computed without recording is not used for training.
func TestCachedWithoutRecording(t *testing.T) {
	leak.Check(t)
	m := nn.WeightNorm(nn.NewLinear(4, 3), "weight")
	defer nn.Release(m)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 4})
		return nn.Cached(m, func() error {
			for _, f := range []func(func() error) error{autograd.NoGrad, autograd.Inference} {
				if err := f(func() error { return m.Forward(x).Err() }); err != nil {
					return err
				}
			}
			return m.Forward(x).Sum().Backward()
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range m.Lists[0].Originals {
		if g := w.Grad(); g == nil {
			t.Errorf("original %d has no gradient", i)
		} else {
			g.Release()
		}
	}
}

// TestCloneOfNil tests that the copy of a nil module is nil.
func TestCloneOfNil(t *testing.T) {
	leak.Check(t)
	if c := nn.Clone[nn.Layer](nil); c != nil {
		t.Errorf("got %v", c)
	}
	if c := nn.Clone[any](nil); c != nil {
		t.Errorf("got %v", c)
	}
	if c := nn.Clone((*nn.Linear)(nil)); c != nil {
		t.Errorf("got %v", c)
	}
}

// TestParametrized tests what the golden cases do not: copies, caches, concurrency, states in the other form, and errors.
func TestParametrized(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(3, 3)
	weight := l.Weight
	p := nn.SpectralNorm(l, "weight")
	defer nn.Release(p)
	if !nn.IsParametrized(p, "weight") || nn.IsParametrized(p, "bias") || !nn.IsParametrized(p, "") || nn.IsParametrized(l, "weight") {
		t.Error("IsParametrized is wrong")
	}
	if p.Lists[0].Originals[0] != weight {
		t.Error("the original is another tensor: an optimizer would lose it")
	}
	c := nn.Clone(p)
	nn.Eval(c)
	defer nn.Release(c)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1, 3})
		nn.Eval(p)
		want := data(t, p.Forward(x))
		golden.Near(t, "the copy", c.Forward(x), want, 0, 0)
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_ = tensor.WithScope(func() error { golden.Near(t, "y", p.Forward(x), want, 0, 0); return nil })
			}()
		}
		wg.Wait()
		nn.Train(p)
		u := data(t, nn.NamedBuffers(p)[0].Tensor)
		if err := nn.Normal_(weight, 0, 1).Err(); err != nil {
			return err
		}
		if err := nn.Cached(p, func() error {
			a, err1 := p.Module()
			b, err2 := p.Module()
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			// A second computation would iterate again.
			golden.Near(t, "the parameter in the cache", b.(*nn.Linear).Weight, data(t, a.(*nn.Linear).Weight), 0, 0)
			return p.Forward(x).Sum().Backward()
		}); err != nil {
			return err
		}
		if weight.Grad() == nil || slices.Equal(data(t, nn.NamedBuffers(p)[0].Tensor), u) {
			t.Error("no gradient or no iteration")
		}
		old, now := nn.WeightNorm(nn.NewLinear(3, 2), "weight", nn.OldNames()), nn.NewSequential(nn.WeightNorm(nn.NewLinear(3, 2), "weight"))
		defer nn.Release(old)
		defer nn.Release(now)
		state := map[string]*tensor.Tensor{}
		for _, n := range nn.StateDict(old) {
			state["0."+n.Name] = n.Tensor
		}
		if err := nn.LoadStateDict(now, state); err != nil || len(state) != 3 || state["0.weight_g"] == nil {
			t.Errorf("a state with old names: %v", err)
		}
		golden.Near(t, "the layer with the loaded state", now.Forward(x), data(t, old.Forward(x)), 0, 0)
		if _, err := l.Forward(x).Sum().Item(); err == nil {
			t.Error("the layer inside has values without its parameter")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	plain := nn.NewLinear(3, 3)
	defer nn.Release(plain)
	flat := nn.NewLinear(4, 2)
	defer nn.Release(flat)
	frozen := nn.NewBatchNorm1d(2)
	defer nn.Release(frozen)
	for what, q := range map[string]*nn.Parametrized{
		"nil":                   nn.RegisterParametrization(nil, "weight", &scaled{}),
		"no parametrization":    nn.RegisterParametrization(plain, "weight", nil),
		"a nil parametrization": nn.RegisterParametrization(plain, "weight", (*scaled)(nil)),
		"no name":               nn.RegisterParametrization(plain, "", &scaled{}),
		"another name":          nn.WeightNorm(plain, "x"),
		"a buffer":              nn.WeightNorm(frozen, "running_mean"),
		"a function":            nn.WeightNorm(nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x }), "weight"),
		"a nil layer":           nn.Orthogonal((*nn.Linear)(nil), "weight"),
		"a failed layer":        nn.SpectralNorm(nn.NewLinear(-1, 2), "weight"),
		"a dimension":           nn.WeightNorm(plain, "weight", nn.NormDim(2)),
		"another dimension":     nn.SpectralNorm(plain, "weight", nn.NormDim(-3)),
		"iterations":            nn.SpectralNorm(plain, "weight", nn.PowerIterations(0)),
		"eps":                   nn.SpectralNorm(plain, "weight", nn.Eps(-1)),
		"another option":        nn.Orthogonal(plain, "weight", nn.NoBias()),
		"a vector":              nn.Orthogonal(plain, "bias"),
		"a map":                 nn.Orthogonal(plain, "weight", nn.OrthogonalMap("x")),
		"twice":                 nn.RegisterParametrization(l, "bias", &scaled{}),
		"twice weight norm":     nn.WeightNorm(p, "weight"),
		"another shape":         nn.RegisterParametrization(flat, "weight", &transposes{}),
		"pruned otherwise":      nn.PruneIdentity(p, "weight"),
		"a fraction":            nn.PruneL1Unstructured(plain, "weight", nn.Fraction(1.5)),
		"a count":               nn.PruneRandomUnstructured(plain, "weight", nn.Count(10)),
		"a negative count":      nn.PruneRandomStructured(plain, "weight", nn.Count(-1), 0),
		"a vector's channels":   nn.PruneRandomStructured(plain, "bias", nn.Count(1), 0),
		"a norm":                nn.PruneLnStructured(plain, "weight", nn.Count(1), math.NaN(), 0),
		"a pruned dimension":    nn.PruneLnStructured(plain, "weight", nn.Count(1), 2, 5),
		"no mask":               nn.PruneCustomFromMask(plain, "weight", nil),
		"another mask":          nn.PruneCustomFromMask(plain, "weight", plain.Bias),
		"no method":             nn.PruneCustom(plain, "weight", nil),
		"a nil mask":            nn.PruneCustom(plain, "weight", func(_, _ *tensor.Tensor) *tensor.Tensor { return nil }),
		"other scores":          nn.PruneL1Unstructured(plain, "weight", nn.Count(1), nn.ImportanceScores(plain.Bias)),
	} {
		if err := q.Err(); err == nil || nn.Check(q) == nil || q.Forward(plain.Weight).Err() == nil {
			t.Errorf("%s: no error: %v", what, err)
		}
	}
	if plain.Weight.Device() == tensor.Meta || flat.Weight.Device() == tensor.Meta {
		t.Error("a failure changed the layer")
	}
	for what, f := range map[string]func() error{
		"not parametrized": func() error { _, err := nn.RemoveParametrizations(plain, "weight", true); return err },
		"nil":              func() error { _, err := nn.RemoveParametrizations(nil, "weight", true); return err },
		"two originals": func() error {
			w := nn.WeightNorm(nn.NewLinear(2, 2), "weight")
			defer nn.Release(w)
			_, err := nn.RemoveParametrizations(w, "weight", false)
			return err
		},
		"cached nothing": func() error { return nn.Cached(p, nil) },
		"no targets":     func() error { _, err := nn.PruneGlobalUnstructured(nil, nn.PruneL1, nn.Count(1)); return err },
		"a method": func() error {
			_, err := nn.PruneGlobalUnstructured([]nn.PruneTarget{{Layer: plain, Name: "weight"}}, 9, nn.Count(1))
			return err
		},
		"a nil target": func() error {
			_, err := nn.PruneGlobalUnstructured([]nn.PruneTarget{{}}, nn.PruneRandom, nn.Count(1))
			return err
		},
		"a zero value": func() error {
			return (&nn.Parametrized{Layer: plain, Lists: []*nn.ParametrizationList{{}}}).Forward(plain.Weight).Err()
		},
		"a nil list": func() error {
			return (&nn.Parametrized{Layer: plain, Lists: []*nn.ParametrizationList{nil}}).Forward(plain.Weight).Err()
		},
		"nil module":    func() error { _, err := (*nn.Parametrized)(nil).Module(); return err },
		"an empty list": func() error { _, err := (&nn.Parametrized{}).Module(); return err },
	} {
		if f() == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if nn.IsPruned(p) || nn.IsPruned(nil) {
		t.Error("IsPruned is wrong")
	}
	pruned := nn.PruneCustom(flat, "weight", func(values, mask *tensor.Tensor) *tensor.Tensor { return mask.Mul(values.Gt(0)) })
	if !nn.IsPruned(nn.NewSequential(pruned)) || pruned.Err() != nil {
		t.Errorf("a method of one's own: %v", pruned.Err())
	}
	defer nn.Release(pruned)
}

// twice is a parametrization of 2*x, with its inverse or another result.
type twice struct {
	inverse func(w *tensor.Tensor) []*tensor.Tensor
}

func (*twice) Forward(originals ...*tensor.Tensor) *tensor.Tensor { return originals[0].Mul(2) }

func (s *twice) RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error) { return s.inverse(w), nil }

// TestSetParametrized compares the originals and the parameter after Set with those after an assignment in PyTorch.
func TestSetParametrized(t *testing.T) {
	leak.Check(t)
	var made []any
	linear := func() *nn.Linear { return nn.NewLinear(2, 2) }
	add := func(p *nn.Parametrized) *nn.Parametrized {
		made = append(made, p)
		return p
	}
	defer func() { nn.Release(made) }()
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{1, 2, 3, 4}, []int{2, 2})
		rotation := tensor.FromSlice([]float32{0.6, -0.8, 0.8, 0.6}, []int{2, 2})
		tall := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 7}, []int{3, 2})
		half := func(w *tensor.Tensor) []*tensor.Tensor { return tensors(w.Div(2)) }
		orthogonal := []float64{0.31622779, 0.94868332, 0.94868332, -0.31622773}
		spectral := nn.SpectralNorm(linear(), "weight")
		for what, c := range map[string]struct {
			p         *nn.Parametrized
			value     *tensor.Tensor
			weight    []float64
			originals [][]float64
		}{
			"weight norm": {nn.WeightNorm(linear(), "weight"), x, []float64{1, 2, 3, 4}, [][]float64{{2.23606801, 5}, {1, 2, 3, 4}}},
			"orthogonal":  {nn.Orthogonal(linear(), "weight"), x, orthogonal, [][]float64{{-1, 0, 0, -1}}},
			"a rotation":  {nn.Orthogonal(linear(), "weight"), rotation, []float64{0.6, -0.8, 0.8, 0.6}, [][]float64{{-1, 0, 0, -1}}},
			"householder": {nn.Orthogonal(nn.NewLinear(2, 3), "weight", nn.OrthogonalMap("householder"), nn.NoTrivialization()), tall,
				[]float64{0.16903079, 0.94868338, 0.5070925, -0.31622764, 0.84515423, 0}, [][]float64{{-1, -8.28251171, 0.43377176, 1, 0.72295296, 0.39696577}}},
			"two": {nn.RegisterParametrization(nn.WeightNorm(linear(), "weight"), "weight", &twice{half}), x, []float64{1, 2, 3, 4},
				[][]float64{{1.118034, 2.5}, {0.5, 1, 1.5, 2}}},
			"spectral norm": {spectral, x, nil, [][]float64{{1, 2, 3, 4}}},
		} {
			l := add(c.p).Lists[0]
			before := slices.Clone(l.Originals)
			if err := c.p.Set("weight", c.value); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			m, err := c.p.Module()
			if err != nil {
				return err
			}
			if c.weight != nil {
				golden.Near(t, what, m.(*nn.Linear).Weight, c.weight, 1e-6, 1e-6)
			}
			for i, o := range l.Originals {
				golden.Near(t, fmt.Sprintf("original %d of %s", i, what), o, c.originals[i], 1e-6, 1e-6)
				if o != before[i] || !o.RequiresGrad() {
					t.Errorf("%s: original %d is another tensor, or is not trained", what, i)
				}
			}
		}
		// The value is copied.
		if err := x.Zero_().Err(); err != nil {
			return err
		}
		golden.Near(t, "the original after a change of the value", spectral.Lists[0].Originals[0], []float64{1, 2, 3, 4}, 0, 0)
		p := add(nn.WeightNorm(linear(), "weight"))
		other := func(inverse func(w *tensor.Tensor) []*tensor.Tensor) *nn.Parametrized {
			two := &twice{half}
			p := add(nn.RegisterParametrization(linear(), "weight", two))
			two.inverse = inverse
			return p
		}
		for says, err := range map[string]error{
			"no parametrized \"bias\"":       p.Set("bias", x),
			"nil":                            p.Set("weight", nil),
			"shape [2 2]":                    p.Set("weight", tall),
			"dtype float32":                  spectral.Set("weight", x.To(tensor.Float64)),
			"float64 [2 1] for original 0":   p.Set("weight", x.To(tensor.Float64)),
			"has no RightInverse":            add(nn.PruneCustomFromMask(linear(), "weight", x)).Set("weight", x),
			"there is no inverse":            add(nn.Orthogonal(linear(), "weight", nn.OrthogonalMap("cayley"), nn.NoTrivialization())).Set("weight", x),
			"2 tensors for the 1 originals":  other(func(w *tensor.Tensor) []*tensor.Tensor { return tensors(w, w) }).Set("weight", x),
			"original 0 of \"weight\"":       other(func(*tensor.Tensor) []*tensor.Tensor { return tensors(tall) }).Set("weight", x),
			"RightInverse of *nn_test.twice": other(func(*tensor.Tensor) []*tensor.Tensor { return tensors(nil) }).Set("weight", x),
			"Parametrized":                   (*nn.Parametrized)(nil).Set("weight", x),
		} {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want %s", err, says)
			}
		}
		zero := &nn.Parametrized{Layer: p.Layer, Lists: []*nn.ParametrizationList{nil, {Name: "weight"}}}
		if zero.Set("weight", x) == nil {
			t.Error("an incomplete list: no error")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestParametrizedOfAnotherDType tests that a parametrized layer that was converted can be set and parametrized again.
func TestParametrizedOfAnotherDType(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float64{1, 2, 3, 4}, []int{2, 2})
		half := &twice{func(w *tensor.Tensor) []*tensor.Tensor { return tensors(w.Div(2)) }}
		for what, p := range map[string]*nn.Parametrized{"weight norm": nn.WeightNorm(nn.NewLinear(2, 2), "weight"),
			"twice": nn.RegisterParametrization(nn.NewLinear(2, 2), "weight", half)} {
			defer nn.Release(p)
			if err := nn.To(p, tensor.Float64); err != nil {
				return err
			}
			if err := nn.RegisterParametrization(p, "weight", half).Err(); err != nil {
				t.Errorf("%s: another parametrization: %v", what, err)
			}
			if err := p.Set("weight", x); err != nil {
				t.Errorf("%s: Set: %v", what, err)
			}
			m, err := p.Module()
			if err != nil {
				return err
			}
			golden.Near(t, what, m.(*nn.Linear).Weight, []float64{1, 2, 3, 4}, 1e-12, 1e-12)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// shares is a parametrization with a tensor of the user's, and two originals.
type shares struct {
	Scale *tensor.Tensor `nn:",buffer"`
}

func (s *shares) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	return originals[0].Add(originals[1]).Mul(s.Scale)
}

func (s *shares) RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error) {
	half := w.Div(s.Scale.Mul(2))
	return tensors(half, half), nil
}

// TestRemoveParametrizationsOfOnesOwn tests that the tensors of a user's parametrization stay usable, and that the parameter is
// trained if one of several originals was, as in PyTorch.
func TestRemoveParametrizationsOfOnesOwn(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		own := &shares{tensor.Full([]int{}, 2.0)}
		a, b := nn.RegisterParametrization(nn.NewLinear(2, 2), "weight", own), nn.RegisterParametrization(nn.NewLinear(2, 2), "weight", own)
		defer nn.Release(b)
		a.Lists[0].Originals[0].RequiresGrad_(false)
		l, err := nn.RemoveParametrizations(a, "weight", true)
		if err != nil {
			return err
		}
		defer nn.Release(l)
		if !l.(*nn.Linear).Weight.RequiresGrad() {
			t.Error("the weight is frozen")
		}
		if err := errors.Join(own.Scale.Err(), b.Forward(tensor.Ones([]int{1, 2})).Err()); err != nil {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// passes is a parametrization that returns a tensor that it has not made: Kept, or the original.
type passes struct {
	Kept *tensor.Tensor `nn:",buffer"`
}

func (p *passes) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	if p.Kept != nil {
		return p.Kept
	}
	return originals[0]
}

// TestParametrizeAfterOnesOwn tests that a parametrization of the library leaves the result of a user's before it alone.
func TestParametrizeAfterOnesOwn(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1, 3})
		kept := tensor.Ones([]int{3, 3})
		for what, own := range map[string]*passes{"the original": {}, "a tensor that it keeps": {kept}} {
			p := nn.RegisterParametrization(nn.NewLinear(3, 3), "weight", own)
			defer nn.Release(p)
			again := nn.SpectralNorm(nn.RegisterParametrization(nn.SpectralNorm(p, "weight"), "weight", own), "weight")
			if again != p {
				return fmt.Errorf("%s: %w", what, again.Err())
			}
			nn.Eval(p)
			for range 2 {
				if err := p.Forward(x).Err(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := errors.Join(p.Lists[0].Originals[0].Err(), kept.Err()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// tally counts behind a mutex.
type tally struct {
	mu sync.Mutex
	n  int
}

func (c *tally) add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

type tallied struct {
	nn.Linear
	tally
}

func (l *tallied) Forward(x *tensor.Tensor) *tensor.Tensor {
	l.add()
	return l.Linear.Forward(x)
}

type talliedAside struct {
	nn.Linear
	count *tally
}

func (l *talliedAside) Forward(x *tensor.Tensor) *tensor.Tensor {
	l.count.add()
	return l.Linear.Forward(x)
}

type manyLocks struct {
	nn.Linear
	Locks [2]struct{ Of sync.RWMutex }
}

// TestParametrizeALayerWithAMutex tests that a layer is refused if its copy for a pass would have a mutex of its own, and
// that a layer with the mutex behind a pointer counts its passes on several goroutines.
func TestParametrizeALayerWithAMutex(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(2, 2)
	inside := nn.Linear{Weight: l.Weight, Bias: l.Bias}
	for held, layer := range map[string]nn.Layer{"sync.Mutex": &tallied{Linear: inside}, "sync.RWMutex": &manyLocks{Linear: inside}} {
		err := nn.WeightNorm(layer, "weight").Err()
		if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "a "+held+",") {
			t.Errorf("%T: %v", layer, err)
		}
	}
	layer := &talliedAside{inside, &tally{}}
	p := nn.WeightNorm(layer, "weight")
	defer nn.Release(p)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for range 50 {
				if err := tensor.WithScope(func() error { return p.Forward(tensor.Ones([]int{1, 2})).Err() }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	if layer.count.n != 100 {
		t.Errorf("%d passes were counted", layer.count.n)
	}
}

// TestPlaceOfARemovedParametrization tests that the parameter has its place among the others again.
func TestPlaceOfARemovedParametrization(t *testing.T) {
	leak.Check(t)
	for what, p := range map[string]*nn.Parametrized{
		"weight norm":   nn.WeightNorm(nn.NewLinear(2, 2), "weight"),
		"spectral norm": nn.SpectralNorm(nn.NewLinear(2, 2), "weight", nn.OldNames()),
		"pruning":       nn.PruneIdentity(nn.NewLinear(2, 2), "weight"),
	} {
		l, err := nn.RemoveParametrizations(p, "weight", true)
		if err != nil {
			t.Fatal(err)
		}
		defer nn.Release(l)
		if names := nn.NamedParameters(l); len(names) != 2 || names[0].Name != "weight" || names[1].Name != "bias" {
			t.Errorf("%s: the parameters are %v", what, names)
		}
	}
}

// TestModeOfAParametrization tests that a parametrization begins in the mode of its layer.
func TestModeOfAParametrization(t *testing.T) {
	leak.Check(t)
	for _, training := range []bool{true, false} {
		l := nn.NewLSTM(2, 3)
		l.SetTraining(training)
		p := nn.SpectralNorm(nn.SpectralNorm(l, "weight_hh_l0"), "weight_ih_l0")
		for _, list := range p.Lists {
			if got := list.Parametrizations[0].(interface{ Training() bool }).Training(); got != training {
				t.Errorf("the layer is in training: %v, the parametrization: %v", training, got)
			}
		}
		nn.Release(p)
	}
}

// TestSpectralNormOfComplexNumbers tests that a complex matrix is divided by its largest singular value.
func TestSpectralNormOfComplexNumbers(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w := tensor.FromSlice([]complex128{1 + 2i, 0.5, 3i, 2 - 1i, -1i, 0.25 + 1i}, []int{3, 2})
		p := nn.SpectralNorm(&nn.Linear{Weight: nn.NewParameter(w.Clone())}, "weight", nn.PowerIterations(20))
		defer nn.Release(p)
		m, err := p.Module()
		if err != nil {
			return err
		}
		_, s, _ := w.LinalgSVD()
		golden.Near(t, "the weight", m.(*nn.Linear).Weight.ViewAsReal(), data(t, w.Div(s.Max()).ViewAsReal()), 1e-6, 1e-6)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOldSpectralNormOfComplexNumbers compares the deprecated form with PyTorch's, which divides by u · Wv without
// conjugation.
func TestOldSpectralNormOfComplexNumbers(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w := tensor.FromSlice([]complex128{1 + 2i, 0.5, 3i, 2 - 1i, -1i, 0.25 + 1i}, []int{3, 2})
		p := nn.SpectralNorm(&nn.Linear{Weight: nn.NewParameter(w)}, "weight", nn.OldNames())
		defer nn.Release(p)
		err := nn.LoadStateDict(p, map[string]*tensor.Tensor{"weight_orig": w,
			"weight_u": tensor.FromSlice([]complex128{0.6i, 0.8, 0}, nil), "weight_v": tensor.FromSlice([]complex128{0.8, -0.6i}, nil)})
		if err != nil {
			return err
		}
		nn.Eval(p)
		m, err := p.Module()
		if err != nil {
			return err
		}
		golden.Near(t, "the weight", m.(*nn.Linear).Weight.ViewAsReal(), []float64{0.44247787610619477, -1.0816125860373647, -0.17207472959685347,
			-0.19665683382497542, 1.1799410029498525, -1.0324483775811206, -1.0816125860373647, -0.44247787610619477, -0.39331366764995085,
			0.34414945919370693, 0.3072763028515241, -0.4424778761061946}, 1e-12, 1e-12)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// gated is a module with a parameter beside a layer.
type gated struct {
	Gamma *tensor.Tensor
	Fc    *nn.Linear
}

func (g *gated) Forward(x *tensor.Tensor) *tensor.Tensor { return g.Fc.Forward(x).Mul(g.Gamma) }

// TestPruneALayerAndItsPart tests that both can be pruned together, in either order.
func TestPruneALayerAndItsPart(t *testing.T) {
	leak.Check(t)
	for _, reversed := range []bool{false, true} {
		g := &gated{nn.NewParameter(tensor.Full([]int{2}, 4.0)), nn.NewLinear(2, 2)}
		targets := []nn.PruneTarget{{Layer: g.Fc, Name: "weight"}, {Layer: g, Name: "gamma"}}
		if reversed {
			slices.Reverse(targets)
		}
		out, err := nn.PruneGlobalUnstructured(targets, nn.PruneL1, nn.Fraction(1))
		if err != nil {
			t.Fatal(err)
		}
		defer nn.Release(out)
		for _, p := range out {
			for _, b := range nn.NamedBuffers(p) {
				golden.Near(t, b.Name, b.Tensor, make([]float64, b.Tensor.Numel()), 0, 0)
			}
		}
	}
}

// widened is a layer with another's parameters among its own.
type widened struct{ nn.Linear }

// TestPruneAllOrNothing tests that targets stay as they were if a later one cannot be pruned.
func TestPruneAllOrNothing(t *testing.T) {
	leak.Check(t)
	a, b, c := nn.NewLinear(2, 2), nn.NewLinear(2, 2), nn.SpectralNorm(nn.NewLinear(2, 2), "weight")
	p := nn.PruneL1Unstructured(a, "weight", nn.Count(1))
	l := nn.NewLinear(2, 2)
	w := &widened{nn.Linear{Weight: l.Weight, Bias: l.Bias}}
	all := []any{p, b, c, w}
	defer func() { nn.Release(all) }()
	mask := data(t, nn.NamedBuffers(p)[0].Tensor)
	names := func() (s []string) {
		for _, n := range nn.StateDict(all) {
			s = append(s, n.Name)
		}
		return s
	}
	before, weights := names(), []*tensor.Tensor{b.Weight, l.Weight}
	// The last target is refused: its layer is in the one before it, whose weight is pruned by then.
	targets := []nn.PruneTarget{{Layer: p, Name: "weight"}, {Layer: b, Name: "weight"}, {Layer: p, Name: "bias"}, {Layer: b, Name: "weight"},
		{Layer: c, Name: "bias"}, {Layer: w, Name: "weight"}, {Layer: &w.Linear, Name: "bias"}}
	if out, err := nn.PruneGlobalUnstructured(targets, nn.PruneL1, nn.Fraction(1)); out != nil || err == nil || !strings.Contains(err.Error(), "parametrized already") {
		t.Fatalf("%v, %v", out, err)
	}
	if after := names(); !slices.Equal(after, before) || b.Weight != weights[0] || w.Weight != weights[1] {
		t.Errorf("the state is %v, was %v", after, before)
	}
	golden.Near(t, "the mask", nn.NamedBuffers(p)[0].Tensor, mask, 0, 0)
	for _, m := range all {
		if err := tensor.WithScope(func() error { return m.(nn.Layer).Forward(tensor.Ones([]int{1, 2})).Err() }); err != nil {
			t.Errorf("%T: %v", m, err)
		}
	}
	empty := &nn.Parametrized{Layer: a, Lists: []*nn.ParametrizationList{{Name: "bias"}}}
	if _, err := nn.PruneGlobalUnstructured([]nn.PruneTarget{{Layer: empty, Name: "bias"}}, nn.PruneL1, nn.Count(1)); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("an empty list: %v", err)
	}
}

// TestParametrizeOnTheMetaDevice tests layers with tensors on the meta device that are not trained.
func TestParametrizeOnTheMetaDevice(t *testing.T) {
	leak.Check(t)
	frozen := nn.NewLinear(2, 2, nn.Device(tensor.Meta))
	frozen.Weight.RequiresGrad_(false)
	frozen.Bias.RequiresGrad_(false)
	for what, p := range map[string]*nn.Parametrized{
		"a buffer":           nn.PruneIdentity(nn.NewBatchNorm1d(4, nn.Device(tensor.Meta)), "weight"),
		"a frozen parameter": nn.PruneIdentity(frozen, "weight"),
	} {
		if err := p.Err(); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		defer nn.Release(p)
		c, inner := nn.Clone(p), nn.Clone(p.Layer)
		defer nn.Release(c)
		defer nn.Release(inner)
		for _, layer := range []nn.Layer{p.Layer, c.Layer, inner} {
			if err := nn.PruneIdentity(layer, p.Lists[0].Name).Err(); err == nil || !strings.Contains(err.Error(), "parametrized already") {
				t.Errorf("%s: the layer in a Parametrized: %v", what, err)
			}
		}
	}
}

// transposes returns another shape.
type transposes struct{}

func (*transposes) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	return originals[0].Transpose(0, 1)
}

// TestLazy tests a lazy layer before its first Forward, states, copies, concurrent first passes, and errors.
func TestLazy(t *testing.T) {
	leak.Check(t)
	model := nn.NewSequential(nn.NewLazyConv2d(2, 2), nn.NewFlatten(1, -1), nn.NewLazyLinear(3))
	c := nn.Clone(model)
	fromState := nn.Clone(model)
	for _, m := range []any{model, c, fromState} {
		defer nn.Release(m)
	}
	if err := nn.Check(model); err == nil || !strings.Contains(err.Error(), "LazyConv2d: it has no parameters before its first Forward") {
		t.Errorf("Check: %v", err)
	}
	if _, err := optim.NewSGD(nn.Parameters(model), 0.1); err == nil {
		t.Error("an optimizer of a model without parameters")
	}
	if s := nn.String(model); !strings.Contains(s, "(0): LazyConv2d(0, 2, kernel_size=(2, 2), stride=(1, 1))") {
		t.Error(s)
	}
	err := tensor.WithScope(func() error {
		x := tensor.Linspace(-1, 1, 18).Reshape(1, 2, 3, 3)
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := tensor.WithScope(func() error { return model.Forward(x).Err() }); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		if err := nn.Check(model); err != nil {
			return err
		}
		if m, err := nn.GetSubmodule(model, "2"); err != nil || m.(*nn.Linear).Weight.Size(1) != 8 {
			t.Errorf("the layer is %v, %v", m, err)
		}
		if nn.Check(c) == nil {
			t.Error("a copy of a layer that was not made has parameters")
		}
		if err := nn.LoadStateDict(fromState, nn.StateDict(model).Map()); err != nil {
			return err
		}
		golden.Near(t, "y", fromState.Forward(x), data(t, model.Forward(x)), 0, 0)
		if err := nn.LoadStateDict(c, map[string]*tensor.Tensor{"x": x}); err == nil {
			t.Error("a state without the layer")
		}
		one := nn.NewLazyBatchNorm2d()
		for _, x := range tensors(nil, tensor.Ones([]int{2}), tensor.Zeros([]int{2, 0, 1, 1})) {
			if one.Forward(x).Err() == nil {
				t.Error("an x that does not fit")
			}
		}
		if err := one.Forward(x).Err(); err != nil {
			t.Errorf("after a failure: %v", err)
		}
		nn.Release(one)
		for what, err := range map[string]error{"an option": nn.NewLazyLinear(3, nn.Stride(2)).Err(), "a size": nn.NewLazyConv1d(-1, 2).Forward(x).Err(),
			"groups": nn.NewLazyConv3d(2, 2, nn.Groups(-2)).Err(), "nil": (*nn.Lazy[*nn.Linear])(nil).Err(), "zero": (&nn.Lazy[*nn.Linear]{}).Forward(x).Err()} {
			if err == nil || what != "nil" && what != "zero" && !strings.Contains(err.Error(), "NewLazy") {
				t.Errorf("%s: %v", what, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLazyMode tests that a lazy layer is made in the mode that it was put in, by its first Forward and by a state.
func TestLazyMode(t *testing.T) {
	leak.Check(t)
	forward, loaded := nn.NewLazyBatchNorm2d(), nn.NewSequential(nn.NewLazyInstanceNorm1d())
	trained, from := nn.NewLazyBatchNorm1d(), nn.NewLazyInstanceNorm1d()
	for _, m := range []any{forward, loaded, trained, from} {
		defer nn.Release(m)
	}
	nn.Eval([]any{forward, loaded, trained})
	nn.Train(trained)
	err := tensor.WithScope(func() error {
		x := tensor.Linspace(-1, 1, 24).Reshape(3, 2, 4)
		if err := errors.Join(forward.Forward(x.Unsqueeze(3)).Err(), trained.Forward(x).Err(), from.Forward(x).Err()); err != nil {
			return err
		}
		if forward.Module.Training() || !trained.Module.Training() || !from.Module.Training() {
			t.Error("the modes are not those that were set")
		}
		golden.Exact(t, "batches in evaluation", forward.Module.NumBatchesTracked, []float64{0})
		golden.Exact(t, "the mean in evaluation", forward.Module.RunningMean, []float64{0, 0})
		state := map[string]*tensor.Tensor{}
		for _, n := range nn.StateDict(from) {
			state["0."+n.Name] = n.Tensor
		}
		if err := nn.LoadStateDict(loaded, state); err != nil {
			return err
		}
		mean := data(t, from.Module.RunningMean)
		y := loaded.Forward(x)
		nn.Eval(from)
		golden.Near(t, "y of a loaded state", y, data(t, from.Forward(x)), 0, 0)
		golden.Exact(t, "the mean of a loaded state", loaded.Layers[0].(*nn.Lazy[*nn.InstanceNorm1d]).Module.RunningMean, mean)
		return y.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLazyOfNothing tests that a lazy layer that has no tensors can be saved and loaded before it is made, as in
// PyTorch, and that a lazy layer has the default dtype of its constructor.
func TestLazyOfNothing(t *testing.T) {
	leak.Check(t)
	model := nn.NewSequential(nn.NewLinear(3, 2), nn.NewLazyBatchNorm1d(nn.NoAffine(), nn.NoRunningStats()))
	other := nn.Clone(model)
	statistics := nn.NewLazyInstanceNorm2d(nn.NoAffine())
	defer nn.Release([]any{model, other, statistics})
	if err := errors.Join(nn.Check(model), nn.LoadStateDict(other, nn.StateDict(model).Map()), nn.To(other, tensor.Float64)); err != nil {
		t.Error(err)
	}
	if nn.Check(statistics) == nil {
		t.Error("running statistics are missing, and Check finds nothing")
	}
	early, given := nn.NewLazyLinear(2), nn.NewLazyLinear(2, nn.DType(tensor.Float32))
	defer nn.Release([]any{early, given})
	was := tensor.DefaultDType()
	if err := tensor.SetDefaultDType(tensor.Float64); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tensor.SetDefaultDType(was); err != nil {
			t.Error(err)
		}
	}()
	late := nn.NewLazyLinear(2)
	defer nn.Release(late)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1, 3})
		y := other.Forward(tensor.Randn([]int{4, 3}, tensor.Float64))
		return errors.Join(early.Forward(x.To(tensor.Float32)).Err(), given.Forward(x.To(tensor.Float32)).Err(), late.Forward(x.To(tensor.Float64)).Err(), y.Err())
	})
	if err != nil {
		t.Error(err)
	}
}

// TestKVCache tests that attention over a cache gives the values of attention over all tokens, and the errors of a cache.
func TestKVCache(t *testing.T) {
	leak.Check(t)
	cache := nn.NewKVCache(2, 3, 5, 4)
	defer nn.Release(cache)
	if len(nn.StateDict(cache)) != 0 || len(nn.NamedBuffers(cache)) != 2 {
		t.Error("the cache is saved")
	}
	err := tensor.WithScope(func() error {
		draw := func(n int) *tensor.Tensor { return tensor.Randn([]int{2, 3, n, 4}) }
		k, v := draw(5), draw(5)
		at := cache.Keys
		for _, part := range [][2]int{{0, 3}, {3, 1}, {4, 1}} {
			allK, allV := cache.Update(k.Narrow(2, part[0], part[1]), v.Narrow(2, part[0], part[1]))
			n := part[0] + part[1]
			golden.Near(t, "the keys", allK, data(t, k.Narrow(2, 0, n)), 0, 0)
			golden.Near(t, "the values", allV, data(t, v.Narrow(2, 0, n)), 0, 0)
			if cache.Len() != n || cache.Keys != at || allK.Stride()[0] != at.Stride()[0] {
				t.Errorf("the cache has %d tokens, or was not written in place", cache.Len())
			}
		}
		if x, y := cache.Update(draw(1), draw(1)); x.Err() == nil || y.Err() == nil || cache.Len() != 5 {
			t.Error("a token too many")
		}
		if err := cache.Reorder(tensor.FromSlice([]int{1, 0}, nil)); err != nil {
			return err
		}
		if err := cache.Truncate(2); err != nil {
			return err
		}
		allK, _ := cache.Update(draw(0), draw(0))
		golden.Near(t, "the keys in another order", allK, data(t, k.Narrow(2, 0, 2).Flip(0)), 0, 0)
		for i, x := range tensors(nil, tensor.Ones([]int{2}), tensor.Ones([]int{1, 3, 1, 4}), tensor.Ones([]int{2, 3, 1, 5})) {
			if a, b := cache.Update(x, draw(1)); a.Err() == nil || b.Err() == nil {
				t.Errorf("keys %d", i)
			}
			if a, b := cache.Update(draw(1), x); a.Err() == nil || b.Err() == nil {
				t.Errorf("values %d", i)
			}
			if (i < 1 || i > 1) && cache.Reorder(x) == nil {
				t.Errorf("rows %d", i)
			}
		}
		recorded := draw(1).RequiresGrad_()
		for what, x := range map[string]*tensor.Tensor{"with gradients": recorded, "of another dtype": draw(1).To(tensor.BFloat16)} {
			for _, in := range [][2]*tensor.Tensor{{x, draw(1)}, {draw(1), x}} {
				if a, b := cache.Update(in[0], in[1]); !errors.Is(a.Err(), tensor.ErrArgument) || !errors.Is(b.Err(), tensor.ErrArgument) || cache.Len() != 2 {
					t.Errorf("%s: %v, %v", what, a.Err(), b.Err())
				}
			}
		}
		if err := autograd.NoGrad(func() error { a, _ := cache.Update(recorded, recorded); return a.Err() }); err != nil {
			t.Error(err)
		}
		if err := cache.Truncate(2); err != nil {
			return err
		}
		a, b := (*nn.KVCache)(nil).Update(k, v)
		for what, err := range map[string]error{"nil": a.Err(), "nil too": b.Err(), "zero": (&nn.KVCache{}).Truncate(0), "below": cache.Truncate(-1), "above": cache.Truncate(3),
			"a size": nn.NewKVCache(0, 1, 1, 1).Err(), "an option": nn.NewKVCache(1, 1, 1, 1, nn.NoBias()).Err(), "out of range": cache.Reorder(tensor.FromSlice([]int{0, 7}, nil))} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestKVCacheMask tests that attention over a cache, in parts of any sizes, gives the values of causal attention over all
// tokens at once.
func TestKVCacheMask(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		draw := func() *tensor.Tensor { return tensor.Randn([]int{2, 3, 6, 4}) }
		q, k, v := draw(), draw(), draw()
		want := data(t, tensor.ScaledDotProductAttention(q, k, v, tensor.IsCausal(true)))
		cache := nn.NewKVCache(2, 3, 6, 4)
		for what, parts := range map[string][]int{"token by token": {1, 1, 1, 1, 1, 1}, "a prompt": {4, 1, 1}, "chunks": {2, 3, 1}, "all": {6}} {
			if err := cache.Truncate(0); err != nil {
				return err
			}
			var out []*tensor.Tensor
			for _, n := range parts {
				at := cache.Len()
				allK, allV := cache.Update(k.Narrow(2, at, n), v.Narrow(2, at, n))
				mask := cache.Mask(n)
				if mask.DType() != tensor.Bool || !slices.Equal(mask.Shape(), []int{n, at + n}) {
					t.Errorf("%s: the mask of %d tokens behind %d is %v", what, n, at, mask)
				}
				out = append(out, tensor.ScaledDotProductAttention(q.Narrow(2, at, n), allK, allV, tensor.AttnMask(mask)))
			}
			golden.Near(t, what, tensor.Cat(out, tensor.Dim(2)), want, 1e-5, 1e-6)
		}
		for what, mask := range map[string]*tensor.Tensor{"nil": (*nn.KVCache)(nil).Mask(1), "zero": (&nn.KVCache{}).Mask(1), "negative": cache.Mask(-1), "too many": cache.Mask(7)} {
			if mask.Err() == nil {
				t.Errorf("%s: no error", what)
			}
		}
		nn.Release(cache)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestInt8Linear tests that the kernel that reads 8 bits gives what converting the weight gives, and the errors.
func TestInt8Linear(t *testing.T) {
	leak.Check(t)
	for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		for _, sizes := range [][2]int{{64, 32}, {24, 10}, {33, 7}} {
			l := nn.NewLinear(sizes[0], sizes[1], nn.DType(dtype))
			q := nn.NewInt8Linear(l)
			err := tensor.WithScope(func() error {
				for _, rows := range [][]int{{1}, {3}, {2, 7}, {17}, {0}} {
					x := tensor.Randn(append(rows, sizes[0]), dtype)
					want := data(t, l.Forward(x).To(tensor.Float32))
					golden.Near(t, fmt.Sprint("rounded ", dtype, sizes, rows), q.Forward(x).To(tensor.Float32), want, 0.05, 0.05)
					converted := data(t, q.Forward(x.Detach().RequiresGrad_()).Detach().To(tensor.Float32))
					golden.Near(t, fmt.Sprint("8 bits ", dtype, sizes, rows), q.Forward(x).Detach().To(tensor.Float32), converted, 0.02, 0.02)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			nn.Release(l)
			nn.Release(q)
		}
	}
	q := nn.NewInt8Linear(&nn.Linear{Weight: tensor.Zeros([]int{3, 4}).Keep()})
	defer nn.Release(q)
	err := tensor.WithScope(func() error {
		golden.Near(t, "a weight of zeros", q.Forward(tensor.Ones([]int{2, 4})), make([]float64, 6), 0, 0)
		for what, err := range map[string]error{
			"nil": nn.NewInt8Linear(nil).Err(), "no weight": nn.NewInt8Linear(&nn.Linear{}).Err(), "integers": nn.NewInt8Linear(&nn.Linear{Weight: tensor.Ones([]int{2, 2}, tensor.Int64)}).Err(),
			"a vector": nn.NewInt8Linear(&nn.Linear{Weight: tensor.Ones([]int{2})}).Err(), "a width": q.Forward(tensor.Ones([]int{2, 3})).Err(),
			"a bias":     nn.NewInt8Linear(&nn.Linear{Weight: tensor.Ones([]int{2, 2}), Bias: tensor.Ones([]int{3})}).Err(),
			"an integer": q.Forward(tensor.Ones([]int{2, 4}, tensor.Int64)).Err(), "a scalar": q.Forward(tensor.Ones([]int{})).Err(), "zero": (&nn.Int8Linear{}).Forward(tensor.Ones([]int{4})).Err(),
			"float weights": (&nn.Int8Linear{Weight: tensor.Ones([]int{3, 4}), Scales: q.Scales}).Forward(tensor.Ones([]int{4})).Err(),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLoRA tests merging, saving the updates alone, and the errors of the parts that PyTorch does not have.
func TestLoRA(t *testing.T) {
	leak.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 3), &nn.ReLU{}, nn.NewLinear(3, 2))
	defer nn.Release(model)
	base := model.Layers[2].(*nn.Linear)
	l := nn.NewLoRALinear(base, 2, nn.Alpha(4))
	if err := nn.SetSubmodule(model, "2", l); err != nil {
		t.Fatal(err)
	}
	for want, opts := range map[float64][]nn.Option{0: {nn.Alpha(0)}, 1: nil, 2: {nn.Alpha(4)}} {
		scaled := nn.NewLoRALinear(nn.NewLinear(3, 2), 2, opts...)
		defer nn.Release(scaled)
		if scaled.Scale != want {
			t.Errorf("the scale is %v, want %v", scaled.Scale, want)
		}
	}
	err := tensor.WithScope(func() error {
		x := tensor.Randn([]int{5, 4})
		golden.Near(t, "at first", l.Forward(x.Narrow(1, 0, 3)), data(t, base.Forward(x.Narrow(1, 0, 3))), 0, 0)
		if err := nn.Normal_(l.B.Weight, 0, 1).Err(); err != nil {
			return err
		}
		want, weight := data(t, model.Forward(x)), data(t, base.Weight)
		for range 2 {
			if err := l.Merge(); err != nil {
				return err
			}
			golden.Near(t, "merged", model.Forward(x), want, 1e-5, 1e-4)
		}
		// The failed tensor of StateDict is the scope's error, too.
		_ = tensor.WithScope(func() error {
			if err := nn.LoadStateDict(model, nn.StateDict(model).Map()); err == nil || !strings.Contains(err.Error(), `LoRALinear "2" is merged`) {
				t.Errorf("loading into a merged layer: %v", err)
			}
			return nil
		})
		if !l.Merged() {
			t.Error("Merged is wrong")
		}
		if s := nn.LoRAState(model); len(s) != 2 || s[0].Tensor != l.A.Weight || s[1].Tensor != l.B.Weight {
			t.Errorf("the state of the merged updates is %v", s)
		}
		if err := errors.Join(l.Unmerge(), l.Unmerge()); err != nil {
			return err
		}
		golden.Near(t, "the weight after Unmerge", base.Weight, weight, 1e-6, 1e-5)
		golden.Near(t, "unmerged", model.Forward(x), want, 1e-6, 1e-5)
		if err := model.Forward(x).Sum().Backward(); err != nil {
			return err
		}
		if base.Weight.Grad() != nil || l.A.Weight.Grad() == nil || l.B.Weight.Grad() == nil {
			t.Error("the gradients are wrong")
		}
		s := nn.LoRAState(model)
		if len(s) != 2 || s[0].Name != "2.lora_A.weight" || s[1].Name != "2.lora_B.weight" {
			t.Errorf("the state of the updates is %v", s)
		}
		if err := nn.LoadStateDict(model, s.Map(), nn.Strict(false)); err != nil {
			t.Error(err)
		}
		for what, err := range map[string]error{
			"nil": nn.NewLoRALinear(nil, 2).Err(), "a rank": nn.NewLoRALinear(base, 0).Err(), "no weight": nn.NewLoRALinear(&nn.Linear{}, 2).Err(),
			"alpha": nn.NewLoRALinear(base, 2, nn.Alpha(math.NaN())).Err(), "p": nn.NewLoRALinear(base, 2, nn.DropoutP(2)).Err(), "zero": (&nn.LoRALinear{}).Merge(),
			"a nil layer": (*nn.LoRALinear)(nil).Unmerge(), "an odd width": nn.NewRotaryEmbedding(3).Err(), "a base": nn.NewRotaryEmbedding(4, nn.Base(-1)).Err(),
			"a position": nn.NewRotaryEmbedding(4).ForwardFrom(x, -1).Err(), "positions": nn.NewRotaryEmbedding(4).ForwardAt(x, x).Err(), "narrow": nn.NewRotaryEmbedding(6).Forward(x).Err(),
			"a SwiGLU": nn.NewSwiGLU(0, 2).Err(), "a path": nn.NewDropPath(2).Err(), "cutoffs": nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, []int{3, 3}).Err(),
			"no cutoffs": nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, nil).Err(), "a late cutoff": nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, []int{10}).Err(),
			"a wide tail": nn.NewAdaptiveLogSoftmaxWithLoss(2, 10, []int{3}, nn.DivValue(1e-320)).Err(), "div": nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, []int{3}, nn.DivValue(0)).Err(),
			"rows": nn.LinearCrossEntropy(x, base.Weight, nil, x, -1).Err(), "a weight": nn.NewLinearCrossEntropyLoss(4, 3, nil, tensor.Weight(x)).Err(),
			"a smoothing below 0": nn.NewLinearCrossEntropyLoss(4, 3, nil, tensor.LabelSmoothing(-1)).Err(),
			"a smoothing above 1": nn.NewLinearCrossEntropyLoss(4, 3, nil, tensor.LabelSmoothing(2)).Err(),
			"a bias":              nn.LinearCrossEntropy(x, tensor.Ones([]int{3, 2, 4}), tensor.Ones([]int{6}), tensor.Zeros([]int{5, 2}, tensor.Int64), 0).Err(),
			"no rows":             nn.LinearCrossEntropy(tensor.Ones([]int{4}), tensor.Ones([]int{3, 2, 4}), nil, tensor.Zeros([]int{2}, tensor.Int64), 0).Err(),
			"a reduction":         nn.LinearCrossEntropy(x, tensor.Ones([]int{3, 4}), nil, tensor.Zeros([]int{5}, tensor.Int64), 2, tensor.ReduceNone).Err(),
			"targets":             nn.LinearCrossEntropy(x, tensor.Ones([]int{3, 4}), nil, tensor.Zeros([]int{2}, tensor.Int64), 2).Err(),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestComputedBuffers tests that a buffer that is computed and not saved stays correct when a model is converted,
// leaves the meta device, or is loaded.
func TestComputedBuffers(t *testing.T) {
	leak.Check(t)
	type rotated struct {
		Rotary *nn.RotaryEmbedding
		Out    *nn.Linear
		Own    *tensor.Tensor `nn:"own,buffer,nonpersistent"`
	}
	make := func(opts ...nn.Option) *rotated {
		return &rotated{nn.NewRotaryEmbedding(8, append(opts, nn.Base(500))...), nn.NewLinear(8, 2, opts...), nil}
	}
	right := make()
	defer nn.Release(right)
	err := tensor.WithScope(func() error {
		want := data(t, right.Rotary.InvFreq)
		state := nn.StateDict(right).Map()
		converted, emptied, assigned := make(), make(nn.Device(tensor.Meta)), make(nn.Device(tensor.Meta))
		defer nn.Release(converted)
		defer nn.Release(emptied)
		defer nn.Release(assigned)
		var report nn.LoadReport
		if err := errors.Join(nn.To(converted, tensor.BFloat16), nn.ToEmpty(emptied, tensor.CPU), nn.LoadStateDict(emptied, state),
			nn.LoadStateDict(assigned, state, nn.Assign(true), nn.Report(&report))); err != nil {
			return err
		}
		for what, m := range map[string]*rotated{"converted": converted, "emptied": emptied, "assigned": assigned} {
			if m.Rotary.InvFreq.DType() != tensor.Float32 {
				t.Errorf("%s: the frequencies are %v", what, m.Rotary.InvFreq.DType())
			}
			golden.Near(t, what, m.Rotary.InvFreq, want, 0, 0)
		}
		if converted.Out.Weight.DType() != tensor.BFloat16 || len(report.Meta) != 0 {
			t.Errorf("the weight is %v; on the meta device: %v", converted.Out.Weight.DType(), report.Meta)
		}
		// A buffer of the program's own stays on the meta device, and the report says so.
		own := make(nn.Device(tensor.Meta))
		defer nn.Release(own)
		own.Own = tensor.Ones([]int{2}, tensor.Meta).Keep()
		if err := nn.LoadStateDict(own, state, nn.Assign(true), nn.Report(&report)); err != nil {
			return err
		}
		if !slices.Equal(report.Meta, []string{"own"}) || !strings.Contains(report.String(), "on the meta device: own") {
			t.Errorf("the report is %v", report)
		}
		if err := nn.To(own, tensor.CPU); err == nil || !strings.Contains(err.Error(), "own: ") {
			t.Errorf("To of a meta buffer: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTargetsOfCTCLoss tests that CTCLoss is the same for each form of the targets.
func TestTargetsOfCTCLoss(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Randn([]int{6, 2, 4}).LogSoftmax(2)
		inputs, lengths := []int{6, 5}, []int{3, 2}
		padded, joined := tensor.FromSlice([]int{1, 2, 1, 3, 1, 0}, []int{2, 3}), tensor.FromSlice([]int{1, 2, 1, 3, 1}, nil)
		want := nn.CTCLoss(x, padded, inputs, lengths)
		first := nn.CTCLoss(x.Select(1, 0), joined.Narrow(0, 0, 3), inputs[:1], lengths[:1])
		second := nn.CTCLoss(x.Select(1, 1), joined.Narrow(0, 3, 2), inputs[1:], lengths[1:])
		for name, got := range map[string]*tensor.Tensor{
			"one after the other": nn.CTCLoss(x, joined, inputs, lengths),
			"of dtype int32":      nn.CTCLoss(x, padded.To(tensor.Int32), inputs, lengths),
			"int32 in one row":    nn.CTCLoss(x, joined.To(tensor.Int32), inputs, lengths),
			"without a batch":     first.Add(second).Div(2),
		} {
			if same, err := tensor.Item[bool](got.Sub(want).Abs().Lt(1e-5)); err != nil || !same {
				t.Errorf("targets %s: %v, want %v", name, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPaddingOfCTCLoss tests that padding that is not a class changes neither CTCLoss nor its gradient.
func TestPaddingOfCTCLoss(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Randn([]int{5, 3, 4})
		results := func(padding int, dtype tensor.DType, of func(probs, targets *tensor.Tensor) (*tensor.Tensor, error)) []float32 {
			x := x.Clone().RequiresGrad_()
			targets := tensor.FromSlice([]int{1, 2, 3, padding, padding, padding}, []int{3, 2}).To(dtype)
			loss, err := of(x.LogSoftmax(2), targets)
			if err == nil {
				err = loss.Backward()
			}
			if err != nil {
				t.Errorf("padding %d: %v", padding, err)
				return nil
			}
			v, err := tensor.Data[float32](tensor.Cat([]*tensor.Tensor{loss.Detach().View(1), x.Grad().View(-1)}))
			if err != nil {
				t.Error(err)
			}
			return v
		}
		inputs, lengths := []int{5, 5, 4}, []int{2, 1, 0}
		for name, of := range map[string]func(probs, targets *tensor.Tensor) (*tensor.Tensor, error){
			"lists": func(probs, targets *tensor.Tensor) (*tensor.Tensor, error) {
				return nn.CTCLoss(probs, targets, inputs, lengths, tensor.ReduceSum), nil
			},
			"tensors": func(probs, targets *tensor.Tensor) (*tensor.Tensor, error) {
				return nn.NewCTCLoss(tensor.ReduceSum).Forward(probs, targets, tensor.FromSlice(inputs, nil), tensor.FromSlice(lengths, nil)), nil
			},
			"operator": func(probs, targets *tensor.Tensor) (*tensor.Tensor, error) {
				out, err := tensor.Call("aten::ctc_loss.Tensor", probs, targets, tensor.FromSlice(inputs, nil), tensor.FromSlice(lengths, nil).To(tensor.Int32))
				if err != nil {
					return nil, err
				}
				return out[0].(*tensor.Tensor), nil
			},
		} {
			want := results(3, tensor.Int64, of)
			for _, padding := range []int{-1, -100, 4} {
				for _, dtype := range []tensor.DType{tensor.Int64, tensor.Int32} {
					if got := results(padding, dtype, of); len(want) == 0 || !slices.Equal(got, want) {
						t.Errorf("lengths as %s, padding %d of %v: %v, want %v", name, padding, dtype, got, want)
					}
				}
			}
		}
		if nn.CTCLoss(x.LogSoftmax(2), tensor.FromSlice([]int{1, 2, 3}, []int{3, 1}), inputs, lengths).Err() == nil {
			t.Error("a length beyond the row is accepted")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestValuesByHand tests options and functions by values that PyTorch's formulas give.
func TestValuesByHand(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		from := func(v ...float64) *tensor.Tensor { return tensor.FromSlice(v, nil) }
		sequences := []*tensor.Tensor{from(1, 2, 3), from(4)}
		// A batch norm with variance 3.75 and eps 0.25 divides by 2.
		weight, bias := nn.FuseLinearBNWeights(tensor.FromSlice([]float64{2, 4}, []int{1, 2}), from(1), from(3), from(3.75), 0.25, from(6), from(1))
		for what, c := range map[string]struct {
			got  *tensor.Tensor
			want []float64
		}{
			"PadLeft":            {nn.PadSequence(sequences, nn.BatchFirst(), nn.PadLeft()), []float64{1, 2, 3, 0, 0, 4}},
			"PadLeft(false)":     {nn.PadSequence(sequences, nn.BatchFirst(), nn.PadLeft(false)), []float64{1, 2, 3, 4, 0, 0}},
			"distance, p=1":      {nn.NewPairwiseDistance(1).Forward(from(4, 7), from(3, 5)), []float64{3 + 2e-6}},
			"distance, p=2":      {nn.NewPairwiseDistance(2).Forward(from(3, 4), from(1e-6, 1e-6)), []float64{5}},
			"weight with a norm": {weight, []float64{6, 12}},
			"bias with a norm":   {bias, []float64{-5}},
		} {
			got, err := tensor.Data[float64](c.got)
			if err != nil || len(got) != len(c.want) {
				t.Errorf("%s: got %v, %v, want %v", what, got, err, c.want)
				continue
			}
			for i := range got {
				if !(math.Abs(got[i]-c.want[i]) <= 1e-12) {
					t.Errorf("%s: got %v, want %v", what, got, c.want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
