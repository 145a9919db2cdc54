package autograd

import (
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// These are functions of package tensor that only this package uses.
var (
	backward      = handle.Backward.(func([]*tensor.Tensor, ...tensor.BackwardOption) error)
	grad          = handle.Grad.(func(outputs, inputs []*tensor.Tensor, opts ...tensor.BackwardOption) ([]*tensor.Tensor, error))
	runCheckpoint = handle.Checkpoint.(func(inputs []*tensor.Tensor, f func(inputs []*tensor.Tensor) ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error))
	withAutocast  = handle.WithAutocast.(func(device tensor.DeviceType, dtype tensor.DType, f func() error) error)
	autocastDType = handle.AutocastDType.(func(device tensor.DeviceType) tensor.DType)
	registerMulti = handle.RegisterMulti.(func(op string, ts []*tensor.Tensor, first bool, f func(grads []*tensor.Tensor) error) (func(), error))
	tieFunction   = handle.TieFunction.(func(inputs, outputs, saved []*tensor.Tensor, materialize bool, f nativeFunction) ([]*tensor.Tensor, error))
)

// nativeFunction is the backward of a function written in Go. grads has one element for each output, nil if the output
// received no gradient; needs has one for each input. The result has one for each input, nil for none.
type nativeFunction = func(grads, saved []*tensor.Tensor, needs []bool) ([]*tensor.Tensor, error)

// Backward computes the gradients of roots with respect to every leaf that requires a gradient, and adds them to the
// Grad of the leaves. Roots must be scalars unless tensor.Gradient is given. Options: tensor.Gradient,
// tensor.RetainGraph, tensor.CreateGraph, tensor.Inputs. For a single root, Tensor.Backward does the same. PyTorch:
// torch.autograd.backward.
func Backward(roots []*tensor.Tensor, opts ...tensor.BackwardOption) error {
	return backward(roots, opts...)
}

// Grad returns the gradients of outputs with respect to inputs, with the shapes of inputs. It does not change the Grad
// of any tensor. Options: tensor.Gradient (one for each output), tensor.RetainGraph, tensor.CreateGraph, and
// tensor.AllowUnused, which returns nil instead of an error for an input that the outputs do not depend on. PyTorch:
// torch.autograd.grad.
func Grad(outputs, inputs []*tensor.Tensor, opts ...tensor.BackwardOption) ([]*tensor.Tensor, error) {
	return grad(outputs, inputs, opts...)
}

// NoGrad runs f with the recording of gradients disabled on this goroutine, and returns f's error. The goroutine is
// locked to its OS thread meanwhile. Goroutines that f starts are not affected. NoGrad opens no scope: unlike the
// body of a loop over a data.Loader's Batches, f leaves its tensors to the enclosing scope or, without one, to
// sweeps. PyTorch: torch.no_grad.
func NoGrad(f func() error) error {
	defer handle.ForgetCasts(false) // f may have changed weights
	return mode("NoGrad", handle.WithGrad, false, f)
}

// EnableGrad runs f with the recording of gradients enabled, for example inside NoGrad, and returns f's error. PyTorch:
// torch.enable_grad.
func EnableGrad(f func() error) error {
	if !tensor.GradEnabled() {
		handle.ForgetCasts(false) // what runs without gradients may have changed weights
	}
	return mode("EnableGrad", handle.WithGrad, true, f)
}

// Inference runs f in inference mode and returns f's error. It is like NoGrad, but tensors that f makes can never take
// part in the recording of gradients, which saves some bookkeeping. PyTorch: torch.inference_mode.
func Inference(f func() error) error {
	defer handle.ForgetCasts(false)
	return mode("Inference", handle.WithInference, true, f)
}

func mode(op string, with func(bool, func() error) error, on bool, f func() error) error {
	if f == nil {
		return refuse.Nil(op, "a function")
	}
	return with(on, f)
}
