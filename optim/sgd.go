package optim

import (
	"errors"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

var sgd = &Algorithm{
	Name:    "SGD",
	Options: []string{"momentum", "dampening", "weight_decay", "nesterov", "maximize"},
	Slots:   []Slot{{Name: "momentum_buffer", Used: func(g *Group, _ *tensor.Tensor) bool { return g.Momentum != 0 }}},
	checkNew: func(g *Group) error {
		if g.Nesterov && (g.Momentum == 0 || g.Dampening != 0) {
			return errors.New("Nesterov requires a positive Momentum and zero Dampening")
		}
		return nil
	},
	Step: func(g *Group, b *Batch) error {
		var buffers []*tensor.Tensor
		state := b.State[:0]
		if g.Momentum != 0 {
			buffers, state = b.State[0], b.State
		}
		if skipsVectors(b.Params[0]) {
			return sgdByLists(g, b, buffers)
		}
		if err := b.layOut(state...); err != nil {
			return err
		}
		_, err := tensor.CallUnchecked("aten::_fused_sgd_", b.Params, b.Grads, buffers, g.WeightDecay, g.Momentum, g.LR,
			g.Dampening, g.Nesterov, g.Maximize, b.First && g.Momentum != 0)
		return err
	},
	checkSparse: func(g *Group) error {
		if g.Momentum != 0 || g.WeightDecay != 0 {
			return errors.New("sparse gradients need a Momentum and a WeightDecay of 0")
		}
		return nil
	},
	SparseStep: func(g *Group, b *Batch) error {
		rate := -g.LR
		if g.Maximize {
			rate = g.LR
		}
		for i, p := range b.Params {
			if err := p.Add_(b.Grads[i], tensor.Alpha(rate)).Err(); err != nil {
				return err
			}
		}
		return nil
	},
	torch: map[string]any{"foreach": nil, "differentiable": false, "fused": true},
}

// skipsVectors reports whether libtorch's fused kernel does not update most elements of p: before 2.14 it does not
// store 16-bit elements that it computes in vector registers (issue 191763 of pytorch).
func skipsVectors(p *tensor.Tensor) bool {
	v := cshim.VersionLoaded()
	return (p.DType() == tensor.BFloat16 || p.DType() == tensor.Float16) && p.Device() == tensor.CPU && (v[0] < 2 || v[0] == 2 && v[1] < 14)
}

// sgdByLists is the step of PyTorch's SGD with foreach=True.
func sgdByLists(g *Group, b *Batch, buffers []*tensor.Tensor) error {
	var f foreach
	grads, fresh := f.gradients(g, b, g.WeightDecay)
	if g.Momentum != 0 {
		if b.First {
			f.do("copy_", buffers, grads)
		} else {
			f.do("mul_.Scalar", buffers, g.Momentum)
			f.do("add_.List", buffers, grads, 1-g.Dampening)
		}
		switch {
		case !g.Nesterov:
			grads = buffers
		case fresh:
			f.do("add_.List", grads, buffers, g.Momentum)
		default:
			grads = f.list("add.List", grads, buffers, g.Momentum)
		}
	}
	f.do("add_.List", b.Params, grads, -g.LR)
	return f.err
}

// NewSGD returns an optimizer that runs stochastic gradient descent on libtorch's fused kernel. Gradients may be sparse
// if Momentum and WeightDecay are 0. Before libtorch 2.14 the fused kernel skips most elements of 16-bit parameters on
// the CPU; there the list kernels run. Options: Momentum, Dampening, Nesterov, WeightDecay, Maximize, MasterWeights,
// StochasticRounding. PyTorch: torch.optim.SGD(fused=True).
func NewSGD(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(sgd, params, lr, opts)
}
