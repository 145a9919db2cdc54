package cshim

/*
#cgo noescape lsc_fault_counts
#cgo nocallback lsc_fault_counts
#include "table_gen.h"
*/
import "C"

// FaultPoint is a point at which a test makes the shim fail.
type FaultPoint int32

// The fault points, as in enum ls_fault_point.
const (
	FaultCPU    FaultPoint = C.LS_FAULT_CPU    // memory for a CPU tensor, from the cache or the system
	FaultSystem FaultPoint = C.LS_FAULT_SYSTEM // memory for a CPU tensor from the system only
	FaultShim   FaultPoint = C.LS_FAULT_SHIM   // memory for the shim itself
	FaultEntry  FaultPoint = C.LS_FAULT_ENTRY  // the entry of a function throws
)

// Throw is the exception that an entry throws.
type Throw int32

// Throws is the number of exceptions in enum ls_throw.
const Throws = C.LS_THROWS

// Fault holds the arguments of ls_fault_set. Only tests use it.
type Fault struct {
	Point FaultPoint
	Skip  int64 // number of events that succeed first
	Times int64 // number of events that fail then; -1: all
	Throw Throw // exception, for FaultEntry
	Mine  bool  // count events of the calling thread only
}

// Set arms the fault. With Times 0 it disarms its point.
func (f Fault) Set() error {
	return takeError(C.lsc_fault_set(C.int32_t(f.Point), C.int64_t(f.Skip), C.int64_t(f.Times), C.int32_t(f.Throw), flag(f.Mine)))
}

// Counts returns the number of events since the point was armed, and how many of them failed.
func (p FaultPoint) Counts() (seen, failed int64) {
	C.lsc_fault_counts(C.int32_t(p), (*C.int64_t)(&seen), (*C.int64_t)(&failed))
	return seen, failed
}
