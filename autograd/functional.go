package autograd

import (
	"fmt"
	"slices"

	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// The functions of torch.autograd.functional. f is called with tensors of the values of inputs that require gradients,
// with the recording of gradients enabled. The results are new tensors without a graph; with CreateGraph(true), they have
// one, which leads to inputs that require gradients. Where the outputs do not depend on an input, the result is zero, or an
// error with Strict(true). In inference mode, which records no gradients, each of them is an error.

// FunctionalOption is a keyword argument of VJP, JVP, Jacobian, Hessian, HVP and VHP.
type FunctionalOption func(*functional)

type functional struct {
	op                      string
	create, strict, forward bool
}

// CreateGraph lets the results be differentiated again (create_graph=); false by default.
func CreateGraph(on ...bool) FunctionalOption {
	return func(s *functional) { s.create = options.On(on) }
}

// Strict makes it an error that the outputs do not depend on one of the inputs (strict=); false by default. Where the first
// derivatives are differentiated too, by CreateGraph, Hessian, HVP or VHP, it is an error that one of them is constant.
func Strict(on ...bool) FunctionalOption { return func(s *functional) { s.strict = options.On(on) } }

// begin checks the arguments and reads the options.
func (s *functional) begin(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs, v []*tensor.Tensor, opts []FunctionalOption) error {
	if f == nil {
		return refuse.Nil(s.op, "a function")
	}
	if err := recordable(s.op); err != nil {
		return err
	}
	if len(inputs) == 0 {
		return refuse.Error(s.op, tensor.ErrArgument, "at least one input is needed")
	}
	for i, t := range slices.Concat(inputs, v) {
		if err := t.Err(); err != nil {
			return fmt.Errorf("linstock: %s: argument %d: %w", s.op, i, err)
		}
	}
	for i, t := range inputs {
		if d := t.DType(); !d.IsFloat() && !d.IsComplex() {
			return refuse.Error(s.op, tensor.ErrArgument, "input %d is %v: want a floating-point or complex dtype", i, d)
		}
	}
	for _, o := range opts {
		if o == nil {
			return refuse.NilOption(s.op)
		}
		o(s)
	}
	if s.forward && s.strict {
		return refuse.Error(s.op, tensor.ErrArgument, "ForwardMode and Strict cannot be combined")
	}
	return nil
}

// recordable returns an error in inference mode, in which EnableGrad records nothing, so that every derivative would be zero.
func recordable(op string) error {
	if tensor.InferenceEnabled() {
		return refuse.Error(op, tensor.ErrArgument, "inference mode records no gradients: call it outside Inference")
	}
	return nil
}

// copies returns what f is called on for the inputs; leaves require gradients.
func (s *functional) copies(inputs []*tensor.Tensor, leaves bool) ([]*tensor.Tensor, error) {
	in := make([]*tensor.Tensor, len(inputs))
	for i, t := range inputs {
		if s.create && t.RequiresGrad() {
			if t.Layout() == tensor.Strided {
				in[i] = t.ViewAs(t)
			} else {
				in[i] = t.Clone()
			}
		} else if in[i] = t.Detach(); leaves {
			in[i] = in[i].RequiresGrad_()
		}
		if err := in[i].Err(); err != nil {
			return nil, fmt.Errorf("linstock: %s: input %d: %w", s.op, i, err)
		}
	}
	return in, nil
}

// results returns ts without their graph, unless it is wanted, and their first error.
func (s *functional) results(ts []*tensor.Tensor) ([]*tensor.Tensor, error) {
	for i, t := range ts {
		if s.create {
			ts[i] = t.Alias()
		} else {
			ts[i] = t.Detach()
		}
		if err := ts[i].Err(); err != nil {
			return nil, err
		}
	}
	return ts, nil
}

// single returns an error unless y has one element.
func (s *functional) single(y *tensor.Tensor) error {
	if y.Numel() != 1 {
		return refuse.Error(s.op, tensor.ErrArgument, "the function must return a tensor with one element, got shape %v", y.Shape())
	}
	return nil
}

// run calls f on inputs and then compute with the inputs and the output of f, which must have one element if scalar is set.
// It returns the output and what compute returns, detached unless the graph is wanted.
func (s *functional) run(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, scalar bool,
	compute func(in []*tensor.Tensor, out *tensor.Tensor) ([]*tensor.Tensor, error)) (out *tensor.Tensor, results []*tensor.Tensor, err error) {
	all, err := tensor.TidyAll(func() (all []*tensor.Tensor, err error) {
		err = EnableGrad(func() error {
			in, err := s.copies(inputs, true)
			if err != nil {
				return err
			}
			y := f(in...)
			if err := y.Err(); err != nil {
				return err
			}
			if scalar {
				if err := s.single(y); err != nil {
					return err
				}
			}
			if s.strict && !y.RequiresGrad() {
				return refuse.Error(s.op, tensor.ErrArgument, "the output does not depend on the inputs, which Strict forbids")
			}
			rs, err := compute(in, y)
			if err != nil {
				return err
			}
			all, err = s.results(append([]*tensor.Tensor{y}, rs...))
			return err
		})
		return all, err
	})
	if err != nil {
		return nil, nil, err
	}
	return all[0], all[1:], nil
}

// gradients returns the gradients of y, weighted by v (nil: 1), with respect to in. It keeps the graph, and makes one of the
// gradients if create is set.
func (s *functional) gradients(y *tensor.Tensor, in []*tensor.Tensor, v *tensor.Tensor, create bool) ([]*tensor.Tensor, error) {
	return s.weighted([]*tensor.Tensor{y}, in, []*tensor.Tensor{v}, create)
}

// weighted is gradients for several outputs, each with its weights; the gradients are added up.
func (s *functional) weighted(ys, in, v []*tensor.Tensor, create bool) ([]*tensor.Tensor, error) {
	var roots, weights []*tensor.Tensor
	for i, y := range ys {
		if y.RequiresGrad() {
			roots, weights = append(roots, y), append(weights, v[i])
		}
	}
	if len(roots) == 0 {
		return zerosLike(in), nil
	}
	gs, err := Grad(roots, in, tensor.Gradient(weights...), tensor.RetainGraph(true), tensor.CreateGraph(create), tensor.AllowUnused(true))
	if err != nil {
		return nil, err
	}
	for i, g := range gs {
		switch {
		case s.strict && g == nil:
			return nil, refuse.Error(s.op, tensor.ErrArgument, "the output does not depend on input %d, which Strict forbids", i)
		case s.strict && create && !g.RequiresGrad():
			return nil, refuse.Error(s.op, tensor.ErrArgument, "the derivative with respect to input %d is constant, which Strict forbids where it is differentiated", i)
		case g == nil:
			gs[i] = in[i].ZerosLike()
		}
	}
	return gs, nil
}

func zerosLike(ts []*tensor.Tensor) []*tensor.Tensor {
	zeros := make([]*tensor.Tensor, len(ts))
	for i, t := range ts {
		zeros[i] = t.ZerosLike()
	}
	return zeros
}

// shaped returns an error unless v has one tensor of the shape of each of ts. A v that is nil stands for ones, for which each
// of ts must have one real element.
func (s *functional) shaped(what string, v, ts []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if v == nil {
		ones := make([]*tensor.Tensor, len(ts))
		for i, t := range ts {
			if t.Numel() != 1 {
				return nil, refuse.Error(s.op, tensor.ErrArgument, "v is needed, because %s %d has shape %v and not one element", what, i, t.Shape())
			}
			if d := t.DType(); d.IsComplex() {
				return nil, refuse.Error(s.op, tensor.ErrArgument, "v is needed, because %s %d is %v", what, i, d)
			}
			ones[i] = t.OnesLike()
		}
		return ones, nil
	}
	if len(v) != len(ts) {
		return nil, refuse.Error(s.op, tensor.ErrArgument, "v has %d tensors, want %d", len(v), len(ts))
	}
	for i, t := range ts {
		if !slices.Equal(v[i].Shape(), t.Shape()) {
			return nil, refuse.Error(s.op, tensor.ErrArgument, "v[%d] has shape %v, want that of the %s, %v", i, v[i].Shape(), what, t.Shape())
		}
	}
	return v, nil
}

// VJP returns f's output and, for each input, the product of v with the Jacobian of f: the gradient of the sum of v times the
// output. v has the shape of the output; it may be nil if the output has one real element. Options: CreateGraph,
// Strict. PyTorch: torch.autograd.functional.vjp.
func VJP(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, v *tensor.Tensor, opts ...FunctionalOption) (output *tensor.Tensor, products []*tensor.Tensor, err error) {
	s := &functional{op: "VJP"}
	var vs []*tensor.Tensor
	if v != nil {
		vs = []*tensor.Tensor{v}
	}
	if err := s.begin(f, inputs, vs, opts); err != nil {
		return nil, nil, err
	}
	if s.forward {
		return nil, nil, refuse.Error(s.op, tensor.ErrArgument, "VJP differentiates backward and has no ForwardMode")
	}
	return s.run(f, inputs, false, func(in []*tensor.Tensor, y *tensor.Tensor) ([]*tensor.Tensor, error) {
		vs, err := s.shaped("output", vs, []*tensor.Tensor{y})
		if err != nil {
			return nil, err
		}
		return s.gradients(y, in, vs[0], s.create)
	})
}

// JVP returns f's output and the product of the Jacobian of f with v: the derivative of the output in the direction v. v has
// the shapes of the inputs; it may be nil for real inputs with one element. JVP differentiates backward twice, or once
// forward with ForwardMode. Options: CreateGraph, Strict, ForwardMode. PyTorch: torch.autograd.functional.jvp, and with
// ForwardMode torch.func.jvp.
func JVP(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs, v []*tensor.Tensor, opts ...FunctionalOption) (output, product *tensor.Tensor, err error) {
	s := &functional{op: "JVP"}
	if err := s.begin(f, inputs, v, opts); err != nil {
		return nil, nil, err
	}
	if s.forward {
		output, products, err := (&directional{s, f, false}).product(inputs, v)
		if err != nil {
			return nil, nil, err
		}
		return output, products[0], nil
	}
	output, products, err := s.run(f, inputs, false, func(in []*tensor.Tensor, y *tensor.Tensor) ([]*tensor.Tensor, error) {
		v, err := s.shaped("input", v, in)
		if err != nil {
			return nil, err
		}
		// The gradient is linear in its weights, and its derivative with respect to them is the transposed Jacobian.
		weights := y.Detach().ZerosLike().RequiresGrad_()
		gs, err := s.gradients(y, in, weights, true)
		if err != nil {
			return nil, err
		}
		return s.weighted(gs, []*tensor.Tensor{weights}, v, s.create)
	})
	if err != nil {
		return nil, nil, err
	}
	return output, products[0], nil
}

// Jacobian returns, for each input, the derivatives of each element of f's output with respect to each of its elements: a
// tensor of the output's shape followed by the input's. Options: CreateGraph, Strict, ForwardMode. PyTorch:
// torch.autograd.functional.jacobian.
func Jacobian(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, opts ...FunctionalOption) ([]*tensor.Tensor, error) {
	s := &functional{op: "Jacobian"}
	if err := s.begin(f, inputs, nil, opts); err != nil {
		return nil, err
	}
	if s.forward {
		return (&directional{s, f, false}).columns(inputs)
	}
	output, jacobians, err := s.run(f, inputs, false, s.jacobian)
	output.Release()
	return jacobians, err
}

func (s *functional) jacobian(in []*tensor.Tensor, y *tensor.Tensor) ([]*tensor.Tensor, error) {
	n := y.Numel()
	rows := make([][]*tensor.Tensor, len(in))
	flat := y.Reshape(-1)
	for k := range n {
		gs, err := s.gradients(flat.Select(0, k), in, nil, s.create)
		if err != nil {
			return nil, err
		}
		for i, g := range gs {
			rows[i] = append(rows[i], g)
		}
	}
	js := make([]*tensor.Tensor, len(in))
	for i, t := range in {
		shape := slices.Concat(y.Shape(), t.Shape())
		if n == 0 {
			js[i] = t.NewZeros(shape)
			continue
		}
		js[i] = tensor.Stack(rows[i]).Reshape(shape...)
		if err := js[i].Err(); err != nil {
			return nil, err
		}
	}
	return js, nil
}

// Hessian returns the second derivatives of f, whose output has one element: h[i][j] has the shape of input i followed by that
// of input j. Options: CreateGraph, Strict, ForwardMode. PyTorch: torch.autograd.functional.hessian.
func Hessian(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs []*tensor.Tensor, opts ...FunctionalOption) (h [][]*tensor.Tensor, err error) {
	s := &functional{op: "Hessian"}
	if err := s.begin(f, inputs, nil, opts); err != nil {
		return nil, err
	}
	var all []*tensor.Tensor
	if s.forward {
		all, err = (&directional{s, f, true}).columns(inputs)
	} else {
		var output *tensor.Tensor
		output, all, err = s.run(f, inputs, true, func(in []*tensor.Tensor, y *tensor.Tensor) (all []*tensor.Tensor, err error) {
			gs, err := s.gradients(y, in, nil, true)
			if err != nil {
				return nil, err
			}
			for _, g := range gs {
				js, err := s.jacobian(in, g)
				if err != nil {
					return nil, err
				}
				all = append(all, js...)
			}
			return all, nil
		})
		output.Release()
	}
	if err != nil {
		return nil, err
	}
	for i := range inputs {
		h = append(h, all[i*len(inputs):(i+1)*len(inputs)])
	}
	return h, nil
}

// HVP returns the output of f, which has one element, and the product of its Hessian with v, for each input. v has the shapes
// of the inputs; it may be nil for real inputs with one element. Options: CreateGraph, Strict, ForwardMode. PyTorch:
// torch.autograd.functional.hvp.
func HVP(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs, v []*tensor.Tensor, opts ...FunctionalOption) (output *tensor.Tensor, products []*tensor.Tensor, err error) {
	return hessianProduct("HVP", f, inputs, v, opts)
}

// VHP is HVP, because a Hessian is symmetric. PyTorch: torch.autograd.functional.vhp.
func VHP(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs, v []*tensor.Tensor, opts ...FunctionalOption) (output *tensor.Tensor, products []*tensor.Tensor, err error) {
	return hessianProduct("VHP", f, inputs, v, opts)
}

func hessianProduct(op string, f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs, v []*tensor.Tensor, opts []FunctionalOption) (output *tensor.Tensor, products []*tensor.Tensor, err error) {
	s := &functional{op: op}
	if err := s.begin(f, inputs, v, opts); err != nil {
		return nil, nil, err
	}
	if s.forward {
		return (&directional{s, f, true}).product(inputs, v)
	}
	return s.run(f, inputs, true, func(in []*tensor.Tensor, y *tensor.Tensor) ([]*tensor.Tensor, error) {
		v, err := s.shaped("input", v, in)
		if err != nil {
			return nil, err
		}
		gs, err := s.gradients(y, in, nil, true)
		if err != nil {
			return nil, err
		}
		return s.weighted(gs, in, v, s.create)
	})
}
