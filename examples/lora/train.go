package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
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

// newRun trains a network on the first task.
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
	return r, nil
}

// adapt freezes the network and trains adapters on the second task.
func (r *run) adapt(ctx context.Context, o options) (err error) {
	alpha := nn.Alpha(o.alpha)
	r.model = nn.NewSequential(nn.NewLoRALinear(r.fc1, o.rank, alpha), &nn.ReLU{}, nn.NewLoRALinear(r.fc2, o.rank, alpha))
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

// check merges the adapters and returns the largest difference that this makes to logits of random inputs: rounding.
func (r *run) check(o options) (largest float64, err error) {
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			x := tensor.Randn([]int{o.batch, in})
			before := r.model.Forward(x)
			if err := r.merge(); err != nil {
				return err
			}
			largest, err = r.model.Forward(x).Sub(before).Abs().Max().Item()
			return err
		})
	})
	return largest, err
}

// merge adds the adapters to the weights.
func (r *run) merge() error {
	for _, l := range r.model.Layers {
		if l, ok := l.(*nn.LoRALinear); ok {
			if err := l.Merge(); err != nil {
				return err
			}
		}
	}
	return nil
}

// save writes only the adapters: 0.lora_A.weight, 0.lora_B.weight and so on.
func (r *run) save(path string) error {
	return checkpoint.Save(path, nn.LoRAState(r.model).Map(), nil)
}
