// Package reclaim connects package vram, which decides when native memory is freed, with package tensor, which owns it. It has
// the functions that they call of each other and that programs do not need. Each package sets its functions when it is
// initialized, before any other code runs.
package reclaim

import (
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
)

// Package tensor sets these. None of them waits for code of the program.
var (
	// Drain frees the queued tensors, and those outside scopes that the last collection found unreachable.
	Drain = func() {}
	// Weaken makes the entries of every open scope weak pointers, before the Go collector runs.
	Weaken = func() {}
	// Collect frees the entries that have become unreachable and makes the others strong again. It must be called after
	// Weaken, when the Go collector has marked. Drain finds no tensors outside scopes meanwhile.
	Collect = func() {}
	// Scoped returns the approximate number of tensors in open scopes.
	Scoped = func() int64 { return 0 }
	// Unscoped returns the approximate number of tensors that belong to no scope and no category.
	Unscoped = func() int64 { return 0 }
	// DropsWaiting reports whether CallDrops has something to call.
	DropsWaiting = func() bool { return false }
	// Categories returns the categories of vram.Explain. A storage belongs to the first one that yields it.
	Categories = func() []Category { return nil }
)

// CallDrops calls functions of the program that tensor.FromMapped was given. They may block or panic. Package tensor sets
// it.
var CallDrops = func() {}

// DrainDevices frees the events and graphs of devices that the last collection found unreachable. Package cuda sets it.
var DrainDevices = func() {}

// Sentinels is the number of cleanup functions that package tensor has run because a collection had ended.
var Sentinels atomic.Uint64

// Category attributes live storages to a name, which several categories may share.
type Category struct {
	Name string
	// Each yields every storage of the category, on all devices. It may yield a storage more than once. It waits while a
	// sweep's collection marks, and a sweep waits for it: yield must not wait for memory or for a sweep.
	Each func(yield func(Storage))
}

// Storage is the memory of a tensor and its views.
type Storage struct {
	Device  int32 // as the shim takes it
	Address uint64
	Bytes   int64
}

// Package vram sets these.
var (
	// Boundary must be called before an operator if [cshim.Due] returns true. It may sweep, or wait for room.
	Boundary func()
	// BeforeBackward must be called before a backward pass. It may sweep, so that garbage does not add to the pass's peak.
	BeforeBackward func()
	// AfterBackward must be called after a backward pass has freed its graph.
	AfterBackward func()
	// Relieve frees memory for an operator that failed because a device did not have the given number of bytes; 0 if it
	// is unknown. It reports whether it has freed any, so that another try may succeed.
	Relieve func(device int32, bytes int64) bool
	// OutOfMemory returns the *vram.OutOfMemoryError for a native error.
	OutOfMemory func(native *cshim.Error) error
	// MachineMemory returns the least of the machine's memory and the cgroup's limit; 0 if neither is known.
	MachineMemory func() int64
)
