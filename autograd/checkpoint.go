package autograd

import (
	"errors"

	"github.com/linstock-ml/linstock/tensor"
)

// Checkpoint computes f(inputs…) without keeping what its gradient needs: backward computes f once more, so that of a
// deep model only the inputs of each part stay in memory. f must give the same result each time; the CPU's random
// numbers (dropout) are repeated. Parameters that f uses get their gradients as usual, provided that one of the inputs
// requires a gradient. PyTorch: torch.utils.checkpoint.checkpoint (use_reentrant=True).
//
//	for _, block := range model.Blocks {
//		x = autograd.Checkpoint(func(xs ...*tensor.Tensor) *tensor.Tensor { return block.Forward(xs[0]) }, x)
//	}
func Checkpoint(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs ...*tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return tensor.Failed(errors.New("autograd: Checkpoint: a function is needed, got nil"))
	}
	out, err := Apply(&checkpointed{f}, inputs...)
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0]
}

type checkpointed struct {
	f func(inputs ...*tensor.Tensor) *tensor.Tensor
}

type randomState struct{}

func (c *checkpointed) Forward(ctx *Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SaveForBackward(inputs...)
	ctx.Set(randomState{}, tensor.RNGState().Keep())
	y := c.f(inputs...)
	if err := y.Err(); err != nil {
		return nil, err
	}
	return []*tensor.Tensor{y}, nil
}

func (c *checkpointed) Backward(ctx *Context, grads ...*tensor.Tensor) (out []*tensor.Tensor, err error) {
	inputs := ctx.Saved()
	out = make([]*tensor.Tensor, len(inputs))
	if grads[0] == nil {
		return out, nil
	}
	// The numbers that forward drew, and afterwards those that would have come now.
	then, _ := ctx.Value(randomState{}).(*tensor.Tensor)
	now := tensor.RNGState()
	if err := tensor.SetRNGState(then); err != nil {
		return nil, err
	}
	restore := func() error { return tensor.SetRNGState(now) }
	err = tensor.WithGradMode(true, func() error {
		again := make([]*tensor.Tensor, len(inputs))
		for i, x := range inputs {
			if x == nil {
				continue
			}
			again[i] = x.Detach()
			if ctx.NeedsInputGrad(i) {
				again[i] = again[i].RequiresGrad_()
			}
		}
		y := c.f(again...)
		if err := y.Err(); err != nil {
			return errors.Join(err, restore())
		}
		if err := restore(); err != nil {
			return err
		}
		if err := y.Backward(tensor.Gradient(grads[0])); err != nil {
			return err
		}
		for i, x := range again {
			if x != nil && ctx.NeedsInputGrad(i) {
				out[i] = x.Grad()
			}
		}
		return nil
	})
	return out, err
}
