package main

import (
	"context"
	"math"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	size    = 16 // height and width in pixels
	classes = 4  // directions of stripes
)

type run struct {
	model         *ResNet
	opt           *optim.Optimizer
	schedule      *optim.Scheduler
	train, unseen *data.Loader

	losses, rates []float64 // of each step
}

func newRun(o options) (r *run, err error) {
	r = &run{}
	if r.train, err = newLoader(o.images, o, data.Shuffle(o.shuffle)); err != nil {
		return nil, err
	}
	if r.unseen, err = newLoader(o.images/2, o); err != nil {
		return nil, err
	}
	r.model = newResNet(classes)
	r.opt, err = optim.NewSGD(nn.Parameters(r.model), o.lr, optim.Momentum(0.9), optim.Nesterov(), optim.WeightDecay(5e-4))
	if err != nil {
		return nil, err
	}
	steps := max(2, o.epochs*r.train.Len()) // a schedule of one step has no cosine
	r.schedule, err = optim.NewScheduler(r.opt, optim.WarmupCosine(max(1, steps/5), steps, 0))
	return r, err
}

func newLoader(n int, o options, opts ...data.Option) (*data.Loader, error) {
	images, labels := stripes(n)
	set, err := data.NewTensorDataset(images, labels)
	if err != nil {
		return nil, err
	}
	return data.NewLoader(set, append(opts, data.BatchSize(o.batch), data.Seed(o.seed))...)
}

// stripes makes n noisy images (n, 3, size, size) and their classes (n).
func stripes(n int) (images, labels *tensor.Tensor) {
	labels = tensor.Arange(0, n).Remainder(classes)
	angle := labels.To(tensor.Float32).Mul(math.Pi/classes).View(n, 1, 1)
	axis := tensor.Linspace(-1, 1, size)
	y, x := axis.View(size, 1), axis.View(1, size)
	phase := tensor.Rand([]int{n, 1, 1}).Mul(2 * math.Pi)
	wave := x.Mul(angle.Cos()).Add(y.Mul(angle.Sin())).Mul(8).Add(phase).Sin().Unsqueeze(1)
	return tensor.Randn([]int{n, 3, size, size}).Mul(0.5).Add(wave), labels
}

// augment flips half of the images along both axes, because a flip along one axis changes the direction of stripes, and
// shifts the batch by up to two pixels.
func augment(x *tensor.Tensor) (*tensor.Tensor, error) {
	flipped := tensor.Rand([]int{x.Size(0), 1, 1, 1}).Lt(0.5)
	x = tensor.Where(flipped, x.Flip(2, 3), x)
	shift, err := tensor.Data[int64](tensor.RandInt(0, 5, []int{2}))
	if err != nil {
		return nil, err
	}
	x = x.Pad([]int{2, 2, 2, 2})
	return x.Narrow(2, int(shift[0]), size).Narrow(3, int(shift[1]), size), nil
}

// epoch trains on all images once.
func (r *run) epoch(ctx context.Context) error {
	nn.Train(r.model)
	for batch, err := range r.train.Batches(ctx) {
		if err != nil {
			return err
		}
		images, err := augment(batch.Inputs)
		if err != nil {
			return err
		}
		loss := nn.CrossEntropy(r.model.Forward(images), batch.Targets, tensor.LabelSmoothing(0.1))
		r.opt.ZeroGrad()
		if err := loss.Backward(); err != nil {
			return err
		}
		r.rates = append(r.rates, r.schedule.LR())
		if err := r.opt.Step(); err != nil {
			return err
		}
		r.schedule.Step()
		value, err := loss.Item()
		if err != nil {
			return err
		}
		r.losses = append(r.losses, value)
	}
	return nil
}

// accuracy returns the share of unseen images that the model classifies correctly.
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
