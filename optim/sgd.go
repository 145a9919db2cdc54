package optim

import "github.com/linstock-ml/linstock/tensor"

var sgd = &kind{
	name:    "SGD",
	options: []string{"Momentum", "Dampening", "Nesterov"},
	slots:   []string{"momentum_buffer"},
	needs:   func(g *Group, _ int) bool { return g.Momentum != 0 },
	run: func(g *Group, l *lists) error {
		var buffers []*tensor.Tensor
		if g.Momentum != 0 {
			buffers = l.state[0]
		}
		_, err := tensor.CallUnchecked("aten::_fused_sgd_", l.params, l.grads, buffers, g.WeightDecay, g.Momentum, g.LR,
			g.Dampening, g.Nesterov, g.Maximize, l.first && g.Momentum != 0)
		return err
	},
}

// NewSGD returns an optimizer that runs stochastic gradient descent on libtorch's fused kernel. Options: Momentum,
// Dampening, Nesterov, WeightDecay, Maximize. PyTorch: torch.optim.SGD(fused=True).
func NewSGD(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(sgd, params, lr, opts)
}
