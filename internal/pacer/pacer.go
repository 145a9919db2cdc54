package pacer

import (
	"math"
	"time"
)

// Each of these has a scenario in the tests that fails without it.
var (
	// floor is the least goal: with little reachable, a goal in proportion to it would have cycles free little each.
	floor int64 = 256 << 20
	// paidFloor is the live bytes below which no cycle is run to lower the peak.
	paidFloor int64 = 64 << 20
	// halfLife is the time in which the target and the expected request decay to the half.
	halfLife = 60 * time.Second
	// minYield is the share of the live bytes that must have been allocated since the last cycle for a paid one, while
	// the bucket is full. A request of as much is a large one, and needs no other reason.
	minYield = 1. / 24
)

const never = math.MaxInt64

// State is what a decision depends on: a device at a moment, and what is about to be allocated.
type State struct {
	Live      int64 // bytes in use
	Yield     int64 // bytes allocated since the last cycle began
	Limit     int64 // hard limit; 0: none
	SoftLimit int64 // live bytes past which every cycle that may free a little is worth its price; 0: none
	Reachable int64
	Target    int64
	Request   int64         // bytes about to be allocated: an estimate, or the sum of the allocations that wait
	Largest   int64         // the largest allocation that waits; 0: Request is an estimate
	Last      bool          // a backward pass is about to run, which asks only where it waits
	Percent   int           // the goal beyond what is reachable; negative: no cycle
	Share     float64       // of the budget; 1 or more, or negative: the goal never rises; negative: no paid cycle
	Available time.Duration // budget
	Cost      time.Duration // of a cycle
}

// Plan is a decision: whether to collect now, and when to ask again.
type Plan struct {
	Collect bool
	Live    int64 // ask again when so many more bytes are live,
	Total   int64 // or so many more bytes have been allocated
	Wait    int64 // an allocation that would have more than so many more bytes be live waits, and asks with its size; also
	// while a cycle is due, or under way on another goroutine
}

// Goal returns the live bytes that garbage should not exceed.
func (s State) Goal() int64 {
	goal := int64(never)
	if !s.overdrawn() {
		goal = max(floor, s.Reachable+s.Reachable/100*int64(s.Percent))
	}
	if s.Limit > 0 {
		goal = min(goal, s.Limit)
	}
	return goal
}

// overdrawn reports whether the budget pays for no cycle at the goal either.
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
		p.Wait = never // the limit itself has it wait
	}
	if need > goal && s.Yield > 0 {
		return Plan{Collect: true, Live: never, Total: never, Wait: p.Wait}
	}
	if s.Share < 0 {
		return p
	}
	target, price := max(paidFloor, s.Target), s.price()
	if s.SoftLimit > 0 {
		target = max(paidFloor, min(target, s.SoftLimit))
	}
	switch above := need > target; {
	case (above || s.Last && need > paidFloor) && s.Yield > price:
		return Plan{Collect: true, Live: never, Total: never, Wait: p.Wait}
	case !above:
		p.Live = min(p.Live, target-need)
	default: // the budget fills meanwhile
		p.Total = min(p.Total, max(1, min(price-s.Yield, int64(minYield*float64(s.Live)))))
	}
	if s.Available >= s.Cost {
		// Where the target is reached, large requests alone wait.
		p.Wait = min(p.Wait, max(target-s.Live, int64(minYield*float64(s.Live))))
	}
	return p
}

// price returns the yield from which on a paid cycle is worth its cost. It is inversely proportional to what the budget
// has left, so that a program whose time does not pay for all that would be useful has cycles where they free most.
func (s State) price() int64 {
	share := minYield * float64(s.Live)
	left := float64(s.Available-s.Cost) / float64(max(burst, s.Cost))
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

// Controller holds what is known of one device's program.
type Controller struct {
	// reachable is what was live after the last complete cycle, without the bytes allocated since it began, of which
	// nothing is known. A cycle that was cut short only lowers it, to what is live.
	reachable int64

	// target is the least heap at which the program is known to run: the maximum, over the cycles of late, of what was
	// reachable and the request for which the cycle ran. It decays with halfLife.
	target float64

	// request is the largest small request, of minYield of the live bytes or less, that has met the soft limit. Operators
	// are asked before they begin as if each made one, since a cycle before an operator costs less than one within. It
	// decays with halfLife.
	request float64

	// mark is the bytes that had ever been allocated when the last cycle began.
	mark int64

	// at is when target and request were last decayed.
	at time.Duration
}

// State returns what is known at now, for a device with so many bytes live, and so many ever allocated.
func (c *Controller) State(now time.Duration, live, total int64) State {
	c.decay(now)
	return State{
		Live: live, Yield: total - c.mark, Reachable: c.reachable, Target: max(c.reachable, int64(c.target)),
		Request: min(int64(c.request), int64(minYield*float64(live))),
	}
}

func (c *Controller) decay(now time.Duration) {
	f := math.Exp2(-float64(now-c.at) / float64(halfLife))
	c.target, c.request, c.at = c.target*f, c.request*f, now
}

// Waited notes a request that has met the soft limit.
func (c *Controller) Waited(now time.Duration, live, bytes int64) {
	c.decay(now)
	if float64(bytes) <= minYield*float64(live) {
		c.request = max(c.request, float64(bytes))
	}
}

// Cycle is a collection that has ended.
type Cycle struct {
	Total    int64 // bytes that had ever been allocated when it began
	Complete bool  // what is live is reachable, but for what was allocated since it began
	CutShort bool  // it ended as soon as anything was freed. Neither: frees are still under way, and it is to be repeated
	Request  int64 // the bytes that waited for it
}

// Finished notes a cycle after which so many bytes are live, and so many have ever been allocated.
func (c *Controller) Finished(now time.Duration, live, total int64, cycle Cycle) {
	c.decay(now)
	if cycle.Complete {
		c.reachable = max(0, live-(total-cycle.Total))
	} else {
		c.reachable = min(c.reachable, live)
	}
	if cycle.Complete || cycle.CutShort {
		c.mark = cycle.Total
	}
	c.target = max(c.target, float64(c.reachable+cycle.Request))
}

// Reachable returns the bytes that were reachable after the last complete cycle.
func (c *Controller) Reachable() int64 { return c.reachable }
