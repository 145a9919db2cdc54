package autograd_test

import (
	"errors"
	"fmt"
	"math"
	"math/cmplx"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// same compares tensors, or lists of them, with what functional.py wrote.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	switch want := want.(type) {
	case []any:
		var list []any
		switch got := got.(type) {
		case []any:
			list = got
		case []*tensor.Tensor:
			for _, g := range got {
				list = append(list, g)
			}
		case [][]*tensor.Tensor:
			for _, g := range got {
				list = append(list, g)
			}
		}
		if len(list) != len(want) {
			t.Errorf("%s: %d results, want %d", what, len(list), len(want))
			return
		}
		for i := range list {
			same(t, fmt.Sprintf("%s[%d]", what, i), list[i], want[i])
		}
	case map[string]any:
		x := got.(*tensor.Tensor)
		values, err := tensor.Data[float64](x)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if g, w := strings.Join(strings.Fields(fmt.Sprint(x.Shape())), " "), fmt.Sprint(want["shape"]); g != w {
			t.Errorf("%s has shape %s, want %s", what, g, w)
		}
		for i, w := range want["values"].([]any) {
			if !(math.Abs(values[i]-w.(float64)) <= 1e-12*max(1, math.Abs(w.(float64)))) {
				t.Errorf("%s: element %d is %v, want %v", what, i, values[i], w)
			}
		}
		if x.RequiresGrad() {
			t.Errorf("%s has a graph", what)
		}
	}
}

func TestFunctional(t *testing.T) {
	leak.Check(t)
	want := functionalData(t)
	if err := tensor.WithScope(func() error {
		in, v, f, g := functionalCase()
		x := in[0]
		check := func(name string, got any, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			same(t, name, got, want[name])
		}
		out, products, err := autograd.VJP(f, in, tensor.FromSlice([]float64{1, -2, 0.5, 3}, []int{2, 2}))
		check("vjp", []any{out, products}, err)
		out, product, err := autograd.JVP(f, in, v)
		check("jvp", []any{out, product}, err)
		js, err := autograd.Jacobian(f, in)
		check("jacobian", js, err)
		h, err := autograd.Hessian(g, in)
		check("hessian", h, err)
		out, products, err = autograd.HVP(g, in, v)
		check("hvp", []any{out, products}, err)
		out, products, err = autograd.VHP(g, in, v)
		check("vhp", []any{out, products}, err)
		twice, err := autograd.Jacobian(func(in ...*tensor.Tensor) *tensor.Tensor {
			js, err := autograd.Jacobian(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Pow(3).Sum() }, in, autograd.CreateGraph(true))
			if err != nil {
				return tensor.Failed(err)
			}
			return js[0]
		}, []*tensor.Tensor{x})
		if err != nil {
			return err
		}
		check("twice", twice[0], err)
		if x.Grad() != nil || x.RequiresGrad() {
			t.Error("an input is changed")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestFunctionalErrors(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		x := tensor.Ones([]int{2})
		sum := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Sum() }
		twice := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(2) }
		constant := func(in ...*tensor.Tensor) *tensor.Tensor { return tensor.Ones(nil) }
		one := []*tensor.Tensor{x}
		failed := func(kind error, text string) func(_ any, err error) {
			return func(_ any, err error) {
				t.Helper()
				if err == nil || kind != nil && !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
					t.Errorf("%v; want %q", err, text)
				}
			}
		}
		pair := func(_, v any, err error) (any, error) { return v, err }
		failed(tensor.ErrNil, "a function")(autograd.Jacobian(nil, one))
		failed(tensor.ErrArgument, "at least one input")(autograd.Jacobian(sum, nil))
		failed(tensor.ErrNil, "argument 1")(autograd.Jacobian(sum, []*tensor.Tensor{x, nil}))
		failed(tensor.ErrArgument, "input 1 is int64")(autograd.Jacobian(sum, []*tensor.Tensor{x, tensor.Arange(0, 2)}))
		failed(tensor.ErrNil, "")(autograd.Jacobian(func(...*tensor.Tensor) *tensor.Tensor { return nil }, one))
		failed(tensor.ErrArgument, "one element")(autograd.Hessian(twice, one))
		failed(tensor.ErrArgument, "v is needed")(pair(autograd.VJP(twice, one, nil)))
		failed(tensor.ErrArgument, "v has 2 tensors")(pair(autograd.JVP(sum, one, []*tensor.Tensor{x, x})))
		failed(tensor.ErrArgument, "shape [3]")(pair(autograd.HVP(sum, one, []*tensor.Tensor{tensor.Ones([]int{3})})))
		failed(tensor.ErrArgument, "does not depend")(autograd.Jacobian(constant, one, autograd.Strict(true)))
		failed(tensor.ErrArgument, "input 1")(autograd.Jacobian(sum, []*tensor.Tensor{x, x}, autograd.Strict(true)))
		strict, linear := autograd.Strict(true), func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(3).Sum() }
		partly := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[0]).Add(in[1].Mul(3)).Sum() }
		two := []*tensor.Tensor{x, x}
		const linearIn = "the derivative with respect to input %d is constant"
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 0))(autograd.Hessian(linear, one, strict))
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 1))(autograd.Hessian(partly, two, strict))
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 0))(pair(autograd.HVP(linear, one, one, strict)))
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 1))(pair(autograd.HVP(partly, two, two, strict)))
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 0))(pair(autograd.VHP(linear, one, one, strict)))
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 0))(autograd.Jacobian(linear, one, strict, autograd.CreateGraph(true)))
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 0))(pair(autograd.VJP(linear, one, nil, strict, autograd.CreateGraph(true))))
		failed(tensor.ErrArgument, fmt.Sprintf(linearIn, 0))(pair(autograd.JVP(linear, one, one, strict, autograd.CreateGraph(true))))
		for what, f := range map[string]func() (any, error){
			"Jacobian": func() (any, error) { return autograd.Jacobian(linear, one, strict) },
			"VJP":      func() (any, error) { return pair(autograd.VJP(linear, one, nil, strict)) },
			"JVP":      func() (any, error) { return pair(autograd.JVP(linear, one, one, strict)) },
			"HVP":      func() (any, error) { return pair(autograd.HVP(partly, two, two)) },
			"Hessian of cube": func() (any, error) {
				return autograd.Hessian(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Pow(3).Sum() }, one, strict)
			},
		} {
			if _, err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		z := []*tensor.Tensor{tensor.Ones([]int{1}, tensor.Complex64)}
		identity := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(2) }
		failed(tensor.ErrArgument, "output 0 is complex64")(pair(autograd.VJP(identity, z, nil)))
		failed(tensor.ErrArgument, "input 0 is complex64")(pair(autograd.JVP(identity, z, nil)))
		var inference *tensor.Tensor
		if err := autograd.Inference(func() error {
			inference = tensor.Ones([]int{2})
			return inference.Err()
		}); err != nil {
			t.Error(err)
		}
		at := []*tensor.Tensor{x, inference}
		const outside = "input 1: linstock: RequiresGrad_: Setting requires_grad=True on inference tensor outside InferenceMode is not allowed"
		failed(nil, outside)(autograd.Jacobian(sum, at))
		failed(nil, outside)(autograd.Hessian(sum, at))
		failed(nil, outside)(autograd.Hessian(sum, at, autograd.ForwardMode(true)))
		failed(nil, outside)(pair(autograd.VJP(sum, at, nil)))
		failed(nil, outside)(pair(autograd.JVP(sum, at, at)))
		failed(nil, outside)(pair(autograd.HVP(sum, at, at)))
		js, err := autograd.Jacobian(constant, one)
		if err != nil {
			t.Error(err)
		} else if v, err := tensor.Data[float32](js[0]); err != nil || v[0] != 0 || v[1] != 0 {
			t.Errorf("the Jacobian of a constant is %v, %v", v, err)
		}
		return nil
	})
}

// TestDerivativesInInference tests that what differentiates a function is an error in inference mode, where every derivative
// would be zero.
func TestDerivativesInInference(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := []*tensor.Tensor{tensor.Ones([]int{1}, tensor.Float64).RequiresGrad_()}
		square := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[0]).Sum() }
		pair := func(_, _ any, err error) error { return err }
		single := func(_ any, err error) error { return err }
		calls := map[string]func() error{
			"VJP":           func() error { return pair(autograd.VJP(square, x, nil)) },
			"JVP":           func() error { return pair(autograd.JVP(square, x, x)) },
			"Jacobian":      func() error { return single(autograd.Jacobian(square, x)) },
			"Hessian":       func() error { return single(autograd.Hessian(square, x)) },
			"HVP":           func() error { return pair(autograd.HVP(square, x, x)) },
			"VHP":           func() error { return pair(autograd.VHP(square, x, x)) },
			"GradCheck":     func() error { return autograd.GradCheck(square, x) },
			"GradGradCheck": func() error { return autograd.GradGradCheck(square, x) },
		}
		for op, call := range calls {
			if err := call(); err != nil {
				t.Errorf("%s: %v", op, err)
			}
			if err := autograd.NoGrad(call); err != nil {
				t.Errorf("%s in NoGrad: %v", op, err)
			}
			err := autograd.Inference(call)
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), op+": inference mode records no gradients") {
				t.Errorf("%s in Inference: %v", op, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFunctionalSparse tests sparse inputs, with and without a graph of the results; the wanted values are PyTorch's.
func TestFunctionalSparse(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w := tensor.FromSlice([]float64{1, 2, 3, 4, 5, 6}, []int{3, 2})
		f := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].ToDense().Pow(2).MatMul(w).Sum() }
		for _, layout := range []tensor.Layout{tensor.SparseCOO, tensor.SparseCSR} {
			sparse := func(values ...float64) []*tensor.Tensor {
				return []*tensor.Tensor{tensor.FromSlice(values, []int{2, 3}).ToSparse(layout)}
			}
			x, v := sparse(1, 0, 2, 0, 3, 0), sparse(1, 0, 1, 0, 1, 0)
			x[0].RequiresGrad_()
			for _, create := range []bool{false, true} {
				check := func(what string, output *tensor.Tensor, products []*tensor.Tensor, err error, want ...float64) {
					t.Helper()
					if err != nil {
						t.Errorf("%s, %v, graph %v: %v", what, layout, create, err)
						return
					}
					if y, err := output.Item(); err != nil || y != 110 || output.RequiresGrad() != create || products[0].RequiresGrad() != create {
						t.Errorf("%s, %v, graph %v: the output is %v, %v, the product %v", what, layout, create, output, err, products[0])
					}
					got, err := tensor.Data[float64](products[0].ToDense())
					if err != nil || !slices.Equal(got, want) {
						t.Errorf("%s, %v, graph %v: %v, %v, want %v", what, layout, create, got, err, want)
					}
				}
				graph := autograd.CreateGraph(create)
				y, products, err := autograd.VJP(f, x, nil, graph)
				check("VJP", y, products, err, 6, 0, 44, 0, 42, 0)
				y, product, err := autograd.JVP(f, x, v, graph)
				check("JVP", y, []*tensor.Tensor{product}, err, 92)
				y, products, err = autograd.HVP(f, x, v, graph)
				check("HVP", y, products, err, 6, 0, 22, 0, 14, 0)
				y, products, err = autograd.VHP(f, x, v, graph)
				check("VHP", y, products, err, 6, 0, 22, 0, 14, 0)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFunctionalComplex tests JVP, HVP and VHP with complex inputs and outputs; the wanted values are PyTorch's.
func TestFunctionalComplex(t *testing.T) {
	leak.Check(t)
	x, vx := tensor.FromSlice([]float64{1, 2}, nil), tensor.FromSlice([]float64{0.5, -1}, nil)
	z, vz := tensor.FromSlice([]complex128{1 + 2i, 3 - 1i}, nil), tensor.FromSlice([]complex128{1i, 2 + 0.5i}, nil)
	for _, t := range []*tensor.Tensor{x, vx, z, vz} {
		defer t.Release()
	}
	in, v := []*tensor.Tensor{x, z}, []*tensor.Tensor{vx, vz}
	err := tensor.WithScope(func() error {
		near := func(what string, got *tensor.Tensor, want ...complex128) {
			t.Helper()
			values, err := tensor.Data[complex128](got.To(tensor.Complex128))
			if err != nil || len(values) != len(want) {
				t.Errorf("%s: %v, %v", what, values, err)
				return
			}
			for i := range want {
				if !(cmplx.Abs(values[i]-want[i]) <= 1e-4) {
					t.Errorf("%s: %v, want %v", what, values, want)
				}
			}
		}
		for _, forward := range []bool{false, true} {
			mode := autograd.ForwardMode(forward)
			c := tensor.FromSlice([]complex64{1 + 3i, 2 + 4i}, nil)
			y, dy, err := autograd.JVP(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[0]) }, []*tensor.Tensor{c}, []*tensor.Tensor{c}, mode)
			if err != nil {
				return err
			}
			near("z*z", y, -8+6i, -12+16i)
			near("JVP of z*z", dy, -16+12i, -24+32i)
			_, dy, err = autograd.JVP(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].Mul(in[1]).Mul(in[1]) }, in, v, mode)
			if err != nil {
				return err
			}
			near("JVP of x*z*z", dy, -5.5+4i, 18+4i)
			_, dy, err = autograd.JVP(func(in ...*tensor.Tensor) *tensor.Tensor {
				return tensor.Stack([]*tensor.Tensor{in[0].Mul(in[0]).Real().Sum(), in[0].Abs().Select(0, 0).Mul(in[0].Imag().Select(0, 1))})
			}, in[1:], v[1:], mode)
			if err != nil {
				return err
			}
			near("JVP with real outputs", dy, 9, 0.2236)
			for name, product := range map[string]func(func(...*tensor.Tensor) *tensor.Tensor, []*tensor.Tensor, []*tensor.Tensor, ...autograd.FunctionalOption) (*tensor.Tensor, []*tensor.Tensor, error){
				"HVP": autograd.HVP, "VHP": autograd.VHP,
			} {
				y, ps, err := product(func(in ...*tensor.Tensor) *tensor.Tensor {
					x, z := in[0], in[1]
					return x.Mul(z.Mul(z).Real()).Add(x.Mul(x).Mul(z.Abs())).Sum()
				}, in, v, mode)
				if err != nil {
					return err
				}
				near("the output of "+name, y, 27.8852)
				near(name, ps[0], 0.0249, 13.6325)
				near(name, ps[1], 1.2683-3.0161i, -1.3520-1.4069i)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
