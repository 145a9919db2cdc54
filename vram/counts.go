package vram

import (
	"math"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// Counts are what the memory's care has cost and brought since the start of the process, on all devices.
type Counts struct {
	Asked      int64         // questions put to the policy
	Light      int64         // sweeps, by depth
	Full       int64         //
	Deep       int64         //
	Freed      int64         // bytes that sweeps freed
	Sweeping   time.Duration // in sweeps, all told
	Collecting time.Duration // of it, in Go's collector
	Rounds     int64         // rounds of the pacer, each for all that wait
	Waits      int64         // allocations that waited
	WaitTime   time.Duration // all waits together
	Timeouts   int64         // waits that ran out of time
	Retries    int64         // tries after a wait
	OOMs       int64         // allocations that failed in the end
}

// ReadCounts reads them; zeros before libtorch is loaded.
func ReadCounts() Counts {
	if cshim.Path() == "" {
		return Counts{}
	}
	p := cshim.PressureStats()
	return Counts{
		Asked: counts.asked.Load(), Light: counts.sweeps[Light].Load(), Full: counts.sweeps[Full].Load(),
		Deep: counts.sweeps[Deep].Load(), Freed: counts.freed.Load(), Sweeping: time.Duration(counts.sweeping.Load()),
		Collecting: time.Duration(counts.collecting.Load()), Rounds: counts.rounds.Load(), Waits: p.Waits,
		WaitTime: time.Duration(p.WaitNS), Timeouts: p.Timeouts, Retries: p.Retries, OOMs: p.OOMs,
	}
}

// WaitQuantiles are the median, the 99th percentile and the longest of the waits for memory since the start. Waits are
// counted in classes a fifth wide: the longest is its class's upper end, the others are interpolated.
func WaitQuantiles() (median, p99, longest time.Duration) {
	if cshim.Path() == "" {
		return 0, 0, 0
	}
	p := cshim.PressureStats()
	at := func(share float64) time.Duration {
		below, want := 0.0, share*float64(p.Waits)
		for i, n := range p.Histogram {
			if n > 0 && below+float64(n) >= want {
				// Bucket i ends at 2^(i/4) microseconds.
				within := (want - below) / float64(n)
				return time.Duration(math.Exp2((float64(i)-1+within)/4) * float64(time.Microsecond))
			}
			below += float64(n)
		}
		return 0
	}
	return at(0.5), at(0.99), at(1)
}
