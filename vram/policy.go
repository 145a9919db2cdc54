package vram

import (
	"fmt"
	"iter"
	"time"
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

// State is what a policy decides on: one device as it stands when an operator is about to run.
type State struct {
	Device    Name
	Live      int64         // bytes live
	Reserved  int64         // Live, and what the allocator keeps
	Capacity  int64         // of the device; of the machine for the CPU
	Limit     int64         // hard; 0: none
	Budget    int64         // soft; 0: none
	Reachable int64         // live after the last sweep
	Highest   int64         // the highest Reachable of late
	Next      int64         // the largest block of late: what the operator may ask for
	Allocated int64         // bytes given out since the last sweep
	Operators int64         // operators since the policy was last asked, where it counts them
	Percent   int           // of SetGCPercent; -1: off
	Spare     time.Duration // what the budget of time has left
	Cost      time.Duration // what a sweep costs, by the last ones
	Backward  bool          // a backward pass is about to run: the last chance until it ends

	total  int64 // bytes ever given out
	summit int64 // account.summit
	ahead  int64 // account.ahead

	exhausted bool // the budget of time cannot pay for a sweep at the goal
}

// Decision is a policy's answer.
type Decision struct {
	Sweep Depth
	// Again is how many bytes more must be live before the policy is asked again; 0 leaves it to the pacer.
	Again int64
	// Total is how many bytes more must have been given out before it is asked again, whatever is live; 0: that does
	// not matter.
	Total int64
}

// Policy says when a sweep is due and how deep it goes. It is a value without state of its own, and is asked from many
// goroutines. A limit is kept whatever the policy says: an allocation that does not fit sweeps under every policy.
type Policy interface {
	Decide(s State) Decision
}

// Counting is implemented by a policy that wants to be asked every so many operators, not only when bytes have grown.
type Counting interface {
	EveryOperators() int
}

const (
	floor      = 256 << 20 // live bytes below which nothing has to be done
	spareFloor = 128 << 20 // live bytes below which spare time is not spent
	smallReach = 32 << 20  // less than that reachable: a peak of 256 MiB is as good as one of 128
)

// Paced is the default. Above the goal, max(256 MiB, (1 + percent/100) × reachable), a sweep is due; while the budget of
// time cannot pay for one the goal rises, to the hard limit at most. Below the goal, a sweep that would
// lower the peak is paid from spare time: when as much as a sixteenth of the live bytes has been given out since the
// last one (a sixty-fourth past the soft budget), and what is live passes 128 MiB and the highest reachable bytes of
// late. Where those are less than 32 MiB, spare time is kept: a peak of 256 MiB then says nothing of the program.
// On the CPU a block that would make a new peak waits for such a sweep, too, while the operator that asks for it runs;
// where small blocks have, operators are swept for before they begin, which costs less.
type Paced struct {
	// Share of the time that sweeps may take, but for those at the hard limit, which are run whatever they cost; 0: 0.05.
	// Where it is 1 or more the goal never rises. Where it is less than 0 it does not either, and no sweep only lowers the
	// peak.
	Share float64
}

// Decide implements Policy.
func (Paced) Decide(s State) Decision {
	d := paced(s)
	if d.Sweep == None {
		// In time for the line.
		d.Again = max(1<<20, min(d.Again, s.line()-s.Live-s.expected()))
		if s.exhausted { // the goal rises from here
			d.Again = min(d.Again, max(1<<20, s.Live/16))
		}
	}
	return d
}

func paced(s State) Decision {
	if s.Live+s.expected() > s.line() && s.Allocated > s.Live/64 {
		return Decision{Sweep: Full}
	}
	share := int64(16)
	if s.Budget > 0 && s.Live+s.Next > s.Budget {
		share = 64
	}
	step := max(s.Live/share, 1<<20)
	if from := s.spareFrom(); s.Percent < 0 || s.Live+s.Next < from {
		return Decision{Again: max(step, from-s.Live-s.Next)}
	}
	if s.Allocated < step && !s.Backward {
		return Decision{Again: step - s.Allocated}
	}
	room := max(s.peak(), s.Highest+s.Highest/64) - s.Live
	if s.ahead > 0 { // it would wait at the peak itself
		room = s.peak() - s.Live - s.small()
	}
	if room > 0 && !s.Backward {
		return Decision{Again: room}
	}
	if s.Backward && s.Spare < s.Cost {
		return Decision{Again: step}
	}
	if !s.Backward && !s.affords(0) {
		if left := s.promise() - s.Allocated; left > 0 {
			step = min(step, left)
		}
		return Decision{Again: step}
	}
	return Decision{Sweep: Full}
}

// affords says whether spare time is to be spent on a sweep before a block of so many bytes is given: for a large one,
// which is likely to make the peak, wherever there is some. For others a part is left for those, and the less there is
// besides, the more must have been given out since the last sweep: as much as another may find at most.
func (s State) affords(bytes int64) bool {
	if bytes >= s.Live/16 {
		return s.Spare >= s.Cost && s.Allocated > s.Live/256
	}
	return s.Spare >= 2*s.Cost && s.Allocated > s.promise()
}

// promise is what must have been given out since the last sweep for one before a block that is not large: from a 24th of
// what is live to a sixth as spare time goes down to four sweeps', and to a third where only two are left. It has no step,
// where sweeps would end all at once.
func (s State) promise() int64 {
	const rich = 20 * time.Millisecond
	left := s.Spare - 4*s.Cost
	poor := 1 - float64(min(max(left, 0), rich))/float64(rich)
	promise := s.Live/24 + int64(float64(s.Live/8)*poor)
	if left < 0 && s.Cost > 0 {
		promise += int64(float64(s.Live/6) * min(1, float64(-left)/float64(2*s.Cost)))
	}
	return promise
}

// spareFrom is from how many live bytes on spare time is spent: where sweeps have found little that can be reached,
// only from where one is due anyway.
func (s State) spareFrom() int64 {
	if s.Highest > 0 && s.Highest < smallReach {
		return floor
	}
	return spareFloor
}

// peak is what has been needed of late: what passes it makes a new one.
func (s State) peak() int64 { return max(s.summit, s.Highest) }

// small is the small block that the next operator is taken to ask for where the peak is concerned.
func (s State) small() int64 { return min(s.ahead, s.Live/16) }

// expected is what the next operator is taken to ask for where the line is concerned: a block larger than a sixteenth of
// it waits there itself, and is too rare for every operator before it to be swept for.
func (s State) expected() int64 { return min(s.Next, s.line()/16) }

// line is the goal: where a sweep is due. There is none but the hard limit where the budget cannot pay for a sweep.
func (s State) line() int64 {
	if s.Percent < 0 {
		return 1<<63 - 1
	}
	line := max(floor, s.Reachable+s.Reachable/100*int64(s.Percent))
	if s.exhausted {
		line = 1<<63 - 1
	}
	if s.Limit > 0 {
		line = min(line, s.Limit)
	}
	return line
}

// Threshold sweeps each time so many bytes have been allocated since the last sweep, whatever is live: R torch's
// torch.threshold_call_gc.
type Threshold struct {
	Bytes int64  // 0: 4,000 MB
	Else  Policy // asked where the threshold is not reached; nil: nobody
}

// Decide implements Policy.
func (p Threshold) Decide(s State) Decision {
	bytes := p.Bytes
	if bytes <= 0 {
		bytes = 4000 << 20
	}
	if s.Allocated >= bytes {
		return Decision{Sweep: Full}
	}
	d := wrap(p.Else, s, 1<<60)
	d.Total = bytes - s.Allocated
	return d
}

// Rates are R torch's three for CUDA: no sweep while reserved/capacity is below Reserved; a full one above
// allocated/capacity = Total or above allocated/reserved = Allocated; else a light one. Zeros are 0.2, 0.8 and 0.8.
// Unlike there, an allocation that does not fit still sweeps.
type Rates struct {
	Reserved, Total, Allocated float64
	Else                       Policy // asked where no sweep is due; nil: nobody
}

// Decide implements Policy.
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

// EveryOperators implements Counting.
func (p Budget) EveryOperators() int {
	if p.Operators <= 0 {
		return 100
	}
	return p.Operators
}

// Decide implements Policy.
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

// Decide implements Policy.
func (Off) Decide(State) Decision { return Decision{Again: 1 << 62} }

// Any sweeps when one of its policies says so, as deep as the deepest.
type Any []Policy

// Decide implements Policy.
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
		if d.Total > 0 && (all.Total == 0 || d.Total < all.Total) {
			all.Total = d.Total
		}
	}
	return all
}

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

// wrapped gives a policy and those that it wraps.
func wrapped(p Policy) iter.Seq[Policy] {
	return func(yield func(Policy) bool) { eachWrapped(p, yield) }
}

func eachWrapped(p Policy, yield func(Policy) bool) bool {
	if p == nil {
		return true
	}
	if !yield(p) {
		return false
	}
	switch p := p.(type) {
	case Threshold:
		return eachWrapped(p.Else, yield)
	case Rates:
		return eachWrapped(p.Else, yield)
	case Budget:
		return eachWrapped(p.Else, yield)
	case Any:
		for _, q := range p {
			if !eachWrapped(q, yield) {
				return false
			}
		}
	}
	return true
}
