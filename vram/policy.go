package vram

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/pacer"
)

// Depth is how deep a sweep goes.
type Depth int

const (
	// None: no sweep.
	None Depth = iota
	// Light frees what is known to be garbage: what cleanups have queued.
	Light
	// Full runs the Go collector once and frees what nobody can reach.
	Full
	// Deep is Full, and then every registered reclaimer gives back what it can.
	Deep
)

func (d Depth) String() string {
	switch d {
	case None:
		return "none"
	case Light:
		return "light"
	case Full:
		return "full"
	case Deep:
		return "deep"
	}
	return fmt.Sprintf("depth(%d)", int(d))
}

// State is what a policy decides on: one device, before an operator begins or while an allocation waits.
type State struct {
	Device    Name
	Live      int64         // bytes live
	Reserved  int64         // Live, and what the allocator keeps
	Capacity  int64         // of the device; of the machine for the CPU
	Limit     int64         // hard; 0: none
	Budget    int64         // soft, of SetBudget; 0: none
	Reachable int64         // bytes that the last complete sweep found reachable
	Target    int64         // bytes that the program is known to need: a decaying maximum of Reachable and the request
	Allocated int64         // bytes allocated since the last sweep began
	Request   int64         // bytes about to be allocated: an estimate, or those of all allocations that wait
	Largest   int64         // the largest allocation that waits, since it would pass a Decision's Wait; 0: none waits
	Backward  bool          // a backward pass is about to run: the last question until it ends, unless an allocation waits
	Operators int64         // operators since the policy was last asked, where it counts them
	Percent   int           // of SetGCPercent; -1: off
	Available time.Duration // what the budget of time has left; negative where it is overdrawn
	Cost      time.Duration // what a sweep is expected to cost

	total int64 // bytes ever allocated
}

// Decision is a policy's answer.
type Decision struct {
	Sweep Depth
	// Again is how many bytes more must be live before the policy is asked again; 0 leaves it to the pacer. Where a sweep is
	// due and another goroutine sweeps, Again, Total and Wait hold until that has ended.
	Again int64
	// Total is how many bytes more must have been allocated before it is asked again, whatever is live; 0: that does
	// not matter.
	Total int64
	// Wait is how many bytes more may be live before an allocation waits and the policy is asked with its size (State.Largest).
	// The allocation is admitted once the policy wants no sweep for it, and after a quarter of a second in any case. 0:
	// allocations wait at the hard limit alone.
	Wait int64
}

// Policy decides when a sweep is due and how deep it goes. It is a value without state of its own, and is asked by many
// goroutines. A limit is kept whatever the policy decides: an allocation that does not fit sweeps under every policy. What a
// policy asks for besides it says by further methods: see [Counting], [Budgeted] and [Wrapper].
type Policy interface {
	Decide(s State) Decision
}

// Counting is implemented by a policy that wants to be asked every so many operators, not only when bytes have grown.
type Counting interface {
	EveryOperators() int
}

// Budgeted is implemented by a policy that pays for sweeps: the budget of time (State.Available) fills at this share of
// the time that passes. It is 0.05 where no policy has a say.
type Budgeted interface {
	TimeShare() float64
}

// Wrapper is implemented by a policy that asks others. Their further methods count as if they were its own.
type Wrapper interface {
	Wrapped() []Policy
}

// Paced is the default. It sweeps where garbage would take the live bytes beyond a goal, max(256 MiB, (1 + percent/100) ×
// Reachable), or, above 64 MiB, beyond Target, the bytes that the program is known to need. Sweeps are paid from a budget
// of time: those at Target by what has been saved, those at the goal with an overdraft of 100 ms. Where the budget cannot
// pay, the goal rises, to the hard limit at most. docs/decisions/0006 has the rule, package internal/pacer implements it.
type Paced struct {
	// Share of the time that sweeps may take, but for those at the hard limit, which are run whatever they cost; 0: 0.05.
	// Where it is 1 or more the goal never rises. Where it is less than 0 it does not either, and no sweep only keeps the
	// live bytes at Target.
	Share float64
}

// TimeShare implements [Budgeted].
func (p Paced) TimeShare() float64 {
	if p.Share == 0 {
		return pacer.DefaultShare
	}
	return min(max(p.Share, 0), 1)
}

// Decide implements [Policy].
func (p Paced) Decide(s State) Decision {
	share := p.Share
	if share == 0 {
		share = pacer.DefaultShare
	}
	plan := pacer.State{
		Live: s.Live, Yield: s.Allocated, Limit: s.Limit, SoftLimit: s.Budget, Reachable: s.Reachable, Target: s.Target,
		Request: s.Request, Largest: s.Largest, Last: s.Backward, Percent: s.Percent, Share: share, Available: s.Available, Cost: s.Cost,
	}.Decide()
	bytes := func(n int64) int64 { // 0 has another meaning
		if n == math.MaxInt64 {
			return 0
		}
		return max(n, 1)
	}
	d := Decision{Again: max(plan.Live, 1), Total: bytes(plan.Total), Wait: bytes(plan.Wait)}
	if plan.Collect {
		d.Sweep = Full
	}
	return d
}

// policyBox is the policy in use, with what it and those that it wraps ask for.
type policyBox struct {
	Policy
	every int64 // operators between two questions; 0: only when bytes have grown
	share float64
}

func boxOf(p Policy) *policyBox {
	box := &policyBox{Policy: p, share: -1}
	eachWrapped(p, func(p Policy) {
		if c, ok := p.(Counting); ok {
			if n := int64(c.EveryOperators()); n > 0 && (box.every == 0 || n < box.every) {
				box.every = n
			}
		}
		if b, ok := p.(Budgeted); ok {
			box.share = max(box.share, b.TimeShare())
		}
	})
	if box.share < 0 {
		box.share = pacer.DefaultShare
	}
	return box
}

// eachWrapped calls f for a policy and those that it wraps.
func eachWrapped(p Policy, f func(Policy)) {
	if p == nil {
		return
	}
	f(p)
	if w, ok := p.(Wrapper); ok {
		for _, q := range w.Wrapped() {
			eachWrapped(q, f)
		}
	}
}

var (
	policy  atomic.Pointer[policyBox]
	counted atomic.Int64 // operators, where the policy counts them
)

func init() {
	policy.Store(boxOf(Paced{}))
	sweepTime.SetShare(0, pacer.DefaultShare)
}

// use puts a policy in force.
func use(p Policy) (before *policyBox) {
	box := boxOf(p)
	before = policy.Swap(box)
	sweepTime.Lock()
	defer sweepTime.Unlock()
	sweepTime.SetShare(now(), box.share)
	return before
}

// SetPolicy changes when sweeps are due and returns the policy before; nil is [Paced].
func SetPolicy(p Policy) Policy {
	if p == nil {
		p = Paced{}
	}
	before := use(p)
	if cshim.Path() != "" {
		replanAll()
	}
	return before.Policy
}

// CurrentPolicy returns the policy in use.
func CurrentPolicy() Policy { return policy.Load().Policy }
