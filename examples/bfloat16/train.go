package main

import (
	"context"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	in     = 16
	hidden = 64
)

type options struct {
	steps, batch int
	lr           float64
	seed         uint64
}

type run struct {
	teacher *tensor.Tensor   // (in, 1): the function that the network learns
	model   *nn.Sequential   // bfloat16
	opt     *optim.Optimizer // keeps the masters, float32 copies of the model's parameters
	losses  []float64
}

func newRun(o options) (r *run, err error) {
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	r = &run{teacher: tensor.Randn([]int{in, 1}).Keep()}
	r.model = nn.NewSequential(nn.NewLinear(in, hidden), &nn.GELU{}, nn.NewLinear(hidden, hidden), &nn.GELU{}, nn.NewLinear(hidden, 1))
	if err := nn.To(r.model, tensor.BFloat16); err != nil {
		return nil, err
	}
	r.opt, err = optim.NewAdamW(nn.Parameters(r.model), o.lr, optim.MasterWeights())
	return r, err
}

func (r *run) train(ctx context.Context, o options) error {
	for range o.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := tensor.WithScope(func() error { return r.step(o) }); err != nil {
			return err
		}
	}
	return nil
}

// step computes gradients in bfloat16; the optimizer updates the masters and rounds them to the model's parameters.
func (r *run) step(o options) error {
	x := tensor.Randn([]int{o.batch, in})
	y := x.MM(r.teacher).Mul(0.25).Tanh()
	loss := nn.MSELoss(r.model.Forward(x.To(tensor.BFloat16)).To(tensor.Float32), y)
	r.opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	if err := r.opt.Step(); err != nil {
		return err
	}
	value, err := loss.Item()
	r.losses = append(r.losses, value)
	return err
}
