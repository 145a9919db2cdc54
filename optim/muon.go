package optim

import (
	"fmt"
	"math"

	"github.com/linstock-ml/linstock/tensor"
)

var muon = &Algorithm{
	Name:    "Muon",
	Options: []string{"weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn"},
	Defaults: Group{WeightDecay: 0.1, Momentum: 0.95, Nesterov: true, NSCoefficients: [3]float64{3.4445, -4.775, 2.0315},
		Eps: 1e-7, NSSteps: 5},
	Slots: []Slot{{Name: "momentum_buffer"}},
	real:  true,
	Check: func(g *Group) error {
		switch g.AdjustLRFn {
		case "", "original", "match_rms_adamw", "spectral_unclamped":
		default:
			return fmt.Errorf("AdjustLRFn must be original, match_rms_adamw or spectral_unclamped, got %q", g.AdjustLRFn)
		}
		if g.NSSteps >= 100 {
			return fmt.Errorf("NSSteps must be below 100, got %d", g.NSSteps)
		}
		return nil
	},
	CheckParam: func(p *tensor.Tensor) error {
		if p.Dim() != 2 {
			return fmt.Errorf("has shape %v: want two dimensions", p.Shape())
		}
		return undivided(p)
	},
	Step: func(g *Group, b *Batch) error {
		return b.each(func(i int) error {
			p, grad, buffer := b.Params[i], b.Grads[i], b.State[0][i]
			update := buffer.Lerp_(grad, 1-g.Momentum)
			if g.Nesterov {
				update = grad.Lerp(buffer, g.Momentum)
			}
			x := copyInBFloat16(update)
			if g.Nesterov {
				update.Release() // here and below, so that temporaries do not add up until the scope ends
			}
			update = newtonSchulz(g, x)
			p.Mul_(1 - float64(g.LR*g.WeightDecay))
			return p.Add_(update, tensor.Alpha(-muonRate(g, float64(p.Size(0)), float64(p.Size(1))))).Err()
		})
	},
}

func copyInBFloat16(t *tensor.Tensor) *tensor.Tensor {
	if t.DType() == tensor.BFloat16 {
		return t.Clone()
	}
	return t.To(tensor.BFloat16)
}

// newtonSchulz returns an approximation of the orthogonal matrix that is nearest to x, which it overwrites.
func newtonSchulz(g *Group, x *tensor.Tensor) *tensor.Tensor {
	a, b, c := g.NSCoefficients[0], g.NSCoefficients[1], g.NSCoefficients[2]
	size := x.Shape()
	if len(size) != 2 {
		return x
	}
	if size[0] > size[1] {
		x = x.T()
	}
	x.Div_(x.Norm().ClampMin(g.Eps))
	for range g.NSSteps {
		transposed := x.T()
		gram := x.MatMul(transposed)
		update := gram.AddMM(gram, gram, tensor.Beta(b), tensor.Alpha(c))
		next := x.AddMM(update, x, tensor.Beta(a))
		for _, t := range []*tensor.Tensor{transposed, gram, update, x} {
			t.Release()
		}
		x = next
	}
	if size[0] > size[1] {
		x = x.T()
	}
	return x
}

// muonRate returns the learning rate of a parameter (a, b).
func muonRate(g *Group, a, b float64) float64 {
	switch g.AdjustLRFn {
	case "match_rms_adamw":
		return g.LR * (0.2 * math.Sqrt(max(a, b)))
	case "spectral_unclamped":
		return g.LR * math.Sqrt(a/b)
	}
	return g.LR * math.Sqrt(max(1, a/b))
}

// NewMuon returns an optimizer that runs Muon (Jordan and others, 2024) on parameters (R, C), the weight matrices of
// hidden layers; use AdamW for the others. PyTorch's default learning rate is 1e-3. Options: WeightDecay (0.1 by default),
// Momentum (0.95), Nesterov (on), NSCoefficients, Eps, NSSteps, AdjustLRFn, MasterWeights, StochasticRounding. PyTorch:
// torch.optim.Muon.
func NewMuon(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(muon, params, lr, opts)
}
