package tensor

import (
	"fmt"
	"unsafe"
)

// DType is the type of a tensor's elements. A DType is also the option dtype= of operators. PyTorch: torch.dtype.
type DType int8

// The dtypes. The values are libtorch's.
const (
	Uint8          DType = 0
	Int8           DType = 1
	Int16          DType = 2
	Int32          DType = 3
	Int64          DType = 4
	Float16        DType = 5
	Float32        DType = 6
	Float64        DType = 7
	Complex32      DType = 8 // complex number of two float16; few operators support it
	Complex64      DType = 9
	Complex128     DType = 10
	Bool           DType = 11
	BFloat16       DType = 15
	Float8E5M2     DType = 23 // a number beyond its largest, 57,344, becomes an infinity
	Float8E4M3FN   DType = 24 // a number beyond its largest, 448, becomes 448; before libtorch 2.13 NaN
	Float8E5M2FNUZ DType = 25 // a number beyond its largest, 57,344, becomes NaN
	Float8E4M3FNUZ DType = 26 // a number beyond its largest, 240, becomes NaN
	Uint16         DType = 27
	Uint32         DType = 28
	Uint64         DType = 29

	// Invalid is the dtype of a failed tensor.
	Invalid DType = -1
)

var dtypes = map[DType]struct {
	name string
	size int
}{
	Uint8: {"uint8", 1}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4}, Int64: {"int64", 8},
	Float16: {"float16", 2}, Float32: {"float32", 4}, Float64: {"float64", 8},
	Complex32: {"complex32", 4}, Complex64: {"complex64", 8}, Complex128: {"complex128", 16}, Bool: {"bool", 1},
	BFloat16: {"bfloat16", 2}, Float8E5M2: {"float8_e5m2", 1}, Float8E4M3FN: {"float8_e4m3fn", 1},
	Float8E5M2FNUZ: {"float8_e5m2fnuz", 1}, Float8E4M3FNUZ: {"float8_e4m3fnuz", 1},
	Uint16: {"uint16", 2}, Uint32: {"uint32", 4}, Uint64: {"uint64", 8},
}

// String returns PyTorch's name without "torch.", such as "float32".
func (d DType) String() string {
	if s, ok := dtypes[d]; ok {
		return s.name
	}
	if s, ok := quantised[d]; ok {
		return s
	}
	if s, ok := foreign[d]; ok {
		return s
	}
	if d == Invalid {
		return "invalid (the dtype of a failed tensor)"
	}
	return fmt.Sprintf("dtype(%d)", int8(d))
}

// quantised holds the names of libtorch's quantized dtypes. Linstock makes no such tensors, but Call may return some.
var quantised = map[DType]string{12: "qint8", 13: "quint8", 14: "qint32", 16: "quint4x2", 17: "quint2x4"}

// foreign holds the names of libtorch's other dtypes of which Linstock makes no tensors, but Call may return some.
var foreign = map[DType]string{
	18: "bits1x8", 19: "bits2x4", 20: "bits4x2", 21: "bits8", 22: "bits16", float8E8M0FNU: "float8_e8m0fnu", 45: "float4_e2m1fn_x2",
	bComplex32: "bcomplex32",
}

const (
	float8E8M0FNU DType = 44
	bComplex32    DType = 46 // complex number of two bfloat16, since libtorch 2.14
)

// Size returns the size of an element in bytes, or 0 for a dtype that Linstock does not know.
func (d DType) Size() int { return dtypes[d].size }

// IsFloat reports whether d is a floating-point dtype. Complex dtypes are not.
func (d DType) IsFloat() bool {
	switch d {
	case Float16, Float32, Float64, BFloat16, Float8E5M2, Float8E4M3FN, Float8E5M2FNUZ, Float8E4M3FNUZ:
		return true
	}
	return false
}

// IsComplex reports whether d is a complex dtype.
func (d DType) IsComplex() bool {
	return d == Complex64 || d == Complex128 || d == Complex32 || d == bComplex32
}

// ParseDType returns the dtype with PyTorch's name, such as "float32" or "torch.float32". The error is ErrArgument.
func ParseDType(name string) (DType, error) {
	if len(name) > 6 && name[:6] == "torch." {
		name = name[6:]
	}
	if name == "chalf" { // PyTorch's other name
		return Complex32, nil
	}
	for d, s := range dtypes {
		if s.name == name {
			return d, nil
		}
	}
	return Invalid, &Error{Op: "dtype", Message: fmt.Sprintf("unknown dtype %q", name), Kind: ErrArgument}
}

// MarshalText returns the dtype's name, for JSON, logs and flags.
func (d DType) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText sets d to the dtype with a name, as [ParseDType] does.
func (d *DType) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDType(string(text))
	return err
}

// Floating-point types that Go does not have, as their bits. Tensor.To converts between them and other dtypes:
// t.To(tensor.BFloat16), t.To(tensor.Float32).
type (
	Float16Bits        uint16
	BFloat16Bits       uint16
	Float8E5M2Bits     uint8
	Float8E4M3FNBits   uint8
	Float8E5M2FNUZBits uint8
	Float8E4M3FNUZBits uint8
)

// Element is the constraint for the elements of slices that are converted to and from tensors. An int is stored as
// int64.
type Element interface {
	bool | uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | int | float32 | float64 |
		complex64 | complex128 | Float16Bits | BFloat16Bits | Float8E5M2Bits | Float8E4M3FNBits |
		Float8E5M2FNUZBits | Float8E4M3FNUZBits
}

// DTypeOf returns the dtype of a tensor with elements of type T.
func DTypeOf[T Element]() DType {
	var z T
	switch any(z).(type) {
	case bool:
		return Bool
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case int:
		if unsafe.Sizeof(z) == 4 {
			return Int32
		}
		return Int64
	case float32:
		return Float32
	case float64:
		return Float64
	case complex64:
		return Complex64
	case complex128:
		return Complex128
	case Float16Bits:
		return Float16
	case BFloat16Bits:
		return BFloat16
	case Float8E5M2Bits:
		return Float8E5M2
	case Float8E4M3FNBits:
		return Float8E4M3FN
	case Float8E5M2FNUZBits:
		return Float8E5M2FNUZ
	case Float8E4M3FNUZBits:
		return Float8E4M3FNUZ
	}
	return Invalid
}

// Reduction selects how a loss is reduced. It is the option reduction=.
type Reduction int8

// The reductions.
const (
	ReduceNone Reduction = 0
	ReduceMean Reduction = 1
	ReduceSum  Reduction = 2
)

// String returns PyTorch's name: "none", "mean" or "sum".
func (r Reduction) String() string {
	switch r {
	case ReduceNone:
		return "none"
	case ReduceMean:
		return "mean"
	case ReduceSum:
		return "sum"
	}
	return fmt.Sprintf("reduction(%d)", int8(r))
}
