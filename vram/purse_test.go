package vram

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
)

// What may be spent is what has come in: a share of the time, up to a cap.
func TestPurse(t *testing.T) {
	balance.Hold(t, func() {})
	second := func(p *purse) { p.at = p.at.Add(-time.Second) }
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want || got > want+10*time.Millisecond { // what the test itself has taken, by its share
			t.Errorf("%s: %v, not %v", what, got, want)
		}
	}
	now := time.Now()
	p := &purse{share: 0.05, at: now, cost: time.Millisecond, scanned: 1 << 50}
	spare := func() time.Duration { s, _ := p.look(); return s }
	near("at the start", spare(), 0)
	second(p)
	near("after a second", spare(), 50*time.Millisecond)
	for range 10 {
		second(p)
	}
	near("the cap", spare(), 100*time.Millisecond)

	p.pay(2 * time.Millisecond)
	near("after a sweep", spare(), 98*time.Millisecond)
	costs := func(what string, want time.Duration) {
		t.Helper()
		if _, cost := p.look(); cost != want {
			t.Errorf("%s: a sweep costs %v, not %v", what, cost, want)
		}
	}
	costs("after one of twice the time", 1250*time.Microsecond)
	p.pay(0) // a sweep that was over before it began says nothing of the cost
	costs("after one of no time", 1250*time.Microsecond)
	p.pay(time.Second) // one that had to wait for the processors is not to blame for all of it
	near("after a long one", spare(), 93*time.Millisecond)
	costs("after a long one", 1562500*time.Nanosecond)

	// Another policy's time pays for nothing, and debts stay.
	p.empty()
	near("emptied", spare(), 0)
	p.pay(2 * time.Millisecond)
	p.empty()
	near("a debt", spare(), -2*time.Millisecond)
	for range 100 {
		p.pay(10 * time.Millisecond)
	}
	near("the largest debt", spare(), -100*time.Millisecond)
	for range 60 { // where one sweep is dear, the debt and the cap are one such
		p.pay(8 * time.Second)
	}
	_, cost := p.look()
	if cost < 7*time.Second {
		t.Errorf("sweeps of 8 s are taken to cost %v", cost)
	}
	near("a dear sweep", spare(), -cost)
	for range 1000 {
		second(p)
	}
	near("a dear sweep's cap", spare(), cost)
}

// However the sweeps come, what they take in the long run is the share.
func TestPurseKeepsItsShare(t *testing.T) {
	balance.Hold(t, func() {})
	random := rand.New(rand.NewPCG(1, 2))
	p := &purse{share: 0.05, at: time.Now(), cost: time.Millisecond, scanned: 1 << 50}
	var spent, passed time.Duration
	for passed < 1000*time.Second {
		d := time.Duration(random.IntN(int(10 * time.Millisecond)))
		p.at = p.at.Add(-d)
		passed += d
		if spare, cost := p.look(); spare >= cost {
			d := time.Millisecond + time.Duration(random.IntN(int(time.Millisecond)))
			p.pay(d)
			spent += d
		}
	}
	if share := float64(spent) / float64(passed); share < 0.049 || share > 0.051 {
		t.Errorf("%.4f of the time was spent", share)
	}
}

// A loop that leaves garbage is swept at the goal. Beside a Go heap that is dear to look through sweeps take their share
// of the time all the same, and the goal rises; where sweeps are cheap it stays.
func TestSweepsAtTheGoalKeepTheirShare(t *testing.T) {
	balance.Hold(t, func() {})
	const mib = 1 << 20
	for _, c := range []struct {
		cost      time.Duration
		sweeps    int   // at least, in 100 s
		low, high int64 // the peak, MiB
	}{
		{time.Millisecond, 1000, 240, 256},
		{10 * time.Millisecond, 300, 256, 2048},
		{300 * time.Millisecond, 10, 1024, 64 << 10},
	} {
		p := &purse{share: defaultShare * caution, at: time.Now(), cost: c.cost, scanned: 1 << 50}
		var passed, spent time.Duration
		pass := func(d time.Duration) { passed += d; p.at = p.at.Add(-d) }
		const reach, block = 32 * mib, 4 * mib
		live, allocated, peak, sweeps := int64(reach), int64(0), int64(0), 0
		for passed < 100*time.Second {
			spare, cost := p.look()
			s := State{
				Live: live, Reachable: reach, Highest: reach - mib, Next: block, Allocated: allocated, Percent: 100, Spare: spare, Cost: cost,
				exhausted: p.exhausted(spare, cost), summit: 1 << 40,
			}
			if (Paced{}).Decide(s).Sweep != None || s.Live+block > s.line() {
				pass(c.cost)
				p.pay(c.cost + c.cost/4)
				spent += c.cost
				live, allocated, sweeps = reach, 0, sweeps+1
			}
			live, allocated = live+block, allocated+block
			peak = max(peak, live)
			pass(time.Millisecond)
			if most := passed/20 + debt; spent > most {
				t.Fatalf("sweeps of %v took %v of %v", c.cost, spent, passed)
			}
		}
		if sweeps < c.sweeps || peak < c.low*mib || peak > c.high*mib {
			t.Errorf("%d sweeps of %v, a peak of %d MiB", sweeps, c.cost, peak/mib)
		}
	}
}

// A block larger than what is left below the goal waits for no sweep that cannot be paid, and does not count as reachable.
func TestTheGoalRisesForALargeBlock(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	a := accountOf(cpuWord)
	defer setPacer(setPacer(-time.Second, 0))
	before := ReadCounts()
	was, err := a.state()
	if err != nil {
		t.Fatal(err)
	}
	p := cshim.Pressure{Device: cpuWord, Bytes: 1 << 30}
	serve(&p)
	s, err := a.state()
	if err != nil || s.Reachable != was.Reachable {
		t.Errorf("reachable are %d bytes, before %d: %v", s.Reachable, was.Reachable, err)
	}
	if c := ReadCounts(); c.Full != before.Full {
		t.Error("a sweep has run that cannot be paid")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits < 1<<62 {
		t.Errorf("allocations still wait at %d bytes", a.waits)
	}
}

// A heap that has grown since the last sweep is not swept to find out what that costs: the first one beside 2 GiB took
// half a second where half a millisecond was expected.
func TestPurseKnowsThatTheHeapHasGrown(t *testing.T) {
	balance.Hold(t, func() {})
	p := &purse{share: 0.05, at: time.Now(), cost: time.Millisecond, scanned: 16 << 20}
	heap := make([]*int, 16<<20) // 128 MiB to look through
	runtime.GC()
	_, cost := p.look()
	if cost < 50*time.Millisecond || cost > 500*time.Millisecond {
		t.Errorf("a sweep is taken to cost %v", cost)
	}
	first := &purse{share: 0.05, at: time.Now(), cost: time.Millisecond, scanned: 16 << 20}
	first.pay(60 * time.Millisecond) // nobody has looked before
	if spare, now := first.look(); now < 50*time.Millisecond || spare > -50*time.Millisecond {
		t.Errorf("a first sweep of 60 ms: the next is taken to cost %v, %v are left", now, spare)
	}
	p.pay(10 * time.Millisecond)
	if _, now := p.look(); now >= cost {
		t.Errorf("it has cost 10 ms, and is taken to cost %v; before, %v", now, cost)
	}
	runtime.KeepAlive(heap)
}

// Paced says how much of the time may be spent, wherever it is wrapped.
func TestShareOfTime(t *testing.T) {
	balance.Hold(t, func() {})
	defer use(CurrentPolicy())
	for _, c := range []struct {
		p    Policy
		want float64
	}{
		{Paced{}, 0.05}, {Paced{Share: 0.2}, 0.2}, {Any{Off{}, Threshold{Else: Paced{Share: 0.1}}}, 0.1}, {Paced{Share: -1}, 0}, {Paced{Share: 7}, 1}, {Off{}, 0.05},
	} {
		use(c.p)
		time5.mu.Lock()
		time5.spare, time5.at = 0, time5.at.Add(-100*time.Millisecond) // no debt of an earlier test's
		time5.mu.Unlock()
		spare, _ := time5.look()
		most := time.Duration(c.want * float64(100*time.Millisecond))
		if spare > most+most/10+time.Millisecond || spare < most*8/10 {
			t.Errorf("%+v: %v of 100 ms may be spent, want a little less than %v", c.p, spare, most)
		}
	}
}

func TestWrapped(t *testing.T) {
	balance.Hold(t, func() {})
	for _, c := range []struct {
		p     Policy
		every int64
		paced bool
	}{
		{Paced{}, 0, true}, {Off{}, 0, false}, {Any{}, 0, false}, {Any{nil, Off{}}, 0, false}, {Budget{}, 100, false},
		{Threshold{Else: Budget{Operators: 7, Else: Paced{}}}, 7, true},
		{Any{Budget{Operators: 9}, Rates{Else: Budget{Operators: 8}}}, 8, false},
	} {
		if box := boxOf(c.p); box.every != c.every || box.paced != c.paced {
			t.Errorf("%#v: %d operators, paced %v; want %d, %v", c.p, box.every, box.paced, c.every, c.paced)
		}
	}
}
