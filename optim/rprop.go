package optim

import (
	"fmt"

	"github.com/linstock-ml/linstock/tensor"
)

var rprop = &Algorithm{
	Name:     "Rprop",
	Options:  []string{"etas", "step_sizes", "maximize"},
	Defaults: Group{EtaMinus: 0.5, EtaPlus: 1.2, StepSizeMin: 1e-6, StepSizeMax: 50},
	Slots: []Slot{
		{Name: "prev"},
		{Name: "step_size", sameShape: true, New: func(g *Group, p *tensor.Tensor) *tensor.Tensor { return p.FullLike(g.LR) }},
	},
	Counts: true,
	steady: true,
	Check: func(g *Group) error {
		if !(g.EtaMinus < 1 && g.EtaPlus > 1) {
			return fmt.Errorf("Etas must be below 1 and above 1, got %v and %v", g.EtaMinus, g.EtaPlus)
		}
		return nil
	},
	Step: func(g *Group, b *Batch) error {
		prevs, sizes := b.State[0], b.State[1]
		var f foreach
		signs := f.list("mul.List", b.Grads, prevs)
		f.do("copy_", prevs, b.Grads)
		if g.Maximize {
			f.do("neg_", signs)
			f.do("neg_", prevs)
		}
		f.do("sign_", signs)
		if f.err != nil {
			return f.err
		}
		for _, s := range signs {
			s.MaskedFill_(s.Gt(0), g.EtaPlus)
			s.MaskedFill_(s.Lt(0), g.EtaMinus)
			if err := s.MaskedFill_(s.Eq(0), 1.0).Err(); err != nil {
				return err
			}
		}
		f.do("mul_.List", sizes, signs)
		directions := make([]*tensor.Tensor, len(prevs))
		for i, prev := range prevs {
			if err := sizes[i].Clamp_(g.StepSizeMin, g.StepSizeMax).Err(); err != nil {
				return err
			}
			if err := prev.MaskedFill_(signs[i].Eq(g.EtaMinus), 0.0).Err(); err != nil {
				return err
			}
			directions[i] = prev.Sign()
		}
		f.do("addcmul_.Scalar", b.Params, directions, sizes, -1)
		return f.err
	},
	torch: map[string]any{"foreach": true, "differentiable": false, "capturable": false},
}

// NewRprop returns an optimizer that runs resilient backpropagation (Riedmiller and Braun, 1993), for whole batches;
// PyTorch's default learning rate, which is the first step size, is 0.01. Options: Etas, StepSizes, Maximize,
// MasterWeights, StochasticRounding. PyTorch: torch.optim.Rprop(foreach=True).
func NewRprop(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(rprop, params, lr, opts)
}
