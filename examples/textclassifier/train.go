package main

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

type run struct {
	model         *Classifier
	opt           *optim.Optimizer
	train, unseen *data.Loader
	losses        []float64 // of each step
}

func newRun(o options) (r *run, err error) {
	r = &run{}
	if r.train, err = newLoader(o.reviews, o); err != nil {
		return nil, err
	}
	if r.unseen, err = newLoader(o.reviews/2, o); err != nil {
		return nil, err
	}
	r.model = newClassifier()
	r.opt, err = optim.NewAdamW(nn.Parameters(r.model), o.lr)
	return r, err
}

func newLoader(n int, o options) (*data.Loader, error) {
	ids, labels, err := reviews(n)
	if err != nil {
		return nil, err
	}
	set, err := data.NewTensorDataset(ids, labels)
	if err != nil {
		return nil, err
	}
	return data.NewLoader(set, data.BatchSize(o.batch))
}

// epoch trains on all reviews once.
func (r *run) epoch(ctx context.Context) error {
	nn.Train(r.model)
	for batch, err := range r.train.Batches(ctx) {
		if err != nil {
			return err
		}
		loss := nn.CrossEntropy(r.model.Forward(batch.Inputs), batch.Targets)
		r.opt.ZeroGrad()
		if err := loss.Backward(); err != nil {
			return err
		}
		if err := nn.ClipGradNorm_(nn.Parameters(r.model), 1).Err(); err != nil {
			return err
		}
		if err := r.opt.Step(); err != nil {
			return err
		}
		value, err := loss.Item()
		if err != nil {
			return err
		}
		r.losses = append(r.losses, value)
	}
	return nil
}

// accuracy returns the share of unseen reviews that the model classifies correctly.
func (r *run) accuracy(ctx context.Context) (float64, error) {
	nn.Eval(r.model)
	correct, n := 0.0, 0
	err := autograd.NoGrad(func() error {
		for batch, err := range r.unseen.Batches(ctx) {
			if err != nil {
				return err
			}
			hits, err := r.model.Forward(batch.Inputs).ArgMax(tensor.Dim(1)).Eq(batch.Targets).Sum().Item()
			if err != nil {
				return err
			}
			correct, n = correct+hits, n+batch.Size
		}
		return nil
	})
	return correct / float64(max(1, n)), err
}

// positive returns the probability that a review is positive. ids is what encode returns.
func (r *run) positive(ids []int64) (p float64, err error) {
	nn.Eval(r.model)
	err = autograd.NoGrad(func() error {
		p, err = r.model.Forward(tensor.FromSlice(ids, []int{1, length})).Softmax(1).Index(0, 1).Item()
		return err
	})
	return p, err
}
