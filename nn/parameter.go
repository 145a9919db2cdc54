package nn

import (
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// NewParameter returns a parameter with t's values: a leaf that requires a gradient, is in no scope, and is counted among
// the weights by vram. It shares t's storage, as PyTorch's does, so that a change of one is a change of the other; it is
// not connected to t's graph. t must be of a floating-point or complex dtype. If t failed or cannot be a parameter, the
// result is a failed tensor with the error, which Check finds. PyTorch: torch.nn.Parameter.
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
