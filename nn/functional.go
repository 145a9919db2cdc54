package nn

import (
	"math"

	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Normalize divides x by its p-norm along dim, or by eps where the norm is smaller. PyTorch:
// torch.nn.functional.normalize, whose defaults are p 2, dim 1 and eps 1e-12.
func Normalize(x *tensor.Tensor, p float64, dim int, eps float64) *tensor.Tensor {
	const op = "Normalize"
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	if math.IsNaN(p) || !(eps >= 0) {
		return refuse.Tensor(op, tensor.ErrArgument, "p must be a number and eps at least 0, got %v and %v", p, eps)
	}
	return tidyAs(op, func(*tensor.Scope) *tensor.Tensor {
		norm := x.LinalgVectorNorm(tensor.Ord(p), tensor.Dim(dim), tensor.KeepDim(true))
		return x.Div(norm.ClampMin(eps).ExpandAs(x))
	})
}

// GumbelSoftmax draws from the Gumbel-softmax distribution over dim with the temperature tau (Jang et al. 2017). With hard,
// the result is one-hot, but its gradient is that of the soft sample. PyTorch: torch.nn.functional.gumbel_softmax, whose
// defaults are tau 1 and dim -1.
func GumbelSoftmax(logits *tensor.Tensor, tau float64, hard bool, dim int) *tensor.Tensor {
	const op = "GumbelSoftmax"
	if bad := unusable(op, logits); bad != nil {
		return bad
	}
	if !(tau > 0) {
		return refuse.Tensor(op, tensor.ErrArgument, "tau must be positive, got %v", tau)
	}
	return tidyAs(op, func(*tensor.Scope) *tensor.Tensor {
		noise := tensor.Empty(logits.Shape(), logits.DType(), logits.Device()).Exponential_().Log_().Neg_()
		sum := free.After(logits.Add(noise), noise)
		scaled := free.After(sum.Div(tau), sum)
		soft := free.After(scaled.Softmax(dim), scaled)
		if !hard || soft.Err() != nil {
			return soft
		}
		most, index := soft.MaxDim(dim, tensor.KeepDim(true))
		one := free.After(tensor.Zeros(logits.Shape(), logits.DType(), logits.Device()).ScatterValue_(dim, index, 1), most, index)
		difference := free.After(one.Sub(soft.Detach()), one)
		return difference.Add(soft)
	})
}
