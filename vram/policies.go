package vram

// Threshold sweeps each time so many bytes have been allocated since the last sweep, whatever is live: R torch's
// torch.threshold_call_gc.
type Threshold struct {
	Bytes int64  // 0: 4,000 MB
	Else  Policy // asked where the threshold is not reached; nil: nobody
}

// Wrapped implements [Wrapper].
func (p Threshold) Wrapped() []Policy { return []Policy{p.Else} }

// Decide implements [Policy].
func (p Threshold) Decide(s State) Decision {
	bytes := p.Bytes
	if bytes <= 0 {
		bytes = 4000 << 20
	}
	if s.Allocated >= bytes {
		return Decision{Sweep: Full}
	}
	d := wrap(p.Else, s, 1<<60)
	d.Total = earlier(d.Total, bytes-s.Allocated)
	return d
}

// Rates are R torch's three for CUDA: no sweep while reserved/capacity is below Reserved; a full one above
// allocated/capacity = Total or above allocated/reserved = Allocated; else a light one. Zeros are 0.2, 0.8 and 0.8.
// Unlike there, an allocation that does not fit still sweeps.
type Rates struct {
	Reserved, Total, Allocated float64
	Else                       Policy // asked where no sweep is due; nil: nobody
}

// Wrapped implements [Wrapper].
func (p Rates) Wrapped() []Policy { return []Policy{p.Else} }

// Decide implements [Policy].
func (p Rates) Decide(s State) Decision {
	def := func(v *float64, d float64) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&p.Reserved, 0.2)
	def(&p.Total, 0.8)
	def(&p.Allocated, 0.8)
	capacity := float64(max(s.Capacity, 1))
	step := max(s.Live/8, 1<<20)
	if float64(s.Reserved)/capacity < p.Reserved {
		return wrap(p.Else, s, step)
	}
	// A sweep that has found nothing is not repeated until an eighth more has been given out.
	if s.Allocated < step {
		return wrap(p.Else, s, step-s.Allocated)
	}
	if float64(s.Live)/capacity > p.Total || float64(s.Live) > p.Allocated*float64(max(s.Reserved, 1)) {
		return Decision{Sweep: Full}
	}
	return Decision{Sweep: Light, Again: step}
}

// Budget compares live bytes with a share of the capacity every so many operators: goDl's rule, with a step back where
// a sweep finds little. Zeros are 0.9 and 100.
type Budget struct {
	Share     float64
	Operators int
	Else      Policy // asked where no sweep is due; nil: nobody
}

// EveryOperators implements [Counting].
func (p Budget) EveryOperators() int {
	if p.Operators <= 0 {
		return 100
	}
	return p.Operators
}

// Wrapped implements [Wrapper].
func (p Budget) Wrapped() []Policy { return []Policy{p.Else} }

// Decide implements [Policy].
func (p Budget) Decide(s State) Decision {
	if p.Share <= 0 {
		p.Share = 0.9
	}
	of := s.Budget
	if of == 0 {
		of = int64(p.Share * float64(s.Capacity))
	}
	if s.Live > of && s.Allocated >= max(s.Live/16, 1<<20) {
		return Decision{Sweep: Full}
	}
	return wrap(p.Else, s, 1<<20)
}

// Off sweeps only when an allocation does not fit.
type Off struct{}

// Decide implements [Policy].
func (Off) Decide(State) Decision { return Decision{Again: 1 << 62} }

// Any sweeps when one of its policies says so, as deep as the deepest.
type Any []Policy

// Wrapped implements [Wrapper].
func (ps Any) Wrapped() []Policy { return ps }

// Decide implements [Policy].
func (ps Any) Decide(s State) Decision {
	all := Decision{Again: 1 << 62}
	for _, p := range ps {
		if p == nil {
			continue
		}
		d := p.Decide(s)
		all.Sweep = max(all.Sweep, d.Sweep)
		if d.Again > 0 {
			all.Again = min(all.Again, d.Again)
		}
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

// wrap asks the policy within another, at the latest after so many bytes.
func wrap(p Policy, s State, again int64) Decision {
	if p == nil {
		return Decision{Again: again}
	}
	d := p.Decide(s)
	if d.Again == 0 || d.Again > again {
		d.Again = again
	}
	return d
}
