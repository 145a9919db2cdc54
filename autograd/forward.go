package autograd

import (
	"slices"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// DualLevel runs f in a level of forward-mode differentiation, in which tensors can have tangents, and returns f's error:
//
//	err := autograd.DualLevel(func() error {
//		y, dy := autograd.UnpackDual(f(autograd.MakeDual(x, v))) // dy is the derivative of f at x in the direction v
//		…
//	})
//
// Operators compute the tangents of their results together with the results, with or without the recording of
// gradients, but not in inference mode. Tangents exist only on this goroutine, which is locked to its OS thread
// meanwhile, and end with the level, also if f panics; a tensor that has lost its tangent is an ordinary one.
//
// libtorch has one level for the process. DualLevel therefore waits until the levels of other goroutines have ended: f must
// not wait for a goroutine that enters one. A level within a level is an error. Apply, and operators without a forward
// derivative, return an error for an operand with a tangent. PyTorch: torch.autograd.forward_ad.dual_level.
func DualLevel(f func() error) error {
	if f == nil {
		return refuse.Nil("DualLevel", "a function")
	}
	return handle.WithForward(f)
}

// MakeDual returns a view of x that has a tangent, of x's shape, dtype and device, until the end of the level. x must be
// floating-point or complex, strided, and have no tangent. A write to the result in place also writes to x and the tangent. It
// is differentiable backward. Outside DualLevel it is an error. PyTorch: torch.autograd.forward_ad.make_dual.
func MakeDual(x, tangent *tensor.Tensor) *tensor.Tensor {
	const op = "MakeDual"
	for _, t := range []*tensor.Tensor{x, tangent} {
		if err := check(op, t); err != nil {
			return tensor.Failed(err)
		}
	}
	switch d := x.DType(); {
	case !d.IsFloat() && !d.IsComplex():
		return refuse.Tensor(op, tensor.ErrArgument, "the tensor must be floating-point or complex, got %v", d)
	case tangent.DType() != d:
		return refuse.Tensor(op, tensor.ErrArgument, "the tangent must be %v, as the tensor is, got %v", d, tangent.DType())
	case tangent.Device() != x.Device():
		return refuse.Tensor(op, tensor.ErrArgument, "the tangent must be on %v, as the tensor is, not on %v", x.Device(), tangent.Device())
	case !slices.Equal(tangent.Shape(), x.Shape()):
		return refuse.Tensor(op, tensor.ErrArgument, "the tangent must have the tensor's shape %v, got %v", x.Shape(), tangent.Shape())
	case tensor.InferenceEnabled() || x.IsInference() || tangent.IsInference():
		return refuse.Tensor(op, tensor.ErrArgument, "tensors of inference mode have no tangents")
	case !handle.ForwardEnabled():
		return refuse.Tensor(op, tensor.ErrArgument, "this goroutine is not in a DualLevel")
	}
	out, err := tensor.CallUnchecked("aten::_make_dual", x, tangent, 0)
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0].(*tensor.Tensor)
}

// UnpackDual returns a view of x without a tangent, and its tangent, or nil if it has none, as outside DualLevel. Both
// are differentiable backward. If it fails, both results carry the error. PyTorch: torch.autograd.forward_ad.unpack_dual.
func UnpackDual(x *tensor.Tensor) (primal, tangent *tensor.Tensor) {
	err := check("UnpackDual", x)
	var out []any
	if err == nil {
		out, err = tensor.CallUnchecked("aten::_unpack_dual", x, 0)
	}
	if err != nil {
		bad := tensor.Failed(err) // once, so that reading the error of one result reads that of both
		return bad, bad
	}
	return out[0].(*tensor.Tensor), out[1].(*tensor.Tensor)
}

// ForwardMode(true) makes JVP, Jacobian, Hessian, HVP and VHP differentiate forward, in a DualLevel of their own
// (strategy="forward-mode", torch.func.jvp, torch.func.jacfwd). JVP then costs about two calls of f. Jacobian and Hessian
// call f once for each element of the inputs, instead of going backward once for each element of the outputs or gradients;
// Hessian, HVP and VHP differentiate the gradient forward. f must not write to its inputs. Strict cannot be combined with it,
// and Jacobian and Hessian need real inputs then. It is off by default.
func ForwardMode(on ...bool) FunctionalOption {
	return func(s *functional) { s.forward = options.On(on) }
}

// directional is a function with the outputs whose derivatives are wanted: f's own, or its gradients.
type directional struct {
	*functional
	f          func(inputs ...*tensor.Tensor) *tensor.Tensor
	ofGradient bool // of f's output, which has one element, with respect to the inputs
}

// level runs compute in a level, with what f is called on for the inputs, and returns its results, detached unless the graph
// is wanted.
func (d *directional) level(inputs []*tensor.Tensor, compute func(in []*tensor.Tensor) ([]*tensor.Tensor, error)) (all []*tensor.Tensor, err error) {
	err = DualLevel(func() error {
		all, err = tensor.TidyAll(func() (all []*tensor.Tensor, err error) {
			err = EnableGrad(func() error {
				in, err := d.copies(inputs, d.ofGradient)
				if err != nil {
					return err
				}
				if all, err = compute(in); err == nil {
					all, err = d.results(all)
				}
				return err
			})
			return all, err
		})
		return err
	})
	return all, err
}

// along returns f's output for in, and the derivatives of the outputs in the direction v, in which nil is a zero.
func (d *directional) along(in, v []*tensor.Tensor) (y *tensor.Tensor, dys []*tensor.Tensor, err error) {
	all, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		dual := slices.Clone(in)
		for i, t := range v {
			if t != nil {
				dual[i] = MakeDual(in[i], t)
			}
		}
		y := d.f(dual...)
		if err := y.Err(); err != nil {
			return nil, err
		}
		outputs := []*tensor.Tensor{y}
		if d.ofGradient {
			if err := d.single(y); err != nil {
				return nil, err
			}
			var err error
			if outputs, err = d.gradients(y, dual, nil, d.create); err != nil {
				return nil, err
			}
		}
		y, _ = UnpackDual(y)
		all := []*tensor.Tensor{y}
		for _, o := range outputs {
			_, dy := UnpackDual(o)
			if dy == nil {
				dy = o.ZerosLike()
			}
			if err := dy.Err(); err != nil {
				return nil, err
			}
			all = append(all, dy)
		}
		return all, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return all[0], all[1:], nil
}

// product returns f's output and the derivatives of the outputs in the direction v.
func (d *directional) product(inputs, v []*tensor.Tensor) (output *tensor.Tensor, products []*tensor.Tensor, err error) {
	all, err := d.level(inputs, func(in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		v, err := d.shaped("input", v, in)
		if err != nil {
			return nil, err
		}
		y, dys, err := d.along(in, v)
		return append([]*tensor.Tensor{y}, dys...), err
	})
	if err != nil {
		return nil, nil, err
	}
	return all[0], all[1:], nil
}

// columns returns, for each output and input, the derivatives in the direction of each element of the input: a tensor of
// the output's shape followed by the input's.
func (d *directional) columns(inputs []*tensor.Tensor) ([]*tensor.Tensor, error) {
	for i, t := range inputs {
		if dt := t.DType(); dt.IsComplex() { // the directions would be those of the real parts alone
			return nil, refuse.Error(d.op, tensor.ErrArgument, "input %d is %v: ForwardMode needs real inputs here", i, dt)
		}
	}
	return d.level(inputs, func(in []*tensor.Tensor) ([]*tensor.Tensor, error) {
		columns := make([][][]*tensor.Tensor, len(in)) // by input, element of it, and output
		var outputs []*tensor.Tensor                   // derivatives in some direction, of the outputs' shapes
		along := func(v []*tensor.Tensor) error {
			y, dys, err := d.along(in, v)
			y.Release()
			outputs = dys
			return err
		}
		for i, t := range in {
			for k := range t.Numel() {
				v := make([]*tensor.Tensor, len(in))
				v[i] = t.NewZeros(t.Shape())
				v[i].View(-1).Select(0, k).Fill_(1)
				if err := along(v); err != nil {
					return nil, err
				}
				columns[i] = append(columns[i], outputs)
			}
		}
		if outputs == nil {
			if err := along(nil); err != nil {
				return nil, err
			}
		}
		var js []*tensor.Tensor
		for o, output := range outputs {
			for i, t := range in {
				shape := slices.Concat(output.Shape(), t.Shape())
				if len(columns[i]) == 0 {
					js = append(js, output.NewZeros(shape))
					continue
				}
				column := make([]*tensor.Tensor, len(columns[i]))
				for k := range column {
					column[k] = columns[i][k][o]
				}
				js = append(js, tensor.Stack(column, tensor.Dim(output.Dim())).Reshape(shape...))
			}
		}
		return js, nil
	})
}
