// Package reclaim joins package vram, which decides when native memory is freed, to package tensor, which owns it: what
// they need of each other and programs do not. Each package sets its functions when it is initialized, before any other
// code runs.
package reclaim

import "github.com/linstock-ml/linstock/cshim"

// Package tensor sets these. None of them waits for code of the program's.
var (
	// Drain frees the tensors that wait in the queue and those outside scopes that the last collection found unreachable.
	Drain = func() {}
	// Weaken makes the entries of every open scope weak pointers, before the Go collector runs.
	Weaken = func() {}
	// Collect frees the entries that have become unreachable and makes the others strong again.
	Collect = func() {}
	// Unscoped returns about how many tensors belong to no scope and no category.
	Unscoped = func() int64 { return 0 }
)

// Package vram sets these.
var (
	// Boundary is to be called when an operator is about to run and [cshim.Due] reports that a decision is due: it may
	// sweep, or wait for room.
	Boundary func()
	// BeforeBackward is to be called before a backward pass: the last chance to free what its graph does not need.
	BeforeBackward func()
	// AfterBackward is to be called after a backward pass, whose graph has been freed.
	AfterBackward func()
	// Relieve frees what it can for an operator that has failed for want of so many bytes of a device, or of an unknown
	// number, 0. It reports whether anything has been freed, so that another try is worthwhile.
	Relieve func(device int32, bytes int64) bool
	// OutOfMemory returns the *vram.OutOfMemoryError of a native error.
	OutOfMemory func(native *cshim.Error) error
)
