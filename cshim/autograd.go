package cshim

/*
#cgo noescape lsc_tensor_set_requires_grad
#cgo nocallback lsc_tensor_set_requires_grad
#cgo noescape lsc_tensor_retain_grad
#cgo nocallback lsc_tensor_retain_grad
#cgo noescape lsc_tensor_grad
#cgo nocallback lsc_tensor_grad
#cgo noescape lsc_tensor_try_grad
#cgo nocallback lsc_tensor_try_grad
#cgo noescape lsc_tensor_set_grad
#cgo nocallback lsc_tensor_set_grad
#cgo noescape lsc_tensors_grad
#cgo nocallback lsc_tensors_grad
#cgo noescape lsc_tensors_zero_grad
#cgo nocallback lsc_tensors_zero_grad
#cgo noescape lsc_tensor_grad_fn_name
#cgo nocallback lsc_tensor_grad_fn_name
#cgo noescape lsc_hook_register
#cgo nocallback lsc_hook_register
#cgo noescape lsc_hook_remove
#cgo nocallback lsc_hook_remove
#cgo noescape lsc_accumulate_hook_register
#cgo nocallback lsc_accumulate_hook_register
#cgo noescape lsc_accumulate_hook_remove
#cgo nocallback lsc_accumulate_hook_remove
#cgo noescape lsc_function_attach
#cgo nocallback lsc_function_attach
#cgo noescape lsc_checkpoint_push
#cgo nocallback lsc_checkpoint_push
#cgo noescape lsc_checkpoint_keep
#cgo nocallback lsc_checkpoint_keep
#cgo noescape lsc_checkpoint_kept
#cgo nocallback lsc_checkpoint_kept
#cgo noescape lsc_checkpoint_take
#cgo nocallback lsc_checkpoint_take
#cgo noescape lsc_saved_push
#cgo nocallback lsc_saved_push
#cgo noescape lsc_remade_push
#cgo nocallback lsc_remade_push
#cgo noescape lsc_pass_end
#cgo nocallback lsc_pass_end
#cgo noescape lsc_saved_pop
#cgo nocallback lsc_saved_pop
#cgo noescape lsc_multi_hook_register
#cgo nocallback lsc_multi_hook_register
#cgo noescape lsc_dropped_take
#cgo nocallback lsc_dropped_take
#cgo noescape lsc_dropped_count
#cgo nocallback lsc_dropped_count
#include "table_gen.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// Backward runs the engine. grads and inputs may be nil. It calls back.
func Backward(roots, grads, inputs []Handle, retain, create bool) ErrorRef {
	defer enter().leave()
	var g *C.ls_tensor
	if len(grads) != 0 {
		g = handles(grads)
	}
	return C.lsc_autograd_backward(handles(roots), C.uint64_t(len(roots)), g, handles(inputs), C.uint64_t(len(inputs)), flag(retain), flag(create))
}

// Grad fills out, which has the length of inputs. It calls back.
func Grad(outputs, grads, inputs []Handle, retain, create, allowUnused bool, out []Handle) (scope uint64, err ErrorRef) {
	defer enter().leave()
	var g *C.ls_tensor
	if len(grads) != 0 {
		g = handles(grads)
	}
	var s C.uint64_t
	e := C.lsc_autograd_grad(handles(outputs), C.uint64_t(len(outputs)), g, handles(inputs), C.uint64_t(len(inputs)), flag(retain), flag(create), flag(allowUnused), outs(out), &s)
	return uint64(s), e
}

// SetRequiresGrad calls requires_grad_().
func SetRequiresGrad(h Handle, on bool) ErrorRef {
	return C.lsc_tensor_set_requires_grad(native(h), flag(on))
}

// RetainGrad makes a non-leaf tensor keep its gradient.
func RetainGrad(h Handle) ErrorRef { return C.lsc_tensor_retain_grad(native(h)) }

// GradOf returns .grad; the handle is 0 if there is none.
func GradOf(h Handle) Result { return result(C.lsc_tensor_grad(native(h))) }

// TryGradOf returns .grad without waiting; the handle is 0 also while another thread reads or writes it.
func TryGradOf(h Handle) Result { return result(C.lsc_tensor_try_grad(native(h))) }

// SetGrad sets .grad; 0 sets it to None.
func SetGrad(h, grad Handle) ErrorRef { return C.lsc_tensor_set_grad(native(h), native(grad)) }

// GradsOf fills out with the .grad of each handle.
func GradsOf(h, out []Handle) ErrorRef {
	return C.lsc_tensors_grad(handles(h), C.uint64_t(len(h)), outs(out))
}

// ZeroGrads sets the gradients to None, or fills them with zeros.
func ZeroGrads(h []Handle, zero bool) ErrorRef {
	defer enter().leave()
	return C.lsc_tensors_zero_grad(handles(h), C.uint64_t(len(h)), flag(zero))
}

// GradFnName returns the name of the node that made the tensor; empty for a leaf.
func GradFnName(h Handle) (string, error) {
	var out [8]Value
	return text(C.lsc_tensor_grad_fn_name(native(h), slots(out[:]), C.uint64_t(len(out))), out[:])
}

// RegisterHook registers a hook, given by its ID, on a tensor.
func RegisterHook(h Handle, id uint64) (slot uint32, err ErrorRef) {
	var s C.uint32_t
	e := C.lsc_hook_register(native(h), C.uint64_t(id), &s)
	return uint32(s), e
}

// RemoveHook removes the hook.
func RemoveHook(h Handle, slot uint32) ErrorRef {
	return C.lsc_hook_remove(native(h), C.uint32_t(slot))
}

// RegisterAccumulateHook registers a hook, given by its ID, that runs after a backward pass has added to a leaf's
// gradient.
func RegisterAccumulateHook(h Handle, id uint64) (slot uint32, err ErrorRef) {
	var s C.uint32_t
	e := C.lsc_accumulate_hook_register(native(h), C.uint64_t(id), &s)
	return uint32(s), e
}

// RemoveAccumulateHook removes the hook.
func RemoveAccumulateHook(h Handle, slot uint32) ErrorRef {
	return C.lsc_accumulate_hook_remove(native(h), C.uint32_t(slot))
}

// RegisterMultiHook registers a hook, given by its ID, on several tensors, and fills slots. If any, the hook is called as
// that of RegisterHook, and otherwise as the backward of CustomFunction.
func RegisterMultiHook(h []Handle, id uint64, any bool, slots []uint32) ErrorRef {
	return C.lsc_multi_hook_register(handles(h), C.uint64_t(len(h)), C.uint64_t(id), flag(any), (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(slots))))
}

// CustomFunction connects outputs to inputs by a node whose backward is the callback. If materialize, an output that
// received no gradient gets zeros. It fills out.
func CustomFunction(id uint64, inputs, outputs, saved []Handle, materialize bool, out []Handle) (scope uint64, err ErrorRef) {
	defer enter().leave()
	var s C.uint64_t
	e := C.lsc_function_attach(C.uint64_t(id), handles(inputs), C.uint64_t(len(inputs)), handles(outputs), C.uint64_t(len(outputs)), handles(saved), C.uint64_t(len(saved)), flag(materialize), outs(out), &s)
	return uint64(s), e
}

// CheckpointPush makes operators on the calling thread save nothing for their backward pass until
// SavedPop(depth): a backward pass calls Callbacks.Recompute with the ID instead.
func CheckpointPush(id uint64, inputs []Handle) (depth uint64, err ErrorRef) {
	var d C.uint64_t
	e := C.lsc_checkpoint_push(C.uint64_t(id), handles(inputs), C.uint64_t(len(inputs)), &d)
	return uint64(d), e
}

// The stages of CheckpointKeep.
const (
	NoCheckpoint  = 0
	FirstRun      = 1
	Recomputation = 2
)

// CheckpointKeep begins a part of a checkpointed function whose result is kept. In the first run, SavedPop(depth) ends
// it.
func CheckpointKeep() (stage int, depth uint64, err ErrorRef) {
	var s C.int32_t
	var d C.uint64_t
	e := C.lsc_checkpoint_keep(&s, &d)
	return int(s), uint64(d), e
}

// CheckpointKept records the result of the part.
func CheckpointKept(h Handle) ErrorRef { return C.lsc_checkpoint_kept(native(h)) }

// CheckpointTake returns, in a recomputation, the result of the next part.
func CheckpointTake() Result { return result(C.lsc_checkpoint_take()) }

// The kinds of a SavedPolicy, as in enum ls_saved_kind.
const (
	SavedCPU  int32 = C.LS_SAVED_CPU
	SavedCast int32 = C.LS_SAVED_CAST
	SavedFile int32 = C.LS_SAVED_FILE
)

// SavedPolicy is ls_saved_policy.
type SavedPolicy struct {
	Kind     int32
	DType    int32 // of SavedCast
	Pinned   bool  // of SavedCPU
	FD       int32 // of SavedFile
	MinBytes int64 // smaller tensors are kept as they are
	Keep     int64 // this many bytes are kept as they are first
}

// SavedPush makes the graph keep the tensors that operators on the calling thread save in another form, until
// SavedPop(depth).
func SavedPush(p SavedPolicy) (depth uint64, err ErrorRef) {
	var d C.uint64_t
	how := C.ls_saved_policy{
		kind: C.int32_t(p.Kind), dtype: C.int32_t(p.DType), pinned: flag(p.Pinned), fd: C.int32_t(p.FD),
		min_bytes: C.int64_t(p.MinBytes), keep: C.int64_t(p.Keep),
	}
	e := C.lsc_saved_push(&how, &d)
	return uint64(d), e
}

// RemadePush makes the graph keep no storage of sources until SavedPop(depth): a backward pass calls Callbacks.Backward
// with the ID instead.
func RemadePush(id uint64, sources []Handle) (depth uint64, err ErrorRef) {
	var d C.uint64_t
	e := C.lsc_remade_push(C.uint64_t(id), handles(sources), C.uint64_t(len(sources)), &d)
	return uint64(d), e
}

// PassEnd makes the backward pass that the calling callback is part of call Callbacks.Hook with the ID at its end.
func PassEnd(id uint64) ErrorRef { return C.lsc_pass_end(C.uint64_t(id)) }

// SavedPop undoes the calling thread's pushes down to a depth, even if it returns an error.
func SavedPop(depth uint64) ErrorRef { return C.lsc_saved_pop(C.uint64_t(depth)) }

// TakeDropped fills ids with IDs whose native holder has been freed and returns their number.
func TakeDropped(ids []uint64) int {
	return int(C.lsc_dropped_take((*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(ids))), C.uint64_t(len(ids))))
}

// DroppedCount returns the number of IDs that TakeDropped could return.
func DroppedCount() int { return int(C.lsc_dropped_count()) }

// Callbacks are the Go functions that libtorch's engine calls. They run on the engine's thread and return 0 for
// success, or a number that is reported in Error.Callback.
type Callbacks struct {
	Hook      func(id uint64, grad Handle) (out Handle, failed uint64)
	Backward  func(id uint64, grads, saved []Handle, needs []bool, out []Handle) (failed uint64)
	Recompute func(id uint64, inputs []Handle) (failed uint64)
}

var callbacks atomic.Pointer[Callbacks]

// SetCallbacks sets the functions to call.
func SetCallbacks(c *Callbacks) { callbacks.Store(c) }
