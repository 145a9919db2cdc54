package optim

import (
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

var adamax = &Algorithm{
	Name:     "Adamax",
	Options:  []string{"betas", "eps", "weight_decay", "maximize"},
	Defaults: Group{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8},
	Slots:    []Slot{{Name: "exp_avg"}, {Name: "exp_inf"}},
	Counts:   true,
	Step: func(g *Group, b *Batch) error {
		avgs, norms := b.State[0], b.State[1]
		var f foreach
		grads, fresh := f.gradients(g, b, g.WeightDecay)
		f.do("lerp_.Scalar", avgs, grads, 1-g.Beta1)
		f.do("mul_.Scalar", norms, g.Beta2)
		if fresh {
			f.do("abs_", grads)
		} else {
			grads = f.list("abs", grads)
		}
		f.do("add_.Scalar", grads, g.Eps)
		f.do("maximum_.List", norms, grads)
		f.do("addcdiv_.ScalarList", b.Params, avgs, norms, each(b.Steps, func(step float64) float64 {
			return -(g.LR / (1 - cshim.Pow(g.Beta1, step)))
		}))
		return f.err
	},
	torch: map[string]any{"foreach": true, "differentiable": false, "capturable": false},
}

// NewAdamax returns an optimizer that runs Adamax, the variant of Adam with the infinity norm (Kingma and Ba, 2014);
// PyTorch's default learning rate is 2e-3. Options: Betas, Eps, WeightDecay, Maximize, MasterWeights, StochasticRounding.
// PyTorch: torch.optim.Adamax(foreach=True).
func NewAdamax(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adamax, params, lr, opts)
}
