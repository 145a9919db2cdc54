// Package vram says how much memory libtorch has given out. It knows no tensor: it reads the allocators' own
// counters, so what a forgotten tensor or a graph holds is in them.
//
//	stats, err := vram.CPUStats()
//	if err != nil {
//		return err
//	}
//	fmt.Printf("%d bytes live, %d at most\n", stats.Allocated, stats.Peak)
package vram

import "github.com/linstock-ml/linstock/cshim"

// Stats are an allocator's counters. Bytes are counted as the allocator rounds them.
type Stats struct {
	Allocated   int64 // bytes live
	Peak        int64 // the most that Allocated has been since the start or the last reset
	Cached      int64 // bytes of free blocks that the allocator keeps for the next ones
	Allocations int64 // since the start
	Frees       int64 // since the start
}

// cpu is the CPU as the shim numbers devices: kind 0, without an index.
const cpu = 0xff

// CPUStats are the counters of the CPU's memory. The error says that libtorch could not be loaded.
func CPUStats() (Stats, error) {
	if err := cshim.Load(); err != nil {
		return Stats{}, err
	}
	m, err := cshim.MemoryStats(cpu)
	return Stats{Allocated: m.Allocated, Peak: m.Peak, Cached: m.Cached, Allocations: m.Allocations, Frees: m.Frees}, err
}

// ResetPeak makes the CPU's Peak what is live now.
func ResetPeak() error {
	if err := cshim.Load(); err != nil {
		return err
	}
	return cshim.MemoryResetPeak(cpu)
}

// EmptyCache gives the blocks that the CPU's allocator keeps back to the system. PyTorch: torch.cuda.empty_cache.
func EmptyCache() error {
	if err := cshim.Load(); err != nil {
		return err
	}
	return cshim.MemoryEmptyCache(cpu)
}
