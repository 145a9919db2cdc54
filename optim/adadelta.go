package optim

import "github.com/linstock-ml/linstock/tensor"

var adadelta = &Algorithm{
	Name:     "Adadelta",
	Options:  []string{"rho", "eps", "weight_decay", "maximize"},
	Defaults: Group{Rho: 0.9, Eps: 1e-6},
	Slots:    []Slot{{Name: "square_avg", promotes: true}, {Name: "acc_delta", promotes: true}},
	Counts:   true,
	steady:   true,
	Step: func(g *Group, b *Batch) error {
		squares, accs := b.State[0], b.State[1]
		var f foreach
		grads, _ := f.gradients(g, b, g.WeightDecay)
		f.do("mul_.Scalar", squares, g.Rho)
		f.do("addcmul_.Scalar", squares, grads, grads, 1-g.Rho)
		std := f.list("add.Scalar", squares, g.Eps)
		f.do("sqrt_", std)
		deltas := f.list("add.Scalar", accs, g.Eps)
		f.do("sqrt_", deltas)
		f.do("div_.List", deltas, std)
		f.release(std)
		f.do("mul_.List", deltas, grads)
		f.do("mul_.Scalar", accs, g.Rho)
		f.do("addcmul_.Scalar", accs, deltas, deltas, 1-g.Rho)
		f.do("add_.List", b.Params, deltas, -g.LR)
		return f.err
	},
	torch: map[string]any{"foreach": true, "differentiable": false, "capturable": false},
}

// NewAdadelta returns an optimizer that runs Adadelta (Zeiler, 2012); PyTorch's default learning rate is 1. Options: Rho,
// Eps, WeightDecay, Maximize, MasterWeights, StochasticRounding. PyTorch: torch.optim.Adadelta(foreach=True).
func NewAdadelta(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adadelta, params, lr, opts)
}
