package cshim

/*
#cgo noescape lsc_fault_counts
#cgo nocallback lsc_fault_counts
#include "table_gen.h"
*/
import "C"

// FaultPoint is where a test makes the shim fail.
type FaultPoint int32

// The points, those of enum ls_fault_point.
const (
	FaultCPU    FaultPoint = C.LS_FAULT_CPU    // memory for a CPU tensor, whatever is tried
	FaultSystem FaultPoint = C.LS_FAULT_SYSTEM // the same where the system is asked
	FaultShim   FaultPoint = C.LS_FAULT_SHIM   // an allocation of the shim's own
	FaultEntry  FaultPoint = C.LS_FAULT_ENTRY  // the entry of a function throws
)

// Throw is what an entry throws.
type Throw int32

// Throws is how many kinds there are, those of enum ls_throw.
const Throws = C.LS_THROWS

// Fault is what ls_fault_set takes. Only tests use it.
type Fault struct {
	Point FaultPoint
	Skip  int64 // events that pass first
	Times int64 // then so many fail; -1: all
	Throw Throw // with FaultEntry
	Mine  bool  // only events of the calling thread count
}

// Set arms the fault; with Times 0 it disarms its point.
func (f Fault) Set() error {
	return takeError(C.lsc_fault_set(C.int32_t(f.Point), C.int64_t(f.Skip), C.int64_t(f.Times), C.int32_t(f.Throw), flag(f.Mine)))
}

// Counts are the events since the point was armed, and how many of them failed.
func (p FaultPoint) Counts() (seen, failed int64) {
	C.lsc_fault_counts(C.int32_t(p), (*C.int64_t)(&seen), (*C.int64_t)(&failed))
	return seen, failed
}
