package nn

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// CheckpointSequential applies layers to x in order, like Pipe, in the given number of segments of about the same length.
// For each segment but the last, only the input is kept for the backward pass, which computes the segment again, as
// with autograd.Checkpoint. segments is in [1, len(layers)]. PyTorch: torch.utils.checkpoint.checkpoint_sequential.
func CheckpointSequential(layers []Layer, segments int, x *tensor.Tensor) *tensor.Tensor {
	const op = "CheckpointSequential"
	if segments < 1 || segments > len(layers) {
		return refuse.Tensor(op, tensor.ErrArgument, "want 1 to %d segments for %d layers, got %d", len(layers), len(layers), segments)
	}
	size := len(layers) / segments
	for range segments - 1 {
		segment := layers[:size]
		x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return Pipe(in[0], segment...) }, x)
		layers = layers[size:]
	}
	return Pipe(x, layers...)
}
