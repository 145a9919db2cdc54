package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/testdevice"
)

// FromSlice makes a tensor from a copy of data, in row-major order. A nil shape means one dimension of len(data); an
// empty one, such as a scalar's Shape, none. The dtype is that of T and the device is the CPU, unless there is a DType or
// Device option. Elements are converted as by To, which wraps integers and drops fractions. PyTorch: torch.tensor, of an
// array.
func FromSlice[T Element](data []T, shape []int, opts ...Option) *Tensor {
	if err := cshim.Load(); err != nil {
		return &Tensor{fail: &failure{err: err}}
	}
	if shape == nil {
		shape = []int{len(data)}
	}
	if n, ok := numel(shape); !ok || n != len(data) {
		return failed(refused("FromSlice", ErrArgument, "shape %v does not hold %d elements", shape, len(data)))
	}
	var z T
	r := cshim.TensorFromData(int32(DTypeOf[T]()), shape, unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(z)))
	t := wrapResult("FromSlice", r)
	if testdevice.On && testDevice() != CPU {
		opts = append([]Option{testDevice()}, opts...)
	}
	if len(opts) == 0 || t.fail != nil {
		return t
	}
	moved := t.To(opts...)
	t.Release()
	return attributed("FromSlice", moved)
}

// FromScalar makes a tensor without dimensions from a Go number. Its dtype is the default dtype (float32) for floats,
// int64 for ints, bool for bools and complex64 for complex numbers, unless there is a DType option. With a default
// dtype of float64 complex numbers are complex128, and with float16 complex32. A float beyond the range of a
// floating-point dtype becomes an infinity, or what the dtype's constant documents. PyTorch: torch.tensor(3.5).
func FromScalar(value any, opts ...Option) *Tensor {
	first, second, n := encodeNumber(value)
	d := Invalid
	switch {
	case n == 0:
		return failed(refused("FromScalar", ErrArgument, "value must be a number, not %s", typeName(value)))
	case first.Tag == cshim.TagInt, first.Tag == cshim.TagUint:
		d = Int64
	case first.Tag == cshim.TagBool:
		d = Bool
	case first.Tag == cshim.TagComplex && DefaultDType() == Float64:
		d = Complex128
	case first.Tag == cshim.TagComplex && DefaultDType() == Float16:
		d = Complex32
	case first.Tag == cshim.TagComplex:
		d = Complex64
	}
	if d != Invalid {
		// Before the caller's options: if an option is given twice, the last one counts.
		opts = append([]Option{d}, opts...)
	}
	to, on := DefaultDType(), CPU
	for _, o := range opts {
		switch o := o.(type) {
		case DType:
			to = o
		case Device:
			on = o
		}
	}
	if to == Uint64 && first.Tag != cshim.TagUint && (first.Tag != cshim.TagInt || int64(first.Bits) < 0) && first.Tag != cshim.TagBool {
		return failed(refused("FromScalar", ErrArgument, "%v is not a uint64", value)) // libtorch would convert it
	}
	switch {
	case to == Complex32 && n > 0: // no kernel converts numbers beyond its range
		x := FromScalar(value, Complex64)
		defer x.Release()
		y := x.To(Complex32)
		defer y.Release()
		if rounded, err := Item[complex128](y); err == nil {
			value = rounded
		}
	case to.IsFloat() && to.Size() < Float32.Size() && on.Type != CPUType && n == 1:
		// Only the CPU's kernels convert numbers beyond the range of small dtypes.
		x := ScalarTensor(value, to)
		defer x.Release()
		if rounded, err := x.Item(); err == nil {
			value = rounded
		}
	case n == 2 && (beyondFloat32(first) || beyondFloat32(second)), first.Tag == cshim.TagFloat && beyondFloat32(first):
		value = narrowed(value, first, second, n, to)
	}
	return attributed("FromScalar", ScalarTensor(value, opts...))
}

func beyondFloat32(v cshim.Value) bool {
	return math.Abs(math.Float64frombits(v.Bits)) > math.MaxFloat32
}

// narrowed returns a float or complex number as one of float32 or complex64 if it becomes a tensor of that dtype:
// ScalarTensor refuses numbers that float32 cannot represent.
func narrowed(value any, first, second cshim.Value, n int, to DType) any {
	part := func(v cshim.Value) float32 { return float32(math.Float64frombits(v.Bits)) }
	switch {
	case n == 2 && to == Complex64:
		return complex(part(first), part(second))
	case n == 1 && to == Complex64:
		return complex(part(first), 0)
	case n == 1 && to == Float32:
		return part(first)
	}
	return value
}

func numel(shape []int) (int, bool) {
	n := 1
	for _, s := range shape {
		if s < 0 || s != 0 && n > math.MaxInt/s {
			return 0, false
		}
		n *= s
	}
	return n, true
}

// Data returns a copy of t's elements in row-major order. T must match t's dtype; use To to convert t first. If they
// take more bytes than the machine has, the error is ErrOutOfMemory.
// PyTorch: Tensor.tolist, Tensor.numpy.
func Data[T Element](t *Tensor) ([]T, error) {
	return appendData[T]("Data", nil, t)
}

// AppendData appends what [Data] returns to dst and returns the extended slice. A loop that passes the slice's previous
// value as dst[:0] reads each tensor into the same memory. After an error it returns dst.
func AppendData[T Element](dst []T, t *Tensor) ([]T, error) {
	return appendData("AppendData", dst, t)
}

func appendData[T Element](op string, dst []T, t *Tensor) ([]T, error) {
	var m cshim.Meta
	if err := t.meta(op, &m); err != nil {
		return dst, err
	}
	want := DTypeOf[T]()
	if DType(m.DType) != want {
		return dst, refused(op, ErrArgument, "the tensor's dtype is %v, not %v; convert with To(tensor.%s) first", DType(m.DType), want, goDType(want))
	}
	if Layout(m.Layout) == layoutNested {
		return dst, refused(op, ErrArgument, "a nested tensor has no rows and columns; Unbind gives its tensors")
	}
	if l := Layout(m.Layout); l != Strided {
		return dst, refused(op, ErrArgument, "the elements of a %v tensor are not in rows and columns; convert it with ToDense first", l)
	}
	if deviceOf(&m).Type == MetaType {
		return dst, refused(op, ErrArgument, "a tensor on the meta device has no elements")
	}
	all, err := grow(op, dst, m.Numel)
	if err != nil {
		return dst, err
	}
	data := all[len(dst):]
	var z T
	err = t.use(op, func(h cshim.Handle) error {
		return newError(op, asError(cshim.TensorCopyOut(h, int32(want), unsafe.Pointer(unsafe.SliceData(data)), len(data)*int(unsafe.Sizeof(z)))), t)
	})
	if err != nil {
		return dst, err
	}
	if want == Bool {
		toBools(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), len(data)))
	}
	return all, nil
}

// toBools makes the bytes of a tensor, which may be other than 0 and 1, those of Go's bools.
func toBools(bytes []byte) {
	const bits = 0x0101010101010101 // those that eight bools may have
	for i := 0; i < len(bytes); {
		if i+8 <= len(bytes) && binary.NativeEndian.Uint64(bytes[i:])&^bits == 0 {
			i += 8
			continue
		}
		bytes[i] = min(bytes[i], 1)
		i++
	}
}

// grow extends dst by n elements. Those of an expanded tensor may not fit in memory. Go ends the process if there is no
// memory for a slice.
func grow[T Element](op string, dst []T, n int64) ([]T, error) {
	var z T
	if dst != nil && n <= int64(cap(dst)-len(dst)) {
		return dst[:len(dst)+int(n)], nil
	}
	bytes, memory := int64(math.MaxInt64), int64(0)
	if size := int64(unsafe.Sizeof(z)); n <= math.MaxInt64/size-int64(len(dst)) {
		bytes = (int64(len(dst)) + n) * size
	}
	if bytes > 1<<30 {
		memory = reclaim.MachineMemory()
	}
	if bytes > 1<<46 || memory > 0 && bytes > memory {
		return nil, newError(op, &cshim.Error{Code: cshim.CodeOutOfMemory, Bytes: bytes, Device: cpuWord,
			Message: fmt.Sprintf("out of memory: %d elements of %T take %d bytes, more than the machine has", n, z, bytes)})
	}
	if len(dst) == 0 {
		return make([]T, n), nil
	}
	return append(dst, make([]T, n)...), nil
}

func goDType(d DType) string {
	names := map[DType]string{Uint8: "Uint8", Int8: "Int8", Int16: "Int16", Int32: "Int32", Int64: "Int64", Float16: "Float16", Float32: "Float32",
		Float64: "Float64", Complex64: "Complex64", Complex128: "Complex128", Bool: "Bool", BFloat16: "BFloat16", Uint16: "Uint16", Uint32: "Uint32", Uint64: "Uint64",
		Complex32: "Complex32", Float8E5M2: "Float8E5M2", Float8E4M3FN: "Float8E4M3FN", Float8E5M2FNUZ: "Float8E5M2FNUZ", Float8E4M3FNUZ: "Float8E4M3FNUZ"}
	if n, ok := names[d]; ok {
		return n
	}
	return "Invalid"
}

// Number is the constraint for the result of [Item].
type Number interface {
	bool | int | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64 | complex64 | complex128
}

// Item returns the value of a tensor with one element, like Python's item(). A complex T accepts all dtypes, a float T all
// but complex ones, an integer T integers and bools, and a bool T only bools. A value beyond T's range is an error. A float
// T rounds.
func Item[T Number](t *Tensor) (T, error) {
	var z T
	v, err := t.item()
	if err != nil {
		return z, err
	}
	lossy := func() (T, error) {
		takes, convert := taken[T](v), ""
		if takes == "" {
			return z, refused("Item", ErrArgument, "%v does not fit %s", v, typeName(z))
		}
		if _, ok := v.(complex128); !ok { // To would drop the imaginary part
			convert = fmt.Sprintf(", or convert with To(tensor.%s) first", goDType(DTypeOf[T]()))
		}
		return z, refused("Item", ErrArgument, "the tensor is %v, and %s takes %s: use Item[%T]%s", t.DType(), typeName(z), takes, v, convert)
	}
	out, ok := any(nil), true
	switch any(z).(type) {
	case bool:
		out, ok = v.(bool)
	case float64:
		out, ok = toFloat(v)
	case float32:
		var f float64
		f, ok = toFloat(v)
		ok = ok && fitsFloat32(f)
		out = float32(f)
	case complex128:
		out, ok = toComplex(v)
	case complex64:
		var c complex128
		c, ok = toComplex(v)
		ok = ok && fitsFloat32(real(c)) && fitsFloat32(imag(c))
		out = complex64(c)
	default:
		return itemInt[T](v, lossy)
	}
	if !ok {
		return lossy()
	}
	return out.(T), nil
}

// taken returns what a T takes, for an error about v, which Item could not convert; it is "" if v is of that kind.
func taken[T Number](v any) string {
	_, isFloat := v.(float64)
	_, isComplex := v.(complex128)
	var z T
	switch any(z).(type) {
	case bool:
		return "only bools"
	case float32, float64:
		if isComplex {
			return "no complex numbers"
		}
	case complex64, complex128:
	default:
		if isFloat || isComplex {
			return "only integers and bools"
		}
	}
	return ""
}

// fitsFloat32 reports whether f is finite as a float32 or not finite at all.
func fitsFloat32(f float64) bool { return !math.IsInf(float64(float32(f)), 0) || math.IsInf(f, 0) }

func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case bool:
		return float64(bit(v)), true
	}
	return 0, false
}

func toComplex(v any) (complex128, bool) {
	if c, ok := v.(complex128); ok {
		return c, true
	}
	f, ok := toFloat(v)
	return complex(f, 0), ok
}

func itemInt[T Number](v any, lossy func() (T, error)) (T, error) {
	var i int64
	switch v := v.(type) {
	case int64:
		i = v
	case bool:
		i = int64(bit(v))
	case uint64: // above MaxInt64
		var z T
		if _, is := any(z).(uint64); is {
			return any(v).(T), nil
		}
		return lossy()
	default:
		return lossy()
	}
	var out any
	fits := true
	var z T
	switch any(z).(type) {
	case int:
		out, fits = int(i), int64(int(i)) == i
	case int8:
		out, fits = int8(i), int64(int8(i)) == i
	case int16:
		out, fits = int16(i), int64(int16(i)) == i
	case int32:
		out, fits = int32(i), int64(int32(i)) == i
	case int64:
		out = i
	case uint8:
		out, fits = uint8(i), int64(uint8(i)) == i
	case uint16:
		out, fits = uint16(i), int64(uint16(i)) == i
	case uint32:
		out, fits = uint32(i), int64(uint32(i)) == i
	case uint64:
		out, fits = uint64(i), i >= 0
	}
	if !fits || out == nil {
		return lossy()
	}
	return out.(T), nil
}

// item returns the only element: an int64, uint64, float64, bool or complex128.
func (t *Tensor) item() (any, error) {
	var out [2]cshim.Value
	err := t.use("Item", func(h cshim.Handle) error {
		return newError("Item", asError(cshim.TensorItem(h, &out)), t)
	})
	if err != nil {
		return nil, err
	}
	switch out[0].Tag {
	case cshim.TagInt:
		return int64(out[0].Bits), nil
	case cshim.TagUint:
		return out[0].Bits, nil
	case cshim.TagBool:
		return out[0].Bits != 0, nil
	case cshim.TagComplex:
		return complex(math.Float64frombits(out[0].Bits), math.Float64frombits(out[1].Bits)), nil
	}
	return math.Float64frombits(out[0].Bits), nil
}

// Item returns the value of a tensor with one element as a float64, to which integers beyond 2^53 are rounded. The generic
// function [Item] returns other types: tensor.Item[int64](t) returns every int64 exactly. PyTorch: Tensor.item.
func (t *Tensor) Item() (float64, error) { return Item[float64](t) }

// FromMapped makes a CPU tensor over memory that is not Go's, such as a file mapping. drop runs once no tensor uses
// the memory: on any goroutine that closes a scope or calls Backward, Flush or [vram.Collect], or within seconds on
// one of its own, where a panic is recovered. It must not lock a mutex that a goroutine may hold during such a call.
// drop may be nil.
func FromMapped(dtype DType, shape []int, data []byte, drop func()) *Tensor {
	if drop == nil {
		drop = func() {}
	}
	if err := cshim.Load(); err != nil {
		drop()
		return &Tensor{fail: &failure{err: err}}
	}
	n, ok := numel(shape)
	if size := dtype.Size(); !ok || size == 0 || len(data)%size != 0 || n != len(data)/size {
		drop()
		return failed(refused("FromMapped", ErrArgument, "%v%v does not hold %d bytes", dtype, shape, len(data)))
	}
	if len(data) > 0 && uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(max(1, min(dtype.Size(), 8))) != 0 {
		drop()
		return failed(refused("FromMapped", ErrArgument, "the data is not aligned for %v", dtype))
	}
	id := keepAlive(drop)
	r := cshim.TensorFromBlob(int32(dtype), shape, unsafe.Pointer(unsafe.SliceData(data)), len(data), id)
	if r.Err != nil {
		// If the native tensor existed before the failure, a thread may have found its id among those that were dropped.
		if _, ours := takeNative(id); ours {
			drop()
		}
	}
	return wrapResult("FromMapped", r)
}
