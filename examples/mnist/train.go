package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/examples/mnist/digits"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const classes = 10

type run struct {
	model       *nn.Sequential
	opt         *optim.Optimizer
	train, test *data.Loader
}

func newRun(o *options, train, test *digits.Images) (r *run, err error) {
	r = &run{}
	if err := tensor.ManualSeed(o.seed); err != nil {
		return nil, err
	}
	r.model = newModel(train.Height, train.Width, o.device)
	if r.opt, err = optim.NewAdamW(nn.Parameters(r.model), o.lr); err != nil {
		return nil, err
	}
	if r.train, err = newLoader(train, o, data.Shuffle(true)); err != nil {
		return nil, err
	}
	r.test, err = newLoader(test, o)
	return r, err
}

func newLoader(m *digits.Images, o *options, opts ...data.Option) (*data.Loader, error) {
	samples, err := data.NewSamples(m.Len(), []int{1, m.Height, m.Width}, nil, m.Sample)
	if err != nil {
		return nil, err
	}
	opts = append(opts, data.BatchSize(o.batch), data.Seed(o.seed), data.Workers(o.workers), data.Device(o.device))
	return data.NewLoader(samples, opts...)
}

// newModel returns two convolutions with pooling, each of which halves the picture, and a linear layer.
func newModel(height, width int, device tensor.Device) *nn.Sequential {
	on := nn.Device(device)
	return nn.NewSequential(
		nn.NewConv2d(1, 32, 3, nn.Padding(1), on), nn.NewBatchNorm2d(32, on), &nn.ReLU{}, nn.NewMaxPool2d(2),
		nn.NewConv2d(32, 64, 3, nn.Padding(1), on), nn.NewBatchNorm2d(64, on), &nn.ReLU{}, nn.NewMaxPool2d(2),
		nn.NewFlatten(1, -1), nn.NewLinear(64*(height/4)*(width/4), classes, on),
	)
}

// epoch trains on all images once and returns the mean loss.
func (r *run) epoch(ctx context.Context) (float64, error) {
	nn.Train(r.model)
	total, n := 0.0, 0
	for batch, err := range r.train.Batches(ctx) {
		if err != nil {
			return 0, err
		}
		loss := nn.CrossEntropy(r.model.Forward(batch.Inputs), batch.Targets)
		r.opt.ZeroGrad()
		if err := loss.Backward(); err != nil {
			return 0, err
		}
		if err := r.opt.Step(); err != nil {
			return 0, err
		}
		value, err := loss.Item()
		if err != nil {
			return 0, err
		}
		total, n = total+value*float64(batch.Size), n+batch.Size
	}
	return total / float64(max(1, n)), nil
}

// accuracy returns the share of the test images that the model classifies correctly.
func (r *run) accuracy(ctx context.Context) (float64, error) {
	nn.Eval(r.model)
	right, n := 0.0, 0
	err := autograd.NoGrad(func() error {
		for batch, err := range r.test.Batches(ctx) {
			if err != nil {
				return err
			}
			found := r.model.Forward(batch.Inputs).ArgMax(tensor.Dim(1))
			hits, err := found.Eq(batch.Targets).Sum().Item()
			if err != nil {
				return err
			}
			right, n = right+hits, n+batch.Size
		}
		return nil
	})
	return right / float64(max(1, n)), err
}
