package optim

import (
	"math"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

var adafactor = &Algorithm{
	Name:     "Adafactor",
	Options:  []string{"beta2_decay", "eps (Adafactor)", "d", "weight_decay", "maximize"},
	Defaults: Group{Beta2Decay: -0.8, Eps: 1e-3, D: 1},
	Slots: []Slot{
		{Name: "row_var", Used: factored, byShape: true, shape: func(p *tensor.Tensor) []int { return oneAlong(p, 1) }},
		{Name: "col_var", Used: factored, byShape: true, shape: func(p *tensor.Tensor) []int { return oneAlong(p, 2) }},
		{Name: "variance", Used: func(g *Group, p *tensor.Tensor) bool { return !factored(g, p) }, byShape: true},
	},
	Counts:     true,
	CheckParam: undivided,
	real:       true,
	Step: func(g *Group, b *Batch) error {
		return b.each(func(i int) error {
			return adafactorStep(g, b.Steps[i], b.Params[i], b.Grads[i], b.State[0][i], b.State[1][i], b.State[2][i])
		})
	},
	torch: map[string]any{"foreach": nil},
}

// factored reports whether a parameter's second moment is factored into rows and columns.
func factored(_ *Group, p *tensor.Tensor) bool { return p.Dim() > 1 }

// oneAlong returns p's shape with size 1 in the dimension back from the last.
func oneAlong(p *tensor.Tensor, back int) []int {
	size := p.Shape()
	if back <= len(size) {
		size[len(size)-back] = 1
	}
	return size
}

// machineEpsilons are torch.finfo's eps.
var machineEpsilons = map[tensor.DType]float64{tensor.Float64: 0x1p-52, tensor.Float32: 0x1p-23, tensor.Float16: 0x1p-10,
	tensor.BFloat16: 0x1p-7}

// notNaN returns the larger of a and b, and a if b is NaN, as Python's max does: elements that are not NaN are still
// updated.
func notNaN(a, b float64) float64 {
	if b > a {
		return b
	}
	return a
}

func adafactorStep(g *Group, step float64, p, grad, row, col, variance *tensor.Tensor) error {
	eps1 := g.Eps1
	if eps1 == 0 {
		eps1 = machineEpsilons[p.DType()]
	}
	if g.Maximize {
		grad = grad.Neg()
	}
	weight := cshim.Pow(step, g.Beta2Decay)
	norm, err := p.Norm().Item()
	if err != nil {
		return err
	}
	alpha := notNaN(g.Eps, norm/math.Sqrt(float64(p.Numel()))) * min(g.LR, 1/math.Sqrt(step))
	if g.WeightDecay != 0 {
		if err := p.Mul_(1 - float64(g.LR*g.WeightDecay)).Err(); err != nil {
			return err
		}
	}
	var update *tensor.Tensor
	if row != nil {
		mean := func(dim int) *tensor.Tensor {
			return grad.LinalgVectorNorm(tensor.Dim(dim), tensor.KeepDim(true)).Square_().Div_(float64(grad.Size(dim)))
		}
		row.Lerp_(mean(-1), weight)
		col.Lerp_(mean(-2), weight)
		update = row.MatMul(col).Div_(row.Mean(tensor.Dim(-2), tensor.KeepDim(true)).ClampMin_(eps1))
	} else {
		variance.Lerp_(grad.Mul(grad), weight)
		update = variance.Clone()
	}
	update = update.ClampMin_(eps1 * eps1).RSqrt_().Mul_(grad)
	if norm, err = update.Norm().Item(); err != nil {
		return err
	}
	denom := notNaN(1, norm/(math.Sqrt(float64(update.Numel()))*g.D))
	return p.Add_(update, tensor.Alpha(-alpha/denom)).Err()
}

// NewAdafactor returns an optimizer that runs Adafactor (Shazeer and Stern, 2018), which stores the second moment of a
// matrix (..., R, C) as R + C numbers; PyTorch's default learning rate, the largest relative step, is 0.01. Options:
// Beta2Decay, AdafactorEps, D, WeightDecay, Maximize, MasterWeights, StochasticRounding. PyTorch: torch.optim.Adafactor.
func NewAdafactor(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(adafactor, params, lr, opts)
}
