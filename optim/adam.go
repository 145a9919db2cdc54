package optim

import (
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/tensor"
)

var (
	adam  = adamKind("Adam", false, 0)
	adamW = adamKind("AdamW", true, 0.01)
)

func adamKind(name string, decoupled bool, decay float64) *kind {
	return &kind{
		name:     name,
		options:  []string{"Betas", "Eps", "AMSGrad"},
		slots:    []string{"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
		defaults: Group{WeightDecay: decay, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8},
		needs:    func(g *Group, slot int) bool { return slot < 3 || g.AMSGrad },
		run:      func(g *Group, l *lists) error { return adamStep(g, decoupled, l.params, l.state) },
		fast:     func(g *Group, bk *bucket) error { return adamStep(g, decoupled, bk.params, bk.state) },
	}
}

// adamStep takes a step in one native call, which reads the gradients itself.
func adamStep(g *Group, decoupled bool, params []*tensor.Tensor, state [][]*tensor.Tensor) error {
	how := handle.Adam{LR: g.LR, Beta1: g.Beta1, Beta2: g.Beta2, WeightDecay: g.WeightDecay, Eps: g.Eps,
		AMSGrad: g.AMSGrad, Maximize: g.Maximize, Decoupled: decoupled}
	var maxs []*tensor.Tensor
	if g.AMSGrad {
		maxs = state[3]
	}
	return fusedAdam(how, params, state[1], state[2], maxs, state[0])
}

var fusedAdam = handle.AdamStep.(func(how handle.Adam, params, avgs, sqs, maxs, steps []*tensor.Tensor) error)

// NewAdam returns an optimizer that runs Adam (Kingma and Ba, 2014), with weight decay added to the gradient, on
// libtorch's fused kernel. Options: Betas, Eps, AMSGrad, WeightDecay, Maximize. PyTorch: torch.optim.Adam(fused=True).
func NewAdam(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adam, params, lr, opts)
}

// NewAdamW returns an optimizer that runs AdamW (Loshchilov and Hutter, 2017), which decouples weight decay from the
// gradient, on libtorch's fused kernel. Options: Betas, Eps, AMSGrad, WeightDecay (0.01 by default), Maximize. PyTorch:
// torch.optim.AdamW(fused=True).
func NewAdamW(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adamW, params, lr, opts)
}
