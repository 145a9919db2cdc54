// Package vram looks after native memory: it counts it, holds it below a limit, finds in time what nobody can reach
// any more, and says where it went. A program need not call it; everything here has defaults that suit.
//
// # What happens by itself
//
// The allocators' own counters say how many bytes of storage are live (a view adds nothing; what a graph or an
// optimizer holds is in it). When an operator begins and they say that it is time, the goroutine that is about to call
// the operator sweeps: the Go collector runs once, and the tensors that nobody can reach are freed, also those whose
// scope is still open. That waits for no code of the program's: neither for its cleanup functions nor for its [Reclaimer]s,
// which are asked where that leaves no room. When is decided by a [Policy]; the default, [Paced], keeps
//
//	live ≤ max(256 MiB, (1 + percent/100) × what the last sweep found reachable)
//
// as long as sweeps take a twentieth of the time at most: where they would take more, beside a Go heap that is slow to
// collect, the goal rises. What is left of that time it spends on sweeps that keep the live bytes at what the program is
// known to need.
//
// An allocation that would pass the limit of its device waits for a sweep and tries again, as long as anybody makes
// progress. Only when a sweep that began after the request found nothing does it fail, as *[OutOfMemoryError]; the
// program can go on. Where a sweep is under way and there is no room, an operator waits for it before it begins, for
// 250 ms at most.
//
// # Goroutines
//
// One goroutine, the pacer, runs from the time that libtorch is loaded. It serves allocations that wait, and every two
// seconds frees what the collector has found meanwhile and lets an idle allocator's cache shrink. Two timers of its own keep
// Go's runtime awake meanwhile. All functions here may be called from any goroutine. On a thread that captures a CUDA graph
// nothing is freed by itself: no sweep begins there, and what waits to be freed goes on waiting ([Flush] frees it).
//
// # Reports
//
// [Stats] and [Summary] say how much is live, [Explain] what for, [WriteProfile] and [Report] which line made it,
// [Snapshot] when; [ReadMetrics] what the care has cost. docs/memory.md goes through them with an example.
//
// # Settings
//
// [SetLimit], [SetBudget], [SetGCPercent] and [SetPolicy] change while the program runs; LINSTOCK_LIMIT,
// LINSTOCK_BUDGET (both as "cpu=8GiB,cuda:0=90%"), LINSTOCK_GCPERCENT ("100" or "off") and LINSTOCK_POLICY ("paced",
// "off", "threshold", "rates", "budget") set them from outside. [SetAllocatorSettings] sets options of libtorch's allocator
// for CUDA devices, as PYTORCH_CUDA_ALLOC_CONF does from outside.
package vram

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// Device is whose memory is meant: a tensor.Device, or [CPU].
type Device interface {
	String() string // "cpu", "cuda:0"
}

// Name is a device by its name.
type Name string

func (n Name) String() string { return string(n) }

// CPU is the host's memory.
const CPU = Name("cpu")

// ErrOutOfMemory is what every *OutOfMemoryError matches with errors.Is; tensor.ErrOutOfMemory is the same.
var ErrOutOfMemory = errors.New("out of memory")

const cpuWord = 0xff

// word is a device as the shim numbers it.
func word(d Device) (int32, error) {
	if d == nil {
		return 0, errors.New("vram: a device is needed, got nil")
	}
	name := d.String()
	if name == "cpu" {
		return cpuWord, nil
	}
	if rest, ok := strings.CutPrefix(name, "cuda"); ok {
		if rest == "" {
			return 1 << 8, nil
		}
		if i, err := strconv.ParseUint(strings.TrimPrefix(rest, ":"), 10, 6); err == nil && rest[0] == ':' {
			return 1<<8 | int32(i), nil
		}
	}
	return 0, fmt.Errorf("vram: no memory is counted for device %q; cpu and cuda:N have some", name)
}

func nameOf(word int32) Name {
	if word>>8 == 0 {
		return CPU
	}
	return Name(fmt.Sprintf("cuda:%d", word&0xff))
}

// loaded is word, once libtorch is there.
func loaded(d Device) (int32, error) {
	w, err := word(d)
	if err != nil {
		return 0, err
	}
	return w, cshim.Load()
}

// Memory is what a device's allocator has given out. PyTorch: torch.cuda.memory_stats.
type Memory struct {
	Allocated   int64 // bytes live, as the allocator rounds them
	Peak        int64 // the most that Allocated has been since the start or the last ResetPeak
	Requested   int64 // bytes live, as they were asked for
	Reserved    int64 // Allocated, and what the allocator keeps for the next
	Cached      int64 // bytes of free blocks that it keeps
	Active      int64 // Allocated, and what streams still use
	LargestFree int64 // the largest block it keeps; -1 where that is not known
	Allocations int64 // since the start
	Frees       int64
	Other       int64 // bytes of the device that anything else has: see [Stats]
	PeakOther   int64 // the most that Other was when Stats was called, since the start or the last ResetPeak
	Limit       int64 // of SetLimit; 0: none
	Budget      int64 // of SetBudget; 0: none
	Reachable   int64 // bytes that the last complete sweep found reachable
}

// Stats are a device's counters. Other is, for the CPU, about what else of this process is resident: Go's heap, libraries,
// threads (Linux only). On a CUDA device that this process has used it is what is neither free nor reserved: contexts,
// libraries, other processes. The error says that libtorch could not be loaded, or that there is no such device.
func Stats(d Device) (Memory, error) {
	w, err := loaded(d)
	if err != nil {
		return Memory{}, err
	}
	m, err := cshim.MemoryStats(w)
	if err != nil {
		return Memory{}, err
	}
	other := otherBytes(w, m)
	a := accountOf(w)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peakOther = max(a.peakOther, other)
	return Memory{
		Other: other, PeakOther: a.peakOther,
		Allocated: m.Allocated, Peak: m.Peak, Requested: m.Requested, Reserved: m.Reserved, Cached: m.Cached,
		Active: m.Active, LargestFree: m.LargestFree, Allocations: m.Allocations, Frees: m.Frees, Limit: m.Limit,
		Budget: a.softLimit(m.Limit), Reachable: a.pacer.Reachable(),
	}, nil
}

// ResetPeak makes a device's Peak what is live now. PyTorch: torch.cuda.reset_peak_memory_stats.
func ResetPeak(d Device) error {
	w, err := loaded(d)
	if err != nil {
		return err
	}
	a := accountOf(w)
	a.mu.Lock()
	a.peakOther = 0
	a.mu.Unlock()
	return cshim.MemoryResetPeak(w)
}

// otherBytes is what of a device's memory its allocator knows nothing of; 0 where that cannot be told.
func otherBytes(w int32, m cshim.Memory) int64 {
	used := resident()
	if w != cpuWord {
		if m.Allocations == 0 && m.Reserved == 0 {
			return 0 // to ask would make a context there
		}
		free, total, err := cshim.MemoryCapacity(w)
		if err != nil {
			return 0
		}
		used = total - free
	}
	return max(0, used-m.Reserved)
}

// resident is how many bytes of this process are in memory.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// Flush frees the tensors outside scopes that the Go collector has found unreachable. Operators do so by themselves, and
// the pacer every two seconds. While the calling thread captures a CUDA graph, operators do not; Flush does.
func Flush() {
	if cshim.Path() != "" {
		queue.run(reclaim.Drain)
	}
}

// EmptyCache gives the blocks that a device's allocator keeps back to the system, and for the CPU also what malloc keeps
// free. PyTorch: torch.cuda.empty_cache.
func EmptyCache(d Device) error {
	w, err := loaded(d)
	if err != nil {
		return err
	}
	return cshim.MemoryEmptyCache(w)
}
