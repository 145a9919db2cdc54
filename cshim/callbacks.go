package cshim

/*
#include "table_gen.h"
*/
import "C"

import "unsafe"

//export lsGoHook
func lsGoHook(id C.uint64_t, grad C.ls_tensor, out *C.ls_tensor) C.uint64_t {
	h, failed := callbacks.Load().Hook(uint64(id), Handle(grad))
	*out = C.ls_tensor(h)
	return C.uint64_t(failed)
}

//export lsGoBackward
func lsGoBackward(id C.uint64_t, grads *C.ls_tensor, n C.uint64_t, saved *C.ls_tensor, ns C.uint64_t, needs *C.uint8_t, out *C.ls_tensor, nout C.uint64_t) C.uint64_t {
	return C.uint64_t(callbacks.Load().Backward(uint64(id), list[Handle](grads, n), list[Handle](saved, ns), list[bool](needs, nout), list[Handle](out, nout)))
}

//export lsGoRecompute
func lsGoRecompute(id C.uint64_t, inputs *C.ls_tensor, n C.uint64_t) C.uint64_t {
	return C.uint64_t(callbacks.Load().Recompute(uint64(id), list[Handle](inputs, n)))
}

func list[T Handle | bool, P C.ls_tensor | C.uint8_t](p *P, n C.uint64_t) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(p)), int(n))
}
