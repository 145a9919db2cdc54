package optim

import (
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/tensor"
)

var (
	adam  = adamAlgorithm("Adam", false)
	adamW = adamAlgorithm("AdamW", true)
)

func adamAlgorithm(name string, w bool) *Algorithm {
	a := &Algorithm{
		Name:     name,
		Options:  []string{"betas", "eps", "weight_decay", "amsgrad", "maximize"},
		Defaults: Group{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8},
		Slots: []Slot{
			{Name: "step", counts: true, New: func(_ *Group, p *tensor.Tensor) *tensor.Tensor {
				return tensor.Zeros([]int{}, tensor.Float32, p.Device())
			}},
			{Name: "exp_avg"}, {Name: "exp_avg_sq"},
			{Name: "max_exp_avg_sq", Used: func(g *Group, _ *tensor.Tensor) bool { return g.AMSGrad }},
		},
		Step:  adamMasters,
		fast:  adamStep,
		torch: map[string]any{"foreach": nil, "differentiable": false, "fused": true, "capturable": false},
	}
	if w {
		a.Defaults.WeightDecay, a.Defaults.DecoupledWeightDecay = 0.01, true
		a.torch["decoupled_weight_decay"] = true
	} else {
		a.Options = append(a.Options, "decoupled_weight_decay")
	}
	return a
}

// adamStep takes a step in one native call, which reads the gradients itself.
func adamStep(g *Group, bk *bucket) error {
	how := handle.Adam{LR: g.LR, Beta1: g.Beta1, Beta2: g.Beta2, WeightDecay: g.WeightDecay, Eps: g.Eps,
		AMSGrad: g.AMSGrad, Maximize: g.Maximize, Decoupled: g.DecoupledWeightDecay}
	var maxs []*tensor.Tensor
	if g.AMSGrad {
		maxs = bk.state[3]
	}
	return fusedAdam(how, bk.params, bk.state[1], bk.state[2], maxs, bk.state[0])
}

var fusedAdam = handle.AdamStep.(func(how handle.Adam, params, avgs, sqs, maxs, steps []*tensor.Tensor) error)

// adamMasters takes a step with gradients that are not the parameters' own, those of master weights.
func adamMasters(g *Group, b *Batch) error {
	op := "aten::_fused_adam_"
	if g.DecoupledWeightDecay {
		op = "aten::_fused_adamw_"
	}
	lists := b.State[1:3]
	var maxs []*tensor.Tensor
	if g.AMSGrad {
		lists, maxs = b.State[1:], b.State[3]
	}
	if err := b.layOut(lists...); err != nil {
		return err
	}
	var f foreach
	f.do("add_.Scalar", b.State[0], 1.0)
	if f.err != nil {
		return f.err
	}
	_, err := tensor.CallUnchecked(op, b.Params, b.Grads, b.State[1], b.State[2], maxs, b.State[0], g.LR, g.Beta1, g.Beta2,
		g.WeightDecay, g.Eps, g.AMSGrad, g.Maximize)
	return err
}

// NewAdam returns an optimizer that runs Adam (Kingma and Ba, 2014), with weight decay added to the gradient unless
// DecoupledWeightDecay is set, on libtorch's fused kernel. Options: Betas, Eps, AMSGrad, WeightDecay,
// DecoupledWeightDecay, Maximize, MasterWeights, StochasticRounding. PyTorch: torch.optim.Adam(fused=True).
func NewAdam(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adam, params, lr, opts)
}

// NewAdamW returns an optimizer that runs AdamW (Loshchilov and Hutter, 2017), which decouples weight decay from the
// gradient, on libtorch's fused kernel. Options: Betas, Eps, AMSGrad, WeightDecay (0.01 by default), Maximize,
// MasterWeights, StochasticRounding. PyTorch: torch.optim.AdamW(fused=True).
func NewAdamW(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adamW, params, lr, opts)
}
