package optim

import (
	"fmt"
	"math"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

// sparse is a coalesced sparse gradient.
type sparse struct {
	grad, indices, values *tensor.Tensor
	size                  []int
}

func call(name string, args ...any) *tensor.Tensor {
	out, err := tensor.CallUnchecked(name, args...)
	if err != nil {
		return tensor.Failed(err)
	}
	t, ok := out[0].(*tensor.Tensor)
	if !ok {
		return tensor.Failed(fmt.Errorf("linstock: %s returned no tensor", name))
	}
	return t
}

// elements returns g if it is dense, and otherwise the tensor of its values, whose memory is g's.
func elements(g *tensor.Tensor) *tensor.Tensor {
	if g.IsSparse() {
		return call("aten::_values", g)
	}
	return g
}

func newSparse(grad *tensor.Tensor, negate bool) (sparse, error) {
	if negate {
		grad = grad.Neg()
	}
	grad = grad.Coalesce()
	s := sparse{grad, call("aten::_indices", grad), call("aten::_values", grad), grad.Shape()}
	if err := s.indices.Err(); err != nil {
		return s, err
	}
	return s, s.values.Err()
}

// eachSparse is Batch.each with the coalesced gradient of the parameter.
func eachSparse(g *Group, b *Batch, step func(i int, s *sparse) error) error {
	return b.each(func(i int) error {
		s, err := newSparse(b.Grads[i], g.Maximize)
		if err != nil {
			return err
		}
		return step(i, &s)
	})
}

// with returns a sparse tensor with the gradient's indices and other values.
func (s *sparse) with(values *tensor.Tensor) *tensor.Tensor {
	return tensor.SparseCOOTensor(s.indices, values, s.size, values.DType(), values.Device())
}

// addTo adds values to a dense tensor at the gradient's indices.
func (s *sparse) addTo(dense, values *tensor.Tensor) error {
	added := s.with(values)
	defer added.Release()
	return dense.Add_(added).Err()
}

// of returns the values of a dense tensor at the gradient's indices.
func (s *sparse) of(dense *tensor.Tensor) *tensor.Tensor {
	masked := dense.SparseMask(s.grad)
	defer masked.Release()
	return call("aten::_values", masked)
}

var sparseAdam = &Algorithm{
	Name:     "SparseAdam",
	Options:  []string{"betas", "eps", "maximize"},
	Defaults: Group{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8},
	Slots:    []Slot{{Name: "exp_avg"}, {Name: "exp_avg_sq"}},
	Counts:   true,
	checkNew: func(g *Group) error {
		if g.LR == 0 || g.Eps == 0 {
			return fmt.Errorf("LR and Eps must be larger than 0, got %v and %v", g.LR, g.Eps)
		}
		return nil
	},
	SparseStep: func(g *Group, b *Batch) error {
		return eachSparse(g, b, func(i int, s *sparse) error {
			if s.values.Numel() == 0 {
				return nil
			}
			p := b.Params[i]
			avg, square := b.State[0][i], b.State[1][i]
			oldAvg := s.of(avg)
			update := s.values.Sub(oldAvg).Mul_(1 - g.Beta1)
			oldSquare := s.of(square)
			squareUpdate := s.values.Pow(2).Sub_(oldSquare).Mul_(1 - g.Beta2)
			if err := s.addTo(avg, update); err != nil {
				return err
			}
			if err := s.addTo(square, squareUpdate); err != nil {
				return err
			}
			numer := update.Add_(oldAvg)
			oldAvg.Release()
			denom := squareUpdate.Add_(oldSquare).Sqrt_().Add_(g.Eps)
			oldSquare.Release()
			rate := g.LR * math.Sqrt(1-cshim.Pow(g.Beta2, b.Steps[i])) / (1 - cshim.Pow(g.Beta1, b.Steps[i]))
			return s.addTo(p, numer.Div_(denom).Mul_(-rate))
		})
	},
	intStep: true,
	real:    true,
}

// NewSparseAdam returns an optimizer that runs Adam lazily, on the elements that sparse gradients have; PyTorch's default
// learning rate is 1e-3. Gradients must be sparse. Options: Betas, Eps, Maximize, MasterWeights, StochasticRounding.
// PyTorch: torch.optim.SparseAdam.
func NewSparseAdam(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(sparseAdam, params, lr, opts)
}
