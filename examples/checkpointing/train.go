package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	width  = 32
	layers = 12
)

type options struct {
	steps, batch int
	lr           float64
	seed         uint64
	checkpoint   bool
}

// Model is a chain of residual blocks and a head.
type Model struct {
	Blocks     []*nn.Sequential
	Head       *nn.Linear
	checkpoint bool
}

func newModel(checkpoint bool) *Model {
	m := &Model{checkpoint: checkpoint}
	for range layers {
		m.Blocks = append(m.Blocks, nn.NewSequential(
			nn.NewLayerNorm(width), nn.NewLinear(width, 4*width), &nn.GELU{}, nn.NewLinear(4*width, width), nn.NewDropout(0.1)))
	}
	m.Head = nn.NewLinear(width, 1)
	return m
}

// Forward maps samples (N, width) to (N, 1). The input of the first block requires no gradient; its parameters do.
func (m *Model) Forward(x *tensor.Tensor) *tensor.Tensor {
	for _, b := range m.Blocks {
		block := func(in ...*tensor.Tensor) *tensor.Tensor { return nn.Residual(in[0], b) }
		if m.checkpoint {
			x = autograd.Checkpoint(block, x)
		} else {
			x = block(x)
		}
	}
	return m.Head.Forward(x)
}

type run struct {
	teacher *tensor.Tensor // (width, 1): the function that the network learns
	model   *Model
	opt     *optim.Optimizer
	losses  []float64
}

func newRun(o options) (r *run, err error) {
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	r = &run{teacher: tensor.Randn([]int{width, 1}).Keep(), model: newModel(o.checkpoint)}
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

func (r *run) step(o options) error {
	x := tensor.Randn([]int{o.batch, width})
	y := x.MM(r.teacher).Mul(0.25).Tanh()
	loss := nn.MSELoss(r.model.Forward(x), y)
	if err := nn.ZeroGrad(r.model); err != nil {
		return err
	}
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
