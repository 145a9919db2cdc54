package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/tensor"
)

// values makes the arguments of one call. Most have the same dtype and few shapes, so that they fit each other.
type values struct {
	*rand.Rand
	dtype tensor.DType
	shape []int
	grad  bool // floating-point tensors may require gradients
	odd   bool // tensors may have other layouts
	kinds [2]int
	last  *tensor.Tensor
	// leaves are the tensors with respect to which gradients are computed.
	leaves []*tensor.Tensor
	// layouts describes how the layout of a tensor was changed.
	layouts map[*tensor.Tensor]string
}

func newValues(r *rand.Rand) *values {
	v := &values{Rand: r, layouts: map[*tensor.Tensor]string{}}
	v.dtype = pick(v, tensor.Float32, tensor.Float32, tensor.Float32, tensor.Float64, tensor.Int64, tensor.Complex64)
	if v.one(4) {
		v.dtype = pick(v, dtypes...)
	}
	v.shape = v.newShape()
	v.grad = v.one(2)
	v.odd = v.one(2)
	// Use few layouts per call, so that the same ones meet more often.
	v.kinds = [2]int{v.IntN(layouts), v.IntN(layouts)}
	return v
}

func (v *values) one(n int) bool { return v.IntN(n) == 0 }

func pick[T any](v *values, list ...T) T { return list[v.IntN(len(list))] }

var dtypes = []tensor.DType{
	tensor.Uint8, tensor.Int8, tensor.Int16, tensor.Int32, tensor.Int64, tensor.Float16, tensor.Float32, tensor.Float64, tensor.Complex32,
	tensor.Complex64, tensor.Complex128, tensor.Bool, tensor.BFloat16, tensor.Float8E5M2, tensor.Float8E4M3FN, tensor.Float8E5M2FNUZ,
	tensor.Float8E4M3FNUZ, tensor.Uint16, tensor.Uint32, tensor.Uint64,
}

func (v *values) newShape() []int {
	s := make([]int, pick(v, 0, 1, 2, 2, 2, 3, 3, 4, 4, 5))
	same := v.one(3) // square matrices and the like
	n := pick(v, 1, 2, 3, 4)
	for i := range s {
		s[i] = pick(v, 1, 2, 2, 3, 4, 5, 8)
		if same {
			s[i] = n
		}
		if v.one(15) {
			s[i] = 0
		}
	}
	return s
}

// like returns a shape that often fits the other arguments.
func (v *values) like() []int {
	s := slices.Clone(v.shape)
	switch v.IntN(14) {
	case 0:
		return v.newShape()
	case 1:
		if len(s) > 0 {
			s[v.IntN(len(s))] = pick(v, 0, 1, 2, 7)
		}
	case 2:
		if len(s) > 0 {
			return s[1:]
		}
	case 3:
		if len(s) > 0 {
			return s[:len(s)-1]
		}
	case 4:
		return append([]int{pick(v, 0, 1, 2, 3)}, s...)
	case 5:
		if n := len(s); n > 1 {
			s[n-1], s[n-2] = s[n-2], s[n-1]
		}
	case 6:
		if len(s) > 0 {
			return []int{s[min(1, len(s)-1)]} // channels
		}
	case 7:
		if len(s) > 0 {
			return []int{s[v.IntN(len(s))]}
		}
	case 8:
		return nil
	case 9:
		if len(s) > 1 { // a kernel
			s[0] = pick(v, 1, 2, 4)
			for i := 2; i < len(s); i++ {
				s[i] = pick(v, 1, 2, 3)
			}
		}
	}
	return s
}

// tensor makes a tensor for the argument with the given name.
func (v *values) tensor(a argument, i int) *tensor.Tensor {
	if v.last != nil && v.one(8) {
		return v.last
	}
	shape := v.like()
	if i == 0 {
		shape = slices.Clone(v.shape)
	}
	dtype := v.dtype
	index := strings.Contains(a.name, "ind") || strings.Contains(a.name, "offset") || strings.Contains(a.name, "target") || strings.Contains(a.name, "length") ||
		strings.Contains(a.name, "ptr")
	switch {
	case index && !v.one(6):
		dtype = pick(v, tensor.Int64, tensor.Int64, tensor.Int32)
	case strings.Contains(a.name, "mask") || a.name == "condition":
		dtype = pick(v, tensor.Bool, tensor.Bool, dtype)
	case v.one(8):
		dtype = pick(v, dtypes...)
	}
	t := v.fill(shape, dtype)
	if v.grad && (dtype.IsFloat() || dtype.IsComplex()) && v.one(2) {
		v.leaves = append(v.leaves, t.RequiresGrad_())
		if v.one(2) {
			t = t.Mul(1)
		}
	}
	if v.odd && v.one(2) {
		if o := v.relayout(t); o != nil && o.Err() == nil {
			t = o
		}
	}
	if t.Err() != nil {
		t = tensor.Ones(nil)
	}
	v.last = t
	return t
}

// fill makes a strided tensor.
func (v *values) fill(shape []int, dtype tensor.DType) *tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	kind := v.IntN(8)
	if dtype.IsFloat() || dtype.IsComplex() {
		data := make([]float64, n)
		for i := range data {
			switch kind {
			case 0, 1, 2, 3:
				data[i] = v.NormFloat64()
			case 4:
				data[i] = v.float()
			case 5:
				data[i] = float64(v.IntN(5))
			case 6:
				data[i] = v.Float64()
			case 7:
				data[i] = 0
			}
		}
		return tensor.FromSlice(data, shape).To(dtype)
	}
	data := make([]int, n)
	for i := range data {
		switch kind {
		case 0, 1, 2:
			data[i] = v.IntN(3)
		case 3:
			data[i] = i
		case 4:
			data[i] = v.int()
		case 5:
			data[i] = 0
		case 6:
			data[i] = pick(v, -1, 0, 1, 2, 100)
		case 7:
			data[i] = pick(v, math.MinInt, -1, math.MaxInt, math.MinInt32)
		}
	}
	return tensor.FromSlice(data, shape).To(dtype)
}

// made returns the result of an operator, or nil if it fails.
func (v *values) made(name string, args ...any) *tensor.Tensor {
	out, err := tensor.CallUnchecked(name, args...)
	if err != nil || len(out) == 0 {
		return nil
	}
	t, _ := out[0].(*tensor.Tensor)
	return t
}

const layouts = 29

// relayout returns t in another layout, possibly with another shape, or nil if it has none.
func (v *values) relayout(t *tensor.Tensor) *tensor.Tensor {
	dims, kind := len(t.Shape()), v.IntN(layouts)
	if !v.one(3) {
		kind = v.kinds[v.IntN(2)]
	}
	out := v.layout(t, dims, kind)
	if out != nil {
		v.layouts[out] = [...]string{"coo", "coo", "csr", "csc", "bsr", "bsc", "mkldnn", "mkldnn", "nested", "quantized", "quantized by channel", "conj", "neg", "zeros", "meta",
			"", "", "", "", "", "viewed", "coo", "compressed", "compressed", "csr", "mkldnn", "coo flagged", "coo", "compressed hybrid"}[kind]
	}
	return out
}

func (v *values) layout(t *tensor.Tensor, dims, kind int) *tensor.Tensor {
	switch kind {
	case 0:
		return v.made("aten::to_sparse", t)
	case 1:
		return v.made("aten::to_sparse.sparse_dim", t, v.IntN(dims+1))
	case 2:
		return v.made("aten::to_sparse_csr", t)
	case 3:
		return v.made("aten::to_sparse_csc", t)
	case 4:
		return v.made("aten::to_sparse_bsr", t, []int{pick(v, 1, 2), pick(v, 1, 2)})
	case 5:
		return v.made("aten::to_sparse_bsc", t, []int{pick(v, 1, 2), pick(v, 1, 2)})
	case 6, 7:
		return v.made("aten::to_mkldnn", t)
	case 8:
		return v.nested(t)
	case 9:
		return v.made("aten::quantize_per_tensor", t, pick(v, 0.1, 1.0, 0.0, math.NaN()), pick(v, 0, 1, 10), pick(v, 12, 13, 14, 16, 17))
	case 10:
		if dims == 0 {
			return nil
		}
		axis := v.IntN(dims)
		n := t.Shape()[axis]
		return v.made("aten::quantize_per_channel", t, tensor.Ones([]int{n}, tensor.Float64), tensor.Zeros([]int{n}, tensor.Int64), axis, pick(v, 12, 13))
	case 11:
		return v.made("aten::_conj", t)
	case 12:
		return v.made("aten::_neg_view", t)
	case 13:
		return v.made("aten::_efficientzerotensor", t.Shape(), int(t.DType()))
	case 14:
		return v.made("aten::to.device", t, tensor.Meta, int(t.DType()))
	case 15:
		return v.made("aten::contiguous", t, pick(v, 1, 2, 3))
	case 16:
		if dims > 0 {
			return t.Transpose(0, dims-1)
		}
	case 17:
		if dims > 0 {
			sizes := slices.Clone(t.Shape())
			axis := v.IntN(dims)
			sizes[axis] = 1
			return v.fill(sizes, t.DType()).Expand(t.Shape()...)
		}
	case 18:
		strides := make([]int, dims)
		for i := range strides {
			strides[i] = v.IntN(2)
		}
		return v.made("aten::as_strided", t, t.Shape(), strides)
	case 19:
		if dims > 0 {
			return v.made("aten::slice.Tensor", t, v.IntN(dims), nil, nil, 2)
		}
	case 20: // bits and 4-bit types
		return v.made("aten::view.dtype", t.Detach(), pick(v, 18, 19, 20, 21, 22, 30, 31, 37, 44, 45))
	case 21: // rows without elements
		return v.made("aten::sparse_coo_tensor.size", pick(v, t.Shape(), []int{2, 3}), int(tensor.Float32), 1)
	case 22: // compressed, with an empty batch
		return v.compressed(t, pick(v, []int{0}, []int{2, 0}, []int{0, 1}))
	case 23:
		return v.compressed(t, pick(v, nil, []int{2}, []int{1}))
	case 24: // compressed, without elements
		return v.made("aten::to_sparse_csr", tensor.Zeros(pick(v, []int{0, 0}, []int{2, 0}, []int{0, 3}, []int{2, 3}, []int{2, 0, 3}), t.DType()))
	case 25:
		return v.made("aten::to_mkldnn", tensor.Ones(pick(v, []int{0, 3}, []int{2, 3}, []int{3, 3}, []int{1, 2, 4, 4}, []int{0})))
	case 26:
		return v.made("aten::_coalesced_", v.made("aten::to_sparse", t), v.one(2))
	case 27: // not coalesced
		if s := v.made("aten::to_sparse", t.Detach()); s != nil {
			return v.made("aten::cat", []*tensor.Tensor{s, s}, 0)
		}
	case 28: // compressed, with a dense dimension
		if dims < 3 {
			t = tensor.Ones([]int{2, 3, 2}, t.DType())
		}
		switch v.IntN(4) {
		case 0:
			return v.made("aten::to_sparse_csr", t, 1)
		case 1:
			return v.made("aten::to_sparse_csc", t, 1)
		case 2:
			return v.made("aten::to_sparse_bsr", t, []int{1, 1}, 1)
		}
		return v.made("aten::to_sparse_bsc", t, []int{1, 1}, 1)
	}
	return nil
}

// compressed makes a sparse tensor with t's dtype and matrix, with a batch, with or without elements.
func (v *values) compressed(t *tensor.Tensor, batch []int) *tensor.Tensor {
	shape := t.Shape()
	if len(shape) < 2 {
		shape = []int{2, 4}
	}
	shape = append(slices.Clone(batch), shape[len(shape)-2:]...)
	if v.one(2) || slices.Contains(batch, 0) {
		return v.made("aten::zeros", shape, int(t.DType()), pick(v, 2, 4, 5, 6))
	}
	dense := tensor.Ones(shape, t.DType())
	switch v.IntN(4) {
	case 0:
		return v.made("aten::to_sparse_csr", dense)
	case 1:
		return v.made("aten::to_sparse_csc", dense)
	case 2:
		return v.made("aten::to_sparse_bsr", dense, []int{1, 2})
	}
	return v.made("aten::to_sparse_bsc", dense, []int{2, 1})
}

func (v *values) nested(t *tensor.Tensor) *tensor.Tensor {
	if v.one(3) {
		return v.made("aten::_nested_tensor_from_tensor_list", []*tensor.Tensor{t, t})
	}
	if v.one(4) {
		return v.made("aten::_nested_tensor_from_tensor_list", []*tensor.Tensor{})
	}
	return v.made("aten::_nested_tensor_from_tensor_list", []*tensor.Tensor{tensor.Ones([]int{2, 3}, t.DType()), tensor.Ones([]int{1, 3}, t.DType())})
}

func (v *values) float() float64 {
	return pick(v, 0, 1, 0.5, -1, 2, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 1e-300, math.SmallestNonzeroFloat64, 3, 0.1, 1e-5)
}

func (v *values) int() int {
	if v.one(6) {
		return pick(v, 1<<40, 1<<62, math.MaxInt, math.MinInt, -1<<40, math.MaxInt-1, math.MinInt+1, math.MaxInt32, math.MinInt32, 1<<31)
	}
	return pick(v, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 7, -1, -1, -2, -3)
}

func (v *values) ints(name string) []int {
	switch v.IntN(10) {
	case 0:
		return nil
	case 1:
		return slices.Repeat([]int{pick(v, 0, 1, -1, 1<<40, math.MaxInt)}, v.IntN(70))
	case 2:
		s := make([]int, v.IntN(6))
		for i := range s {
			s[i] = v.int()
		}
		return s
	case 3, 4:
		return v.like()
	case 5:
		return []int{v.IntN(5) - 2}
	}
	if strings.Contains(name, "size") || strings.Contains(name, "shape") {
		return v.like()
	}
	// An argument of a window has one number for each dimension.
	s := make([]int, max(1, min(3, len(v.shape)-pick(v, 1, 2))))
	for i := range s {
		s[i] = pick(v, 1, 1, 2, 3, 0)
		if v.one(12) {
			s[i] = v.int()
		}
	}
	return s
}

var texts = []string{
	"", "none", "mean", "sum", "trunc", "floor", "reflect", "constant", "linear", "xy", "ij", "\x00", "é\xff", strings.Repeat("x", 5000), "fro", "nuc", "amax", "prod",
	"max", "min", "tanh", "L", "U", "gelsd", "gelsy", "gesvd", "valid", "same", "left", "right", "replicate", "circular", "use_mm_for_euclid_dist", "ij,jk->ik", "...i->i", "ii",
	"i->", "forward", "ortho", "Full", "slow", "cpu", "\xff",
}

func (v *values) value(a argument, i int) any {
	typ := a.typ
	if v.one(60) {
		typ = pick(v, "Tensor", "int", "int[]", "float", "bool", "Scalar", "str", "Device", "Tensor[]")
	}
	if i > 0 && v.one(10) {
		return tensor.Default
	}
	if strings.HasSuffix(typ, "?") && v.one(3) {
		return nil
	}
	list := strings.Contains(typ, "[")
	kind := strings.TrimRight(typ, "?")
	kind, _, _ = strings.Cut(kind, "[")
	kind, _, _ = strings.Cut(strings.TrimRight(kind, "?"), "(")
	if list {
		n := pick(v, 0, 1, 1, 2, 2, 3, 4)
		switch kind {
		case "Tensor":
			ts := make([]*tensor.Tensor, n)
			for i := range ts {
				if !strings.Contains(typ, "?[") || !v.one(4) {
					ts[i] = v.tensor(a, i)
				}
			}
			return ts
		case "int", "SymInt":
			return v.ints(a.name)
		case "float", "Scalar":
			fs := make([]float64, n)
			for i := range fs {
				fs[i] = v.float()
			}
			return fs
		case "bool":
			bs := make([]bool, n)
			for i := range bs {
				bs[i] = v.one(2)
			}
			return bs
		}
		return nil
	}
	switch kind {
	case "Tensor":
		return v.tensor(a, i)
	case "int", "SymInt":
		if strings.Contains(a.name, "dtype") {
			return v.dtypeNumber()
		}
		return v.int()
	case "float":
		return v.float()
	case "bool":
		return v.one(2)
	case "Scalar":
		return pick[any](v, v.int(), v.float(), v.one(2), complex(v.float(), v.float()))
	case "str":
		return pick(v, texts...)
	case "ScalarType":
		return v.dtypeNumber()
	case "Device":
		return pick(v, tensor.CPU, tensor.CPU, tensor.Meta, tensor.CUDA(0))
	case "Layout":
		return pick(v, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, -1)
	case "MemoryFormat":
		return pick(v, 0, 1, 2, 3, 4, -1)
	case "Generator":
		return tensor.Default
	}
	return pick[any](v, tensor.Default, nil, 0, "")
}

func (v *values) dtypeNumber() any {
	if v.one(4) {
		return v.IntN(52) - 2
	}
	if v.one(2) {
		return int(v.dtype)
	}
	return int(pick(v, dtypes...))
}

// describe formats an argument.
func (v *values) describe(x any) string {
	switch x := x.(type) {
	case nil:
		return "None"
	case *tensor.Tensor:
		if x == nil {
			return "None"
		}
		return v.describeTensor(x)
	case []*tensor.Tensor:
		var all []string
		for _, t := range x {
			all = append(all, v.describe(t))
		}
		return "[" + strings.Join(all, ", ") + "]"
	case string:
		return fmt.Sprintf("%.20q", x)
	case []int:
		return fmt.Sprint(x[:min(len(x), 12)])
	}
	if x == tensor.Default {
		return "default"
	}
	return fmt.Sprint(x)
}

func (v *values) describeTensor(x *tensor.Tensor) string {
	if x.Err() != nil {
		return "failed"
	}
	text := x.DType().String() + fmt.Sprint(x.Shape())
	if x.RequiresGrad() {
		text += " grad"
	}
	if layout := v.layouts[x]; layout != "" {
		return layout + " " + text
	}
	text += "/" + fmt.Sprint(x.Stride())
	if offset := x.StorageOffset(); offset != 0 {
		text += fmt.Sprintf("+%d", offset)
	}
	if x.DType().Size() != 0 && x.Device() == tensor.CPU && x.Numel() <= 8 {
		text += strings.Join(strings.Fields(strings.TrimPrefix(x.String(), "tensor")), "")
	}
	return text
}
