package optim

import "github.com/linstock-ml/linstock/tensor"

var (
	adam  = adamKind("Adam", "aten::_fused_adam_", false, 0)
	adamW = adamKind("AdamW", "aten::_fused_adamw_", true, 0.01)
)

func adamKind(name, op string, decoupled bool, decay float64) *kind {
	return &kind{
		name:     name,
		options:  []string{"Betas", "Eps", "AMSGrad"},
		slots:    []string{"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
		defaults: Group{WeightDecay: decay, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8},
		needs:    func(g *Group, slot int) bool { return slot < 3 || g.AMSGrad },
		run: func(g *Group, l *lists) error {
			if _, err := tensor.Call("aten::_foreach_add_.Scalar", l.state[0], 1); err != nil {
				return err
			}
			var largest []*tensor.Tensor
			if g.AMSGrad {
				largest = l.state[3]
			}
			_, err := tensor.Call(op, l.params, l.grads, l.state[1], l.state[2], largest, l.state[0],
				g.LR, g.Beta1, g.Beta2, g.WeightDecay, g.Eps, g.AMSGrad, g.Maximize)
			return err
		},
		fast: func(g *Group, bk *bucket) error {
			f := tensor.FusedAdam{LR: g.LR, Beta1: g.Beta1, Beta2: g.Beta2, WeightDecay: g.WeightDecay, Eps: g.Eps,
				AMSGrad: g.AMSGrad, Maximize: g.Maximize, Decoupled: decoupled,
				Params: bk.params, Steps: bk.state[0], Avgs: bk.state[1], Sqs: bk.state[2]}
			if g.AMSGrad {
				f.Maxs = bk.state[3]
			}
			return f.Step()
		},
	}
}

// NewAdam makes the method of Kingma and Ba 2014, with weight decay as a part of the gradient, by libtorch's fused
// kernel. Options: Betas, Eps, AMSGrad, WeightDecay, Maximize. PyTorch: torch.optim.Adam(fused=True).
func NewAdam(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adam, params, lr, opts)
}

// NewAdamW makes Adam with weight decay apart from the gradient, of Loshchilov and Hutter 2017, by libtorch's fused
// kernel. Options: Betas, Eps, AMSGrad, WeightDecay (0.01 by default), Maximize. PyTorch:
// torch.optim.AdamW(fused=True).
func NewAdamW(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adamW, params, lr, opts)
}
