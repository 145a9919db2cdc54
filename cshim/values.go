package cshim

/*
#cgo noescape lsc_error_free
#cgo nocallback lsc_error_free
#include "table_gen.h"
*/
import "C"

import (
	"strings"
	"unsafe"
)

// Handle is an owned reference to a native tensor; 0 is none.
type Handle uintptr

// Object is one owned reference to an object of a class of libtorch's C++; 0 is none.
type Object uintptr

// Result is the result of an operator: a handle or an error, and the calling thread's scope word.
type Result struct {
	Handle Handle
	Err    ErrorRef
	Scope  uint64
}

func result(r C.ls_result) Result {
	return Result{Handle(r.t), ErrorRef(r.err), uint64(r.scope)}
}

// ErrorRef is a native error that Take has not converted yet; nil: no error.
type ErrorRef *C.ls_error

// Code is the kind of a native error.
type Code int32

// The kinds of errors, as in enum ls_code.
const (
	CodeGeneric        Code = C.LS_ERR_GENERIC
	CodeIndex          Code = C.LS_ERR_INDEX
	CodeValue          Code = C.LS_ERR_VALUE
	CodeType           Code = C.LS_ERR_TYPE
	CodeNotImplemented Code = C.LS_ERR_NOT_IMPLEMENTED
	CodeLinAlg         Code = C.LS_ERR_LINALG
	CodeOutOfMemory    Code = C.LS_ERR_OUT_OF_MEMORY
	CodeDevice         Code = C.LS_ERR_DEVICE
	CodeStd            Code = C.LS_ERR_STD
	CodeArgument       Code = C.LS_ERR_ARGUMENT
	CodeCallback       Code = C.LS_ERR_CALLBACK
	CodeUnknown        Code = C.LS_ERR_UNKNOWN
	CodeInternal       Code = C.LS_ERR_INTERNAL
	CodeDeviceLost     Code = C.LS_ERR_DEVICE_LOST
	CodeCapture        Code = C.LS_ERR_CAPTURE
	CodeNaN            Code = C.LS_ERR_NAN
	CodeTimeout        Code = C.LS_ERR_TIMEOUT
	CodeConnection     Code = C.LS_ERR_CONNECTION

	CodeStopRecomputation Code = C.LS_ERR_STOP_RECOMPUTATION
)

// Error is a native error, copied to Go.
type Error struct {
	Code        Code
	DeviceError int32
	Callback    uint64 // with CodeCallback: the callback's return value
	Bytes       int64  // with CodeOutOfMemory: bytes requested; 0: not known
	Live        int64  // with CodeOutOfMemory: bytes live on the device when it failed; 0: not known
	Device      int32  // with CodeOutOfMemory: where; without Bytes a guess; 0: not known, or the CPU
	Message     string
	Node        string // with ModeAnomaly: the node of the graph that failed
	Site        uint32 // with Node: the site of the call that made it, or NoSite
}

func (e *Error) Error() string { return e.Message }

// Take copies a native error to Go and frees it; nil for none.
func Take(ref ErrorRef) *Error {
	if ref == nil {
		return nil
	}
	e := &Error{Code(ref.code), int32(ref.device_error), uint64(ref.callback), int64(ref.bytes), int64(ref.live), int32(ref.device), C.GoString(ref.message),
		C.GoString(ref.node), uint32(ref.site)}
	C.lsc_error_free(ref)
	e.ofBarrier()
	return e
}

// ofBarrier sets the code of the error of c10d's monitored barrier, which has no type of its own: rank 0 lists the ranks that
// were late, the others say that rank 0 did not answer. A checked group has one before each collective, to whose error c10d
// adds a line.
func (e *Error) ofBarrier() {
	_, rest, checked := strings.Cut(e.Message, "Monitored Barrier encountered error")
	if e.Code != CodeGeneric || !checked && !strings.Contains(e.Message, "monitoredBarrier") {
		return
	}
	if _, text, found := strings.Cut(rest, "\n"); found {
		e.Message = text
	}
	e.Code = CodeConnection
	if strings.Contains(e.Message, "failed to pass monitoredBarrier") {
		e.Code = CodeTimeout
	}
}

// NoDeviceMemory reports whether an operator failed because a device other than the CPU had no memory, or because of
// an unknown one. It returns the device and the requested bytes, 0 if not known.
func NoDeviceMemory(ref ErrorRef) (device int32, bytes int64, ok bool) {
	if ref == nil || Code(ref.code) != CodeOutOfMemory || ref.bytes != 0 && ref.device>>8 == 0 {
		return 0, 0, false
	}
	return int32(ref.device), int64(ref.bytes), true
}

// Tag is the kind of a Value.
type Tag uint32

// The tags, as in enum ls_tag.
const (
	TagDefault Tag = C.LS_DEFAULT
	TagNone    Tag = C.LS_NONE
	TagTensor  Tag = C.LS_TENSOR
	TagInt     Tag = C.LS_INT
	TagFloat   Tag = C.LS_FLOAT
	TagBool    Tag = C.LS_BOOL
	TagComplex Tag = C.LS_COMPLEX
	TagString  Tag = C.LS_STRING
	TagInts    Tag = C.LS_INTS
	TagFloats  Tag = C.LS_FLOATS
	TagBools   Tag = C.LS_BOOLS
	TagTensors Tag = C.LS_TENSORS
	TagDevice  Tag = C.LS_DEVICE
	TagObject  Tag = C.LS_OBJECT
	TagStream  Tag = C.LS_STREAM

	TagGenerator Tag = C.LS_GENERATOR
	TagUint      Tag = C.LS_UINT
)

// Value is ls_value: 16 bytes without Go pointers.
type Value struct {
	Tag  Tag
	Len  uint32
	Bits uint64
}

// The layouts must be equal so that slices of values can be passed to C without conversion.
var _ [unsafe.Sizeof(C.ls_value{})]byte = [unsafe.Sizeof(Value{})]byte{}
