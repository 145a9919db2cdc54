package vram

import (
	"math"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// Counts counts sweeps and waits since the start of the process, on all devices.
type Counts struct {
	Asked      int64         // questions to the policy
	Light      int64         // light sweeps
	Full       int64         // full sweeps
	Deep       int64         // deep sweeps
	Freed      int64         // bytes that sweeps freed
	Sweeping   time.Duration // time in sweeps
	Collecting time.Duration // of that, time in the Go collector
	Rounds     int64         // rounds of the pacer; each serves all allocations that wait
	Waits      int64         // waits of allocations, and of operators before they began
	WaitTime   time.Duration // the sum of all waits
	Timeouts   int64         // waits that ended because they took too long
	Retries    int64         // attempts to allocate after a wait
	OOMs       int64         // allocations that failed

	waits [len(cshim.PressureCounts{}.Histogram)]int64 // a histogram: class i ends at 2^(i/4) microseconds
}

// ReadCounts returns the counts now. They are 0 before libtorch is loaded.
func ReadCounts() Counts {
	if cshim.Path() == "" {
		return Counts{}
	}
	p := cshim.PressureStats()
	return Counts{
		Asked: counts.asked.Load(), Light: counts.sweeps[Light].Load(), Full: counts.sweeps[Full].Load(),
		Deep: counts.sweeps[Deep].Load(), Freed: counts.freed.Load(), Sweeping: time.Duration(counts.sweeping.Load()),
		Collecting: time.Duration(counts.collecting.Load()), Rounds: counts.rounds.Load(), Waits: p.Waits,
		WaitTime: time.Duration(p.WaitNS), Timeouts: p.Timeouts, Retries: p.Retries, OOMs: p.OOMs, waits: p.Histogram,
	}
}

// Since returns the difference of c and earlier counts.
func (c Counts) Since(before Counts) Counts {
	c.Asked -= before.Asked
	c.Light -= before.Light
	c.Full -= before.Full
	c.Deep -= before.Deep
	c.Freed -= before.Freed
	c.Sweeping -= before.Sweeping
	c.Collecting -= before.Collecting
	c.Rounds -= before.Rounds
	c.Waits -= before.Waits
	c.WaitTime -= before.WaitTime
	c.Timeouts -= before.Timeouts
	c.Retries -= before.Retries
	c.OOMs -= before.OOMs
	for i := range c.waits {
		c.waits[i] -= before.waits[i]
	}
	return c
}

// WaitQuantiles returns the median, the 99th percentile and the longest of the waits for memory since the start.
func WaitQuantiles() (median, p99, longest time.Duration) { return ReadCounts().WaitQuantiles() }

// WaitQuantiles returns the median, the 99th percentile and the longest of the waits for memory in c. They are read from a
// histogram with four classes for each power of two: the longest is the upper end of its class, the others are interpolated.
func (c Counts) WaitQuantiles() (median, p99, longest time.Duration) {
	var all int64
	for _, n := range c.waits {
		all += n
	}
	at := func(share float64) time.Duration {
		below, want := 0.0, share*float64(all)
		for i, n := range c.waits {
			if n > 0 && below+float64(n) >= want {
				within := (want - below) / float64(n)
				return time.Duration(math.Exp2((float64(i)-1+within)/4) * float64(time.Microsecond))
			}
			below += float64(n)
		}
		return 0
	}
	return at(0.5), at(0.99), at(1)
}
