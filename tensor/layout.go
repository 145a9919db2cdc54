package tensor

import "fmt"

// Layout is how a tensor's elements are stored, and the option layout= of operators that make tensors. PyTorch:
// torch.layout.
type Layout int8

// The layouts. The values are libtorch's.
const (
	Strided   Layout = 0 // a dense array with strides; the default
	SparseCOO Layout = 1 // coordinates and values
	SparseCSR Layout = 2 // compressed rows
	MKLDNN    Layout = 3 // oneDNN's blocks
	SparseCSC Layout = 4 // compressed columns
	SparseBSR Layout = 5 // compressed rows of blocks
	SparseBSC Layout = 6 // compressed columns of blocks
)

// layoutNested is torch.jagged, the layout of nested tensors, which no option selects.
const layoutNested Layout = 7

var layoutNames = [...]string{"strided", "sparse_coo", "sparse_csr", "_mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc"}

// String returns PyTorch's name without "torch.", such as "sparse_coo".
func (l Layout) String() string {
	if l >= 0 && int(l) < len(layoutNames) {
		return layoutNames[l]
	}
	return fmt.Sprintf("layout(%d)", int8(l))
}

// MemoryFormat is the order of a dense tensor's dimensions in memory, and the option memory_format= of operators that make
// or copy tensors. PyTorch: torch.memory_format.
type MemoryFormat int8

// The memory formats. The values are libtorch's.
const (
	ContiguousFormat MemoryFormat = 0 // row-major
	PreserveFormat   MemoryFormat = 1 // the strides of the tensor that is copied, if it is dense
	ChannelsLast     MemoryFormat = 2 // (N, C, H, W) stored as (N, H, W, C)
	ChannelsLast3d   MemoryFormat = 3 // (N, C, D, H, W) stored as (N, D, H, W, C)
)

var memoryFormats = [...]string{"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}

// String returns PyTorch's name without "torch.", such as "channels_last".
func (f MemoryFormat) String() string {
	if f >= 0 && int(f) < len(memoryFormats) {
		return memoryFormats[f]
	}
	return fmt.Sprintf("memory_format(%d)", int8(f))
}
