package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
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
	teacher *tensor.Tensor // (in, 1): the function that the network learns
	model   *nn.Sequential
	opt     *optim.Optimizer
	losses  []float64
}

func newRun(o options) (r *run, err error) {
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	r = &run{teacher: tensor.Randn([]int{in, 1}).Keep()}
	r.model = nn.NewSequential(nn.NewLinear(in, hidden), &nn.GELU{}, nn.NewLayerNorm(hidden), nn.NewLinear(hidden, 1))
	r.opt, err = optim.NewAdamW(nn.Parameters(r.model), o.lr)
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

// step is the usual step. Only the forward pass and the loss are in the region.
func (r *run) step(o options) error {
	x := tensor.Randn([]int{o.batch, in})
	y := x.MM(r.teacher).Mul(0.25).Tanh()
	loss := autograd.Autocast(tensor.CPUType, tensor.BFloat16, func() *tensor.Tensor {
		return nn.MSELoss(r.model.Forward(x), y)
	})
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
