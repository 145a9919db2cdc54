package optim

import (
	"math"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

var nadam = &Algorithm{
	Name:     "NAdam",
	Options:  []string{"betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay", "maximize"},
	Defaults: Group{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, MomentumDecay: 4e-3},
	Slots: []Slot{
		{Name: "exp_avg"}, {Name: "exp_avg_sq"},
		{Name: "mu_product", scalar: true, New: func(*Group, *tensor.Tensor) *tensor.Tensor {
			return tensor.Ones([]int{}, scalarDType(), tensor.CPU)
		}},
	},
	Counts: true,
	Step: func(g *Group, b *Batch) error {
		avgs, squares, products := b.State[0], b.State[1], b.State[2]
		var f foreach
		grads := f.decayed(g, b)
		f.moments(g, grads, avgs, squares)
		roots := f.list("sqrt", squares)
		mu := func(step float64) float64 {
			return g.Beta1 * (1 - float64(0.5*cshim.Pow(0.96, step*g.MomentumDecay)))
		}
		mus := each(b.Steps, mu)
		f.do("mul_.ScalarList", products, mus)
		f.do("div_.ScalarList", roots, each(b.Steps, func(step float64) float64 {
			return math.Sqrt(1 - cshim.Pow(g.Beta2, step))
		}))
		f.do("add_.Scalar", roots, g.Eps)
		if f.err != nil {
			return f.err
		}
		ofGrad, ofAvg := make([]float64, len(products)), make([]float64, len(products))
		for i, t := range products {
			product, err := t.Item()
			if err != nil {
				return err
			}
			next := mu(b.Steps[i] + 1)
			ofGrad[i] = -(g.LR * (1 - mus[i]) / (1 - product))
			ofAvg[i] = -(g.LR * next / (1 - float64(product*next)))
		}
		f.do("addcdiv_.ScalarList", b.Params, grads, roots, ofGrad)
		f.do("addcdiv_.ScalarList", b.Params, avgs, roots, ofAvg)
		return f.err
	},
	torch: map[string]any{"foreach": true, "differentiable": false, "capturable": false},
}

// decayed returns the gradients with maximize and weight decay applied; decoupled decay changes the parameters.
func (f *foreach) decayed(g *Group, b *Batch) []*tensor.Tensor {
	decay := g.WeightDecay
	if decay != 0 && g.DecoupledWeightDecay {
		f.do("mul_.Scalar", b.Params, 1-float64(g.LR*decay))
		decay = 0
	}
	grads, _ := f.gradients(g, b, decay)
	return grads
}

// moments updates the running averages of the gradient and of its square.
func (f *foreach) moments(g *Group, grads, avgs, squares []*tensor.Tensor) {
	f.do("lerp_.Scalar", avgs, grads, 1-g.Beta1)
	f.do("mul_.Scalar", squares, g.Beta2)
	f.do("addcmul_.Scalar", squares, grads, grads, 1-g.Beta2)
}

// NewNAdam returns an optimizer that runs Adam with Nesterov momentum (Dozat, 2016); PyTorch's default learning rate is
// 2e-3. Options: Betas, Eps, WeightDecay, MomentumDecay, DecoupledWeightDecay, Maximize, MasterWeights,
// StochasticRounding. PyTorch: torch.optim.NAdam(foreach=True).
func NewNAdam(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(nadam, params, lr, opts)
}
