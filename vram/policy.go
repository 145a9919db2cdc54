package vram

import (
	"cmp"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/pacer"
)

// Depth is what a sweep does.
type Depth int

const (
	// None is no sweep.
	None Depth = iota
	// Light frees the tensors that are known to be unreachable. It does not run the Go collector.
	Light
	// Full runs the Go collector once and frees the tensors that it finds unreachable.
	Full
	// Deep is Full, then calls each [Reclaimer]. At the hard limit it ends as soon as there is room.
	Deep
)

// String returns the name of the depth, such as "full".
func (d Depth) String() string {
	if names := []string{"none", "light", "full", "deep"}; d >= 0 && int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("depth(%d)", int(d))
}

// MarshalText returns the depth's name, for JSON and logs.
func (d Depth) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// State is the input of a [Policy]: one device, before an operator or while an allocation waits.
type State struct {
	Device    Name
	Live      int64         // bytes live: those of reachable tensors, and garbage
	Reserved  int64         // Live, and the bytes that the allocator caches
	Capacity  int64         // bytes of the device; for the CPU, those of the machine
	Limit     int64         // hard limit, of SetLimit; 0: none
	SoftLimit int64         // of SetSoftLimit; 0: none
	Reachable int64         // bytes that the last complete sweep found reachable
	Target    int64         // bytes that the program needs: the largest Reachable + Request after sweeps, halved once a minute
	Allocated int64         // bytes allocated since the last full or deep sweep began
	Request   int64         // bytes about to be allocated: an estimate, or the sum of the allocations that wait
	Largest   int64         // the largest allocation that waits at the Decision's Wait; 0: none, Request is an estimate
	Backward  bool          // a backward pass is about to run: the last question before it ends unless an allocation waits
	Percent   int           // of SetGCPercent; -1: off
	Available time.Duration // what the time budget has left; negative if it is overdrawn
	Cost      time.Duration // the expected cost of a sweep

	total int64 // bytes allocated since the process began
	light int64 // bytes of Allocated that were allocated before the last light sweep ended
}

// Decision is the answer of a [Policy].
type Decision struct {
	// Sweep is the sweep to run now. If another goroutine already sweeps, that sweep is the answer, and Wait holds until
	// it has ended.
	Sweep Depth
	// Again asks the policy again when this many more bytes are live; at least 1 MiB.
	Again int64
	// Total asks the policy again when this many more bytes have been allocated, even if they were freed; 0: never.
	Total int64
	// Wait is how many more bytes may be live before an allocation waits. The policy is then asked with its exact size
	// (State.Largest). The allocation proceeds when the policy decides on no sweep, and after 250 ms at the latest. 0:
	// allocations wait at the hard limit alone.
	Wait int64
	// Share is the share of the time at which the time budget fills from now on (State.Available), up to 1. Time in which the
	// process uses no CPU does not count. 0: 0.05; negative: the budget does not fill.
	Share float64
}

// Policy decides when to sweep, and how deep. Decide is called on many goroutines at once: before an operator or a
// backward pass on the goroutine that calls it, otherwise on a new goroutine. It must not allocate tensors, call
// [Collect], or change limits or the policy. If it panics, [Paced] decides. If it ends the new goroutine
// (runtime.Goexit), Paced decides, too. The hard limit holds under every policy: an allocation that would pass it waits
// for a deep sweep.
type Policy interface {
	Decide(s State) Decision
}

// Paced is the default policy. It works like the pacer of the Go runtime, and sweeps in two cases:
//
//   - The live bytes would pass the goal, max(256 MiB, (1 + percent/100) × State.Reachable).
//   - The live bytes would pass State.Target, and are more than max(8 MiB, (1 + percent/100) × State.Reachable), or than
//     64 MiB if that is less. Such a sweep keeps the peak low. It runs only if it is expected to free enough, and if the
//     time budget can pay for it.
//
// Sweeps take at most 5 % of the time that the process runs, not counting the time to free the tensors; up to 100 ms
// may be saved up or overdrawn. If more threads are runnable than the machine has cores, sweeps take more wall-clock
// time than they are charged for: a sweep is charged at most four times its expected cost. If keeping to the goal would
// take more, because the Go heap is large and slow to collect or because the program makes gigabytes of garbage a
// second, the live bytes may exceed the goal, up to the hard limit.
type Paced struct {
	// Share is the share of the time that sweeps may take; 0 means 0.05. Sweeps at the hard limit do not count. With 1 or
	// more, sweeps always keep to the goal. A negative share also does so, and disables sweeps for the target.
	Share float64
}

// Decide implements [Policy].
func (p Paced) Decide(s State) Decision {
	p.Share = cmp.Or(p.Share, pacer.DefaultShare)
	plan := pacer.State{
		Live: s.Live, Yield: s.Allocated, Limit: s.Limit, SoftLimit: s.SoftLimit, Reachable: s.Reachable, Target: s.Target,
		Request: s.Request, Largest: s.Largest, Last: s.Backward, Percent: s.Percent, Share: p.Share, Available: s.Available,
		Cost: s.Cost,
	}.Decide()
	bytes := func(n int64) int64 { // in a Decision 0 is never
		if n == math.MaxInt64 {
			return 0
		}
		return max(n, 1)
	}
	d := Decision{Again: max(plan.Live, 1), Total: bytes(plan.Total), Wait: bytes(plan.Wait), Share: p.Share}
	if plan.Collect {
		d.Sweep = Full
	}
	return d
}

// ask returns the decision of p, or Paced's if p panics.
func (s State) ask(p Policy) (d Decision) {
	defer func() {
		if recover() != nil {
			d = Paced{}.Decide(s)
		}
	}()
	return p.Decide(s)
}

// askApart is ask on a new goroutine, which p may end: the pacer's must not end. Paced decides then.
func (s State) askApart(p Policy) Decision {
	if paced, ok := p.(Paced); ok {
		return paced.Decide(s)
	}
	answer := make(chan Decision, 1)
	go func() {
		defer close(answer)
		answer <- s.ask(p)
	}()
	if d, ok := <-answer; ok {
		return d
	}
	return Paced{}.Decide(s)
}

var policy atomic.Pointer[Policy]

// initial is the policy until the program or the environment sets one.
var initial Policy = Paced{}

func init() { policy.Store(&initial) }

// decide asks the policy, by State.ask or State.askApart, and sets the share of the time budget that it wants.
func (s State) decide(ask func(State, Policy) Decision) Decision {
	d := ask(s, CurrentPolicy())
	d.Sweep = min(max(d.Sweep, None), Deep) // a program's policy may return any number
	share := cmp.Or(d.Share, pacer.DefaultShare)
	timeBudget.Lock()
	defer timeBudget.Unlock()
	timeBudget.SetShare(timeBudget.clock.now(), min(max(share, 0), 1))
	return d
}

// SetPolicy sets the policy and returns the one before; nil is [Paced]. It takes precedence over LINSTOCK_POLICY, also
// before libtorch is loaded.
func SetPolicy(p Policy) Policy {
	if p == nil {
		p = Paced{}
	}
	before := policy.Swap(&p)
	if cshim.Path() != "" {
		replanAll()
	}
	return *before
}

// CurrentPolicy returns the policy in use.
func CurrentPolicy() Policy { return *policy.Load() }
