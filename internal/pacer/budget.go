package pacer

import "time"

// Each of these has a scenario in the tests that fails without it.
var (
	// burst is the collection time that a program may save up, and the most by which cycles at the goal may overdraw it.
	burst = 100 * time.Millisecond
	// overhead is the cost of a cycle to the program, as a multiple of the cycle's duration: the threads that it wakes slow
	// the next operators down.
	overhead = 1.25
	// baseCost is the expected duration of a cycle with an empty Go heap, before the first measurement.
	baseCost = 500 * time.Microsecond
	// markRate is the expected number of bytes of the Go heap that a cycle scans per second, before the first measurement.
	markRate = float64(2 << 30)
	// costWeight is the weight of the last cycle in the moving average of costs.
	costWeight = 0.25
	// outlier bounds the charge of a cycle, as a multiple of its expected cost: a cycle that took longer was preempted. If
	// cycles have really become that expensive, the average follows within a few of them.
	outlier = 4.
)

// DefaultShare is the default share of the time that cycles may take.
const DefaultShare = 0.05

// Budget is the token bucket of collection time, one for the process.
type Budget struct {
	// share is the rate at which the bucket fills, as a share of the time that passes. It is a setting, not state.
	share float64

	// spent is the sum of all charges, and of the time earned while the bucket was full. share × now − spent is what is
	// available. It is negative after cycles at a limit or at the goal have overdrawn the bucket.
	spent time.Duration

	// scale is a moving average of what cycles cost, as a multiple of what is expected for the bytes to scan. The expected
	// cost so follows the size of the Go heap without a cycle: it is known that a cycle is expensive once the heap has grown
	// to 2 GiB. 0 means 1, before the first cycle.
	scale float64
}

// Cost returns the expected cost of a cycle if the Go collector has scan bytes to scan.
func (b *Budget) Cost(scan int64) time.Duration {
	if b.scale == 0 {
		return expected(scan)
	}
	return time.Duration(b.scale * float64(expected(scan)))
}

func expected(scan int64) time.Duration {
	return baseCost + time.Duration(float64(scan)/markRate*float64(time.Second))
}

// Available returns the time that may be spent at now. It is negative if more was spent than earned.
func (b *Budget) Available(now time.Duration, scan int64) time.Duration {
	return min(b.earned(now)-b.spent, b.capacity(scan))
}

// capacity returns the most that the bucket holds, and the most by which it can be overdrawn: the cost of one cycle at least.
func (b *Budget) capacity(scan int64) time.Duration { return max(burst, b.Cost(scan)) }

func (b *Budget) earned(now time.Duration) time.Duration {
	return time.Duration(b.share * float64(now))
}

// Charge subtracts the cost of a cycle that took so long, and updates the average.
func (b *Budget) Charge(now, took time.Duration, scan int64) {
	available := b.Available(now, scan)
	charge := time.Duration(min(overhead*float64(took), outlier*float64(b.Cost(scan))))
	if b.scale == 0 {
		b.scale = 1
	}
	b.scale += costWeight * (float64(charge)/float64(expected(scan)) - b.scale)
	b.spent = b.earned(now) - max(available-charge, -b.capacity(scan))
}

// SetShare sets the share. It does not change the available time.
func (b *Budget) SetShare(now time.Duration, share float64) {
	available := b.earned(now) - b.spent
	b.share = share
	b.spent = b.earned(now) - available
}
