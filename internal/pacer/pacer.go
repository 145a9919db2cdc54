package pacer

import (
	"math"
	"time"
)

// Each of these has a scenario in the tests that fails without it.
var (
	// floor is the least goal. Without it a program with little reachable would have many cycles that free little.
	floor int64 = 256 << 20
	// minTarget is the least target. Without it the first allocations of a program would pay for cycles.
	minTarget int64 = 8 << 20
	// smallHeap is the most that the target is raised to: for heaps that have not doubled, or while the budget is reserved.
	smallHeap int64 = 64 << 20
	// reserve is the share of the bucket that cycles below smallHeap leave. Without it such cycles, which free little, would
	// use up the budget, and the program would grow further than smallHeap before the next one.
	reserve = 0.1
	// halfLife is the time after which the target and the estimated request are halved.
	halfLife = 60 * time.Second
	// minYield is the yield that pays for a cycle while the bucket is full, as a share of the live bytes. A request of that
	// size or more is a large request.
	minYield = 1. / 24
)

const never = math.MaxInt64

// State is the input of a decision: a device at one moment, and the request.
type State struct {
	Live      int64         // live bytes
	Yield     int64         // bytes allocated since the last cycle began
	Limit     int64         // hard limit; 0: none
	SoftLimit int64         // live bytes past which the price is 0 and the target at most this; 0: none
	Reachable int64         // bytes
	Target    int64         // bytes
	Request   int64         // bytes about to be allocated: an estimate, or the sum of the allocations that wait
	Largest   int64         // the largest allocation that waits; 0: Request is an estimate
	Last      bool          // a backward pass is about to run: the last question before it ends unless an allocation waits
	Percent   int           // how far the goal is above reachable; negative: no cycles
	Share     float64       // of the budget; < 0 or >= 1: the goal always holds; < 0: no paid cycles
	Available time.Duration // what the budget has
	Cost      time.Duration // the expected cost of a cycle
}

// Plan is a decision: whether to collect now, and the triggers of the next question, as distances from now.
type Plan struct {
	Collect bool
	Live    int64 // ask again when this many more bytes are live,
	Total   int64 // or when this many more bytes have been allocated
	Wait    int64 // an allocation waits if it would add more than this many live bytes; also valid while a cycle runs
}

// Goal returns the live bytes that the garbage should not exceed.
func (s State) Goal() int64 {
	goal := int64(never)
	if !s.overdrawn() {
		goal = max(floor, s.grown())
	}
	if s.Limit > 0 {
		goal = min(goal, s.Limit)
	}
	return goal
}

// leastTarget returns the live bytes up to which no cycle is paid for: now, and when the budget has more than the reserve.
func (s State) leastTarget() (now, later int64) {
	later = min(smallHeap, max(minTarget, s.grown()))
	if s.Available-s.Cost < time.Duration(reserve*float64(s.capacity())) {
		return smallHeap, later
	}
	return later, later
}

// capacity returns the most that the budget's bucket holds.
func (s State) capacity() time.Duration { return max(burst, s.Cost) }

// grown returns the reachable bytes and as many more as the percentage allows.
func (s State) grown() int64 { return s.Reachable + s.Reachable/100*int64(s.Percent) }

// overdrawn reports whether the budget cannot pay even for a cycle at the goal.
func (s State) overdrawn() bool {
	return s.Share > 0 && s.Share < 1 && s.Available-s.Cost < -burst
}

// Decide applies the rule of the package documentation.
func (s State) Decide() Plan {
	if s.Percent < 0 {
		return Plan{Live: never, Total: never, Wait: never}
	}
	goal, need := s.Goal(), s.Live+s.Request
	p := Plan{Live: max(goal-need, 0), Total: never, Wait: max(goal-s.Live, 0)}
	if s.Limit > 0 && goal == s.Limit {
		p.Wait = never // the allocation waits at the hard limit anyway
	}
	if need > goal && s.Yield > 0 {
		return Plan{Collect: true, Live: never, Total: never, Wait: p.Wait}
	}
	if s.Share < 0 {
		return p
	}
	least, later := s.leastTarget()
	target, price := max(least, s.Target), s.price()
	if s.SoftLimit > 0 {
		target = max(least, min(target, s.SoftLimit))
	}
	switch above := need > target; {
	case (above || s.Last && need > least) && s.Yield > price:
		return Plan{Collect: true, Live: never, Total: never, Wait: p.Wait}
	case !above:
		p.Live = min(p.Live, target-need)
		if lower := max(later, s.Target); need <= lower {
			p.Live = min(p.Live, lower-need)
		} else { // later the budget may have more than the reserve
			p.Total = min(p.Total, max(1, int64(minYield*float64(s.Live))))
		}
	default: // later the budget may be fuller, and the price lower
		p.Total = min(p.Total, max(1, min(price-s.Yield, int64(minYield*float64(s.Live)))))
	}
	if s.Available >= s.Cost {
		// At the target only large requests wait.
		p.Wait = min(p.Wait, max(target-s.Live, int64(minYield*float64(s.Live))))
	}
	return p
}

// price returns the yield that a paid cycle must exceed. It is inversely proportional to what the cycle leaves of the budget:
// a program that cannot pay for all useful cycles gets those that free most.
func (s State) price() int64 {
	share := minYield * float64(s.Live)
	left := float64(s.Available-s.Cost) / float64(s.capacity())
	switch large := s.Last || float64(s.Largest) >= share && s.Largest > 0; {
	case left < 0:
		return never
	case large || s.SoftLimit > 0 && s.Live+s.Request > s.SoftLimit:
		return 0
	case left == 0 || share/left > never/2:
		return never
	default:
		return int64(share / left)
	}
}

// Controller holds the estimates for one device, which the package documentation defines.
type Controller struct {
	reachable int64         // a cycle that was cut short can only lower it, to the live bytes
	target    float64       // without its lower bounds
	request   float64       // before an operator: a cycle before an operator costs less than one within it
	mark      int64         // bytes that had been allocated in total when the last cycle began
	at        time.Duration // up to which the target and the request have been halved, a multiple of halfLife
}

// State returns the state of a device at now. live is its live bytes, total the bytes allocated since the process began.
func (c *Controller) State(now time.Duration, live, total int64) State {
	c.decay(now)
	return State{
		Live: live, Yield: total - c.mark, Reachable: c.reachable, Target: max(c.reachable, int64(c.target)),
		Request: min(int64(c.request), int64(minYield*float64(live))),
	}
}

// decay halves the target and the request once for each half-life that has passed.
func (c *Controller) decay(now time.Duration) {
	n := (now - c.at) / halfLife
	f := math.Exp2(-float64(n))
	c.target, c.request, c.at = c.target*f, c.request*f, c.at+n*halfLife
}

// Waited records the size of an allocation that waits.
func (c *Controller) Waited(now time.Duration, live, bytes int64) {
	c.decay(now)
	if float64(bytes) <= minYield*float64(live) {
		c.request = max(c.request, float64(bytes))
	}
}

// Outcome is what a cycle has done when it ends.
type Outcome int

const (
	// Freeing: goroutines are still freeing what the cycle has found. It should be repeated.
	Freeing Outcome = iota
	// CutShort: it ended early because enough was freed.
	CutShort
	// Complete: everything that was unreachable when it began is freed.
	Complete
	// Exhausted is Complete, and all that the program can free on request is freed, too.
	Exhausted
)

// Cycle is a collection that has ended.
type Cycle struct {
	Total   int64 // total bytes allocated when it began
	Outcome Outcome
	Request int64 // the bytes that waited for it
}

// Finished records a cycle. live and total are the device's counters after it.
func (c *Controller) Finished(now time.Duration, live, total int64, cycle Cycle) {
	c.decay(now)
	if cycle.Outcome >= Complete {
		c.reachable = max(0, live-(total-cycle.Total))
	} else {
		c.reachable = min(c.reachable, live)
	}
	if cycle.Outcome != Freeing {
		c.mark = cycle.Total
	}
	c.target = max(c.target, float64(c.reachable+cycle.Request))
}

// Reachable returns the bytes that the last complete cycle found reachable.
func (c *Controller) Reachable() int64 { return c.reachable }
