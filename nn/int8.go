package nn

import (
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Int8Linear is a Linear for inference whose weight takes 8 bits an element: x (*, in) gives x @ Weight^T * Scales + Bias, in
// x's dtype. The weight is rounded, each row by its own scale; x is not, by default. Gradients reach x, not the weight.
//
// On the CPU, a product in bfloat16 or float16 of few rows, as in generation token by token, reads the 8 bits directly if 32
// divides both widths and x requires no gradient. Others convert the weight to x's dtype in each call. Both give the same up
// to rounding. PyTorch has none; the numbers and the names in the state are those of gpt-fast's WeightOnlyInt8Linear.
//
// With Dynamic, each row of x is rounded to 8 bits too, by its own scale, and the product is one of integers, as with
// torchao's Int8DynamicActivationInt8WeightConfig: faster, and less exact. On CUDA it needs at least 17 rows and widths that
// 8 divides. An x that requires a gradient is not rounded, and none is in a level of forward mode.
type Int8Linear struct {
	Weight  *tensor.Tensor `nn:",buffer"` // int8 (out, in)
	Scales  *tensor.Tensor `nn:",buffer"` // (out), the dtype of the weight that was quantized
	Bias    *tensor.Tensor // (out), or nil
	Dynamic bool
	err     error
}

// int8Rows is the number of rows from which converting the weight is no slower than reading 8 bits. With a 4096×1024 weight
// in bfloat16, one thread and AVX-512, 1 row took 0.21 ms instead of 0.70, 16 rows 1.9 ms both ways, 32 rows 3.7 ms
// instead of 2.3.
const int8Rows = 16

// NewInt8Linear returns an Int8Linear with the weight of l, floating-point, rounded to 8 bits, and a copy of its bias. It does
// not change l. SetSubmodule puts it in l's place in a model. Option: Dynamic.
func NewInt8Linear(l *Linear, opts ...Option) *Int8Linear {
	b := build("NewInt8Linear", opts, "Dynamic")
	w := b.weightOf(l)
	q := &Int8Linear{Dynamic: b.dynamic}
	if b.err == nil {
		q.Scales = b.tensor([]int{w.Size(0)}, b.dtype, func(t *tensor.Tensor) *tensor.Tensor {
			if t.Device() == tensor.Meta {
				return t
			}
			return tensor.Tidy(func() *tensor.Tensor {
				if w.Numel() == 0 {
					return t.Fill_(1)
				}
				// The clamp keeps a row of zeros from dividing by zero.
				return t.Copy_(w.Abs().AMax(tensor.Dim(1)).To(tensor.Float32).Div(127.5).ClampMin(float32Epsilon))
			})
		})
		q.Weight = b.tensor(w.Shape(), tensor.Int8, func(t *tensor.Tensor) *tensor.Tensor {
			if t.Device() == tensor.Meta {
				return t
			}
			return tensor.Tidy(func() *tensor.Tensor {
				wide := tensor.Empty(w.Shape(), tensor.Float32, w.Device()).Copy_(w)
				return t.Copy_(wide.Div_(q.Scales.Unsqueeze(1).To(tensor.Float32)).Round_().Clamp_(-128, 127))
			})
		})
		q.Bias = b.biasOf(l)
	}
	if err := b.done(); err != nil {
		return &Int8Linear{err: err}
	}
	return q
}

// weightOf returns the weight of l, of which b's module is made, and takes its dtype and device.
func (b *builder) weightOf(l *Linear) *tensor.Tensor {
	b.note(l.Err())
	if b.err == nil {
		b.note(refuse.Unusable(b.op, "the weight", l.Weight))
	}
	if b.err != nil {
		return nil
	}
	w := l.Weight
	if w.Dim() != 2 || !w.DType().IsFloat() {
		b.fail("the weight must be a floating-point matrix, got %v %v", w.DType(), w.Shape())
	}
	b.dtype, b.device = w.DType(), w.Device()
	return w
}

// biasOf returns a copy of the bias of l, or nil.
func (b *builder) biasOf(l *Linear) *tensor.Tensor {
	if l.Bias == nil {
		return nil
	}
	b.note(refuse.Unusable(b.op, "the bias", l.Bias))
	if n := l.Weight.Size(0); b.err == nil && (l.Bias.Dim() != 1 || l.Bias.Size(0) != n) {
		b.fail("the bias must have shape [%d], got %v", n, l.Bias.Shape())
	}
	if b.err != nil {
		return nil
	}
	return b.parameter(l.Bias.Shape(), func(t *tensor.Tensor) *tensor.Tensor { return t.Copy_(l.Bias) })
}

// float32Epsilon is the difference of 1 and the next float32.
const float32Epsilon = 0x1p-23

// Err returns the error of the constructor that made q, or nil.
func (q *Int8Linear) Err() error {
	if q == nil {
		return nilModule("Int8Linear")
	}
	return q.err
}

// Forward returns the result of shape (*, out).
func (q *Int8Linear) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "Int8Linear"
	if err := q.Err(); err != nil {
		return tensor.Failed(err)
	}
	if q.Weight == nil || q.Scales == nil {
		return noModule(op)
	}
	if bad := firstUnusable(op, x, q.Weight, q.Scales); bad != nil {
		return bad
	}
	w := q.Weight
	if w.DType() != tensor.Int8 || w.Dim() != 2 || q.Scales.Dim() != 1 || q.Scales.Size(0) != w.Size(0) {
		return refuse.Tensor(op, tensor.ErrArgument, "Weight must be int8 (out, in) and Scales (out), got %v %v and %v", w.DType(), w.Shape(), q.Scales.Shape())
	}
	if bad := unfit(op, x, w, q.Scales); bad != nil {
		return bad
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		shape := append(leading(x, 1), w.Size(0))
		var y *tensor.Tensor
		switch {
		case q.Dynamic && rounds(x):
			rows := x.Reshape(-1, w.Size(1)).To(tensor.Float32)
			abs := rows.Abs()
			scale := free.After(abs.AMax(tensor.Dim(1), tensor.KeepDim(true)), abs).Div(127.5).ClampMin(float32Epsilon)
			scaled := free.After(rows.Mul(scale.Reciprocal()), rows).Round_().Clamp_(-128, 127)
			rounded := free.After(scaled.To(tensor.Int8), scaled)
			product := free.After(call(op, "aten::_int_mm", rounded, w.T()), rounded)
			wide := free.After(product.To(tensor.Float32), product).Mul_(scale).Mul_(q.Scales.To(tensor.Float32))
			y = wide.To(x.DType()).View(shape...)
		case q.packs(x):
			y = call(op, "aten::_weight_int8pack_mm", x.Reshape(-1, w.Size(1)).Contiguous(), w, q.Scales.To(x.DType()).Contiguous()).View(shape...)
		default:
			wide := w.To(x.DType())
			product := free.After(x.Linear(wide, nil), wide)
			y = free.After(product.Mul(q.Scales.To(x.DType())), product)
		}
		if q.Bias != nil {
			y = free.After(y.Add(q.Bias.To(x.DType())), y)
		}
		return y
	})
}

// unfit returns a failed tensor unless x is floating-point, of shape (*, in), on the device of w (out, in) and the scales.
func unfit(op string, x, w, scales *tensor.Tensor) *tensor.Tensor {
	if bad := unfitRows(op, x, w); bad != nil {
		return bad
	}
	if scales.Device() != x.Device() {
		return refuse.Tensor(op, tensor.ErrArgument, "x and Weight are on %v, Scales on %v", x.Device(), scales.Device())
	}
	return nil
}

// unfitRows returns a failed tensor if x is not (*, in) on the device of w (out, in), and nil otherwise.
func unfitRows(op string, x, w *tensor.Tensor) *tensor.Tensor {
	if !x.DType().IsFloat() || x.Dim() < 1 || x.Size(-1) != w.Size(1) {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (*, %d), floating-point, got %v %v", w.Size(1), x.DType(), x.Shape())
	}
	if x.Device() != w.Device() {
		return refuse.Tensor(op, tensor.ErrArgument, "x is on %v and Weight on %v", x.Device(), w.Device())
	}
	return nil
}

// rounds reports whether x can be rounded to 8 bits: rounding has no derivative, no largest element where there is none, and
// products of 8 bits have no kernels for the meta device.
func rounds(x *tensor.Tensor) bool {
	return x.Numel() > 0 && x.Device() != tensor.Meta && !differentiated(x)
}

// differentiated reports whether a derivative with respect to x may be wanted, backward or forward.
func differentiated(x *tensor.Tensor) bool {
	return x.RequiresGrad() && tensor.GradEnabled() || handle.ForwardEnabled()
}

// packs reports whether the kernel that reads 8 bits takes x. The kernel checks nothing: libtorch 2.15 crashes in it with a
// weight of (10, 24), so it is used only for widths that 32 divides.
func (q *Int8Linear) packs(x *tensor.Tensor) bool {
	w, d := q.Weight, x.DType()
	rows := x.Numel() / max(1, w.Size(1))
	return (d == tensor.BFloat16 || d == tensor.Float16) && x.Device() == tensor.CPU && w.Device() == tensor.CPU && q.Scales.Device() == tensor.CPU &&
		rows > 0 && rows < int8Rows && w.Size(0)%32 == 0 && w.Size(1)%32 == 0 && w.Numel() > 0 && w.IsContiguous() && !differentiated(x)
}
