package vram

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/linstock-ml/linstock/cshim"
)

// OutOfMemoryError is the error of an allocation that did not fit after sweeps and reclaimers had run. It matches
// [ErrOutOfMemory]. The program can continue: the blocks that the failed operator had allocated are free again.
type OutOfMemoryError struct {
	Device    Name  // if Asked is 0, as in errors of cuBLAS, a guess: the device of an operand, or the goroutine's
	Asked     int64 // bytes requested; 0 if unknown
	Allocated int64 // bytes live when it failed; the operator has since freed its own
	Reserved  int64 // bytes that the allocator holds: Allocated, what streams still use, and its cache
	Limit     int64 // hard limit in bytes; 0: none
	Capacity  int64 // bytes of the device; 0 if unknown
	Other     int64 // bytes of a GPU in use besides Reserved: other processes, contexts and libraries; 0 if unknown
	// Fragmentation is the share of a CUDA device's cached bytes outside the largest cached block, if that block is too
	// small for the request, and otherwise 0.
	Fragmentation float64
	Holders       []Holder      // the lines that allocated most of the live memory, the largest first; five at most
	Advice        []string      // what would help
	Blocked       []BlockedCall // reclaimers and cleanup functions that have not returned
	Message       string        // the message of libtorch or of the allocator
}

// Is reports whether target is [ErrOutOfMemory].
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// Error returns what was asked for, what is allocated and by which lines, and what would help, in one line.
func (e *OutOfMemoryError) Error() string {
	if e == nil {
		return "<nil>"
	}
	var b strings.Builder
	if e.Asked > 0 {
		fmt.Fprintf(&b, "out of memory on %s: %s asked", e.Device, size(e.Asked))
	} else {
		fmt.Fprintf(&b, "out of memory on %s", e.Device)
		// What had no memory, for example a call of cuBLAS. The later lines are libtorch's advice.
		if why, _, _ := strings.Cut(e.Message, "\n"); why != "" && why != "out of memory" {
			b.WriteString(": " + why)
		}
	}
	fmt.Fprintf(&b, "; %s allocated, %s reserved", size(e.Allocated), size(e.Reserved))
	if e.Limit > 0 {
		fmt.Fprintf(&b, ", limit %s", size(e.Limit))
	}
	if e.refused() {
		b.WriteString("; the system refused the memory, whatever the limit (see ulimit -v and vm.overcommit_memory)")
	}
	if e.full() {
		fmt.Fprintf(&b, "; %s of the %s are in use by other processes and libraries", size(e.Other), size(e.Capacity))
	}
	if e.Fragmentation > 0.1 {
		fmt.Fprintf(&b, ", %.0f %% of the cached bytes outside the largest block, which is too small", 100*e.Fragmentation)
	}
	for i, h := range e.Holders {
		if i == 0 {
			b.WriteString("; held by")
		} else {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, " %s %s", h.Line, size(h.Bytes))
	}
	for i, c := range e.Blocked {
		if i == 0 {
			b.WriteString("; not returned yet:")
		} else {
			b.WriteString(",")
		}
		b.WriteString(" " + c.String())
	}
	if len(e.Advice) != 0 {
		b.WriteString("; what would help: " + strings.Join(e.Advice, ", "))
	}
	return b.String()
}

// full reports whether the bytes that others hold leave too little of a device, regardless of the limit.
func (e *OutOfMemoryError) full() bool {
	return e.Other > e.Capacity/10 && e.Reserved+e.Asked+e.Other > e.Capacity
}

// refused reports whether the system, not a limit of this package, refused the CPU's memory, according to the shim's
// message.
func (e *OutOfMemoryError) refused() bool {
	return strings.HasPrefix(e.Message, "out of memory: the system has no ")
}

func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

// outOfMemory is reclaim.OutOfMemory.
func outOfMemory(native *cshim.Error) error {
	e := &OutOfMemoryError{Device: CPU, Asked: native.Bytes, Message: native.Message, Blocked: BlockedCalls()}
	w := cmp.Or(native.Device, cpuWord)
	e.Device = nameOf(w)
	m, err := cshim.MemoryStats(w)
	if err != nil {
		return e
	}
	e.Allocated, e.Reserved, e.Limit = max(m.Allocated, native.Live), max(m.Reserved, native.Live), m.Limit
	a := accountOf(w)
	a.mu.Lock()
	e.Capacity = a.memory(m.Limit)
	a.mu.Unlock()
	if w != cpuWord {
		e.Other = otherBytes(w, m)
	}
	outOfMemoryEvent(w, e.Asked, e.Capacity-e.Reserved-e.Other)
	if free := m.Reserved - m.Active; w != cpuWord && free > 0 && m.LargestFree >= 0 && m.LargestFree < e.Asked {
		e.Fragmentation = 1 - float64(m.LargestFree)/float64(free)
	}
	if e.Holders = holders(w); len(e.Holders) > 5 {
		e.Holders = e.Holders[:5]
	}
	if e.Asked > 0 && (e.Limit > 0 && e.Asked > e.Limit || e.Capacity > 0 && e.Asked > e.Capacity) {
		e.Advice = append(e.Advice, "a smaller tensor (this one alone does not fit)")
		return e
	}
	if e.full() {
		e.Advice = append(e.Advice, "another device, or the end of what else runs on this one")
	}
	e.Advice = append(e.Advice, "a smaller batch", "checkpointing of activations")
	if e.Limit > 0 && e.Capacity > 0 && e.Limit < e.Capacity*8/10 && !e.refused() {
		e.Advice = append(e.Advice, "a higher vram.SetLimit (the device has "+size(e.Capacity)+")")
	}
	if w != cpuWord {
		e.Advice = append(e.Advice, e.settings()...)
	}
	return e
}

// settings returns the options of a CUDA device's allocator that would help.
func (e *OutOfMemoryError) settings() []string {
	// Fragmentation does not matter if the live bytes alone exceed the limit.
	if e.Fragmentation <= 0.1 || e.Limit > 0 && e.Allocated+e.Asked > e.Limit {
		return nil
	}
	s, err := ReadAllocatorSettings()
	switch {
	case err != nil:
		return nil
	case !s.ExpandableSegments:
		return []string{"vram.ExpandableSegments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"}
	case s.MaxSplitSizeMB == 0:
		return []string{"vram.MaxSplitSizeMB (PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:N)"}
	}
	return nil
}
