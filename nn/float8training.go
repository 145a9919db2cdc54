package nn

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// A Float8Recipe is how a [Linear] in training rounds the factors of its three products to float8: that of the result, that of
// the gradient of x, and that of the gradient of Weight. Each product computes the scales of its factors from their largest
// elements (dynamic scaling), and sums in float32. Weight and Bias keep their dtype, and the graph keeps what it keeps without
// a recipe: x and Weight. The recipes and their numbers are those of torchao.float8.
//
// On CUDA libtorch needs compute capability 8.9 and widths that 16 divides; products with scales for rows are rounded to
// bfloat16. On a CPU without instructions for float8 the products are much slower than those in float32. An x on the meta
// device, one without elements, and operators in [autograd.DualLevel] are computed without rounding.
type Float8Recipe int

const (
	// NoFloat8 rounds nothing.
	NoFloat8 Float8Recipe = iota
	// Float8TensorWise has one scale for each factor. Gradients of the result are float8_e5m2, the other factors float8_e4m3fn.
	Float8TensorWise
	// Float8RowWise has a scale, a power of two, for each row of the first factor and each column of the second. All factors are
	// float8_e4m3fn.
	Float8RowWise
	// Float8RowWiseWithGWHP is Float8RowWise, except that Weight has one scale in the product of x's gradient, and the gradient
	// of Weight is computed without rounding, in the dtype of x.
	Float8RowWiseWithGWHP
)

// String returns torchao's name, such as "rowwise", or "none".
func (r Float8Recipe) String() string {
	switch r {
	case NoFloat8:
		return "none"
	case Float8TensorWise:
		return "tensorwise"
	case Float8RowWise:
		return "rowwise"
	case Float8RowWiseWithGWHP:
		return "rowwise_with_gw_hp"
	}
	return "unknown"
}

// ConvertToFloat8Training sets the recipe of the Linears in m for which filter returns true, and returns their names in the
// state. If filter is nil, they are those whose widths 16 divides. NoFloat8 undoes it. The input projections of a
// [MultiheadAttention] and the weights of recurrent layers are not Linears. PyTorch:
// torchao.float8.convert_to_float8_training.
func ConvertToFloat8Training(m any, recipe Float8Recipe, filter func(name string, l *Linear) bool) ([]string, error) {
	const op = "ConvertToFloat8Training"
	if err := recipe.check(op); err != nil {
		return nil, err
	}
	if filter == nil {
		filter = func(_ string, l *Linear) bool {
			return l.Weight.Dim() == 2 && l.Weight.Size(0)%16 == 0 && l.Weight.Size(1)%16 == 0
		}
	}
	var names []string
	for _, n := range NamedModules(m) {
		l, ok := unparametrized(n.Module).(*Linear)
		if !ok || !filter(n.Name, l) {
			continue
		}
		if err := l.Err(); err != nil {
			return names, err
		}
		l.Float8 = recipe
		names = append(names, n.Name)
	}
	return names, nil
}

func (r Float8Recipe) check(op string) error {
	if r < NoFloat8 || r > Float8RowWiseWithGWHP {
		return refuse.Error(op, tensor.ErrArgument, "Float8Recipe %d does not exist", int(r))
	}
	return nil
}

// float8 is Forward with a recipe.
func (l *Linear) float8(x *tensor.Tensor) *tensor.Tensor {
	const op = "Linear"
	w := l.Weight
	if err := l.Float8.check(op); err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable(op, x, w); bad != nil {
		return bad
	}
	if w.Dim() != 2 || !w.DType().IsFloat() {
		return refuse.Tensor(op, tensor.ErrArgument, "Weight must be a floating-point matrix, got %v %v", w.DType(), w.Shape())
	}
	if bad := unfitRows(op, x, w); bad != nil {
		return bad
	}
	if x.Numel() == 0 || w.Numel() == 0 || x.Device() == tensor.Meta || handle.ForwardEnabled() {
		return x.Linear(w, l.Bias)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		in := x
		if to := autograd.AutocastDType(x.Device().Type); to != tensor.Float32 && x.DType() != tensor.Float64 {
			in = x.To(to)
		}
		out, err := autograd.Apply(float8Product{l.Float8}, in.Reshape(-1, w.Size(1)), w)
		if err != nil {
			return tensor.Failed(err)
		}
		y := out[0].View(append(leading(x, 1), w.Size(0))...)
		if l.Bias != nil {
			y = y.Add(l.Bias.To(y.DType()))
		}
		return y
	})
}

// float8Product is the product of x (rows, in) and Weight (out, in), and its gradients.
type float8Product struct{ recipe Float8Recipe }

func (p float8Product) Forward(ctx *autograd.Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SetMaterializeGrads(false)
	x, w := inputs[0], inputs[1]
	ctx.SaveForBackward(x, w)
	return []*tensor.Tensor{p.mm(x, w.T(), tensor.Float8E4M3FN, false, true)}, nil
}

func (p float8Product) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	g, saved, out := grads[0], ctx.Saved(), make([]*tensor.Tensor, 2)
	if g == nil {
		return out, nil
	}
	x, w := saved[0], saved[1]
	dtype := tensor.Float8E4M3FN
	if p.recipe == Float8TensorWise {
		dtype = tensor.Float8E5M2
	}
	if ctx.NeedsInputGrad(0) {
		out[0] = p.mm(g, w, dtype, p.recipe == Float8RowWiseWithGWHP, false)
	}
	if ctx.NeedsInputGrad(1) {
		if p.recipe == Float8RowWiseWithGWHP {
			out[1] = g.T().MM(x)
		} else {
			// CUDA's kernels sum over a multiple of 16 rows.
			if more := -x.Size(0) & 15; more > 0 {
				x, g = x.Pad([]int{0, 0, 0, more}), g.Pad([]int{0, 0, 0, more})
			}
			out[1] = p.mm(g.T(), x, dtype, false, false)
		}
		out[1] = out[1].To(w.DType())
	}
	return out, nil
}

// mm returns the product of a (m, k) and b (k, n) in a's dtype. a is rounded to the given dtype, and b to float8_e4m3fn, with one
// scale if whole is set.
func (p float8Product) mm(a, b *tensor.Tensor, dtype tensor.DType, whole, fast bool) *tensor.Tensor {
	left, leftScale := p.round(a, dtype, 1, false)
	right, rightScale := p.round(b, tensor.Float8E4M3FN, 0, whole)
	if whole {
		rightScale = rightScale.Expand(1, b.Size(1)).Contiguous()
	}
	return float8MM(left, right, leftScale, rightScale, a.DType(), fast)
}

// round returns x in a float8 dtype, and the scale by which to multiply that to get x: one number, or one for each row
// (dim 1) or column (dim 0), with a dimension of size 1.
func (p float8Product) round(x *tensor.Tensor, dtype tensor.DType, dim int, whole bool) (rounded, scale *tensor.Tensor) {
	most := float64(float8Max)
	if dtype == tensor.Float8E5M2 {
		most = 57344
	}
	abs := x.Abs()
	if p.recipe == Float8TensorWise || whole {
		scale = abs.AMax()
	} else {
		scale = abs.AMax(tensor.Dim(dim), tensor.KeepDim(true))
	}
	abs.Release()
	scale = scale.To(tensor.Float64).ClampMin(float8Eps).Reciprocal().Mul(most).To(tensor.Float32)
	if p.recipe != Float8TensorWise {
		scale = scale.Log2().Floor().Exp2()
	}
	wide := x.To(tensor.Float32)
	scaled := wide.Mul(scale).Clamp_(-most, most)
	wide.Release()
	rounded = scaled.To(dtype)
	scaled.Release()
	return rounded, scale.Reciprocal()
}
