package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// A job is a small model with an optimizer and a batch. Faults are injected into its steps. Its sizes and options
// follow from a seed.
type job struct {
	name    string
	device  tensor.Device
	net     any
	forward func(x *tensor.Tensor) *tensor.Tensor // logits (N, classes)
	batch   func() (x, y *tensor.Tensor)
	opt     *optim.Optimizer
	fresh   bool // each step with a fault is the optimizer's first
	file    string

	params []*tensor.Tensor
	saved  []*tensor.Tensor // of the parameters and the optimizer's state at the start
	losses [2]float32       // of the first two steps from there, without faults
}

var models = []string{"mlp", "cnn", "gru", "gpt", "attention"}

const classes = 5

// newJob makes a job of a model. If large is set, its tensors are large, for devices that compute nothing.
func newJob(model string, seed uint64, device tensor.Device, large bool, dir string) (*job, error) {
	r := rand.New(rand.NewPCG(seed, 11))
	j := &job{device: device, fresh: r.IntN(3) == 0, file: filepath.Join(dir, fmt.Sprintf("%d-%d", os.Getpid(), device.Index))}
	rows := 1 + r.IntN(6)
	if large {
		rows <<= 15
	}
	on := nn.Device(device)
	var err error
	inputs := func(shape ...int) {
		if !large {
			j.data(r, rows, shape)
			return
		}
		j.batch = func() (x, y *tensor.Tensor) {
			return tensor.Zeros(shape, device), tensor.Zeros([]int{rows}, tensor.Int64, device)
		}
	}
	switch model {
	case "mlp":
		width := 4 + r.IntN(29)
		net := nn.NewSequential()
		in := width
		for range 1 + r.IntN(3) {
			out := 8 + r.IntN(25)
			net.Layers = append(net.Layers, nn.NewLinear(in, out, on), &nn.ReLU{})
			in = out
		}
		net.Layers = append(net.Layers, nn.NewLinear(in, classes, on))
		j.net, j.forward = net, net.Forward
		inputs(rows, width)
	case "cnn":
		out := 3 + r.IntN(4)
		net := &cnn{Conv: nn.NewConv2d(2, out, 3, on, nn.Padding(1)), Norm: nn.NewBatchNorm2d(out, on), Head: nn.NewLinear(out*4, classes, on)}
		j.net, j.forward = net, net.Forward
		side := 8 + 2*r.IntN(3)
		rows++ // a single value has no variance
		inputs(rows, 2, side, side)
	case "gru":
		in, hidden := 4+r.IntN(5), 4+r.IntN(9)
		net := &gru{hidden: hidden, rows: rows}
		for _, shape := range [][]int{{3 * hidden, in}, {3 * hidden, hidden}, {3 * hidden}, {3 * hidden}} {
			w := tensor.Randn(shape, device).Mul(0.3).Detach().RequiresGrad_().Keep()
			if err := w.Err(); err != nil {
				return nil, err
			}
			net.Weights = append(net.Weights, w)
		}
		net.Head = nn.NewLinear(hidden, classes, on)
		j.net, j.forward = net, net.Forward
		inputs(2+r.IntN(4), rows, in)
	case "gpt":
		c := gpt.Config{Vocab: classes, Width: 8, Layers: 1 + r.IntN(2), Heads: 1 + r.IntN(2), Context: 3 + r.IntN(5)}
		net := gpt.New(c, on)
		j.net = net
		j.forward = func(ids *tensor.Tensor) *tensor.Tensor { return net.Forward(ids).View(-1, classes) }
		if large {
			j.batch = func() (x, y *tensor.Tensor) {
				x = tensor.Zeros([]int{rows, c.Context}, tensor.Int64, device)
				return x, x.View(-1)
			}
			break
		}
		ids := make([]int64, rows*c.Context)
		for i := range ids {
			ids[i] = r.Int64N(classes)
		}
		j.batch = func() (x, y *tensor.Tensor) {
			x = tensor.FromSlice(ids, []int{rows, c.Context}, device)
			return x, x.View(-1)
		}
	case "attention":
		net := &checkpointed{}
		for range 2 {
			net.Blocks = append(net.Blocks, nn.NewCausalSelfAttention(8, 1+r.IntN(2), on))
		}
		net.Head = nn.NewLinear(8, classes, on)
		j.net, j.forward = net, net.Forward
		inputs(rows, 2+r.IntN(5), 8)
	default:
		return nil, fmt.Errorf("unknown model %q", model)
	}
	j.params = nn.Parameters(j.net)
	kinds := []string{"sgd", "momentum", "adam", "adamw", "amsgrad"}
	kind := kinds[r.IntN(len(kinds))]
	switch kind {
	case "sgd":
		j.opt, err = optim.NewSGD(j.params, 0.1)
	case "momentum":
		j.opt, err = optim.NewSGD(j.params, 0.1, optim.Momentum(0.9), optim.WeightDecay(0.01))
	case "adam":
		j.opt, err = optim.NewAdam(j.params, 0.01)
	case "adamw":
		j.opt, err = optim.NewAdamW(j.params, 0.01)
	case "amsgrad":
		j.opt, err = optim.NewAdam(j.params, 0.01, optim.AMSGrad())
	}
	j.name = fmt.Sprintf("%s with %s, seed %d", model, kind, seed)
	return j, err
}

// data makes inputs of a shape, and a class for each of rows.
func (j *job) data(r *rand.Rand, rows int, shape []int) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	xs, ys := make([]float32, n), make([]int64, rows)
	for i := range xs {
		xs[i] = float32(r.NormFloat64())
	}
	for i := range ys {
		ys[i] = r.Int64N(classes)
	}
	j.batch = func() (x, y *tensor.Tensor) {
		return tensor.FromSlice(xs, shape, j.device), tensor.FromSlice(ys, []int{rows}, j.device)
	}
}

// stage is how far a step got.
type stage int

const (
	computing stage = iota // forward, backward
	stepping
	saving
	done
)

func (s stage) String() string {
	return [...]string{"forward or backward", "the optimizer's step", "save", "the end"}[s]
}

// step takes one training step and saves a checkpoint.
func (j *job) step() (loss float32, at stage, err error) { return j.train(true) }

func (j *job) train(save bool) (loss float32, at stage, err error) {
	err = tensor.WithScope(func() error {
		x, y := j.batch()
		l := nn.CrossEntropy(j.forward(x), y)
		if err := l.Backward(); err != nil {
			return err
		}
		if loss, err = tensor.Item[float32](l); err != nil {
			return err
		}
		at = stepping
		if err := j.opt.Step(); err != nil {
			return err
		}
		at = saving
		if !save {
			return nil
		}
		return checkpoint.SaveTraining(j.file, j.net, j.opt)
	})
	if err == nil {
		at = done
	}
	return loss, at, err
}

// start records the reference: the losses of the first steps, and the state that reset restores.
func (j *job) start() error {
	if !j.fresh {
		if _, _, err := j.step(); err != nil {
			return err
		}
		j.opt.ZeroGrad()
	}
	for _, t := range j.state() {
		j.saved = append(j.saved, t.Detach().Clone().Keep())
	}
	for i := range j.losses {
		var err error
		if j.losses[i], _, err = j.step(); err != nil {
			return err
		}
		j.opt.ZeroGrad()
	}
	return j.reset()
}

func (j *job) state() []*tensor.Tensor {
	var all []*tensor.Tensor
	for _, n := range nn.StateDict(j.net) {
		all = append(all, n.Tensor)
	}
	if j.fresh {
		return all
	}
	s := j.opt.StateDict()
	for _, number := range sortedKeys(s.State) {
		for _, name := range sortedKeys(s.State[number]) {
			if t, ok := s.State[number][name].(*tensor.Tensor); ok {
				all = append(all, t)
			}
		}
	}
	return all
}

// reset restores the state of the start.
func (j *job) reset() error {
	j.opt.ZeroGrad()
	if j.fresh {
		j.opt.Release()
	}
	now := j.state()
	if len(now) != len(j.saved) {
		return fmt.Errorf("%s: the state has %d tensors, had %d", j.name, len(now), len(j.saved))
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			for i, t := range now {
				if err := t.Copy_(j.saved[i]).Err(); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (j *job) release() {
	j.opt.Release()
	nn.Release(j.net)
	for _, t := range j.saved {
		t.Release()
	}
	_ = os.Remove(j.file)
}

type cnn struct {
	Conv *nn.Conv2d
	Norm *nn.BatchNorm2d
	Head *nn.Linear
}

func (c *cnn) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = c.Norm.Forward(c.Conv.Forward(x)).ReLU()
	return c.Head.Forward(x.AdaptiveAvgPool2d(2, 2).Flatten(tensor.StartDim(1)))
}

type gru struct {
	hidden, rows int
	Weights      []*tensor.Tensor
	Head         *nn.Linear
}

func (g *gru) Forward(x *tensor.Tensor) *tensor.Tensor {
	h := tensor.Zeros([]int{1, g.rows, g.hidden}, g.Weights[0].Device())
	_, h = x.GRU(h, g.Weights)
	return g.Head.Forward(h.Select(0, 0))
}

// checkpointed computes each of its blocks again in the backward pass.
type checkpointed struct {
	Blocks []*nn.CausalSelfAttention
	Head   *nn.Linear
}

func (c *checkpointed) Forward(x *tensor.Tensor) *tensor.Tensor {
	for _, b := range c.Blocks {
		x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return b.Forward(in[0]).Add(in[0]) }, x)
	}
	return c.Head.Forward(x.Mean(tensor.Dim(1)))
}
