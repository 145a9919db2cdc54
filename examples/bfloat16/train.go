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
	teacher *tensor.Tensor   // (in, 1): the function that the network learns
	model   *nn.Sequential   // bfloat16
	masters []*tensor.Tensor // float32 copies of the model's parameters
	opt     *optim.Optimizer // updates the masters
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
	for _, p := range nn.Parameters(r.model) {
		r.masters = append(r.masters, nn.NewParameter(p.To(tensor.Float32)))
	}
	r.opt, err = optim.NewAdamW(r.masters, o.lr)
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

// step computes gradients in bfloat16, updates the masters, and rounds the masters into the model's parameters.
func (r *run) step(o options) error {
	x := tensor.Randn([]int{o.batch, in})
	y := x.MM(r.teacher).Mul(0.25).Tanh()
	loss := nn.MSELoss(r.model.Forward(x.To(tensor.BFloat16)).To(tensor.Float32), y)
	if err := nn.ZeroGrad(r.model); err != nil {
		return err
	}
	if err := loss.Backward(); err != nil {
		return err
	}
	params := nn.Parameters(r.model)
	for i, p := range params {
		if err := r.masters[i].SetGrad(p.Grad().To(tensor.Float32)); err != nil {
			return err
		}
	}
	if err := r.opt.Step(); err != nil {
		return err
	}
	err := autograd.NoGrad(func() error {
		for i, p := range params {
			if err := p.Copy_(r.masters[i]).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	value, err := loss.Item()
	r.losses = append(r.losses, value)
	return err
}
