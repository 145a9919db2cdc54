package vram_test

import (
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Reachable is the number of bytes that the last complete sweep found reachable. A block that was admitted
// above the goal does not count and does not raise the goal.
func TestReachableIsFromTheLastSweep(t *testing.T) {
	leak.Counted(t)
	leak.Check(t)
	usePolicy(t, vram.Paced{Share: -1})
	ok(t, vram.Collect())
	reachable := memoryNow(t).Reachable
	x := tensor.Empty([]int{75 * mib}) // 300 MiB
	ok(t, x.Err())
	x.Release()
	if now := memoryNow(t).Reachable; now > reachable+mib {
		t.Errorf("%d MiB are reachable after a block was released, %d before it", now/mib, reachable/mib)
	}
	ok(t, vram.ResetPeak(vram.CPU))
	for range 200 {
		ok(t, tensor.Empty([]int{mib}).Err())
	}
	if peak := memoryNow(t).Peak; peak > 256*mib {
		t.Errorf("a peak of %d MiB, the goal is 256 MiB", peak/mib)
	}
	ok(t, vram.Collect())
}

// userPolicy is a policy as a user may write it. It bounds the live bytes and records the calls.
type userPolicy struct {
	bound int64
	share float64
	asked *questions
}

type questions struct {
	sync.Mutex
	exact []int64
	last  vram.State
}

func (p userPolicy) Decide(s vram.State) vram.Decision {
	p.asked.Lock()
	defer p.asked.Unlock()
	p.asked.last = s
	if s.Largest > 0 {
		p.asked.exact = append(p.asked.exact, s.Largest)
	}
	if s.Live+s.Request > p.bound && s.Allocated > 0 {
		return vram.Decision{Sweep: vram.Full, Share: p.share}
	}
	return vram.Decision{Again: max(1, p.bound-s.Live), Wait: max(1, p.bound-s.Live), Share: p.share}
}

// A user's policy can do all that Paced does: make allocations wait, be called with their exact size, admit
// those that still do not fit, and set the share of the time budget.
func TestAUsersPolicyMakesAllocationsWait(t *testing.T) {
	leak.Counted(t)
	for _, within := range []string{"alone", "Any", "Threshold"} {
		t.Run(within, func(t *testing.T) {
			leak.Check(t)
			ok(t, vram.Collect())
			p := userPolicy{memoryNow(t).Allocated + 40*mib, 1, &questions{}}
			switch within {
			case "alone":
				usePolicy(t, p)
			case "Any":
				usePolicy(t, vram.Any{vram.Off{}, p})
			case "Threshold":
				usePolicy(t, vram.Threshold{Else: p})
			}
			ok(t, vram.ResetPeak(vram.CPU))
			before := vram.ReadCounts()
			for range 30 {
				ok(t, tensor.Empty([]int{mib}).Err())     // 4 MiB
				ok(t, tensor.Empty([]int{5 * mib}).Err()) // 20 MiB; the call before the operator does not know the size
			}
			m, c := memoryNow(t), vram.ReadCounts().Since(before)
			if m.Peak > p.bound && c.Timeouts == 0 {
				t.Errorf("a peak of %d MiB above the wait trigger", (m.Peak-p.bound)/mib)
			}
			if c.Full == 0 {
				t.Error("no sweep has run")
			}
			// The reachable bytes leave no room: the allocation is admitted.
			held := tensor.Empty([]int{15 * mib})
			ok(t, held.Err())
			held.Release()
			ok(t, vram.Collect())
			p.asked.Lock()
			defer p.asked.Unlock()
			sizes := map[int64]bool{}
			for _, n := range p.asked.exact {
				sizes[n/mib] = true
			}
			if !sizes[20] || !sizes[60] {
				t.Errorf("asked with exact requests of %v MiB", sizes)
			}
		})
	}
}

// Sweeps are charged to the time budget, which fills at the policy's share.
func TestSweepsArePaidFor(t *testing.T) {
	leak.Counted(t)
	leak.Check(t)
	p := userPolicy{1 << 60, -1, &questions{}} // the budget does not fill
	usePolicy(t, p)
	left := 1.0
	for range 3 {
		ok(t, vram.Collect()) // calls the policy afterwards
		p.asked.Lock()
		now, cost := p.asked.last.Available.Seconds(), p.asked.last.Cost.Seconds()
		p.asked.Unlock()
		if now >= left && now > -0.1 || cost <= 0 { // the debt is bounded
			t.Errorf("%v s were left, and %v s after a sweep; one is expected to cost %v s", left, now, cost)
		}
		left = now
	}
}

// The time budget fills while the process runs, not while it is idle.
func TestIdleTimePaysForNoSweep(t *testing.T) {
	leak.Counted(t)
	leak.Check(t)
	available := func(p userPolicy) time.Duration {
		vram.SetPolicy(p) // asks it
		p.asked.Lock()
		defer p.asked.Unlock()
		return p.asked.last.Available
	}
	asked := &questions{}
	stopped, filling := userPolicy{1 << 60, -1, asked}, userPolicy{1 << 60, 1, asked}
	usePolicy(t, stopped)
	for i := 0; available(stopped) > 0; i++ {
		if i == 10000 {
			t.Fatal("sweeps are not charged")
		}
		ok(t, vram.Collect())
	}
	available(filling)
	before := available(filling)
	time.Sleep(60 * time.Millisecond)
	idle := available(filling) - before
	for start := time.Now(); time.Since(start) < 60*time.Millisecond; {
	}
	busy := available(filling) - before - idle
	if idle > busy/2 {
		t.Errorf("the budget has grown by %v in 60 ms of idling, and by %v in 60 ms of computing", idle, busy)
	}
}
