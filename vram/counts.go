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
	Waits      int64         // allocations that waited, and operators before they began
	WaitTime   time.Duration // all waits together
	Timeouts   int64         // waits that ran out of time
	Retries    int64         // tries after a wait
	OOMs       int64         // allocations that failed in the end

	waits [len(cshim.PressureCounts{}.Histogram)]int64 // by class: i ends at 2^(i/4) microseconds
}

// ReadCounts reads them; zeros before libtorch is loaded.
func ReadCounts() Counts {
	if cshim.Path() == "" {
		return Counts{}
	}
	p := cshim.PressureStats()
	c := Counts{
		Asked: counts.asked.Load(), Light: counts.sweeps[Light].Load(), Full: counts.sweeps[Full].Load(),
		Deep: counts.sweeps[Deep].Load(), Freed: counts.freed.Load(), Sweeping: time.Duration(counts.sweeping.Load()),
		Collecting: time.Duration(counts.collecting.Load()), Rounds: counts.rounds.Load(), Waits: p.Waits + counts.waits.Load(),
		WaitTime: time.Duration(p.WaitNS + counts.waiting.Load()), Timeouts: p.Timeouts + counts.overdue.Load(),
		Retries: p.Retries, OOMs: p.OOMs, waits: p.Histogram,
	}
	for i := range c.waits {
		c.waits[i] += counts.classes[i].Load()
	}
	return c
}

// Since is what has been counted since before.
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

// WaitQuantiles are the median, the 99th percentile and the longest of the waits for memory since the start.
func WaitQuantiles() (median, p99, longest time.Duration) { return ReadCounts().WaitQuantiles() }

// WaitQuantiles are the median, the 99th percentile and the longest of these waits for memory. Waits are counted in
// classes a fifth wide: the longest is its class's upper end, the others are interpolated.
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
