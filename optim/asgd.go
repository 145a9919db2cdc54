package optim

import "github.com/linstock-ml/linstock/tensor"

var asgd = &Algorithm{
	Name:     "ASGD",
	Options:  []string{"lambd", "alpha", "t0", "weight_decay", "maximize"},
	Defaults: Group{Lambd: 1e-4, Alpha: 0.75, T0: 1e6},
	Slots: []Slot{
		{Name: "ax", promotes: true},
		{Name: "mu", scalar: true, New: func(_ *Group, p *tensor.Tensor) *tensor.Tensor {
			return tensor.Ones([]int{}, scalarDType(), p.Device())
		}},
		{Name: "eta", scalar: true, New: func(g *Group, p *tensor.Tensor) *tensor.Tensor {
			return tensor.Full([]int{}, g.LR, scalarDType(), p.Device())
		}},
	},
	Counts: true,
	Step: func(g *Group, b *Batch) error {
		axs, mus, etas := b.State[0], b.State[1], b.State[2]
		var f foreach
		grads, fresh := f.gradients(g, b, g.WeightDecay)
		if fresh && g.WeightDecay != 0 {
			f.do("add_.List", grads, b.Params, g.Lambd)
		} else {
			grads = f.list("add.List", grads, b.Params, g.Lambd)
		}
		f.do("addcmul_.Scalar", b.Params, grads, etas, -1)
		away := f.list("sub.List", b.Params, axs)
		f.do("addcmul_.Scalar", axs, away, mus)
		if f.err != nil {
			return f.err
		}
		for i, step := range b.Steps {
			// PyTorch computes eta with operators, in the dtype of the number of steps, which is eta's.
			eta := tensor.Full([]int{}, step, etas[i].DType()).Mul(g.Lambd * g.LR).Add(1).Pow(g.Alpha).Reciprocal().Mul(g.LR)
			if err := etas[i].Copy_(eta).Err(); err != nil {
				return err
			}
			if err := mus[i].Fill_(1 / max(1, step-g.T0)).Err(); err != nil {
				return err
			}
		}
		return nil
	},
	torch: map[string]any{"foreach": true, "differentiable": false, "capturable": false},
}

// NewASGD returns an optimizer that runs averaged stochastic gradient descent (Polyak and Juditsky, 1992); PyTorch's
// default learning rate is 0.01. The averages are "ax" in the state. Options: Lambd, Alpha, T0, WeightDecay, Maximize,
// MasterWeights, StochasticRounding. PyTorch: torch.optim.ASGD(foreach=True).
func NewASGD(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(asgd, params, lr, opts)
}
