package autograd

import (
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Checkpoint returns f(inputs...) but saves only the inputs for the backward pass, which computes f again when it needs
// what f would have saved. It trades time for memory: of a deep model, only the inputs of its checkpointed parts are
// kept, plus what one part needs while it is computed. Gradients are bit-identical to those without Checkpoint.
//
//	for _, block := range model.Blocks {
//		x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return block.Forward(in[0]) }, x)
//	}
//
// Tensors that f captures, such as parameters, get their gradients whether or not an input requires one. Checkpoints
// may be nested, and Backward, Grad, RetainGraph and CreateGraph work as usual. If gradients are not recorded,
// Checkpoint only calls f.
//
// Each call of f runs in a scope, which frees all that f makes except its result. f borrows its inputs, as a layer's
// Forward does: it may keep only an Alias of them. f must compute the same values each time. Random numbers (dropout)
// are repeated on the CPU and on the CUDA devices of the inputs and of the tensors that f saves, provided that no other
// goroutine draws from the generator of the same device meanwhile; f must not be the first in the process to use such a
// device, which is an error. In a CUDA graph they are repeated if the backward pass is part of the same capture;
// otherwise the pass returns tensor.ErrCapture. The inputs must not be changed in place. Tensors that f captures must have
// the same values in the backward pass: as in PyTorch, it does not notice that they have changed in between. The backward
// pass returns an error if f fails or panics when it is computed again, if f then saves fewer tensors, or tensors that
// differ in dtype, shape or device, or if a tensor that f's operators then save is changed in place, by f or by others,
// before the pass uses it.
//
// The graph holds f, and so the tensors that f captures, until it is freed: an f that captures the variable to which its own
// result is assigned is never freed unless a backward pass frees the graph or a scope the result. Assign the result to another
// variable.
//
// When f is computed again, its operators fail with tensor.ErrStopRecomputation as soon as the backward pass has all
// that it needs. f should return, as after any error; its result is ignored. Side effects of f happen twice. f must not end
// its goroutine (runtime.Goexit, t.Fatal of a test), which leaks the pass then.
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

// CheckpointAll is Checkpoint for a function with several results.
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
