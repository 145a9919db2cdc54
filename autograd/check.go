package autograd

import (
	"fmt"
	"math"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// CheckOption is a keyword argument of GradCheck and GradGradCheck.
type CheckOption func(*checkSettings)

type checkSettings struct {
	op, result      string // result names in errors what is differentiated
	given           int    // inputs of the caller; GradGradCheck adds the gradient of the output
	eps, atol, rtol float64
}

// Eps sets the step of the numerical derivative (eps=); 1e-6 by default.
func Eps(v float64) CheckOption { return func(s *checkSettings) { s.eps = v } }

// Atol sets the absolute tolerance (atol=); 1e-5 by default.
func Atol(v float64) CheckOption { return func(s *checkSettings) { s.atol = v } }

// Rtol sets the tolerance relative to the numerical derivative (rtol=); 1e-3 by default.
func Rtol(v float64) CheckOption { return func(s *checkSettings) { s.rtol = v } }

// GradCheck compares the gradients of f that a backward pass computes with the numerical derivatives
// (f(x+eps)-f(x-eps))/2eps, for each element of each input that requires a gradient. Inputs and output must be float64,
// and f must be deterministic. The error names the input and the element that differ. PyTorch:
// torch.autograd.gradcheck.
func GradCheck(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, opts ...CheckOption) error {
	s, err := checks("GradCheck", f, inputs, opts)
	if err != nil {
		return err
	}
	return s.check(f, inputs)
}

// check compares all gradients of f.
func (s *checkSettings) check(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor) error {
	return tensor.WithScope(func() error {
		return EnableGrad(func() error {
			for i, x := range inputs {
				if !x.RequiresGrad() {
					continue
				}
				analytic, err := s.jacobian(f, inputs, i)
				if err != nil {
					return err
				}
				if err := s.compare(f, inputs, i, analytic); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func checks(op string, f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, opts []CheckOption) (*checkSettings, error) {
	if f == nil {
		return nil, refuse.Nil(op, "a function")
	}
	if err := recordable(op); err != nil {
		return nil, err
	}
	s := &checkSettings{op, "output", len(inputs), 1e-6, 1e-5, 1e-3}
	for _, o := range opts {
		if o == nil {
			return nil, refuse.NilOption(op)
		}
		o(s)
	}
	if !(s.eps > 0) || !(s.atol >= 0) || !(s.rtol >= 0) {
		return nil, refuse.Error(op, tensor.ErrArgument, "eps must be positive, atol and rtol at least 0, got %v, %v, %v", s.eps, s.atol, s.rtol)
	}
	some := false
	for i, x := range inputs {
		if err := check(op, x); err != nil {
			return nil, fmt.Errorf("input %d: %w", i, err)
		}
		if !x.RequiresGrad() {
			continue
		}
		some = true
		if d := x.DType(); d != tensor.Float64 {
			return nil, refuse.Error(op, tensor.ErrArgument, "input %d is %v: numerical derivatives need float64", i, d)
		}
	}
	if !some {
		return nil, refuse.Error(op, tensor.ErrArgument, "no input requires a gradient")
	}
	return s, nil
}

// input names the i-th input in errors.
func (s *checkSettings) input(i int) string {
	if i == s.given {
		return "the gradient of the output"
	}
	return fmt.Sprintf("input %d", i)
}

// output calls f and returns an error if its result cannot be checked.
func (s *checkSettings) output(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor) (*tensor.Tensor, error) {
	ys, err := recovered(func() ([]*tensor.Tensor, error) { return []*tensor.Tensor{f(inputs...)}, nil })
	if err != nil {
		return nil, err
	}
	if err := check(s.op, ys[0]); err != nil {
		return nil, err
	}
	if d := ys[0].DType(); d != tensor.Float64 {
		return nil, refuse.Error(s.op, tensor.ErrArgument, "the output is %v: want float64", d)
	}
	return ys[0], nil
}

// jacobian returns, row by row, the gradient of each element of the output with respect to the i-th input.
func (s *checkSettings) jacobian(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, i int) (rows [][]float64, err error) {
	err = tensor.WithScope(func() error {
		inputs := apart(inputs)
		y, err := s.output(f, inputs)
		if err != nil {
			return err
		}
		n := y.Numel()
		for k := range n {
			row, err := []float64(nil), error(nil)
			if y.RequiresGrad() {
				row, err = s.gradOf(y, inputs[i], k, n)
			} else {
				row, err = zeros(inputs[i].Numel())
			}
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		return nil
	})
	return rows, err
}

// apart returns views of the inputs that require gradients, so that a tensor given as several inputs is differentiated
// as each one separately.
func apart(inputs []*tensor.Tensor) []*tensor.Tensor {
	args := append([]*tensor.Tensor{}, inputs...)
	for i, x := range args {
		if x.RequiresGrad() {
			args[i] = x.ViewAs(x)
		}
	}
	return args
}

// zeros makes a slice for the elements of a tensor, which may not fit in memory.
func zeros(n int) ([]float64, error) {
	z := tensor.Zeros([]int{n}, tensor.Float64, tensor.CPU)
	defer z.Release()
	return tensor.Data[float64](z)
}

func (s *checkSettings) gradOf(y, x *tensor.Tensor, k, n int) (row []float64, err error) {
	err = tensor.WithScope(func() error {
		one, err := zeros(n)
		if err != nil {
			return err
		}
		one[k] = 1
		seed := tensor.FromSlice(one, y.Shape(), y.Device())
		grads, err := Grad([]*tensor.Tensor{y}, []*tensor.Tensor{x}, tensor.Gradient(seed), tensor.RetainGraph(true), tensor.AllowUnused(true))
		if err != nil {
			return err
		}
		if grads[0] == nil {
			row, err = zeros(x.Numel())
			return err
		}
		if g := grads[0]; g.Numel() != x.Numel() {
			return refuse.Error(s.op, tensor.ErrArgument, "the gradient has shape %v, the input %v", g.Shape(), x.Shape())
		}
		row, err = tensor.Data[float64](grads[0])
		return err
	})
	return row, err
}

// compare checks the elements of the i-th input.
func (s *checkSettings) compare(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, i int, analytic [][]float64) error {
	data, err := tensor.Data[float64](inputs[i])
	if err != nil {
		return err
	}
	for e := range data {
		up, err := s.moved(f, inputs, i, e, data, s.eps)
		if err != nil {
			return err
		}
		down, err := s.moved(f, inputs, i, e, data, -s.eps)
		if err != nil {
			return err
		}
		if len(up) != len(analytic) || len(down) != len(analytic) {
			return refuse.Error(s.op, tensor.ErrArgument, "the %s's size changes from %d to %d", s.result, len(analytic), len(up))
		}
		for k := range up {
			numeric, got := (up[k]-down[k])/(2*s.eps), analytic[k][e]
			if d := math.Abs(got - numeric); !(d <= s.atol+s.rtol*math.Abs(numeric)) {
				return refuse.Error(s.op, tensor.ErrArgument, "%s, element %v, %s element %d: the backward pass gives %v, the numerical derivative is %v",
					s.input(i), place(e, inputs[i].Shape()), s.result, k, got, numeric)
			}
		}
	}
	return nil
}

// moved returns the output of f after adding a step to one element of one input.
func (s *checkSettings) moved(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, i, e int, data []float64, by float64) (out []float64, err error) {
	err = tensor.WithScope(func() error {
		there := append([]float64{}, data...)
		there[e] += by
		args := apart(inputs)
		// A function that differentiates, such as the one of GradGradCheck, needs inputs that require gradients here
		// too.
		args[i] = tensor.FromSlice(there, inputs[i].Shape(), inputs[i].Device()).RequiresGrad_()
		y, err := s.output(f, args)
		if err != nil {
			return err
		}
		out, err = tensor.Data[float64](y)
		return err
	})
	return out, err
}

// place returns the index of an element in each dimension.
func place(e int, shape []int) []int {
	at := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		at[d], e = e%shape[d], e/shape[d]
	}
	return at
}

// GradGradCheck applies GradCheck to the gradients of f, and so checks its second derivatives. PyTorch:
// torch.autograd.gradgradcheck.
func GradGradCheck(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, opts ...CheckOption) error {
	s, err := checks("GradGradCheck", f, inputs, opts)
	if err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		return EnableGrad(func() error {
			y, err := s.output(f, inputs)
			if err != nil {
				return err
			}
			// The gradient of the output is an input of the gradient function too.
			seed := tensor.Linspace(0.5, 1.5, y.Numel(), tensor.Float64).Reshape(y.Shape()...).To(y.Device()).RequiresGrad_()
			if err := seed.Err(); err != nil {
				return err
			}
			n := len(inputs)
			gradient := func(args ...*tensor.Tensor) *tensor.Tensor {
				var wrt, grads, flat []*tensor.Tensor
				for _, x := range args[:n] {
					if x.RequiresGrad() {
						wrt = append(wrt, x)
					}
				}
				y, err := s.output(f, args[:n])
				if err != nil {
					return tensor.Failed(err)
				}
				if y.RequiresGrad() {
					grads, err = Grad([]*tensor.Tensor{y}, wrt, tensor.Gradient(args[n]), tensor.CreateGraph(true), tensor.AllowUnused(true))
					if err != nil {
						return tensor.Failed(err)
					}
				}
				for _, g := range grads {
					if g != nil {
						flat = append(flat, g.Reshape(-1))
					}
				}
				if len(flat) == 0 {
					return refuse.Tensor(s.op, tensor.ErrArgument, "the output depends on no input that requires a gradient")
				}
				return tensor.Cat(flat)
			}
			s.result = "gradient"
			return s.check(gradient, append(append([]*tensor.Tensor{}, inputs...), seed))
		})
	})
}
