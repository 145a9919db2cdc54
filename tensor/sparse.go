package tensor

import "github.com/linstock-ml/linstock/internal/handle"

// SparseCOOTensor makes a sparse COO tensor of the given size. A column of indices (n, nnz) has the coordinates of a value
// in the first n dimensions. Values (nnz, *) has the sizes of the other, dense dimensions. Values with the same
// coordinates are added by Coalesce. Gradients reach values. Options: DType, to which values are converted; Device, to
// which indices and values are copied; PinMemory. PyTorch: torch.sparse_coo_tensor.
func SparseCOOTensor(indices, values *Tensor, size []int, opts ...Option) *Tensor {
	const op = "SparseCOOTensor"
	for _, t := range []*Tensor{indices, values} {
		if !handle.Usable(t) {
			return passOn(op, t)
		}
	}
	dtype, ofIndices, ofValues := values.DType(), indices.Device(), values.Device()
	pin := false
	for _, o := range opts {
		switch o := o.(type) {
		case DType:
			dtype = o
		case Device:
			ofIndices, ofValues = o, o
		default:
			k, _ := o.(kwarg)
			on, ok := k.val.(bool)
			if k.key != keyPinMemory || !ok {
				return failed(refused(op, ErrArgument, "accepts DType, Device and PinMemory, got %s", optionName(o)))
			}
			pin = on
		}
	}
	indices, values = indices.To(Int64, ofIndices), values.To(dtype, ofValues) // libtorch's operator does not convert
	defer func() { indices.Release(); values.Release() }()
	return callTensor(op, "aten::sparse_coo_tensor.indices_size", indices, values, size, Default, Default, Default, pin, Default)
}

// SparseCSRTensor makes a tensor (*, rows, columns) in compressed rows: crowIndices (*, rows+1) has the positions at
// which the values of each row begin, colIndices (*, nnz) their columns. Both are int32 or int64. Gradients reach
// values. Option: DType; the default is that of values. PyTorch: torch.sparse_csr_tensor.
func SparseCSRTensor(crowIndices, colIndices, values *Tensor, size []int, opts ...Option) *Tensor {
	return compressed("SparseCSRTensor", SparseCSR, crowIndices, colIndices, values, size, opts)
}

// SparseCSCTensor is SparseCSRTensor with compressed columns: ccolIndices (*, columns+1) and rowIndices (*, nnz). PyTorch:
// torch.sparse_csc_tensor.
func SparseCSCTensor(ccolIndices, rowIndices, values *Tensor, size []int, opts ...Option) *Tensor {
	return compressed("SparseCSCTensor", SparseCSC, ccolIndices, rowIndices, values, size, opts)
}

// SparseBSRTensor is SparseCSRTensor with blocks in place of single values: values has shape (*, nnz, height, width), and rows
// and columns are counted in blocks. PyTorch: torch.sparse_bsr_tensor.
func SparseBSRTensor(crowIndices, colIndices, values *Tensor, size []int, opts ...Option) *Tensor {
	return compressed("SparseBSRTensor", SparseBSR, crowIndices, colIndices, values, size, opts)
}

// SparseBSCTensor is SparseCSCTensor with blocks in place of single values. PyTorch: torch.sparse_bsc_tensor.
func SparseBSCTensor(ccolIndices, rowIndices, values *Tensor, size []int, opts ...Option) *Tensor {
	return compressed("SparseBSCTensor", SparseBSC, ccolIndices, rowIndices, values, size, opts)
}

var opNNZ = op{name: "aten::_nnz", goName: "NNZ", args: opSparseDim.args}

// NNZ returns the number of values that a sparse x stores: elements, or blocks of the layouts with blocks, in each matrix
// of a batch. COO that is not coalesced may have several for one element. PyTorch: torch.Tensor._nnz.
func (t *Tensor) NNZ() (int, error) {
	var c call
	c.begin(&opNNZ)
	c.tensor(0, t)
	return c.integer()
}

// compressed calls the operator of all compressed layouts: those of a single one, such as aten::sparse_csr_tensor, have no
// derivative, and their results do not require gradients.
func compressed(op string, layout Layout, pointers, indices, values *Tensor, size []int, opts []Option) *Tensor {
	for _, t := range []*Tensor{pointers, indices, values} {
		if !handle.Usable(t) {
			return passOn(op, t)
		}
	}
	dtype := values.DType()
	for _, o := range opts {
		d, ok := o.(DType)
		if !ok {
			return failed(refused(op, ErrArgument, "accepts a DType, got %s", optionName(o)))
		}
		dtype = d
	}
	if dtype != values.DType() { // libtorch's operator does not convert
		values = values.To(dtype)
		defer values.Release()
	}
	return callTensor(op, "aten::sparse_compressed_tensor.comp_plain_value_size", pointers, indices, values, size, dtype, layout, values.Device(), Default)
}

// SparseSum sums a sparse COO t over dimensions, or all of it if none is given. The result is sparse if a sparse dimension is
// left. PyTorch: torch.sparse.sum.
func (t *Tensor) SparseSum(dims ...int) *Tensor {
	const op = "SparseSum"
	if !t.pin() {
		return passOn(op, t)
	}
	name, args := "aten::_sparse_sum", []any{t}
	if len(dims) != 0 {
		name, args = "aten::_sparse_sum.dim", append(args, dims)
	}
	sum := callTensor(op, name, args...)
	t.unpin()
	return sum
}
