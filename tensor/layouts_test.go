package tensor

// odd returns x in a layout other than strided or with unusual strides, or nil if x has no such form.
func (h *hostile) odd(x *Tensor) *Tensor {
	dims := len(x.Shape())
	name, args := "", []any{x}
	switch h.rng.IntN(15) {
	case 0:
		name = "aten::to_sparse"
	case 1:
		name = "aten::to_sparse_csr"
	case 2:
		name = "aten::to_sparse_csc"
	case 3:
		name, args = "aten::to_sparse_bsr", []any{x, []int{pick(h, 1, 2), pick(h, 1, 2)}}
	case 4:
		name, args = "aten::to_sparse_bsc", []any{x, []int{pick(h, 1, 2), pick(h, 1, 2)}}
	case 5, 6:
		name = "aten::to_mkldnn"
	case 7:
		name, args = "aten::_nested_tensor_from_tensor_list", []any{[]*Tensor{x, x}}
	case 8:
		name, args = "aten::quantize_per_tensor", []any{x, 0.1, 1, pick(h, 12, 13, 14)}
	case 9:
		name = "aten::_conj"
	case 10:
		name = "aten::_neg_view"
	case 11:
		name, args = "aten::_efficientzerotensor", []any{x.Shape(), int(x.DType())}
	case 12:
		name, args = "aten::as_strided", []any{x, x.Shape(), make([]int, dims)}
	case 13: // compressed, with an empty batch
		name, args = "aten::zeros", []any{[]int{0, 2, 3}, int(Float32), pick(h, 2, 4)}
	case 14: // compressed, with a dense dimension
		name, args = "aten::to_sparse_csr", []any{x, 1}
	}
	out, err := CallUnchecked(name, args...)
	if err != nil || len(out) == 0 {
		return nil
	}
	t, _ := out[0].(*Tensor)
	return t
}
