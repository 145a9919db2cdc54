// Package vram manages the native memory of tensors: it counts bytes, keeps them below a limit, frees unreachable tensors in
// time, and reports what the memory is used for. It works with its defaults; a program need not call it. This one keeps the
// CPU's tensors below 2 GiB and prints what they were for if a step needs more:
//
//	if err := vram.SetLimit(vram.CPU, vram.Bytes(2<<30)); err != nil {
//		return err
//	}
//	if err := step(); errors.Is(err, vram.ErrOutOfMemory) {
//		fmt.Println(err) // how much was asked for, and the lines that hold most
//		use, err := vram.Explain(vram.CPU)
//		fmt.Println(use, err) // weights, gradients, optimizer state, activations, …
//	}
//
// # Sweeps
//
// A sweep runs the Go collector once and frees the tensors that it finds unreachable, also those in open scopes. Before
// an operator begins, the allocators' counters determine whether to ask the [Policy]. If the policy wants a sweep, the
// goroutine that calls the operator runs it. Other goroutines continue. Bytes are those of storages: a view adds
// nothing, and tensors that a graph or an optimizer holds count. The default policy, [Paced], keeps
//
//	live bytes ≤ max(256 MiB, (1 + percent/100) × bytes that the last sweep found reachable)
//
// as long as sweeps take no more than about 5 % of the time, and, below that, keeps the peak near what the program
// needs; see [Paced].
//
// # Limits
//
// An allocation that would pass the hard limit of its device ([SetLimit]) waits for a sweep and tries again. If there is
// still no room, each registered [Reclaimer] is called. The allocation fails, with *[OutOfMemoryError], only after a
// sweep that began after the request, and that called the reclaimers, has freed nothing; or, if other goroutines
// allocate and free but never leave enough, after eight such sweeps in which there was never room. The program can
// continue after the error. While another goroutine sweeps and there is no room, an operator waits before it begins,
// for 250 ms at most.
//
// A sweep does not wait for code of the program, with one exception: when there is no room at the hard limit, it waits for
// reclaimers, functions of runtime.AddCleanup and of tensor.FromMapped, and finalizers, for one second at most, and collects
// what they referred to.
//
// # Goroutines
//
// One goroutine, the pacer, begins with the program and works from when libtorch is loaded. It serves allocations that
// wait. Every two seconds it frees tensors that the collector has found unreachable, and shrinks the cache of an idle
// allocator. It keeps two timers pending. Tests that check for leaked goroutines ignore it with
// goleak.IgnoreAnyFunction("github.com/linstock-ml/linstock/vram.pace"). All functions of the
// package may be called by any goroutine. While a thread captures a CUDA graph, no sweep begins and nothing is freed on
// it, except by [Flush], [Collect], and functions that call them, such as [Measure].
//
// # Reports
//
// [Stats] and [Summary] report how much memory is live, [Explain] what it is used for, [WriteProfile] and [Report] which
// lines of the program allocated it, and [Snapshot] when. [ReadMetrics] and [ReadCounts] report sweeps and waits.
// docs/memory.md has an example of each.
//
// # Settings
//
// [SetLimit], [SetSoftLimit], [SetGCPercent] and [SetPolicy] may be called at any time. Environment variables set the values
// at the start: LINSTOCK_LIMIT and LINSTOCK_SOFT_LIMIT (both as "cpu=8GiB,cuda:0=90%"), LINSTOCK_GCPERCENT ("100" or
// "off") and LINSTOCK_POLICY ("paced", "off", "threshold", "rates", "liveshare"). [SetAllocatorSettings] sets options of
// libtorch's allocator for CUDA devices, as PYTORCH_CUDA_ALLOC_CONF does.
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

// Device names a device: a tensor.Device, [CPU], or a [Name].
type Device interface {
	String() string // "cpu", "cuda:0"
}

// Name is the name of a device: "cpu", "cuda", "cuda:1".
type Name string

// String returns the name itself.
func (n Name) String() string { return string(n) }

// CPU is the CPU, whose memory is the host's.
const CPU = Name("cpu")

// ErrArgument: a device is unknown or does not exist, or another argument of this package is invalid or nil.
// tensor.ErrArgument is the same value.
var ErrArgument = errors.New("invalid argument")

// refusal is the text of an error about an argument.
type refusal string

func (r refusal) Error() string { return "linstock: vram: " + string(r) }

func (refusal) Unwrap() error { return ErrArgument }

// refused returns an error about an argument.
func refused(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// ErrOutOfMemory matches every *[OutOfMemoryError] with errors.Is. tensor.ErrOutOfMemory is the same value.
var ErrOutOfMemory = errors.New("out of memory")

const cpuWord = 0xff

// word returns the shim's number of a device.
func word(d Device) (int32, error) {
	if d == nil {
		return 0, refused("the device is nil")
	}
	name := d.String()
	if name == "cpu" {
		return cpuWord, nil
	}
	typ, index, _ := strings.Cut(name, ":")
	for _, t := range cshim.DeviceTypes {
		if typ != t.Name {
			continue
		}
		if name == t.Name {
			return t.Word(0), nil
		}
		if i, err := strconv.ParseUint(index, 10, 6); err == nil {
			return t.Word(int(i)), nil
		}
	}
	want := "cpu"
	for _, t := range cshim.DeviceTypes {
		want += " or " + t.Name + ":N"
	}
	return 0, refused("unknown device %q: want %s", name, want)
}

func nameOf(word int32) Name {
	for _, t := range cshim.DeviceTypes {
		if t.Number == word>>8 {
			return Name(fmt.Sprintf("%s:%d", t.Name, word&0xff))
		}
	}
	return CPU
}

// loaded loads libtorch and returns the shim's number of a device, which must exist.
func loaded(d Device) (int32, error) {
	w, err := word(d)
	if err != nil {
		return 0, err
	}
	if err := cshim.Load(); err != nil {
		return 0, err
	}
	if _, err := cshim.MemoryPace(w); err != nil {
		return 0, refused("%s", strings.TrimPrefix(err.Error(), "memory: "))
	}
	return w, nil
}

// Memory is the counters of a device's allocator. PyTorch: torch.cuda.memory_stats.
type Memory struct {
	Allocated   int64 // bytes live, that is not freed, as the allocator rounds them
	Peak        int64 // the maximum of Allocated since the start or the last ResetPeak; of the CPU's up to 64 KiB a thread may be missing
	Requested   int64 // the bytes of Active, as they were requested
	Reserved    int64 // Active + Cached
	Cached      int64 // bytes of free blocks that the allocator keeps
	Active      int64 // Allocated, and blocks of a CUDA device that were freed but that a stream still uses
	LargestFree int64 // the largest block in the cache; -1 if unknown
	Allocations int64 // since the start
	Frees       int64 // since the start
	Other       int64 // other bytes of the device in use: see [Stats]
	PeakOther   int64 // the maximum of Other in the calls of Stats since the start or the last ResetPeak
	Limit       int64 // hard limit, of SetLimit; 0: none
	SoftLimit   int64 // of SetSoftLimit; 0: none
	Reachable   int64 // bytes that the last complete sweep found reachable
}

// Stats returns the counters of a device. For the CPU, Memory.Other is about the rest of the process's resident memory:
// the Go heap, libraries, threads (Linux only). For a CUDA device that the process has used, it is what is neither free
// nor reserved: contexts, libraries, other processes. Stats returns an error if libtorch cannot be loaded or the device
// does not exist.
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
		SoftLimit: a.softLimit(m.Limit), Reachable: a.pacer.Reachable(),
	}, nil
}

// ResetPeak sets the Peak of a device to the bytes live now. PyTorch: torch.cuda.reset_peak_memory_stats.
func ResetPeak(d Device) error {
	a, err := accountFor(d)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.peakOther = 0
	a.mu.Unlock()
	return cshim.MemoryResetPeak(a.word)
}

// otherBytes returns the bytes of a device that are in use but not by its allocator; 0 if unknown.
func otherBytes(w int32, m cshim.Memory) int64 {
	used := resident()
	if w != cpuWord {
		if m.Allocations == 0 && m.Reserved == 0 {
			return 0 // the question would create a CUDA context
		}
		free, total, err := cshim.MemoryCapacity(w)
		if err != nil {
			return 0
		}
		used = total - free
	}
	return max(0, used-m.Reserved)
}

// resident returns how many bytes of this process are in memory.
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

// Flush frees the tensors outside scopes that the Go collector has found unreachable, and the events and graphs of package
// cuda. Operators also free the tensors, and the pacer both every two seconds, except on a thread that captures a CUDA
// graph.
func Flush() {
	if cshim.Path() != "" {
		queue.run(drain)
		reclaim.CallDrops()
	}
}

// EmptyCache returns the cached blocks of a device's allocator to the system; for the CPU also malloc's free pages and the
// cached blocks of pinned memory, these not while a graph is captured. For a CUDA device that the process has used,
// libtorch empties the caches of all CUDA devices, except while a graph is captured on any, or after one is lost: then
// that device's alone. PyTorch: torch.cuda.empty_cache, torch._C._host_emptyCache.
func EmptyCache(d Device) error {
	w, err := loaded(d)
	if err != nil {
		return err
	}
	return cshim.MemoryEmptyCache(w)
}
