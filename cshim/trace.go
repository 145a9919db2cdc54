package cshim

/*
#cgo noescape lsc_trace_start
#cgo nocallback lsc_trace_start
#cgo noescape lsc_trace_take
#cgo nocallback lsc_trace_take
#cgo noescape lsc_trace_text
#cgo nocallback lsc_trace_text
#cgo noescape lsc_range_push
#cgo nocallback lsc_range_push
#cgo noescape lsc_range_pop
#cgo nocallback lsc_range_pop
#include <stdlib.h>
#include "table_gen.h"
*/
import "C"

import "unsafe"

// TraceEvent is ls_trace_event.
type TraceEvent struct {
	StartNS, EndNS        int64
	Bytes, DeviceBytes    int64
	Sequence              int64
	Thread, ForwardThread uint64
	Name, Shapes          uint32
	Site                  uint32
	Kind                  TraceKind
	Depth                 uint32
	Inside                int32
}

var _ [unsafe.Sizeof(C.ls_trace_event{})]byte = [unsafe.Sizeof(TraceEvent{})]byte{}

// TraceKind is ls_trace_kind.
type TraceKind int32

// The kinds of events.
const (
	TraceOperator TraceKind = C.LS_TRACE_OPERATOR
	TraceBackward TraceKind = C.LS_TRACE_BACKWARD
	TraceRange    TraceKind = C.LS_TRACE_RANGE
)

// TraceStart drops what was recorded and records the events of all threads, limit at most.
func TraceStart(shapes bool, limit uint64) error {
	var flags C.uint32_t
	if shapes {
		flags = C.LS_TRACE_SHAPES
	}
	if err := takeError(C.lsc_trace_start(flags, C.uint64_t(limit))); err != nil {
		return err
	}
	recorded.Store(true)
	return nil
}

// TraceStop ends what TraceStart began.
func TraceStop() {
	recorded.Store(false)
	C.lsc_trace_stop()
}

// TraceTake returns the recorded events, each thread's in the order of their ends, and the number of those that were
// dropped for lack of room.
func TraceTake() (events []TraceEvent, dropped uint64) {
	chunk := make([]TraceEvent, 4096)
	for {
		n := int(C.lsc_trace_take((*C.ls_trace_event)(unsafe.Pointer(&chunk[0])), C.uint64_t(len(chunk))))
		if n == 0 {
			return events, uint64(C.lsc_trace_dropped())
		}
		events = append(events, chunk[:n]...)
	}
}

// TraceText returns the text of a number in an event of the last TraceStart.
func TraceText(number uint32) (string, error) {
	var out [64]Value
	return text(C.lsc_trace_text(C.uint32_t(number), slots(out[:]), C.uint64_t(len(out))), out[:])
}

// Range is a range that RangePush has begun; 0 is none.
type Range uintptr

// RangePush begins a range. RangePop ends it, on the same thread.
func RangePush(name string) (Range, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	var r C.uintptr_t
	err := takeError(C.lsc_range_push(c, &r))
	return Range(r), err
}

// RangePop ends a range.
func RangePop(r Range) { C.lsc_range_pop(C.uintptr_t(r)) }

// NVTXSet turns NVTX ranges of operators on, or off as often as they were turned on.
func NVTXSet(on bool) error { return takeError(C.lsc_nvtx_set(flag(on))) }
