package optim

import (
	"errors"

	"github.com/linstock-ml/linstock/tensor"
)

var adagrad = &Algorithm{
	Name:     "Adagrad",
	Options:  []string{"lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"},
	Defaults: Group{Eps: 1e-10},
	Slots: []Slot{{Name: "sum", sameShape: true, New: func(g *Group, p *tensor.Tensor) *tensor.Tensor {
		return p.FullLike(g.InitialAccumulatorValue)
	}}},
	Counts: true,
	Step: func(g *Group, b *Batch) error {
		if b.Params[0].Device() == tensor.CPU {
			return fusedAdagrad(g, b)
		}
		sums := b.State[0]
		var f foreach
		grads, fresh := f.gradients(g, b, g.WeightDecay)
		rates := adagradRates(g, b)
		f.do("addcmul_.Scalar", sums, grads, grads, 1)
		std := f.list("sqrt", sums)
		f.do("add_.Scalar", std, g.Eps)
		if fresh {
			f.do("mul_.ScalarList", grads, rates)
		} else {
			grads = f.list("mul.ScalarList", grads, rates)
		}
		f.do("addcdiv_.Scalar", b.Params, grads, std)
		return f.err
	},
	checkSparse: func(g *Group) error {
		if g.WeightDecay != 0 {
			return errors.New("sparse gradients need a WeightDecay of 0")
		}
		return nil
	},
	SparseStep: func(g *Group, b *Batch) error {
		rates := adagradRates(g, b)
		return eachSparse(g, b, func(i int, s *sparse) error {
			sum := b.State[0][i]
			if err := s.addTo(sum, s.values.Pow(2)); err != nil {
				return err
			}
			std := s.of(sum).Sqrt_().Add_(g.Eps)
			return b.Params[i].Add_(s.with(s.values.Div(std)), tensor.Alpha(rates[i])).Err()
		})
	},
	torch: map[string]any{"foreach": nil, "differentiable": false, "fused": true},
}

func fusedAdagrad(g *Group, b *Batch) error {
	if err := b.layOut(b.State...); err != nil {
		return err
	}
	steps := each(b.Steps, func(step float64) *tensor.Tensor { return tensor.ScalarTensor(step, tensor.Float32) })
	_, err := tensor.CallUnchecked("aten::_fused_adagrad_", b.Params, b.Grads, b.State[0], steps, g.LR, g.LRDecay, g.WeightDecay,
		g.Eps, g.Maximize)
	return err
}

// adagradRates returns the learning rate of each parameter, negated.
func adagradRates(g *Group, b *Batch) []float64 {
	return each(b.Steps, func(step float64) float64 { return -g.LR / (1 + float64((step-1)*g.LRDecay)) })
}

// NewAdagrad returns an optimizer that runs Adagrad (Duchi, Hazan and Singer, 2011); PyTorch's default learning rate is
// 0.01. Gradients may be sparse if WeightDecay is 0. Options: LRDecay, InitialAccumulatorValue, Eps, WeightDecay,
// Maximize, MasterWeights, StochasticRounding. PyTorch: torch.optim.Adagrad, with fused=True on the CPU and foreach=True
// elsewhere.
func NewAdagrad(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adagrad, params, lr, opts)
}
