package vram

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/linstock-ml/linstock/cshim"
)

// OutOfMemoryError is an allocation that did not fit although everything was tried. It matches [ErrOutOfMemory]. The
// program can go on: what the failed operator had allocated is free again.
type OutOfMemoryError struct {
	Device    Name
	Asked     int64 // bytes; 0 where libtorch does not say
	Allocated int64 // bytes live when it failed
	Reserved  int64 // with what the allocator keeps
	Limit     int64 // 0: none
	Capacity  int64 // of the device; 0: not known
	// Fragmentation is the share of the bytes kept free that no block of the size asked for can come from.
	Fragmentation float64
	Holders       []Holder      // the lines that hold most, largest first; at most five
	Advice        []string      // what would help here
	Blocked       []BlockedCall // calls into the program that might have freed memory and have not returned
	Message       string        // libtorch's or the allocator's own
}

// Is says whether target is [ErrOutOfMemory].
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	if e.Asked > 0 {
		fmt.Fprintf(&b, "out of memory on %s: %s asked", e.Device, size(e.Asked))
	} else {
		fmt.Fprintf(&b, "out of memory on %s", e.Device)
	}
	fmt.Fprintf(&b, "; %s allocated, %s reserved", size(e.Allocated), size(e.Reserved))
	if e.Limit > 0 {
		fmt.Fprintf(&b, ", limit %s", size(e.Limit))
	}
	if e.Fragmentation > 0.1 {
		fmt.Fprintf(&b, ", %.0f %% of the free bytes in pieces too small", 100*e.Fragmentation)
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

func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

// outOfMemory is reclaim.OutOfMemory.
func outOfMemory(native *cshim.Error) error {
	e := &OutOfMemoryError{Device: CPU, Asked: native.Bytes, Message: native.Message, Blocked: BlockedCalls()}
	w := int32(cpuWord)
	if native.Bytes != 0 {
		w = native.Device
	}
	e.Device = nameOf(w)
	m, err := cshim.MemoryStats(w)
	if err != nil {
		return e
	}
	e.Allocated, e.Reserved, e.Limit = m.Allocated, m.Reserved, m.Limit
	a := accountOf(w)
	a.mu.Lock()
	e.Capacity = a.capacity
	a.mu.Unlock()
	outOfMemoryEvent(w, e.Asked, e.Capacity-e.Reserved)
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
	e.Advice = append(e.Advice, "a smaller batch", "checkpointing of activations")
	if e.Limit > 0 && e.Capacity > 0 && e.Limit < e.Capacity*8/10 {
		e.Advice = append(e.Advice, "a higher vram.SetLimit (the device has "+size(e.Capacity)+")")
	}
	if w != cpuWord {
		e.Advice = append(e.Advice, e.settings()...)
	}
	return e
}

// settings are the options of a CUDA device's allocator that would help.
func (e *OutOfMemoryError) settings() []string {
	// Where a limit refuses what is live, pieces do not matter.
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
