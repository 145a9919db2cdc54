package autograd

import (
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// What package tensor has for this package alone.
var (
	backward      = handle.Backward.(func([]*tensor.Tensor, ...tensor.BackwardOption) error)
	grad          = handle.Grad.(func(outputs, inputs []*tensor.Tensor, opts ...tensor.BackwardOption) ([]*tensor.Tensor, error))
	runCheckpoint = handle.Checkpoint.(func(inputs []*tensor.Tensor, f func(inputs []*tensor.Tensor) ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error))
	tieFunction   = handle.TieFunction.(func(inputs, outputs, saved []*tensor.Tensor, f nativeFunction) ([]*tensor.Tensor, error))
)

// nativeFunction is the backward of a function written in Go: grads has one element for each output (nil where none
// came), needs one for each input; so has the result, nil for none.
type nativeFunction = func(grads, saved []*tensor.Tensor, needs []bool) ([]*tensor.Tensor, error)

// Backward computes the gradients of roots, scalars unless tensor.Gradient says otherwise, for every leaf that
// requires them, and adds them to the leaves' Grad. Options: tensor.Gradient, tensor.RetainGraph,
// tensor.CreateGraph, tensor.Inputs. From one root, root.Backward() does it too. PyTorch: torch.autograd.backward.
func Backward(roots []*tensor.Tensor, opts ...tensor.BackwardOption) error {
	return backward(roots, opts...)
}

// Grad gives the gradients of outputs with respect to inputs, of the inputs' shapes, and touches no tensor's Grad.
// Options: tensor.Gradient (one for each output), tensor.RetainGraph, tensor.CreateGraph, tensor.AllowUnused,
// with which an input that has no part in the outputs gets nil instead of being an error. PyTorch:
// torch.autograd.grad.
func Grad(outputs, inputs []*tensor.Tensor, opts ...tensor.BackwardOption) ([]*tensor.Tensor, error) {
	return grad(outputs, inputs, opts...)
}

// NoGrad runs f without recording gradients on this goroutine, which holds its thread meanwhile. Goroutines that f
// starts record as ever. It returns f's error. PyTorch: torch.no_grad.
func NoGrad(f func() error) error { return mode("NoGrad", handle.WithGrad, false, f) }

// EnableGrad runs f with gradients recorded, inside NoGrad say. PyTorch: torch.enable_grad.
func EnableGrad(f func() error) error { return mode("EnableGrad", handle.WithGrad, true, f) }

// Inference runs f in inference mode: as NoGrad, and what f makes never can have a part in gradients, which spares
// some bookkeeping. PyTorch: torch.inference_mode.
func Inference(f func() error) error { return mode("Inference", handle.WithInference, true, f) }

func mode(op string, with func(bool, func() error) error, on bool, f func() error) error {
	if f == nil {
		return refuse.Nil(op, "a function")
	}
	return with(on, f)
}
