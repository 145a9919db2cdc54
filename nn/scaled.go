package nn

import (
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// A ScalingType is which elements of a matrix have a scale in common: all, those of a row, or those of a block of the given size.
// For the second factor of a product, a row is a column, and a block lies along the columns. PyTorch:
// torch.nn.functional.ScalingType.
type ScalingType int

const (
	TensorWise       ScalingType = iota // one scale for all elements
	RowWise                             // one for each row
	BlockWise1x16                       // one for each 16 elements of a row
	BlockWise1x32                       // one for each 32 elements of a row
	BlockWise1x128                      // one for each 128 elements of a row
	BlockWise128x128                    // one for each block of 128 rows and 128 columns
)

// A SwizzleType is the order of the scales of blocks in memory. PyTorch: torch.nn.functional.SwizzleType.
type SwizzleType int

const (
	NoSwizzle     SwizzleType = iota // that of the blocks
	Swizzle32x4x4                    // of CUDA's kernels with BlockWise1x16 and BlockWise1x32; PyTorch: SWIZZLE_32_4_4
	Swizzle32x8                      // PyTorch: SWIZZLE_32_8
)

// A Scaling is the scales of a matrix in low precision, whose values are its elements times their scales.
type Scaling struct {
	Scales  *tensor.Tensor // float32; float8_e8m0fnu or float8_e4m3fn for blocks of 32 or 16
	Type    ScalingType
	Swizzle SwizzleType
}

// ScaledMM returns the product of the values of a (m, k) and b (k, n), which are float8 or float4 and have the given scales: (m,
// n), in bfloat16. b lies in memory by columns, as the T of a contiguous (n, k) does. NVFP4 has two scalings, BlockWise1x16 and
// TensorWise; all others have one. The product has no derivative. Options: tensor.Bias of shape (n), and a tensor.DType of the
// result. PyTorch: torch.nn.functional.scaled_mm.
//
// The kernels decide which dtypes and scalings there are: on CUDA it depends on the compute capability; the CPU has TensorWise
// and RowWise of float8, from libtorch 2.12 on. For others the result is libtorch's error.
func ScaledMM(a, b *tensor.Tensor, scaleA, scaleB []Scaling, opts ...tensor.Option) *tensor.Tensor {
	const op = "ScaledMM"
	bias, out, err := productOptions(op, opts)
	if err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable(op, a, b); bad != nil {
		return bad
	}
	s, err := scalings(op, scaleA, scaleB)
	if err != nil {
		return tensor.Failed(err)
	}
	return call(op, "aten::_scaled_mm_v2", a, b, s[0], s[1], s[2], s[3], s[4], s[5], bias, out, []int{}, false)
}

// ScaledGroupedMM returns the products of groups as [GroupedMM] does, of matrices with scales as in [ScaledMM], in bfloat16. CUDA
// alone has kernels. It has no derivative. Options: tensor.Bias, and a tensor.DType of the result. PyTorch:
// torch.nn.functional.scaled_grouped_mm.
func ScaledGroupedMM(a, b, offs *tensor.Tensor, scaleA, scaleB []Scaling, opts ...tensor.Option) *tensor.Tensor {
	const op = "ScaledGroupedMM"
	bias, out, err := productOptions(op, opts)
	if err != nil {
		return tensor.Failed(err)
	}
	end, bad := groups(op, a, b, offs)
	if bad != nil {
		return bad
	}
	s, err := scalings(op, scaleA, scaleB)
	if err != nil {
		return tensor.Failed(err)
	}
	return call(op, "aten::_scaled_grouped_mm_v2", a, b, s[0], s[1], s[2], s[3], s[4], s[5], end, bias, out, []int{}, false)
}

// GroupedMM returns the products of groups, such as the tokens of each expert with its weights. offs (g), int32, are the ends of the
// groups in the dimension that they divide, or nil if none is divided:
//
//	a           b           result
//	(rows, k)   (g, k, n)   (rows, n)     the rows of a are divided
//	(m, k)      (k, n)      (g, m, n)     k is divided, as for the gradient of weights
//	(g, m, k)   (k, cols)   (m, cols)     the columns of b are divided
//	(g, m, k)   (g, k, n)   (g, m, n)     offs is nil
//
// a and b are bfloat16, float16 or float32; CUDA has bfloat16. Each row, or column, takes a multiple of 16 bytes. Elements of the
// result that belong to no group are undefined. On a CPU offs is checked; on CUDA the ends must increase and lie in the matrix.
// PyTorch: torch.nn.functional.grouped_mm, whose bias= libtorch refuses, and whose out_dtype= can only be the dtype of a.
func GroupedMM(a, b, offs *tensor.Tensor) *tensor.Tensor {
	end, bad := groups("GroupedMM", a, b, offs)
	if bad != nil {
		return bad
	}
	return call("GroupedMM", "aten::_grouped_mm", a, b, end, nil, nil)
}

// groups returns offs as an argument, or a failed tensor if the ends of the groups are not in the matrices.
func groups(op string, a, b, offs *tensor.Tensor) (end any, bad *tensor.Tensor) {
	if bad := firstUnusable(op, a, b); bad != nil {
		return nil, bad
	}
	if offs == nil {
		return nil, nil
	}
	if bad := firstUnusable(op, offs); bad != nil {
		return nil, bad
	}
	if offs.DType() != tensor.Int32 || offs.Dim() != 1 || a.Dim() < 2 || b.Dim() < 2 || offs.Device() != a.Device() {
		return nil, refuse.Tensor(op, tensor.ErrArgument, "matrices and offs of shape (g), int32, on one device are needed, got shapes %v and %v and offs of shape %v, %v, on %v",
			a.Shape(), b.Shape(), offs.Shape(), offs.DType(), offs.Device())
	}
	if offs.Device() != tensor.CPU {
		return offs, nil
	}
	size := a.Size(-1)
	switch {
	case a.Dim() == 2 && b.Dim() > 2:
		size = a.Size(0)
	case a.Dim() > 2:
		size = b.Size(-1)
	}
	ends, err := tensor.Data[int32](offs)
	if err != nil {
		return nil, tensor.Failed(err)
	}
	if !slices.IsSorted(ends) || len(ends) > 0 && (ends[0] < 0 || int(ends[len(ends)-1]) > size) {
		return nil, refuse.Tensor(op, tensor.ErrArgument, "offs must increase from 0 or more to at most %d, got %v", size, ends)
	}
	return offs, nil
}

// productOptions reads the options of a scaled product: the bias, or nil, and the dtype of the result.
func productOptions(op string, opts []tensor.Option) (bias any, out tensor.DType, err error) {
	out = tensor.BFloat16
	if err := acceptable(op, opts, []string{"Bias", "DType"}); err != nil {
		return nil, out, err
	}
	for _, o := range opts {
		switch _, value := tensor.OptionValue(o); v := value.(type) {
		case tensor.DType:
			out = v
		case *tensor.Tensor:
			if err := refuse.Unusable(op, "Bias", v); err != nil {
				return nil, out, err
			}
			bias = v
		}
	}
	return bias, out, nil
}

// scalings returns six arguments of an operator for the scalings of its two factors: of each the scales, types and swizzles.
func scalings(op string, a, b []Scaling) (args []any, err error) {
	for _, factor := range [][]Scaling{a, b} {
		var scales []*tensor.Tensor
		var types, swizzles []int
		for _, s := range factor {
			if err := refuse.Unusable(op, "scales", s.Scales); err != nil {
				return nil, err
			}
			if s.Type < TensorWise || s.Type > BlockWise128x128 || s.Swizzle < NoSwizzle || s.Swizzle > Swizzle32x8 {
				return nil, refuse.Error(op, tensor.ErrArgument, "there is no scaling of type %d with swizzle %d", s.Type, s.Swizzle)
			}
			scales, types, swizzles = append(scales, s.Scales), append(types, int(s.Type)), append(swizzles, int(s.Swizzle))
		}
		args = append(args, scales, types, swizzles)
	}
	return args, nil
}
