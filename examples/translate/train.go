package main

import (
	"context"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// train trains the model to reverse random sequences.
func train(ctx context.Context, m *EncoderDecoder, opt *optim.Optimizer, o options, report func(step int, loss float64)) error {
	for step := range o.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := tensor.WithScope(func() error {
			source := tensor.RandInt(0, digits, []int{o.batch, length})
			target := source.Flip(1)
			begin := tensor.Full([]int{o.batch, 1}, start)
			shifted := tensor.Cat([]*tensor.Tensor{begin, target.Narrow(1, 0, length-1)}, tensor.Dim(1))
			logits := m.Forward(source, shifted)
			loss := nn.CrossEntropy(logits.Flatten(tensor.EndDim(1)), target.Flatten())
			opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			value, err := loss.Item()
			if err != nil {
				return err
			}
			report(step, value)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
