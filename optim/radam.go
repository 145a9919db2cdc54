package optim

import (
	"math"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

var radam = &Algorithm{
	Name:     "RAdam",
	Options:  []string{"betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize"},
	Defaults: Group{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8},
	Slots:    []Slot{{Name: "exp_avg"}, {Name: "exp_avg_sq"}},
	Counts:   true,
	Step: func(g *Group, b *Batch) error {
		avgs, squares := b.State[0], b.State[1]
		var f foreach
		f.moments(g, f.decayed(g, b), avgs, squares)

		longest := 2/(1-g.Beta2) - 1 // of the approximated simple moving average
		rectified := func(step float64) float64 {
			power := cshim.Pow(g.Beta2, step)
			rho := longest - 2*step*power/(1-power)
			if rho <= 5 {
				return 0
			}
			return math.Sqrt((rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho))
		}
		buffer := f.list("sqrt", squares)
		f.do("add_.Scalar", buffer, g.Eps)
		f.do("div_.ScalarList", buffer, each(b.Steps, func(step float64) float64 {
			correction := 1 - cshim.Pow(g.Beta1, step)
			return -(math.Sqrt(1-cshim.Pow(g.Beta2, step)) * (g.LR * rectified(step) / correction))
		}))
		f.do("reciprocal_", buffer)
		f.do("add_.ScalarList", buffer, each(b.Steps, func(step float64) float64 {
			if rectified(step) > 0 {
				return 0
			}
			return -(g.LR / (1 - cshim.Pow(g.Beta1, step)))
		}))
		f.do("addcmul_.Scalar", b.Params, avgs, buffer)
		return f.err
	},
	torch: map[string]any{"foreach": true, "differentiable": false, "capturable": false},
}

// NewRAdam returns an optimizer that runs Adam with a rectified variance (Liu and others, 2019); PyTorch's default
// learning rate is 1e-3. Options: Betas, Eps, WeightDecay, DecoupledWeightDecay, Maximize, MasterWeights,
// StochasticRounding. PyTorch: torch.optim.RAdam(foreach=True).
func NewRAdam(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(radam, params, lr, opts)
}
