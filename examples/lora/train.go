package main

import (
	"context"
	"strings"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	in      = 8
	hidden  = 32
	classes = 4
)

type options struct {
	rank, batch, steps int
	alpha, lr          float64
	seed               uint64
}

type run struct {
	first, second           *tensor.Tensor // (in, classes): the weights that define each task
	fc1, fc2                *nn.Linear
	model                   *nn.Sequential // with adapters
	pretraining, finetuning []float64      // losses
	trained, total          int            // parameters
}

// newRun trains a network on the first task and freezes it.
func newRun(ctx context.Context, o options) (*run, error) {
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	r := &run{
		first:  tensor.Randn([]int{in, classes}).Keep(),
		second: tensor.Randn([]int{in, classes}).Keep(),
		fc1:    nn.NewLinear(in, hidden),
		fc2:    nn.NewLinear(hidden, classes),
	}
	base := nn.NewSequential(r.fc1, &nn.ReLU{}, r.fc2)
	var err error
	if r.pretraining, err = train(ctx, base, r.first, o); err != nil {
		return nil, err
	}
	return r, nn.RequiresGrad_(base, false)
}

// adapt trains adapters on the second task. The weights of the network do not change.
func (r *run) adapt(ctx context.Context, o options) (err error) {
	r.model = nn.NewSequential(newLoRA(r.fc1, o.rank, o.alpha), &nn.ReLU{}, newLoRA(r.fc2, o.rank, o.alpha))
	for _, p := range nn.Parameters(r.model) {
		r.total += p.Numel()
		if p.RequiresGrad() {
			r.trained += p.Numel()
		}
	}
	r.finetuning, err = train(ctx, r.model, r.second, o)
	return err
}

// train trains the parameters of the model that require gradients.
func train(ctx context.Context, model nn.Layer, weights *tensor.Tensor, o options) (losses []float64, err error) {
	var params []*tensor.Tensor
	for _, p := range nn.Parameters(model) {
		if p.RequiresGrad() {
			params = append(params, p)
		}
	}
	opt, err := optim.NewAdamW(params, o.lr)
	if err != nil {
		return nil, err
	}
	defer opt.Release()
	for range o.steps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		err := tensor.WithScope(func() error {
			x := tensor.Randn([]int{o.batch, in})
			loss := nn.CrossEntropy(model.Forward(x), x.MM(weights).ArgMax(tensor.Dim(1)))
			opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
			value, err := loss.Item()
			losses = append(losses, value)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return losses, nil
}

// merge adds the adapters to the weights.
func (r *run) merge() error {
	for _, l := range r.model.Layers {
		if l, ok := l.(*LoRA); ok {
			if err := l.Merge(); err != nil {
				return err
			}
		}
	}
	return nil
}

// save writes only the adapters: 0.a, 0.b, 2.a, 2.b.
func (r *run) save(path string) error {
	adapters := nn.StateDict(r.model).Map()
	for name := range adapters {
		if strings.Contains(name, "base") {
			delete(adapters, name)
		}
	}
	return checkpoint.Save(path, adapters, nil)
}
