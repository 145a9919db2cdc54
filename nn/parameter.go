package nn

import (
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// NewParameter returns a parameter with t's values: a leaf that requires a gradient, belongs to no scope, and is
// counted as a weight by package vram. It shares t's storage, as in PyTorch, so that an in-place change of one changes
// the other; it is not connected to t's graph. The dtype of t must be floating-point or complex. If t failed or cannot
// be a parameter, the result is a failed tensor that carries the error, which Check reports. PyTorch:
// torch.nn.Parameter.
func NewParameter(t *tensor.Tensor) *tensor.Tensor {
	if bad := unusable("NewParameter", t); bad != nil {
		return bad
	}
	b := build("NewParameter", nil)
	p := t.Detach()
	b.note(p.Err())
	if b.err == nil {
		b.note(p.RequiresGrad_().Err())
	}
	if b.err != nil {
		p.Release()
		return tensor.Failed(b.err)
	}
	tensor.Track(vram.Weights, p)
	return p.Keep()
}
