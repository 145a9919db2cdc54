package cshim

/*
#cgo noescape lsc_tensor_free
#cgo nocallback lsc_tensor_free
#cgo noescape lsc_tensors_free
#cgo nocallback lsc_tensors_free
#cgo noescape lsc_tensor_from_data
#cgo nocallback lsc_tensor_from_data
#cgo noescape lsc_tensor_from_blob
#cgo nocallback lsc_tensor_from_blob
#cgo noescape lsc_tensor_copy_out
#cgo nocallback lsc_tensor_copy_out
#cgo noescape lsc_tensor_item
#cgo nocallback lsc_tensor_item
#cgo noescape lsc_tensor_meta
#cgo nocallback lsc_tensor_meta
#cgo noescape lsc_tensor_sizes
#cgo nocallback lsc_tensor_sizes
#cgo noescape lsc_tensor_alias
#cgo nocallback lsc_tensor_alias
#cgo noescape lsc_tensor_to
#cgo nocallback lsc_tensor_to
#cgo noescape lsc_op_find
#cgo nocallback lsc_op_find
#cgo noescape lsc_op_schema
#cgo nocallback lsc_op_schema
#cgo noescape lsc_op_names
#cgo nocallback lsc_op_names
#cgo noescape lsc_op_call
#cgo nocallback lsc_op_call
#cgo noescape lsc_spill_free
#cgo nocallback lsc_spill_free
#cgo noescape lsc_object_free
#cgo nocallback lsc_object_free
#cgo noescape lsc_object_class
#cgo nocallback lsc_object_class
#cgo noescape lsc_torch_config
#cgo nocallback lsc_torch_config
#include <stdlib.h>
#include "table_gen.h"

*/
import "C"

import "unsafe"

func takeError(e *C.ls_error) error {
	// A typed nil must not become a non-nil error.
	if err := Take(e); err != nil {
		return err
	}
	return nil
}

// native converts a handle to C. This may be the last use of the handle's owner, which only a pin then keeps
// alive.
func native(h Handle) C.ls_tensor {
	reading()
	return C.ls_tensor(h)
}

// handles is native for a list.
func handles(h []Handle) *C.ls_tensor {
	reading()
	return outs(h)
}

// outs converts a list of handles that have no owner yet, or no longer.
func outs(h []Handle) *C.ls_tensor { return (*C.ls_tensor)(unsafe.Pointer(unsafe.SliceData(h))) }

// TensorFree frees a handle.
func TensorFree(h Handle) { C.lsc_tensor_free(C.ls_tensor(h)) }

// TensorsFree frees handles in one call; zeros are skipped.
func TensorsFree(h []Handle) {
	if len(h) != 0 {
		C.lsc_tensors_free(outs(h), C.uint64_t(len(h)))
	}
}

// TensorFromData makes a CPU tensor from a copy of nbytes at data.
func TensorFromData(dtype int32, shape []int, data unsafe.Pointer, nbytes int) Result {
	c := enter()
	r := result(C.lsc_tensor_from_data(C.int32_t(dtype), dims(shape), C.uint64_t(len(shape)), data, C.uint64_t(nbytes)))
	c.leave()
	return r
}

// TensorFromBlob makes a CPU tensor over memory that is not Go's. The memory must stay valid until TakeDropped
// returns id.
func TensorFromBlob(dtype int32, shape []int, data unsafe.Pointer, nbytes int, id uint64) Result {
	return result(C.lsc_tensor_from_blob(C.int32_t(dtype), dims(shape), C.uint64_t(len(shape)), data, C.uint64_t(nbytes), nil, C.uint64_t(id)))
}

func dims(shape []int) *C.int64_t { return (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(shape))) }

// TensorCopyOut copies the elements, in row-major order, to nbytes at dst.
func TensorCopyOut(h Handle, dtype int32, dst unsafe.Pointer, nbytes int) ErrorRef {
	c := enter()
	err := C.lsc_tensor_copy_out(native(h), C.int32_t(dtype), dst, C.uint64_t(nbytes))
	c.leave()
	return err
}

// TensorItem writes the tensor's only element to out; a complex one uses out[1] too.
func TensorItem(h Handle, out *[2]Value) ErrorRef {
	c := enter()
	err := C.lsc_tensor_item(native(h), (*C.ls_value)(unsafe.Pointer(out)))
	c.leave()
	return err
}

// Meta is ls_meta.
type Meta struct {
	Numel, Offset                                   int64
	Data, Bytes                                     uint64
	Version                                         int64
	NDim                                            int32
	DType                                           int16
	DeviceType, DeviceIndex                         int8
	RequiresGrad, IsLeaf, IsContiguous, IsInference bool
	Layout                                          uint8
	IsConj, IsNeg, IsView                           bool
	Counted                                         bool // the device's account has the bytes
	Sizes, Strides                                  [C.LS_META_DIMS]int64
}

var _ [unsafe.Sizeof(C.ls_meta{})]byte = [unsafe.Sizeof(Meta{})]byte{}

// TensorMeta fills m.
func TensorMeta(h Handle, m *Meta) ErrorRef {
	return C.lsc_tensor_meta(native(h), (*C.ls_meta)(unsafe.Pointer(m)))
}

// TensorSizes fills sizes and strides, which have the same length.
func TensorSizes(h Handle, sizes, strides []int64) ErrorRef {
	return C.lsc_tensor_sizes(native(h), (*C.int64_t)(unsafe.Pointer(unsafe.SliceData(sizes))),
		(*C.int64_t)(unsafe.Pointer(unsafe.SliceData(strides))), C.uint64_t(len(sizes)))
}

// TensorAlias returns a second handle to the same tensor.
func TensorAlias(h Handle) Result { return result(C.lsc_tensor_alias(native(h))) }

// TensorTo converts dtype, device and memory format; -1 keeps each.
func TensorTo(h Handle, dtype, device, format int32, copies bool) Result {
	c := enter()
	r := result(C.lsc_tensor_to(native(h), C.int32_t(dtype), C.int32_t(device), C.int32_t(format), flag(copies)))
	c.leave()
	return r
}

func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// Op is an operator of the dispatcher.
type Op uintptr

// FindOp looks up an operator ("aten::add", "Tensor"). It returns 0 and no error if there is none.
func FindOp(name, overload string) (Op, error) {
	n, o := C.CString(name), C.CString(overload)
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(o))
	var op C.ls_op
	r := C.lsc_op_find(n, o, &op)
	return Op(op), takeError(r.err)
}

// OpSchema returns the operator's schema as text.
func OpSchema(op Op) (string, error) {
	var out [64]Value
	return text(C.lsc_op_schema(C.ls_op(op), slots(out[:]), C.uint64_t(len(out))), out[:])
}

// OpRepeatable reports whether an operator can be called again after it has failed: it writes to none of its
// arguments and draws no random numbers.
func OpRepeatable(op Op) bool { return C.lsc_op_repeatable(C.ls_op(op)) != 0 }

// OpInternal reports whether an operator is internal to libtorch: it does not check its arguments, and invalid
// ones may end the process. cshim/src/guards.cpp defines the rule.
func OpInternal(op Op) bool { return C.lsc_op_internal(C.ls_op(op)) != 0 }

// OpNames returns the names of the dispatcher's operators, each followed by a newline.
func OpNames() (string, error) { return text(C.lsc_op_names(nil, 0), nil) }

// ShowConfig returns libtorch's build configuration.
func ShowConfig() (string, error) { return text(C.lsc_torch_config(nil, 0), nil) }

func text(r C.ls_results, out []Value) (string, error) {
	res := results(r)
	defer res.Free()
	if res.Err != nil {
		return "", takeError(res.Err)
	}
	v := res.Values(out)
	if len(v) == 0 || v[0].Tag != TagString {
		return "", nil
	}
	return string(Payload[byte](v)), nil
}

// Payload returns the elements of the string or list that starts at v, without a copy.
func Payload[T byte | int64 | float64 | Handle](v []Value) []T {
	if len(v) < 2 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&v[1])), int(v[0].Len))
}

// Width returns the number of slots of the value that starts at v.
func Width(v Value) int {
	switch v.Tag {
	case TagComplex:
		return 2
	case TagString:
		return 1 + (int(v.Len)+15)/16
	case TagInts, TagFloats, TagBools, TagTensors:
		return 1 + (int(v.Len)+1)/2
	}
	return 1
}

// Results are the results of Call.
type Results struct {
	slots int
	spill unsafe.Pointer
	Err   ErrorRef
	Scope uint64
}

func results(r C.ls_results) Results {
	return Results{int(r.slots), unsafe.Pointer(r.spill), r.err, uint64(r.scope)}
}

// Values returns the results: a part of out or, if they did not fit, C memory that stays valid until Free.
func (r *Results) Values(out []Value) []Value {
	if r.spill != nil {
		return unsafe.Slice((*Value)(r.spill), r.slots)
	}
	return out[:r.slots]
}

// Free frees results that did not fit. It does not free the handles in them.
func (r *Results) Free() {
	if r.spill != nil {
		C.lsc_spill_free((*C.ls_value)(r.spill))
		r.spill = nil
	}
}

// ObjectFree frees an object.
func ObjectFree(o Object) { C.lsc_object_free(C.ls_object(o)) }

// ObjectClass returns the name of an object's class.
func ObjectClass(o Object) (string, error) {
	var out [8]Value
	return text(C.lsc_object_class(C.ls_object(o), slots(out[:]), C.uint64_t(len(out))), out[:])
}

func slots(v []Value) *C.ls_value { return (*C.ls_value)(unsafe.Pointer(unsafe.SliceData(v))) }

// Call runs an operator. With discard the shim drops its results.
func Call(op Op, args, out []Value, discard bool) Results {
	reading()
	c := enter()
	r := results(C.lsc_op_call(C.ls_op(op), slots(args), C.uint64_t(len(args)), slots(out), C.uint64_t(len(out)), C.uint32_t(flag(discard))))
	c.leave()
	return r
}
