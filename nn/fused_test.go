package nn_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

var fusedActivations = map[string]nn.Layer{
	"ReLU": &nn.ReLU{}, "nil ReLU": (*nn.ReLU)(nil), "ReLU in place": &nn.ReLU{InPlace: true},
	"SiLU": &nn.SiLU{}, "nil SiLU": (*nn.SiLU)(nil), "SiLU in place": &nn.SiLU{InPlace: true},
	"Sigmoid": &nn.Sigmoid{}, "Tanh": &nn.Tanh{},
	"GELU": &nn.GELU{}, "nil GELU": (*nn.GELU)(nil), "GELU, none": &nn.GELU{Approximate: "none"}, "GELU, tanh": &nn.GELU{Approximate: "tanh"},
	"LeakyReLU": nn.NewLeakyReLU(0.1),
}

// TestLinearAndActivation tests that Pipe gives the values and gradients of the two layers one after the other, whether or
// not it computes them in one call, and writes to nothing that the program has.
func TestLinearAndActivation(t *testing.T) {
	leak.Check(t)
	type forward = func() *tensor.Tensor
	within := func(mode func(func() error) error) func(forward) *tensor.Tensor {
		return func(f forward) (y *tensor.Tensor) {
			if err := mode(func() error { y = f(); return y.Err() }); err != nil {
				return tensor.Failed(err)
			}
			return y
		}
	}
	cast := func(f forward) *tensor.Tensor { return autograd.Autocast(tensor.CPUType, tensor.BFloat16, f) }
	modes := map[string]func(forward) *tensor.Tensor{
		"with gradients": func(f forward) *tensor.Tensor { return f() },
		"NoGrad":         within(autograd.NoGrad),
		"Inference":      within(autograd.Inference),
		"Autocast":       cast,
		"Autocast in NoGrad": func(f forward) *tensor.Tensor {
			return within(autograd.NoGrad)(func() *tensor.Tensor { return cast(f) })
		},
	}
	linears := map[string][]nn.Option{"bias": nil, "no bias": {nn.NoBias()}, "float64": {nn.DType(tensor.Float64)}}
	for mode, run := range modes {
		for kind, opts := range linears {
			for name, activation := range fusedActivations {
				for _, shape := range [][]int{{5}, {4, 5}, {2, 3, 5}, {0, 5}} {
					if err := comparePipe(run, shape, opts, activation); err != nil {
						t.Errorf("%s, %s, %s, %v: %v", mode, kind, name, shape, err)
					}
				}
			}
		}
	}
}

// comparePipe compares Pipe of a Linear and an activation with the two, run by a mode.
func comparePipe(run func(func() *tensor.Tensor) *tensor.Tensor, shape []int, opts []nn.Option, activation nn.Layer) error {
	l := nn.NewLinear(5, 7, opts...)
	defer nn.Release(l)
	return tensor.WithScope(func() error {
		x := tensor.Randn(shape, l.Weight.DType()).RequiresGrad_()
		before := x.Detach().Clone()
		leaves := append(nn.Parameters(l), x)
		want, err := resultAndGradients(run(func() *tensor.Tensor { return activation.Forward(l.Forward(x)) }), leaves)
		if err != nil {
			return err
		}
		got, err := resultAndGradients(run(func() *tensor.Tensor { return nn.Pipe(x, l, activation) }), leaves)
		if err != nil {
			return err
		}
		got, want = append(got, x.Detach()), append(want, before)
		if len(got) != len(want) {
			return fmt.Errorf("%d tensors, want %d", len(got), len(want))
		}
		for i := range want {
			if same, err := got[i].Equal(want[i]); err != nil || !same || got[i].DType() != want[i].DType() {
				return fmt.Errorf("tensor %d of %d (the result, gradients, the input) is\n%v, want\n%v, %v", i, len(want), got[i], want[i], err)
			}
		}
		return nil
	})
}

// resultAndGradients returns y, and if it has a graph, the gradients of its sum of sines, which it takes out of leaves.
func resultAndGradients(y *tensor.Tensor, leaves []*tensor.Tensor) ([]*tensor.Tensor, error) {
	ts := []*tensor.Tensor{y}
	if !y.RequiresGrad() {
		return ts, y.Err()
	}
	if err := y.Sin().Sum().Backward(); err != nil {
		return nil, err
	}
	for _, p := range leaves {
		ts = append(ts, p.Grad().Clone())
		if err := p.SetGrad(nil); err != nil {
			return nil, err
		}
	}
	return ts, nil
}

// TestLinearAndActivationMemory tests that Pipe takes the memory of one result for a Linear and its activation where no
// gradients are recorded, and frees what autograd does not need where they are.
func TestLinearAndActivationMemory(t *testing.T) {
	leak.Check(t)
	const rows, wide = 1 << 10, 1 << 10
	l := nn.NewLinear(8, wide)
	defer nn.Release(l)
	for name, activation := range fusedActivations {
		if _, ok := activation.(*nn.LeakyReLU); ok {
			continue
		}
		for _, on := range []bool{false, true} {
			err := tensor.WithScope(func() error {
				x := tensor.Randn([]int{rows, 8})
				run := func() error {
					y, peak, err := withPeak(func() *tensor.Tensor { return nn.Pipe(x, l, activation) })
					if err != nil {
						return err
					}
					const one = rows * wide * 4
					results := int64(1)
					if on {
						results = 2 // SiLU and GELU save their input; the others need it no longer when they return
					}
					if peak > results*one+one/8 {
						t.Errorf("%s, gradients %v: the peak is %d KiB, want %d of %d", name, on, peak>>10, results, one>>10)
					}
					return y.Err()
				}
				if on {
					return run()
				}
				return autograd.NoGrad(run)
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLinearAndActivationErrors tests that a Linear that cannot run says so, with or without an activation after it.
func TestLinearAndActivationErrors(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(5, 7)
	defer nn.Release(l)
	for name, pipe := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"a wrong shape":   func(*tensor.Tensor) *tensor.Tensor { return nn.Pipe(tensor.Ones([]int{2, 3}), l, &nn.ReLU{}) },
		"no input":        func(*tensor.Tensor) *tensor.Tensor { return nn.Pipe(nil, l, &nn.ReLU{}) },
		"a zero Linear":   func(x *tensor.Tensor) *tensor.Tensor { return nn.Pipe(x, &nn.Linear{}, &nn.ReLU{}) },
		"a nil Linear":    func(x *tensor.Tensor) *tensor.Tensor { return nn.Pipe(x, (*nn.Linear)(nil), &nn.ReLU{}) },
		"a failed Linear": func(x *tensor.Tensor) *tensor.Tensor { return nn.Pipe(x, nn.NewLinear(-1, 7), &nn.ReLU{}) },
	} {
		err := tensor.WithScope(func() error { return pipe(tensor.Ones([]int{2, 5})).Err() })
		var e *tensor.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want a *tensor.Error", name, err)
		}
	}
}

// TestLinearAndActivationTangents tests that Pipe gives the tangents of the two layers, also where no gradients are recorded.
func TestLinearAndActivationTangents(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(5, 7)
	defer nn.Release(l)
	for name, activation := range fusedActivations {
		for _, mode := range []func(func() error) error{func(f func() error) error { return f() }, autograd.NoGrad} {
			err := tensor.WithScope(func() error {
				x, v := tensor.Randn([]int{4, 5}), tensor.Randn([]int{4, 5})
				return autograd.DualLevel(func() error {
					return mode(func() error {
						want, wantTangent := autograd.UnpackDual(activation.Forward(l.Forward(autograd.MakeDual(x, v))))
						got, tangent := autograd.UnpackDual(nn.Pipe(autograd.MakeDual(x, v), l, activation))
						for _, pair := range [][2]*tensor.Tensor{{got, want}, {tangent, wantTangent}} {
							if same, err := pair[0].Equal(pair[1]); err != nil || !same {
								return fmt.Errorf("%v, want %v (%v)", pair[0], pair[1], err)
							}
						}
						return nil
					})
				})
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
