package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// trainee is a small model with its data. The same seed gives the same losses, whatever else the process does.
type trainee struct {
	forward func(x *tensor.Tensor) *tensor.Tensor
	params  []*tensor.Tensor
	input   []int
	classes int
	opt     *optim.Optimizer
	rng     *rand.Rand
	device  tensor.Device
}

var kinds = []string{"mlp", "cnn", "gru", "attention"}

const batch = 6

// newTrainee makes a model; end releases it, also after an error.
func newTrainee(d tensor.Device, kind string, seed uint64) (t *trainee, err error) {
	t = &trainee{classes: 5, rng: rand.New(rand.NewPCG(seed, 99)), device: d}
	var model *nn.Sequential
	switch on := nn.Device(d); kind {
	case "mlp":
		t.input = []int{batch, 24}
		model = nn.NewSequential(nn.NewLinear(24, 48, on), &nn.Tanh{}, nn.NewLinear(48, 5, on))
	case "cnn":
		t.input = []int{batch, 3, 12, 12}
		model = nn.NewSequential(nn.NewConv2d(3, 6, 3, nn.Padding(1), on), nn.NewBatchNorm2d(6, on), &nn.ReLU{}, nn.NewMaxPool2d(2),
			nn.NewFlatten(1, -1), nn.NewLinear(6*6*6, 5, on))
	case "gru":
		t.input = []int{7, batch, 8}
		for _, shape := range [][]int{{36, 8}, {36, 12}, {36}, {36}, {5, 12}} {
			t.params = append(t.params, tensor.Empty(shape, d).Keep().RequiresGrad_())
		}
		t.forward = func(x *tensor.Tensor) *tensor.Tensor {
			_, h := x.GRU(tensor.Zeros([]int{1, batch, 12}, d), t.params[:4], tensor.Train(true))
			return h.Select(0, 0).MatMul(t.params[4].T())
		}
	case "attention":
		t.input = []int{batch, 10, 16}
		model = nn.NewSequential(nn.NewLayerNorm(16, on), nn.NewCausalSelfAttention(16, 2, on), nn.NewFlatten(1, -1), nn.NewLinear(160, 5, on))
	}
	if model != nil {
		t.forward, t.params = model.Forward, nn.Parameters(model)
	}
	// Draw the weights separately, because the generator belongs to the whole process.
	for _, p := range t.params {
		if err := autograd.NoGrad(func() error {
			return tensor.WithScope(func() error { return p.Copy_(t.numbers(p.Shape(), 0.3)).Err() })
		}); err != nil {
			return t, err
		}
	}
	t.opt, err = optim.NewAdamW(t.params, 1e-2)
	return t, err
}

// numbers returns random numbers in (-scale, scale) from the trainee's own source.
func (t *trainee) numbers(shape []int, scale float32) *tensor.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	v := make([]float32, n)
	for i := range v {
		v[i] = scale * (2*t.rng.Float32() - 1)
	}
	return tensor.FromSlice(v, shape, t.device)
}

// step takes one training step, without lifetime code.
func (t *trainee) step() (loss float64, err error) {
	x := t.numbers(t.input, 1)
	classes := make([]int64, batch)
	for i := range classes {
		classes[i] = t.rng.Int64N(int64(t.classes))
	}
	l := nn.CrossEntropy(t.forward(x), tensor.FromSlice(classes, []int{batch}, t.device))
	t.opt.ZeroGrad()
	if err := l.Backward(); err != nil {
		return 0, err
	}
	if err := t.opt.Step(); err != nil {
		return 0, err
	}
	return tensor.Item[float64](l)
}

func (t *trainee) end() {
	if t.opt != nil {
		t.opt.Release()
	}
	for _, p := range t.params {
		p.Release()
	}
}

// references holds the results of undisturbed training.
type references struct {
	mu     sync.Mutex
	losses map[string]float64
}

const lessons = 4 // number of data sets and weights of each kind

// learn trains a model for some steps, in scopes, and compares the last loss with that of an undisturbed run.
func (r *round) learn(kind string, lesson uint64, steps int) error {
	loss, err := r.train(kind, lesson, steps)
	if err != nil || !r.computes() {
		return err
	}
	key := fmt.Sprintf("%s %d %d", kind, lesson, steps)
	r.known.mu.Lock()
	want, ok := r.known.losses[key]
	r.known.mu.Unlock()
	if !ok {
		return fmt.Errorf("no reference of %s", key)
	}
	if !(math.Abs(loss-want) <= 1e-3*math.Abs(want)) {
		return fmt.Errorf("%s: the loss is %v, and %v when nothing disturbs it", key, loss, want)
	}
	return nil
}

// study computes the references that a scenario will need, before it starts.
func (r *round) study(steps int) error {
	if !r.computes() {
		return nil
	}
	for _, kind := range kinds {
		for lesson := range uint64(lessons) {
			key := fmt.Sprintf("%s %d %d", kind, lesson, steps)
			r.known.mu.Lock()
			_, ok := r.known.losses[key]
			r.known.mu.Unlock()
			if ok {
				continue
			}
			loss, err := r.train(kind, lesson, steps)
			if err != nil {
				return err
			}
			r.known.mu.Lock()
			if r.known.losses == nil {
				r.known.losses = map[string]float64{}
			}
			r.known.losses[key] = loss
			r.known.mu.Unlock()
		}
	}
	return nil
}

func (r *round) train(kind string, lesson uint64, steps int) (loss float64, err error) {
	t, err := newTrainee(r.device, kind, lesson)
	defer t.end()
	if err != nil {
		return 0, err
	}
	for range steps {
		if err := tensor.WithScope(func() (err error) {
			loss, err = t.step()
			return err
		}); err != nil {
			return 0, err
		}
		r.work.Add(1)
	}
	return loss, nil
}

// unless returns nil for an error of the kinds that a scenario provokes.
func unless(err error, kinds ...error) error {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return nil
		}
	}
	return err
}
