package nn

import (
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Float8Linear is a Linear for inference whose weight takes 8 bits an element, as floating-point numbers: x (*, in) gives
// x @ Weight^T * Scales + Bias, in x's dtype. The weight has one scale, or with PerRow one for each row. In each call x is
// converted too, with one scale, or one for each of its rows; the product is one of float8_e4m3fn, and sums in float32. An x
// that requires a gradient is not rounded, and none is in a level of forward mode. PyTorch has none; the formulas are those
// of torchao's Float8DynamicActivationFloat8WeightConfig.
//
// On CUDA libtorch needs compute capability 8.9 and widths that 16 divides, and with PerRow the product is rounded to bfloat16;
// on a CPU without instructions for float8 the product is much slower than one in float32. Where there is no kernel, Forward
// returns libtorch's error. [ConvertToFloat8Training] is for training.
type Float8Linear struct {
	Weight *tensor.Tensor `nn:",buffer"` // float8_e4m3fn (out, in)
	Scales *tensor.Tensor `nn:",buffer"` // float32, () or (out)
	Bias   *tensor.Tensor // (out), or nil
	err    error
}

const (
	float8Max = 448   // the largest float8_e4m3fn
	float8Eps = 1e-12 // zeros are scaled as if their largest element were this
)

// NewFloat8Linear returns a Float8Linear with the weight of l, floating-point, in 8 bits, and a copy of its bias. It does not
// change l. SetSubmodule puts it in l's place in a model. Option: PerRow.
func NewFloat8Linear(l *Linear, opts ...Option) *Float8Linear {
	b := build("NewFloat8Linear", opts, "PerRow")
	w := b.weightOf(l)
	q := &Float8Linear{}
	if b.err == nil {
		shape := []int{}
		if b.perRow {
			shape = []int{w.Size(0)}
		}
		q.Scales = b.tensor(shape, tensor.Float32, func(t *tensor.Tensor) *tensor.Tensor {
			return tensor.Tidy(func() *tensor.Tensor {
				if w.Numel() == 0 {
					return t.Fill_(1)
				}
				return t.Copy_(float8Scale(w, b.perRow).View(shape...))
			})
		})
		q.Weight = b.tensor(w.Shape(), tensor.Float8E4M3FN, func(t *tensor.Tensor) *tensor.Tensor {
			return tensor.Tidy(func() *tensor.Tensor { return t.Copy_(scaledFloat8(w, q.columns())) })
		})
		q.Bias = b.biasOf(l)
	}
	if err := b.done(); err != nil {
		return &Float8Linear{err: err}
	}
	return q
}

// float8Scale returns what divides x (rows, width) so that it fits in float8_e4m3fn: one number, or (rows, 1).
func float8Scale(x *tensor.Tensor, perRow bool) *tensor.Tensor {
	abs := x.Abs()
	var most *tensor.Tensor
	if perRow {
		most = abs.AMax(tensor.Dim(1), tensor.KeepDim(true))
	} else {
		most = abs.AMax()
	}
	return free.After(most, abs).To(tensor.Float32).ClampMin(float8Eps).Div(float8Max)
}

func toFloat8(x, scale *tensor.Tensor) *tensor.Tensor {
	scaled := scaledFloat8(x, scale)
	return free.After(scaled.To(tensor.Float8E4M3FN), scaled)
}

// scaledFloat8 returns x / scale in float32, within the range of float8_e4m3fn: before libtorch 2.13, numbers beyond
// the largest become NaN.
func scaledFloat8(x, scale *tensor.Tensor) *tensor.Tensor {
	wide := x.To(tensor.Float32)
	return free.After(wide.Div(scale), wide).Clamp_(-float8Max, float8Max)
}

// float8MM returns a (m, k) times b (k, n), of which the kernels want a by rows and b by columns, times scales: one for each, or
// (m, 1) and (1, n). fast is for CUDA: sums of less precision.
func float8MM(a, b, scaleA, scaleB *tensor.Tensor, out tensor.DType, fast bool) *tensor.Tensor {
	a, b = a.Contiguous(), b.T().Contiguous().T()
	kernel := out
	if out != tensor.BFloat16 && out != tensor.Float16 {
		kernel = tensor.Float32
	}
	if perRow := scaleA.Dim() > 0; perRow && a.Device() == tensor.CPU {
		// Before libtorch 2.15 the kernel of the CPU has one scale.
		one := scaleA.NewOnes(nil)
		return call("Float8Linear", "aten::_scaled_mm", a, b, one, one, nil, nil, tensor.Float32, fast).Mul_(scaleA).Mul_(scaleB).To(out)
	} else if perRow {
		kernel = tensor.BFloat16 // with scales for rows CUDA's kernels have no other
	}
	return call("Float8Linear", "aten::_scaled_mm", a, b, scaleA, scaleB, nil, nil, kernel, fast).To(out)
}

// columns returns the scales as they multiply Weight: () or (out, 1).
func (q *Float8Linear) columns() *tensor.Tensor {
	if q.Scales.Dim() == 0 {
		return q.Scales
	}
	return q.Scales.Unsqueeze(1)
}

func (q *Float8Linear) fixedDTypes() []*tensor.Tensor { return []*tensor.Tensor{q.Weight, q.Scales} }

// Err returns the error of the constructor that made q, or nil.
func (q *Float8Linear) Err() error {
	if q == nil {
		return nilModule("Float8Linear")
	}
	return q.err
}

// Forward returns the result of shape (*, out).
func (q *Float8Linear) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "Float8Linear"
	if err := q.Err(); err != nil {
		return tensor.Failed(err)
	}
	if q.Weight == nil || q.Scales == nil {
		return noModule(op)
	}
	if bad := firstUnusable(op, x, q.Weight, q.Scales); bad != nil {
		return bad
	}
	w, perRow := q.Weight, q.Scales.Dim() == 1
	if w.DType() != tensor.Float8E4M3FN || w.Dim() != 2 || q.Scales.DType() != tensor.Float32 || q.Scales.Dim() > 1 || perRow && q.Scales.Size(0) != w.Size(0) {
		return refuse.Tensor(op, tensor.ErrArgument, "Weight must be float8_e4m3fn (out, in) and Scales float32, () or (out), got %v %v and %v %v", w.DType(), w.Shape(), q.Scales.DType(), q.Scales.Shape())
	}
	if bad := unfit(op, x, w, q.Scales); bad != nil {
		return bad
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		var y *tensor.Tensor
		if w.Numel() > 0 && rounds(x) {
			rows := x.Reshape(-1, w.Size(1))
			scale, weightScale := float8Scale(rows, perRow), q.Scales
			if perRow {
				weightScale = weightScale.Contiguous().View(1, -1)
			}
			y = float8MM(toFloat8(rows, scale), w.T(), scale, weightScale, x.DType(), false).View(append(leading(x, 1), w.Size(0))...)
		} else {
			wide := w.To(tensor.Float32)
			scaled := free.After(wide.Mul(q.columns()), wide)
			weight := free.After(scaled.To(x.DType()), scaled)
			y = free.After(x.Linear(weight, nil), weight)
		}
		if q.Bias != nil {
			y = free.After(y.Add(q.Bias.To(x.DType())), y)
		}
		return y
	})
}
