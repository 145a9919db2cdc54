package nn_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestCheckpointSequential compares gradients with those of Pipe, for all numbers of segments, and counts calls.
func TestCheckpointSequential(t *testing.T) {
	leak.Check(t)
	calls := 0
	model := nn.NewSequential()
	for range 7 {
		model.Layers = append(model.Layers, nn.NewSequential(nn.NewLinear(4, 4), &nn.Tanh{}, nn.NewDropout(0.5),
			nn.Func(func(x *tensor.Tensor) *tensor.Tensor { calls++; return x.Mul(1.5) })))
	}
	defer nn.Release(model)
	run := func(forward func(x *tensor.Tensor) *tensor.Tensor) (grads string) {
		calls = 0
		err := tensor.WithScope(func() error {
			if err := errors.Join(tensor.ManualSeed(6), nn.ZeroGrad(model)); err != nil {
				return err
			}
			if err := forward(tensor.Ones([]int{2, 4})).Sum().Backward(); err != nil {
				return err
			}
			for _, p := range nn.Parameters(model) {
				g, err := tensor.Data[float32](p.Grad().Contiguous())
				if err != nil {
					return err
				}
				grads += fmt.Sprint(g)
			}
			return nn.ZeroGrad(model)
		})
		if err != nil {
			t.Error(err)
		}
		return grads
	}
	want := run(model.Forward)
	for segments := 1; segments <= 7; segments++ {
		got := run(func(x *tensor.Tensor) *tensor.Tensor { return nn.CheckpointSequential(model.Layers, segments, x) })
		if got != want {
			t.Errorf("%d segments: the gradients differ", segments)
		}
		// All but the last segment run twice. As in PyTorch, the last one has what is left.
		if again := 7 / segments * (segments - 1); calls != 7+again && calls != 7+again-segments+1 {
			t.Errorf("%d segments: %d calls of layers, want %d", segments, calls, 7+again)
		}
	}
	for _, segments := range []int{-1, 0, 8} {
		if err := nn.CheckpointSequential(model.Layers, segments, tensor.Ones([]int{2, 4})).Err(); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("%d segments: %v", segments, err)
		}
	}
}
