package autograd

import (
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Checkpoint returns f(inputs…) and keeps nothing of what f saves for its gradient but the inputs: backward computes f
// again when it comes to it. It trades time for memory: of a deep model only the inputs of its parts stay, and what
// one part at a time needs. Gradients are the same to the last bit.
//
//	for _, block := range model.Blocks {
//		x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return block.Forward(in[0]) }, x)
//	}
//
// Tensors that f captures, such as parameters, get their gradients whether or not an input requires one. Checkpoints
// nest, and Backward, Grad, RetainGraph and CreateGraph work as without them. Where gradients are not recorded,
// Checkpoint only calls f.
//
// f runs in a scope of its own, each time: what it makes is freed at its end, except its result. f must compute the
// same each time. Its random numbers are repeated (dropout): those of the CPU and of every CUDA device in use, as
// long as no other goroutine draws numbers of the same device meanwhile. Its inputs must not change in place. A
// backward pass returns an error where f fails or panics when it is computed again, and where it then saves tensors of
// another number, dtype, shape or device.
//
// When f is computed again and backward has all that it needs, the operators in f compute no more and fail with
// tensor.ErrStopRecomputation: f should return, as after any error, and what it returns is ignored. Side effects of f
// happen twice.
//
// PyTorch: torch.utils.checkpoint.checkpoint (use_reentrant=False).
func Checkpoint(f func(inputs ...*tensor.Tensor) *tensor.Tensor, inputs ...*tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return tensor.Failed(refuse.Nil("Checkpoint", "a function"))
	}
	out, err := checkpoint(func(inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{f(inputs...)}, nil
	}, inputs)
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0]
}

// CheckpointAll is Checkpoint for a function of several results.
func CheckpointAll(f func(inputs ...*tensor.Tensor) ([]*tensor.Tensor, error), inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if f == nil {
		return nil, refuse.Nil("CheckpointAll", "a function")
	}
	return checkpoint(f, inputs)
}

func checkpoint(f func(inputs ...*tensor.Tensor) ([]*tensor.Tensor, error), inputs []*tensor.Tensor) ([]*tensor.Tensor, error) {
	for _, x := range inputs {
		if err := check("Checkpoint", x); err != nil {
			return nil, err
		}
	}
	return runCheckpoint(inputs, func(inputs []*tensor.Tensor) ([]*tensor.Tensor, error) {
		return recovered(func() ([]*tensor.Tensor, error) {
			outputs, err := f(slices.Clone(inputs)...)
			if err != nil {
				return nil, err
			}
			for _, y := range outputs {
				if err := y.Err(); err != nil {
					return nil, err
				}
			}
			return outputs, nil
		})
	})
}
