package vram

import (
	"cmp"

	"github.com/linstock-ml/linstock/internal/pacer"
)

// never is a number of bytes that no process allocates, for Decision.Again.
const never = 1 << 62

// Threshold sweeps after every Bytes bytes of allocation. It is R torch's torch.threshold_call_gc.
type Threshold struct {
	Bytes int64  // 0: 4,000 MB
	Else  Policy // asked below the threshold; may be nil
}

// Decide implements [Policy].
func (p Threshold) Decide(s State) Decision {
	bytes := cmp.Or(max(p.Bytes, 0), 4000<<20)
	if s.Allocated >= bytes {
		return Decision{Sweep: Full}
	}
	d := orElse(p.Else, s, never)
	d.Total = earlier(d.Total, bytes-s.Allocated)
	return d
}

// Rates is R torch's policy for CUDA devices. It does not sweep while State.Reserved / Capacity is below Reserved. Else
// it runs a full sweep if Live / Capacity is above Total or Live / Reserved is above Allocated, and a light one if
// neither is. It does not sweep again before an eighth of the live bytes, and 1 MiB at least, was allocated. The zero
// value of a field is R torch's default: 0.2, 0.8 and 0.8.
type Rates struct {
	Reserved, Total, Allocated float64
	Else                       Policy // asked when no sweep is due; may be nil
}

// Decide implements [Policy].
func (p Rates) Decide(s State) Decision {
	reserved := cmp.Or(max(p.Reserved, 0), 0.2)
	total, allocated := cmp.Or(max(p.Total, 0), 0.8), cmp.Or(max(p.Allocated, 0), 0.8)
	capacity := float64(max(s.Capacity, 1))
	step := max(s.Live/8, leastStep)
	if float64(s.Reserved)/capacity < reserved {
		return orElse(p.Else, s, step)
	}
	// A sweep that freed nothing is not repeated before an eighth of the live bytes was allocated.
	if since := s.Allocated - s.light; since < step {
		return orElse(p.Else, s, step-since)
	}
	if float64(s.Live)/capacity > total || float64(s.Live) > allocated*float64(max(s.Reserved, 1)) {
		return Decision{Sweep: Full}
	}
	return Decision{Sweep: Light, Again: step}
}

// LiveShare sweeps when the live bytes are more than Share of the capacity. It does not sweep again before a sixteenth of the
// live bytes, and 1 MiB at least, was allocated. It is goDl's policy, which compares every 100 operators.
type LiveShare struct {
	Share float64 // 0: the soft limit, or 0.9 of the capacity if there is none
	Else  Policy  // asked when no sweep is due; may be nil
}

// Decide implements [Policy].
func (p LiveShare) Decide(s State) Decision {
	most := int64(max(p.Share, 0) * float64(s.Capacity))
	if p.Share <= 0 {
		most = cmp.Or(s.SoftLimit, int64(0.9*float64(s.Capacity)))
	}
	if s.Live <= most {
		return orElse(p.Else, s, max(most-s.Live, leastStep))
	}
	step := max(s.Live/16, leastStep)
	if s.Allocated >= step {
		return Decision{Sweep: Full}
	}
	d := orElse(p.Else, s, never)
	d.Total = earlier(d.Total, step-s.Allocated)
	return d
}

// Off sweeps only when an allocation would pass the hard limit.
type Off struct{}

// Decide implements [Policy].
func (Off) Decide(State) Decision { return Decision{Again: never} }

// Any asks several policies. It takes the deepest sweep, the earliest next question, and the largest Share, where 0 is
// 0.05: a policy that sets no Share raises a lower one. To keep that, ask the policy with it as the Else of the others.
type Any []Policy

// Decide implements [Policy].
func (ps Any) Decide(s State) Decision {
	all := Decision{Again: never}
	asked := false
	for _, p := range ps {
		if p == nil {
			continue
		}
		d := p.Decide(s)
		if !asked || cmp.Or(d.Share, pacer.DefaultShare) >= cmp.Or(all.Share, pacer.DefaultShare) {
			all.Share = d.Share
		}
		asked = true
		all.Sweep, all.Again = max(all.Sweep, d.Sweep), min(all.Again, max(d.Again, leastStep))
		all.Total, all.Wait = earlier(all.Total, d.Total), earlier(all.Wait, d.Wait)
	}
	return all
}

// earlier returns the smaller of two, where 0 is never.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// orElse asks p if there is one. The next question comes after at most that many more live bytes.
func orElse(p Policy, s State, again int64) Decision {
	if p == nil {
		return Decision{Again: again}
	}
	d := p.Decide(s)
	d.Again = min(again, max(d.Again, leastStep))
	return d
}
