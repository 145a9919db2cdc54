package tensor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
)

// sameShape returns nil if ts have the same shape, and otherwise the failure to return. docs/decisions/0016 has the
// reasons.
func (o *op) sameShape(ts []*Tensor) *Tensor {
	var first, other cshim.Meta
	for i, t := range ts {
		m := &other
		if i == 0 {
			m = &first
		}
		if err := t.meta(o.goName, m); err != nil {
			return nil // no shape to compare; the operator checks it
		}
		if i == 0 {
			continue
		}
		if shapeWith(ts[0], &first) != shapeWith(t, &other) {
			return failed(o.differ(ts[0], t, i))
		}
	}
	return nil
}

// comparableShape returns t's shape for comparisons, and its dtype.
func comparableShape(t *Tensor) (handle.Shape, DType) {
	var m cshim.Meta
	if t.meta("Shape", &m) != nil {
		return handle.Shape{Dims: -1}, Invalid
	}
	return shapeWith(t, &m), DType(m.DType)
}

// shapeWith returns the shape of t, which has the metadata m, for comparisons.
func shapeWith(t *Tensor, m *cshim.Meta) handle.Shape {
	s := handle.Shape{Dims: int(m.NDim), First: m.Sizes}
	if s.Dims > len(s.First) {
		shape := t.Shape()
		if len(shape) != s.Dims { // another goroutine has released it
			return handle.Shape{Dims: -1}
		}
		s.Rest = fmt.Sprint(shape[len(s.First):])
	}
	return s
}

// opSmoothL1LossBeta0 is SmoothL1Loss with Beta 0, as in PyTorch: the gradient of the operator is not 0 where x is the target.
var opSmoothL1LossBeta0 = op{name: "aten::l1_loss", goName: "SmoothL1Loss", args: opL1Loss.args}

// functional does what the functions of torch.nn.functional do before they call their operators: mostly checks.
func (c *call) functional() {
	switch c.op {
	case &opAffineGrid:
		c.affineGrid()
	case &opEmbedding:
		c.paddingIdx()
	case &opBatchNorm:
		c.batchNorm()
	case &opInstanceNorm:
		if s := c.ins[0].Shape(); c.number64(5, 0) != 0 && len(s) >= 2 && product(s[2:]) == 1 {
			c.refuse(ErrArgument, "each channel needs more than 1 value to be normalized by itself, got shape %s", tuple(s))
		}
	case &opGroupNorm:
		groups, s := int(c.number64(1, 0)), c.ins[0].Shape()
		if groups > 0 && len(s) >= 2 && s[0]*s[1]/groups*product(s[2:]) == 1 {
			c.refuse(ErrArgument, "each group needs more than 1 value, got shape %s and %d groups", tuple(s), groups)
		}
	case &opHardtanh, &opHardtanh_:
		if low, high := c.number64(1, -1), c.number64(2, 1); low > high {
			c.refuse(ErrArgument, "MinVal must not be greater than MaxVal, got %v and %v", low, high)
		}
	case &opSmoothL1Loss:
		if c.number64(3, 1) == 0 {
			c.op = &opSmoothL1LossBeta0
			c.n-- // Beta
		}
	case &opEmbeddingBag:
		if (c.number64(3, 0) != 0 || c.number64(5, 0) != 0) && c.number64(4, 0) == 2 {
			c.refuse(ErrArgument, "mode 2, the maximum, excludes ScaleGradByFreq and Sparse")
		}
	case &opMultiMarginLoss:
		if p := c.number64(2, 1); p != 1 && p != 2 { // the operator takes its integer part
			c.refuse(ErrArgument, "P must be 1 or 2, got %v", p)
		}
	case &opTripletMarginLoss:
		if margin := c.number64(3, 1); !(margin > 0) {
			c.refuse(ErrArgument, "Margin must be positive, got %v", margin)
		}
	}
}

// number64 returns the number in the i-th slot, otherwise if the slot has the schema's default, and NaN if the number
// is not real.
func (c *call) number64(i int, otherwise float64) float64 {
	switch v := c.values()[i]; v.Tag {
	case cshim.TagDefault:
		return otherwise
	case cshim.TagFloat:
		return math.Float64frombits(v.Bits)
	case cshim.TagInt, cshim.TagBool:
		return float64(int64(v.Bits))
	case cshim.TagUint:
		return float64(v.Bits)
	}
	return math.NaN()
}

func product(sizes []int) int {
	n := 1
	for _, s := range sizes {
		n *= s
	}
	return n
}

// paddingIdx makes a negative padding_idx of embedding count from the end: for the operator it names no row.
func (c *call) paddingIdx() {
	v := &c.values()[2]
	weight := c.ins[0]
	if v.Tag != cshim.TagInt || weight.Dim() < 1 {
		return
	}
	row, rows := int(v.Bits), weight.Size(0)
	if row < -rows || row >= rows {
		c.refuse(ErrArgument, "PaddingIdx must be in [%d, %d) for a weight of %d rows, got %d", -rows, rows, rows, row)
		return
	}
	if row < 0 {
		v.Bits = uint64(row + rows)
	}
}

func (c *call) batchNorm() {
	training, eps := c.number64(5, 0) != 0, c.number64(7, 1e-5)
	s := c.ins[0].Shape()
	switch {
	case training && len(s) >= 2 && s[0]*product(s[2:]) == 1:
		c.refuse(ErrArgument, "each channel needs more than 1 value to be normalized by its batch, got shape %s", tuple(s))
	case training && eps <= 0:
		c.refuse(ErrArgument, "Eps must be positive in training, got %v", eps)
	case eps < 0:
		c.refuse(ErrArgument, "Eps must not be negative, got %v", eps)
	}
}

func (c *call) affineGrid() {
	theta, list := c.ins[0], c.values()[1:]
	size := make([]int, list[0].Len)
	for i := range size {
		size[i] = int((*[2]uint64)(unsafe.Pointer(&list[1+i/2]))[i%2])
	}
	n := len(size) - 2 // the dimensions of the image
	switch {
	case !theta.DType().IsFloat():
		c.refuse(ErrArgument, "theta must have floating-point numbers, got %v", theta.DType())
	case n != 2 && n != 3:
		c.refuse(ErrArgument, "the size must be (N, C, H, W) or (N, C, D, H, W), got %s", tuple(size))
	case slices.Min(size) < 1:
		c.refuse(ErrArgument, "the size must be positive, got %s", tuple(size))
	case !slices.Equal(theta.Shape(), []int{size[0], n, n + 1}):
		c.refuse(ErrArgument, "theta must have shape %s for the size %s, got %s", tuple([]int{size[0], n, n + 1}), tuple(size), tuple(theta.Shape()))
	}
}

// differ says how to change the i-th argument, b, so that it has the shape of the first, a.
func (o *op) differ(a, b *Tensor, i int) error {
	x, name := o.args[0].name, o.args[i].name
	if x == "self" {
		x = "x"
	}
	s, r := a.Shape(), b.Shape()
	both, ok := broadcast(s, r)
	advice := ""
	switch {
	case ok && slices.Equal(both, s):
		advice = fmt.Sprintf("to broadcast, expand: %s.ExpandAs(%s)", name, x)
	case ok && slices.Equal(both, r):
		advice = fmt.Sprintf("to broadcast, expand: %s.ExpandAs(%s)", x, name)
	case ok:
		sizes := strings.Trim(fmt.Sprint(both), "[]")
		sizes = strings.ReplaceAll(sizes, " ", ", ")
		advice = fmt.Sprintf("to broadcast, expand both: %s.Expand(%s), %s.Expand(%s)", x, sizes, name, sizes)
	default:
		advice = "they cannot be broadcast"
	}
	if n, _ := numel(s); n == b.Numel() {
		advice = fmt.Sprintf("%s.ViewAs(%s) gives it the same shape; %s", name, x, advice)
	}
	return refused(o.goName, ErrArgument, "%s has shape %s and %s %s, which must be equal; %s", x, tuple(s), name, tuple(r), advice)
}

// broadcast returns the shape to which two shapes broadcast.
func broadcast(a, b []int) ([]int, bool) {
	out := make([]int, max(len(a), len(b)))
	for i := range out {
		at := func(s []int) int {
			if k := i - (len(out) - len(s)); k >= 0 {
				return s[k]
			}
			return 1
		}
		p, q := at(a), at(b)
		if p != q && p != 1 && q != 1 {
			return nil, false
		}
		out[i] = p
		if p == 1 {
			out[i] = q
		}
	}
	return out, true
}
