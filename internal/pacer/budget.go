package pacer

import "time"

// Each of these has a scenario in the tests that fails without it.
var (
	// burst is the collection time that a program may save up, and how far cycles at the goal may overdraw it.
	burst = 100 * time.Millisecond
	// overhead is what a cycle takes from the program, as a multiple of its own time: the threads that it wakes are in the
	// way of the next operators.
	overhead = 1.25
	// baseCost is the cost of a cycle beside an empty Go heap, until one was timed.
	baseCost = 500 * time.Microsecond
	// markRate is how many bytes of the Go heap a cycle scans in a second, until one was timed.
	markRate = float64(2 << 30)
	// costWeight is the weight of the last cycle in the estimate of what one costs.
	costWeight = 0.25
	// outlier is how many times its expected cost a cycle counts at most: in one that took longer, others had the
	// processors. Where cycles really have become so dear the estimate follows within a few.
	outlier = 4.
)

// DefaultShare is the share of the time that cycles may take.
const DefaultShare = 0.05

// Budget is the token bucket that pays for the cycles of a process.
type Budget struct {
	// share is the share of the time at which the bucket fills. It is a setting, not state.
	share float64

	// spent is all the time that cycles were charged, and all that was earned while the bucket was full: what is available
	// is share × now − spent. That is negative where cycles at a limit or at the goal have overdrawn it.
	spent time.Duration

	// scale is what cycles cost, as a multiple of what the bytes to scan make expect: a moving average. The product follows
	// the size of the Go heap without a cycle in between: a heap that has grown to 2 GiB is not collected to find out what
	// that costs. 0 stands for 1, before the first cycle.
	scale float64
}

// Cost returns what a cycle is expected to cost where the Go collector has so many bytes to scan.
func (b *Budget) Cost(scan int64) time.Duration {
	if b.scale == 0 {
		return expected(scan)
	}
	return time.Duration(b.scale * float64(expected(scan)))
}

func expected(scan int64) time.Duration {
	return baseCost + time.Duration(float64(scan)/markRate*float64(time.Second))
}

// Available returns the time that may be spent at now; it is negative where more was spent than earned.
func (b *Budget) Available(now time.Duration, scan int64) time.Duration {
	return min(b.earned(now)-b.spent, b.capacity(scan))
}

// capacity is the time that the bucket holds, and may owe: one cycle at least, whatever that costs.
func (b *Budget) capacity(scan int64) time.Duration { return max(burst, b.Cost(scan)) }

func (b *Budget) earned(now time.Duration) time.Duration {
	return time.Duration(b.share * float64(now))
}

// Charge takes the time of a cycle out, and learns from it what one costs.
func (b *Budget) Charge(now, took time.Duration, scan int64) {
	available := b.Available(now, scan)
	charge := time.Duration(min(overhead*float64(took), outlier*float64(b.Cost(scan))))
	if b.scale == 0 {
		b.scale = 1
	}
	b.scale += costWeight * (float64(charge)/float64(expected(scan)) - b.scale)
	b.spent = b.earned(now) - max(available-charge, -b.capacity(scan))
}

// SetShare changes the share. What was saved while another was in force is lost, what was overdrawn is still owed.
func (b *Budget) SetShare(now time.Duration, share float64) {
	available := min(b.earned(now)-b.spent, 0)
	b.share = share
	b.spent = b.earned(now) - available
}
