package optim

import (
	"errors"

	"github.com/linstock-ml/linstock/tensor"
)

var sgd = &Algorithm{
	Name:    "SGD",
	Options: []string{"momentum", "dampening", "weight_decay", "nesterov", "maximize"},
	Slots:   []Slot{{Name: "momentum_buffer", Used: func(g *Group, _ *tensor.Tensor) bool { return g.Momentum != 0 }}},
	Check: func(g *Group) error {
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
		if err := b.layOut(state...); err != nil {
			return err
		}
		_, err := tensor.CallUnchecked("aten::_fused_sgd_", b.Params, b.Grads, buffers, g.WeightDecay, g.Momentum, g.LR,
			g.Dampening, g.Nesterov, g.Maximize, b.First && g.Momentum != 0)
		return err
	},
	SparseStep: func(g *Group, b *Batch) error {
		if g.Momentum != 0 || g.WeightDecay != 0 {
			return errors.New("sparse gradients need a Momentum and a WeightDecay of 0")
		}
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

// NewSGD returns an optimizer that runs stochastic gradient descent on libtorch's fused kernel. Gradients may be sparse
// if Momentum and WeightDecay are 0. Options: Momentum, Dampening, Nesterov, WeightDecay, Maximize, MasterWeights.
// PyTorch: torch.optim.SGD(fused=True).
func NewSGD(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(sgd, params, lr, opts)
}
