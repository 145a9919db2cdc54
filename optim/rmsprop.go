package optim

import "github.com/linstock-ml/linstock/tensor"

var rmsprop = &Algorithm{
	Name:     "RMSprop",
	Options:  []string{"alpha", "eps", "weight_decay", "momentum", "centered", "maximize"},
	Defaults: Group{Alpha: 0.99, Eps: 1e-8},
	Slots: []Slot{
		{Name: "square_avg", promotes: true},
		{Name: "momentum_buffer", promotes: true, Used: func(g *Group, _ *tensor.Tensor) bool { return g.Momentum > 0 }},
		{Name: "grad_avg", Used: func(g *Group, _ *tensor.Tensor) bool { return g.Centered }},
	},
	Counts: true,
	steady: true,
	Step: func(g *Group, b *Batch) error {
		squares, buffers, avgs := b.State[0], b.State[1], b.State[2]
		var f foreach
		grads, _ := f.gradients(g, b, g.WeightDecay)
		f.do("mul_.Scalar", squares, g.Alpha)
		f.do("addcmul_.Scalar", squares, grads, grads, 1-g.Alpha)
		var denom []*tensor.Tensor
		if g.Centered {
			f.do("lerp_.Scalar", avgs, grads, 1-g.Alpha)
			denom = f.list("addcmul.Scalar", squares, avgs, avgs, -1)
			f.do("sqrt_", denom)
		} else {
			denom = f.list("sqrt", squares)
		}
		f.do("add_.Scalar", denom, g.Eps)
		if g.Momentum > 0 {
			f.do("mul_.Scalar", buffers, g.Momentum)
			f.do("addcdiv_.Scalar", buffers, grads, denom)
			f.do("add_.List", b.Params, buffers, -g.LR)
		} else {
			f.do("addcdiv_.Scalar", b.Params, grads, denom, -g.LR)
		}
		return f.err
	},
	torch: map[string]any{"foreach": true, "differentiable": false, "capturable": false},
}

// NewRMSprop returns an optimizer that runs RMSprop (Hinton, 2012; centered as in Graves, 2013); PyTorch's default
// learning rate is 0.01. Options: Alpha, Eps, WeightDecay, Momentum, Centered, Maximize, MasterWeights,
// StochasticRounding. PyTorch: torch.optim.RMSprop(foreach=True).
func NewRMSprop(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(rmsprop, params, lr, opts)
}
