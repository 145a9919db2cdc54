package pacer

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestDecide(t *testing.T) {
	const ms = time.Millisecond
	// 240 MiB are live of a goal of 256, 200 are needed, and the bucket is full.
	state := func(change func(*State)) State {
		s := State{
			Live: 240 * mib, Yield: 40 * mib, Reachable: 100 * mib, Target: 200 * mib, Request: mib, Percent: 100,
			Share: DefaultShare, Available: 100 * ms, Cost: ms,
		}
		change(&s)
		return s
	}
	for _, c := range []struct {
		name    string
		state   State
		collect bool
	}{
		{"above the target", state(func(*State) {}), true},
		{"below the target", state(func(s *State) { s.Live = 190 * mib }), false},
		{"the request passes the target", state(func(s *State) { s.Live, s.Request = 190*mib, 11*mib }), true},
		{"not worth it", state(func(s *State) { s.Yield = 9 * mib }), false},
		{"not worth it from half a bucket", state(func(s *State) { s.Yield, s.Available = 18*mib, 50*ms }), false},
		{"a large request", state(func(s *State) { s.Yield, s.Request, s.Largest = mib, 15*mib, 15*mib }), true},
		{"nothing to find for a large request", state(func(s *State) { s.Yield, s.Request, s.Largest, s.Live = 0, 15*mib, 15*mib, 230*mib }), false},
		{"many small requests", state(func(s *State) { s.Yield, s.Request, s.Largest = mib, 15*mib, mib }), false},
		{"many small requests past the goal", state(func(s *State) { s.Yield, s.Request, s.Largest, s.Available = 5*mib, 17*mib, mib, 0 }), true},
		{"an estimate is never large", state(func(s *State) { s.Yield, s.Request = mib, 15*mib }), false},
		{"before a backward pass", state(func(s *State) { s.Live, s.Yield, s.Last = 150*mib, mib, true }), true},
		{"before a small backward pass", state(func(s *State) { s.Live, s.Yield, s.Last = 50*mib, 50*mib, true }), false},
		{"a small program", state(func(s *State) { s.Live, s.Target = 60*mib, 0 }), false},
		{"nothing left", state(func(s *State) { s.Available = ms / 2 }), false},
		{"nothing left at the goal", state(func(s *State) { s.Live, s.Available = 260*mib, -90*ms }), true},
		{"overdrawn at the goal", state(func(s *State) { s.Live, s.Available = 260*mib, -110*ms }), false},
		{"overdrawn with all of the time", state(func(s *State) { s.Live, s.Available, s.Share = 260*mib, -110*ms, 1 }), true},
		{"overdrawn without paid cycles", state(func(s *State) { s.Live, s.Available, s.Share = 260*mib, -110*ms, -1 }), true},
		{"no paid cycles", state(func(s *State) { s.Share = -1 }), false},
		{"no percent", state(func(s *State) { s.Live, s.Percent = 1000*mib, -1 }), false},
		{"the limit is the goal", state(func(s *State) { s.Limit, s.Available = 230*mib, -90*ms }), true},
		{"the limit is the goal where the budget is overdrawn", state(func(s *State) { s.Limit, s.Available = 230*mib, -110*ms }), true},
		{"nothing to find at the goal", state(func(s *State) { s.Live, s.Yield = 260*mib, 0 }), false},
		{"past the soft limit of the program", state(func(s *State) { s.Live, s.SoftLimit, s.Yield = 150*mib, 140*mib, mib }), true},
	} {
		if p := c.state.Decide(); p.Collect != c.collect {
			t.Errorf("%s: %+v gives %+v", c.name, c.state, p)
		}
	}
}

// The next question comes before a cycle may be due, and not at once.
func TestPlanAsksInTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	asked := 0
	for range 100000 {
		n := func() int64 { return r.Int64N(1024 * mib) }
		s := State{
			Live: n(), Yield: n(), Limit: n() * r.Int64N(2), SoftLimit: n() * r.Int64N(2), Reachable: n(), Target: n(), Request: r.Int64N(4 * mib),
			Percent: r.IntN(200) - 1, Share: DefaultShare, Available: time.Duration(r.Int64N(int64(200*time.Millisecond))) - burst, Cost: time.Millisecond,
		}
		p := s.Decide()
		if p.Collect {
			continue
		}
		// Until then, with the same budget, no cycle is due.
		if more := min(p.Live, p.Total) - 1; more > 0 && more < 1024*mib {
			asked++
			later := s
			later.Live, later.Yield = s.Live+more, s.Yield+more
			if d := later.Decide(); d.Collect && more > int64(minYield*float64(s.Live)) {
				t.Fatalf("%+v gives %+v, but %d bytes later %+v", s, p, more, d)
			}
		}
		if s.Yield = 0; s.Decide().Collect {
			t.Fatalf("nothing was allocated, but %+v collects", s)
		}
	}
	if asked < 1000 {
		t.Errorf("only %d plans were checked", asked)
	}
}

func TestBudget(t *testing.T) {
	const ms = time.Millisecond
	var b Budget
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want-ms/100 || got > want+ms/100 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	b.SetShare(0, 0.05)
	near("at the start", b.Available(0, 0), 0)
	near("after a second", b.Available(time.Second, 0), 50*ms)
	near("full", b.Available(time.Hour, 0), burst)
	for range 100 {
		b.Charge(time.Hour, 8*ms, 0)
	}
	near("cost of a cycle", b.Cost(0), 10*ms)
	near("full again", b.Available(2*time.Hour, 0), burst)
	b.Charge(2*time.Hour, 8*ms, 0)
	near("after a cycle", b.Available(2*time.Hour, 0), 90*ms)
	b.SetShare(3*time.Hour, 0.1)
	near("with another share", b.Available(3*time.Hour, 0), burst)
	b.Charge(3*time.Hour, 8*ms, 0)
	b.SetShare(3*time.Hour, 0.05)
	near("with the share before", b.Available(3*time.Hour, 0), 90*ms)
	for range 100 {
		b.Charge(3*time.Hour, 8*ms, 0)
	}
	near("the most that is owed", b.Available(3*time.Hour, 0), -burst)
	near("after as much was earned", b.Available(3*time.Hour+2*time.Second, 0), 0)
	for range 100 { // one cycle is more than a burst
		b.Charge(3*time.Hour, 800*ms, 0)
	}
	near("cost of an expensive cycle", b.Cost(0), time.Second)
	b.Charge(3*time.Hour, 3*time.Hour, 0)
	near("after a cycle that was preempted", b.Cost(0), 1750*ms)
	for range 100 {
		b.Charge(3*time.Hour, 800*ms, 0)
	}
	near("cost of an expensive cycle", b.Cost(0), time.Second)
	near("the most that is owed for it", b.Available(3*time.Hour, 0), -time.Second)
	near("full for it", b.Available(5*time.Hour, 0), time.Second)
}

func TestReachable(t *testing.T) {
	var c Controller
	c.Finished(0, 100, 1000, Cycle{Total: 960, Outcome: Complete})
	if n := c.Reachable(); n != 60 {
		t.Errorf("%d of 100 bytes are reachable after a complete cycle during which 40 were allocated", n)
	}
	c.Finished(0, 200, 1200, Cycle{Total: 1200, Outcome: CutShort})
	if n := c.Reachable(); n != 60 {
		t.Errorf("%d bytes are reachable after a cycle that was cut short, want 60", n)
	}
	c.Finished(0, 50, 1200, Cycle{Total: 1200})
	if n := c.Reachable(); n != 50 {
		t.Errorf("50 bytes are live, and %d reachable", n)
	}
}
