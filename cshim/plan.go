package cshim

/*
#cgo noescape lsc_plan_begin
#cgo nocallback lsc_plan_begin
#cgo noescape lsc_plan_end
#cgo nocallback lsc_plan_end
#cgo noescape lsc_plan_read
#cgo nocallback lsc_plan_read
#cgo noescape lsc_plan_blocks
#cgo nocallback lsc_plan_blocks
#include "table_gen.h"
*/
import "C"

import "unsafe"

// PlanBlock is ls_plan_block.
type PlanBlock struct {
	Storage        uint64
	Bytes, Rounded int64
	Born, Died     int64
	DType          int32
	Op             uint32
	Backward, _    int32
}

var _ [unsafe.Sizeof(C.ls_plan_block{})]byte = [unsafe.Sizeof(PlanBlock{})]byte{}

// PlanTotals is ls_plan_totals.
type PlanTotals struct{ Live, Peak, Total, Position int64 }

// PlanBegin begins to record what the calling thread allocates on the meta device.
func PlanBegin() error { return takeError(C.lsc_plan_begin()) }

// PlanEnd ends the recording of the calling thread.
func PlanEnd() { C.lsc_plan_end() }

// PlanRead returns the totals of the calling thread's recording.
func PlanRead() PlanTotals {
	t := C.lsc_plan_read()
	return PlanTotals{int64(t.live), int64(t.peak), int64(t.total), int64(t.position)}
}

// PlanBlocks returns the blocks of the calling thread's recording.
func PlanBlocks() []PlanBlock {
	return all(func(out *PlanBlock, n uint64) uint64 {
		return uint64(C.lsc_plan_blocks((*C.ls_plan_block)(unsafe.Pointer(out)), C.uint64_t(n)))
	})
}

// PlanOp returns the name of an operator of the recording.
func PlanOp(op uint32) (string, error) {
	return text(C.lsc_plan_op(C.uint32_t(op), nil, 0), nil)
}

// PlanRounded returns the bytes that the CPU's allocator takes for n bytes.
func PlanRounded(n int64) int64 { return int64(C.lsc_plan_rounded(C.int64_t(n))) }
