package nn_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestHooks compares the order, arguments and replacements of all kinds of hooks with those that
// tests/golden/torch_hooks.py notes for PyTorch.
func TestHooks(t *testing.T) {
	leak.Check(t)
	var want struct {
		Order           []string
		Seen            map[string][]float64
		Y, Grad, Weight []float64
	}
	golden.Read(t, "torch_hooks.json", &want)
	linear := nn.NewLinear(2, 2)
	defer nn.Release(linear)
	h := nn.NewHooked(linear)
	model := nn.NewSequential(h, &nn.Tanh{})
	var order []string
	see := func(name string, ts ...*tensor.Tensor) {
		order = append(order, name)
		for i, x := range ts {
			key := fmt.Sprintf("%s %d", name, i)
			if x == nil {
				t.Errorf("%s is nil", key)
				continue
			}
			golden.Near(t, key, x, want.Seen[key], 1e-6, 1e-5)
		}
	}
	must := func(remove func(), err error) func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return remove
	}
	must(h.RegisterForwardPreHook(func(x *tensor.Tensor) (*tensor.Tensor, error) { see("pre", x); return x.Mul(2), nil }))
	must(h.RegisterForwardPreHook(func(x *tensor.Tensor) (*tensor.Tensor, error) { see("pre2", x); return nil, nil }))
	must(h.RegisterForwardHook(func(x, y *tensor.Tensor) (*tensor.Tensor, error) { see("hook", x, y); return y.Add(1), nil }))
	must(h.RegisterForwardHook(func(x, y *tensor.Tensor) (*tensor.Tensor, error) { see("hook2", x, y); return nil, nil }))
	must(h.RegisterFullBackwardPreHook(func(g *tensor.Tensor) (*tensor.Tensor, error) { see("back pre", g); return g.Mul(3), nil }))
	must(h.RegisterFullBackwardHook(func(in, out *tensor.Tensor) (*tensor.Tensor, error) { see("back", in, out); return in.Mul(0.5), nil }))
	must(h.RegisterFullBackwardHook(func(in, out *tensor.Tensor) (*tensor.Tensor, error) { see("back2", in, out); return nil, nil }))
	removed := must(h.RegisterForwardHook(func(_, _ *tensor.Tensor) (*tensor.Tensor, error) { t.Error("a removed hook runs"); return nil, nil }))
	removed()
	err := tensor.WithScope(func() error {
		if err := nn.LoadStateDict(model, map[string]*tensor.Tensor{"0.weight": tensor.FromSlice([]float32{0.5, -1, 2, 0.25}, []int{2, 2}),
			"0.bias": tensor.FromSlice([]float32{0.1, -0.2}, nil)}); err != nil {
			return err
		}
		x := tensor.FromSlice([]float32{1, -0.5, 0.25, 2}, []int{2, 2}).RequiresGrad_()
		y := model.Forward(x)
		if err := y.Mul(tensor.Linspace(-1, 1, 4).Reshape(2, 2)).Sum().Backward(); err != nil {
			return err
		}
		golden.Near(t, "y", y, want.Y, 1e-6, 1e-5)
		golden.Near(t, "the gradient of x", x.Grad(), want.Grad, 1e-6, 1e-5)
		golden.Near(t, "the gradient of the weight", linear.Weight.Grad(), want.Weight, 1e-6, 1e-5)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(order) != fmt.Sprint(want.Order) {
		t.Errorf("the hooks run in the order %v, PyTorch's is %v", order, want.Order)
	}
	if s := nn.String(model); !strings.Contains(s, "(0): Linear(in_features=2, out_features=2, bias=True)\n  (1)") {
		t.Errorf("the text is %s", s)
	}
	if m, err := nn.GetSubmodule(model, "0"); m != any(linear) || err != nil {
		t.Errorf("the submodule is %T, %v", m, err)
	}
}

// TestHookErrors tests errors of hooks, hooks without gradients, and unusable arguments.
func TestHookErrors(t *testing.T) {
	leak.Check(t)
	linear := nn.NewLinear(2, 2)
	defer nn.Release(linear)
	stop := errors.New("stop")
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1, 2})
		forward := nn.NewHooked(linear)
		remove, err := forward.RegisterForwardPreHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, stop })
		if err != nil {
			return err
		}
		if err := forward.Forward(x).Err(); !errors.Is(err, stop) {
			t.Errorf("the error of a pre-hook: %v", err)
		}
		remove()
		remove() // a second call does nothing
		if err := forward.Forward(x).Err(); err != nil {
			t.Error(err)
		}
		if _, err := forward.RegisterForwardHook(func(_, _ *tensor.Tensor) (*tensor.Tensor, error) { return tensor.Failed(stop), nil }); err != nil {
			return err
		}
		if err := forward.Forward(x).Err(); !errors.Is(err, stop) {
			t.Errorf("a failed tensor of a hook: %v", err)
		}
		back := nn.NewHooked(linear)
		seen := 0
		if _, err := back.RegisterFullBackwardHook(func(in, out *tensor.Tensor) (*tensor.Tensor, error) {
			if seen++; in != nil || out == nil {
				t.Errorf("an input without a gradient: the hook sees %v, %v", in, out)
			}
			return nil, stop
		}); err != nil {
			return err
		}
		if err := back.Forward(x).Sum().Backward(); !errors.Is(err, stop) || seen != 1 {
			t.Errorf("the error of a backward hook: %v after %d calls", err, seen)
		}
		replaces := nn.NewHooked(linear)
		if _, err := replaces.RegisterFullBackwardHook(func(_, out *tensor.Tensor) (*tensor.Tensor, error) { return out, nil }); err != nil {
			return err
		}
		if err := replaces.Forward(x).Sum().Backward(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "must return nil") {
			t.Errorf("a gradient for an input that needs none: %v", err)
		}
		if err := autograd.NoGrad(func() error { return back.Forward(x).Err() }); err != nil || seen != 1 {
			t.Errorf("without gradients: %v after %d calls", err, seen)
		}
		var none *nn.Hooked
		_, err1 := none.RegisterForwardHook(nil)
		_, err2 := back.RegisterForwardPreHook(nil)
		for _, err := range []error{err1, err2, none.Forward(x).Err(), nn.NewHooked(nil).Forward(x).Err(), back.Forward(nil).Err(), nn.Check(nn.NewHooked(nil))} {
			if !errors.Is(err, tensor.ErrNil) {
				t.Errorf("a nil argument: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// layerFunc is a function as a layer.
type layerFunc func(x *tensor.Tensor) *tensor.Tensor

func (f layerFunc) Forward(x *tensor.Tensor) *tensor.Tensor { return f(x) }

// TestBackwardHooksInPlace tests that an operator in place is refused where it would keep backward hooks from running.
func TestBackwardHooksInPlace(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		triple := layerFunc(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(3) })
		for name, c := range map[string]struct {
			layer   nn.Layer
			after   nn.Layer
			refused bool
		}{
			"none":             {triple, &nn.ReLU{}, false},
			"after":            {triple, &nn.ReLU{InPlace: true}, true},
			"in the layer":     {layerFunc(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul_(3) }), &nn.ReLU{}, true},
			"the input itself": {layerFunc(func(x *tensor.Tensor) *tensor.Tensor { return x }), &nn.ReLU{}, false},
		} {
			h := nn.NewHooked(c.layer)
			calls := 0
			_, err1 := h.RegisterFullBackwardHook(func(in, out *tensor.Tensor) (*tensor.Tensor, error) {
				calls++
				return in.Mul(100), nil
			})
			_, err2 := h.RegisterFullBackwardPreHook(func(*tensor.Tensor) (*tensor.Tensor, error) { calls++; return nil, nil })
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			x := tensor.Ones([]int{2}).RequiresGrad_()
			y := nn.NewSequential(h, c.after).Forward(x.Mul(1))
			if c.refused {
				if err := y.Err(); err == nil || !strings.Contains(err.Error(), "is a view and is being modified inplace") {
					t.Errorf("%s: the error is %v", name, err)
				}
				continue
			}
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			want := x.OnesLike().Mul(100)
			if name == "none" {
				want = x.OnesLike().Mul(300)
			}
			if calls != 2 {
				t.Errorf("%s: %d hooks ran", name, calls)
			}
			if ok, err := x.Grad().Equal(want); err != nil || !ok {
				t.Errorf("%s: the gradient is %v, %v", name, x.Grad(), err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBackwardHooksKeepGradients tests that gradients that a backward hook keeps outlive the pass.
func TestBackwardHooksKeepGradients(t *testing.T) {
	leak.Check(t)
	for _, inner := range []bool{false, true} { // whether the layer's input needs a gradient
		var kept []*tensor.Tensor
		err := tensor.WithScope(func() error {
			w, x := tensor.Full([]int{2}, 3.0).RequiresGrad_(), tensor.Ones([]int{2}).RequiresGrad_(inner)
			h := nn.NewHooked(layerFunc(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(w) }))
			keep := func(g *tensor.Tensor) {
				if g != nil {
					kept = append(kept, g.Keep())
				}
			}
			_, err := h.RegisterFullBackwardHook(func(in, out *tensor.Tensor) (*tensor.Tensor, error) {
				keep(out)
				keep(in)
				return nil, nil
			})
			return errors.Join(err, h.Forward(x).Mul(2).Sum().Backward())
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []float64{2}
		if inner {
			want = append(want, 6)
		}
		if len(kept) != len(want) {
			t.Fatalf("input %v: %d gradients, want %d", inner, len(kept), len(want))
		}
		for i, g := range kept {
			golden.Exact(t, "a kept gradient", g, []float64{want[i], want[i]})
			g.Release()
		}
	}
}

// TestHooksOwnTheirHandles tests that what a hook does with its tensors, and with the one that it returns, changes nothing
// for other hooks and the caller.
func TestHooksOwnTheirHandles(t *testing.T) {
	leak.Check(t)
	for _, inner := range []bool{false, true} { // whether the layer's input needs a gradient
		for name, c := range map[string]struct {
			take     func(stored **tensor.Tensor, x *tensor.Tensor) error
			replaces bool // the hooks return what they have stored
		}{
			"stored":   {tensor.Replace, false},
			"returned": {tensor.Replace, true},
			"released": {func(_ **tensor.Tensor, x *tensor.Tensor) error { x.Keep().Release(); return nil }, false},
		} {
			var first, second [6]*tensor.Tensor // what the two hooks of each kind have stored
			err := tensor.WithScope(func() error {
				w, x := tensor.Full([]int{2}, 3.0).RequiresGrad_(), tensor.Ones([]int{2}).RequiresGrad_(inner)
				h := nn.NewHooked(layerFunc(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(w) }))
				for _, stored := range []*[6]*tensor.Tensor{&first, &second} {
					hook := func(at, result int, ts ...*tensor.Tensor) (*tensor.Tensor, error) {
						for i, x := range ts {
							if x == nil {
								continue
							}
							if err := c.take(&stored[at+i], x); err != nil {
								return nil, err
							}
						}
						if !c.replaces {
							return nil, nil
						}
						return stored[result], nil
					}
					_, err1 := h.RegisterForwardPreHook(func(x *tensor.Tensor) (*tensor.Tensor, error) { return hook(0, 0, x) })
					_, err2 := h.RegisterForwardHook(func(x, y *tensor.Tensor) (*tensor.Tensor, error) { return hook(2, 3, x, y) })
					_, err3 := h.RegisterFullBackwardPreHook(func(out *tensor.Tensor) (*tensor.Tensor, error) { return hook(1, 1, out) })
					_, err4 := h.RegisterFullBackwardHook(func(in, out *tensor.Tensor) (*tensor.Tensor, error) { return hook(4, 4, in, out) })
					if err := errors.Join(err1, err2, err3, err4); err != nil {
						return err
					}
				}
				y := h.Forward(x)
				for _, stored := range first { // one of two hooks is removed, and its tensors with it
					stored.Release()
				}
				if err := y.Mul(2).Sum().Backward(); err != nil {
					return err
				}
				for _, stored := range first {
					stored.Release()
				}
				golden.Exact(t, name+": the result", y.Detach(), []float64{3, 3})
				golden.Exact(t, name+": the gradient of the weight", w.Grad(), []float64{2, 2})
				if inner {
					golden.Exact(t, name+": the gradient of the input", x.Grad(), []float64{6, 6})
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s, input %v: %v", name, inner, err)
			}
			for i, want := range []float64{1, 2, 1, 3, 6, 2} {
				if name == "released" || i == 4 && !inner {
					continue
				}
				golden.Exact(t, fmt.Sprintf("%s, input %v: tensor %d of the second hook", name, inner, i), second[i].Detach(), []float64{want, want})
			}
			for _, stored := range second {
				stored.Release()
			}
		}
	}
}

// lost is a sum that gives its first operand no gradient.
type lost struct{}

func (lost) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{in[0].Add(in[1])}, nil
}

func (lost) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{nil, grads[0]}, nil
}

// TestBackwardHooksWithoutGradient tests that hooks see that the output receives no gradient, and that the next pass is
// not affected.
func TestBackwardHooksWithoutGradient(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w, other := tensor.Full([]int{2}, 3.0).RequiresGrad_(), tensor.Ones([]int{2}).RequiresGrad_()
		h := nn.NewHooked(layerFunc(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(w) }))
		var seen []string
		see := func(ts ...*tensor.Tensor) (*tensor.Tensor, error) {
			for _, x := range ts {
				if x == nil {
					seen = append(seen, "nil")
				} else {
					v, err := x.Sum().Item()
					if err != nil {
						return nil, err
					}
					seen = append(seen, fmt.Sprint(v))
				}
			}
			return nil, nil
		}
		_, err1 := h.RegisterFullBackwardPreHook(func(out *tensor.Tensor) (*tensor.Tensor, error) { return see(out) })
		_, err2 := h.RegisterFullBackwardHook(func(in, out *tensor.Tensor) (*tensor.Tensor, error) { return see(in, out) })
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		for _, x := range []*tensor.Tensor{tensor.Ones([]int{2}).RequiresGrad_(), tensor.Ones([]int{2})} {
			y := h.Forward(x)
			z, err := autograd.Apply(lost{}, y, other)
			if err != nil {
				return err
			}
			if err := z[0].Sum().Backward(tensor.RetainGraph(true)); err != nil {
				return err
			}
			if g := other.Grad(); g == nil {
				t.Error("the other operand has no gradient")
			}
			seen = append(seen, "then")
			if err := y.Sum().Backward(); err != nil {
				return err
			}
		}
		want := "nil nil nil then 2 6 2 nil nil nil then 2 nil 2"
		if got := strings.Join(seen, " "); got != want {
			t.Errorf("the hooks see %s, want %s", got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

type places struct {
	Any   any
	Fixed *nn.Linear
	Layer nn.Layer
	List  []nn.Layer
	Dict  nn.ModuleDict
	Map   map[string]nn.Layer
	Value nn.Linear
}

// TestSetSubmodule tests that a wrapper can take the place of a submodule wherever a Layer is held.
func TestSetSubmodule(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(2, 2)
	defer nn.Release(l)
	m := &places{Any: l, Fixed: l, Layer: nn.NewSequential(l, l), List: []nn.Layer{l}, Dict: nn.ModuleDict{{"x", l}}, Map: map[string]nn.Layer{"y": l}, Value: *nn.NewLinear(1, 1)}
	defer nn.Release(&m.Value)
	h := nn.NewHooked(l)
	for _, name := range []string{"any", "layer.1", "layer", "list.0", "dict.x", "map.y"} {
		if err := nn.SetSubmodule(m, name, h); err != nil {
			t.Error(err)
		}
	}
	if m.Any != any(h) || m.Layer != nn.Layer(h) || m.List[0] != nn.Layer(h) || m.Dict.Get("x") != any(h) || m.Map["y"] != nn.Layer(h) {
		t.Errorf("a submodule was not replaced: %+v", m)
	}
	if err := nn.SetSubmodule(m, "fixed", nn.NewLinear(1, 1)); err != nil || m.Fixed == l {
		t.Errorf("a pointer field: %v", err)
	}
	defer nn.Release(m.Fixed)
	for name, part := range map[string]any{"fixed": h, "value": h, "nowhere": h, "fixed.weight": h, "": h, "list": h, "any": nil, "layer": (*nn.Linear)(nil)} {
		if err := nn.SetSubmodule(m, name, part); err == nil {
			t.Errorf("%q can hold a %T", name, part)
		}
	}
	if err := nn.SetSubmodule(m, "fixed", h); !strings.Contains(err.Error(), "a field of type nn.Layer can") {
		t.Error(err)
	}
	if nn.SetSubmodule(nil, "x", h) == nil || nn.SetSubmodule(7, "x", h) == nil {
		t.Error("SetSubmodule accepts a value that is not a module")
	}
}

// TestSubmodulesOfParametrized tests that the submodules of a Parametrized have the names that NamedModules gives them.
func TestSubmodulesOfParametrized(t *testing.T) {
	leak.Check(t)
	mha := nn.NewMultiheadAttention(4, 2)
	m := nn.NewSequential(nn.WeightNorm(mha, "in_proj_weight"), nn.RegisterParametrization(nn.NewLinear(4, 4), "weight", &scaled{}))
	defer nn.Release(m)
	old, proj := mha.OutProj, nn.NewLinear(4, 4)
	defer nn.Release(proj)
	if err := nn.SetSubmodule(m, "0.out_proj", proj); err != nil || mha.OutProj != proj {
		t.Errorf("a part of the layer: %v", err)
	}
	if err := nn.SetSubmodule(m.Layers[0], "out_proj", old); err != nil || mha.OutProj != old {
		t.Errorf("a part of the layer of a Parametrized alone: %v", err)
	}
	other := &scaled{}
	if err := nn.SetSubmodule(m, "1.parametrizations.weight.0", other); err != nil || m.Layers[1].(*nn.Parametrized).Lists[0].Parametrizations[0] != nn.Parametrization(other) {
		t.Errorf("a parametrization: %v", err)
	}
	for _, name := range []string{"0.layer", "0.layer.out_proj", "1.lists.0.parametrizations.0", "1.parametrizations.weight.0"} {
		if err := nn.SetSubmodule(m, name, proj); err == nil {
			t.Errorf("%s can be a %T", name, proj)
		}
	}
}

// decoding is a decoder layer whose memory is its input.
type decoding struct{ *nn.TransformerDecoderLayer }

func (d decoding) Forward(x *tensor.Tensor) *tensor.Tensor {
	return d.TransformerDecoderLayer.Forward(x, x)
}

// TestSubmodulesOfBlocks tests that a wrapper can take the place of the linear layers in this package's blocks.
func TestSubmodulesOfBlocks(t *testing.T) {
	leak.Check(t)
	blocks := map[string]func() nn.Layer{
		"qkv proj":                    func() nn.Layer { return nn.NewCausalSelfAttention(8, 2) },
		"gate_proj up_proj down_proj": func() nn.Layer { return nn.NewSwiGLU(8, 16) },
		"linear1 linear2":             func() nn.Layer { return nn.NewTransformerEncoderLayer(8, 2, nn.DropoutP(0)) },
		"linear2 linear1":             func() nn.Layer { return decoding{nn.NewTransformerDecoderLayer(8, 2, nn.DropoutP(0))} },
	}
	wrappers := map[string]func(l nn.Layer) nn.Layer{
		"base_layer.weight":                 func(l nn.Layer) nn.Layer { return nn.NewLoRALinear(l, 2) },
		"parametrizations.weight.original0": func(l nn.Layer) nn.Layer { return nn.WeightNorm(l, "weight") },
		"weight":                            func(l nn.Layer) nn.Layer { return nn.NewHooked(l) },
	}
	for names, block := range blocks {
		for key, wrap := range wrappers {
			err := tensor.WithScope(func() error {
				m := nn.NewSequential(block())
				defer func() { nn.Release(m) }()
				x := tensor.Randn([]int{2, 3, 8})
				want := m.Forward(x)
				for _, name := range strings.Fields(names) {
					name = "0." + name
					for _, n := range nn.NamedModules(m) {
						if n.Name == name {
							if err := nn.SetSubmodule(m, name, wrap(n.Module.(nn.Layer))); err != nil {
								return err
							}
						}
					}
					if nn.StateDict(m).Map()[name+"."+key] == nil {
						t.Errorf("the state has no %s.%s", name, key)
					}
				}
				if same, err := tensor.Item[bool](m.Forward(x).Sub(want).Abs().Max().Lt(1e-5)); err != nil || !same {
					t.Errorf("%s wrapped as %s: the result differs: %v", names, key, err)
				}
				return nn.Check(m)
			})
			if err != nil {
				t.Errorf("%s wrapped as %s: %v", names, key, err)
			}
		}
	}
}

// TestHooksInALoRALinear tests that tensors that a hook on the base makes belong to the caller's scope.
func TestHooksInALoRALinear(t *testing.T) {
	leak.Check(t)
	l := nn.NewLoRALinear(nn.NewLinear(4, 3), 2)
	defer nn.Release(l)
	h := nn.NewHooked(l.Base)
	l.Base = h
	var kept, output *tensor.Tensor
	remove, err := h.RegisterForwardHook(func(_, y *tensor.Tensor) (*tensor.Tensor, error) {
		kept, output = y.Mul(2), y
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	err = tensor.WithScope(func() error {
		y := l.Forward(tensor.Ones([]int{1, 4}))
		golden.Near(t, "what the hook made", kept.Detach(), data(t, y.Detach().Mul(2)), 1e-6, 1e-6)
		golden.Near(t, "what the hook saw", output.Detach(), data(t, y.Detach()), 1e-6, 1e-6)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

type waves struct {
	Frequencies *tensor.Tensor `nn:",nonpersistent"`
	Kept        *tensor.Tensor `nn:",buffer"`
}

// TestNonPersistent tests that a buffer that is not saved is a buffer in every other respect.
func TestNonPersistent(t *testing.T) {
	leak.Check(t)
	m := &waves{Frequencies: tensor.Ones([]int{2}).Keep(), Kept: tensor.Ones([]int{1}).Keep()}
	defer nn.Release(m)
	if s := nn.StateDict(m); len(s) != 1 || s[0].Name != "kept" {
		t.Errorf("the state is %v", s)
	}
	if b := nn.NamedBuffers(m); len(b) != 2 || b[0].Name != "frequencies" {
		t.Errorf("the buffers are %v", b)
	}
	err := tensor.WithScope(func() error {
		return errors.Join(nn.Check(m), nn.To(m, tensor.Float64), nn.LoadStateDict(m, map[string]*tensor.Tensor{"kept": tensor.Zeros([]int{1})}))
	})
	if err != nil || m.Frequencies.DType() != tensor.Float64 || len(nn.Parameters(m)) != 0 {
		t.Errorf("%v, %v", err, m.Frequencies.DType())
	}
	if err := nn.LoadStateDict(m, map[string]*tensor.Tensor{"kept": m.Kept, "frequencies": m.Kept}); err == nil || !strings.Contains(err.Error(), "unexpected frequencies") {
		t.Errorf("a state with the buffer: %v", err)
	}
}
