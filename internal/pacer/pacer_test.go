package pacer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// models are recorded steps of programs without releases by hand.
var models = []string{"mlp-train", "mlp-eval", "cnn-train", "cnn-eval", "gru-train", "gru-eval", "gpt-train", "gpt-eval"}

// loop is a program of 64 operators, each of which leaves a temporary. 8 MiB are reachable.
func loop(bytes, micros int) *trace {
	text := ""
	for i := range 64 {
		text += fmt.Sprintf("o %d a %d u %d ", micros, bytes, i)
	}
	return written(8*mib, text)
}

// growth is a program that allocates 64 blocks of 16 MiB and keeps them.
func growth() *trace {
	return written(8*mib, strings.Repeat(fmt.Sprintf("o 5000 a %d ", 16*mib), 64))
}

// workingSet is a program of small operators in a scope, with 497 MiB reachable.
func workingSet() *trace {
	text := ""
	for range 64 {
		text += fmt.Sprintf("o 20 a %d f %d ", -mib/16, strings.Count(text, "o"))
	}
	return written(497*mib, text)
}

// scenarios returns programs with checks of what the pacer does for each.
func scenarios(t *testing.T) map[string]func(t testing.TB) {
	all := map[string]func(t testing.TB){}
	within := func(t testing.TB, what string, got, low, high float64) {
		t.Helper()
		if got < low || got > high {
			t.Errorf("%s is %.4g, want %.4g to %.4g", what, got, low, high)
		}
	}
	ratio := func(r result, tr *trace) float64 { return float64(r.peak-tr.base) / float64(tr.peak()) }
	share := func(t testing.TB, r result) { // including what cycles cost the next operators
		t.Helper()
		if lost, most := r.spent*5/4, time.Duration(DefaultShare*float64(r.elapsed))+burst+2*r.believed; lost > most {
			t.Errorf("cycles have cost %v of %v, want %v at most", lost, r.elapsed, most)
		}
	}

	// The peaks of recorded models beside those of reference counts, in a scope for each step and without.
	for _, name := range models {
		tr := recorded(t, name)
		for _, unscoped := range []bool{false, true} {
			all[fmt.Sprintf("%s, unscoped %v", name, unscoped)] = func(t testing.TB) {
				r := newSim(scenario{trace: tr, unscoped: unscoped}).run()
				within(t, "the peak", ratio(r, tr), 0, 1.10)
				share(t, r)
				noisy := newSim(scenario{trace: tr, unscoped: unscoped, noise: 0.5}).run()
				within(t, "the peak with noisy costs", ratio(noisy, tr), 0, 1.15)
				share(t, noisy)
			}
		}
	}
	// Each block is released at its last use, so that cycles find nothing. A step needs as much as the one before, and only
	// its backward pass asks for a cycle.
	for _, name := range models {
		tr := recorded(t, name)
		all[name+", released at last use"] = func(t testing.TB) {
			r := newSim(scenario{trace: tr, lastUse: true, steps: 100}).run()
			within(t, "the peak", ratio(r, tr), 0, 1)
			within(t, "cycles a step", float64(r.cycles)/67, 0, 1.25)
			share(t, r)
		}
	}
	all["median of the models"] = func(t testing.TB) {
		var ratios []float64
		for _, name := range models {
			tr := recorded(t, name)
			ratios = append(ratios, ratio(newSim(scenario{trace: tr, noise: 0.5, speed: 2}).run(), tr))
		}
		slices.Sort(ratios)
		within(t, "the median", ratios[len(ratios)/2], 0, 1.02)
	}
	// The budget cannot pay for all useful cycles. Those that free most run, also at the end of a step.
	all["scarce budget"] = func(t testing.TB) {
		tr := recorded(t, "gru-eval")
		r := newSim(scenario{trace: tr, speed: 4, steps: 200}).run()
		within(t, "the peak", ratio(r, tr), 0, 1.35)
		share(t, r)
	}
	// A cycle runs before a backward pass even if little was allocated since the last one.
	all["before a backward pass"] = func(t testing.TB) {
		tr := recorded(t, "gpt-train")
		r := newSim(scenario{trace: tr, speed: 8, noise: 1, unscoped: true}).run()
		within(t, "the peak", ratio(r, tr), 0, 1.05)
		share(t, r)
	}
	for name, trace := range map[string]string{"toy": "toy-train", "toy gru": "toy-gru"} {
		tr := recorded(t, trace)
		all[name+" in scopes"] = func(t testing.TB) {
			r := newSim(scenario{trace: tr, steps: 1000}).run()
			within(t, "cycles", float64(r.before+r.cycles), 0, 1) // the first cycle finds the target
		}
		all[name+" outside scopes"] = func(t testing.TB) {
			r := newSim(scenario{trace: tr, steps: 1000, unscoped: true}).run()
			within(t, "the peak, MiB", float64(r.peak)/mib, 0, 96)
			share(t, r)
		}
	}
	// 8 MiB are reachable, so a heap of 16 MiB has doubled. The next operator allocates 16 KiB.
	all["small heap"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(16<<10, 200), steps: 1000, unscoped: true, noise: 0.5}).run()
		within(t, "the peak, MiB", float64(r.peak)/mib, 16-16./1024, 20)
		share(t, r)
	}
	// The budget goes as far as 64 MiB, and no farther.
	for _, l := range []struct {
		bytes, micros int
		cost          time.Duration
	}{{256 << 10, 200, 0}, {16 << 10, 8, 0}, {16 << 10, 50, 3 * time.Millisecond}} {
		all[fmt.Sprintf("small heap, scarce budget: %d KiB in %d us", l.bytes>>10, l.micros)] = func(t testing.TB) {
			r := newSim(scenario{trace: loop(l.bytes, l.micros), steps: 10e6 / 64 / l.micros, unscoped: true, noise: 0.5, cost: l.cost}).run()
			within(t, "the peak, MiB", float64(r.peak)/mib, 16, 68)
			share(t, r)
		}
	}
	// Less than minTarget is live, and most of it is garbage that a scope frees.
	all["tiny in scopes"] = func(t testing.TB) {
		tr := loop(64<<10, 20)
		tr.base = mib / 4
		r := newSim(scenario{trace: tr, steps: 1000}).run()
		within(t, "cycles", float64(r.before+r.cycles), 0, 0)
	}
	all["loop"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 350), steps: 300, unscoped: true}).run()
		within(t, "the peak, MiB", float64(r.peak)/mib, 0, 256)
		share(t, r)
	}
	all["goal alone"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 350), steps: 300, unscoped: true, share: -1}).run()
		within(t, "the peak, MiB", float64(r.peak)/mib, 200, 256)
		within(t, "cycles a step", float64(r.cycles)/200, 0, 1.1)
	}
	all["goal alone, 16 goroutines"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 350), steps: 100, unscoped: true, share: -1, goroutines: 16}).run()
		within(t, "the peak, MiB", float64(r.peak)/mib, 200, 256+4)
	}
	all["20 percent of much"] = func(t testing.TB) {
		tr := loop(4*mib, 350)
		tr.base = 400 * mib
		r := newSim(scenario{trace: tr, steps: 100, unscoped: true, share: -1, percent: 20}).run()
		within(t, "the peak, MiB", float64(r.peak)/mib, 440, 480)
	}
	all["growing live set"] = func(t testing.TB) {
		r := newSim(scenario{trace: growth(), steps: 2, growing: true, warm: 0.01}).run()
		share(t, r)
	}
	all["working set at the limit"] = func(t testing.TB) {
		tr := workingSet()
		r := newSim(scenario{trace: tr, steps: 1000, limit: 15 * mib, soft: 400 * mib}).run()
		within(t, "cycles a step", float64(r.cycles)/667, 0, 0.25)
		share(t, r)
	}
	all["no percent"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 350), steps: 30, unscoped: true, percent: -1}).run()
		within(t, "cycles", float64(r.before+r.cycles), 0, 0)
	}
	all["limit a little above the need"] = func(t testing.TB) {
		for _, name := range models {
			tr := recorded(t, name)
			r := newSim(scenario{trace: tr, unscoped: true, limit: tr.peak() * 21 / 20}).run()
			within(t, name+": false out-of-memory errors", float64(r.ooms), 0, 0)
		}
	}
	// A cycle that scans 1 GiB takes half a second, so the goal rises.
	gib := func(int) int64 { return 1 << 30 }
	all["big Go heap"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 10000), steps: 300, unscoped: true, scan: gib, rate: 2 << 30}).run()
		within(t, "the peak, MiB", float64(r.peak)/mib, 257, 8192)
		within(t, "cycles", float64(r.before+r.cycles), 5, 1000)
		share(t, r)
	}
	all["Go heap that grows"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 1000), steps: 100, unscoped: true, warm: 0.99, scan: func(step int) int64 {
			if step < 90 {
				return 0
			}
			return 4 << 30
		}}).run()
		within(t, "the time in cycles, s", r.spent.Seconds(), 0, 0.5)
	}
	all["Go heap that shrinks"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 10000), steps: 300, unscoped: true, warm: 0.6, scan: func(step int) int64 {
			if step < 100 {
				return 1 << 30
			}
			return 0
		}}).run()
		within(t, "the peak, MiB", float64(r.peak)/mib, 0, 128)
	}
	// The peak falls to a third; the program runs for ten minutes.
	all["program that becomes smaller"] = func(t testing.TB) {
		small := recorded(t, "gpt-eval")
		r := newSim(scenario{trace: recorded(t, "cnn-eval"), then: small, steps: 600, warm: 0.8}).run()
		within(t, "the peak", float64(r.peak-small.base)/float64(small.peak()), 0, 1.2)
	}
	// Now and then a cycle is preempted: its duration does not predict that of the next one.
	all["disturbed cycles"] = func(t testing.TB) {
		tr := recorded(t, "gru-eval")
		r := newSim(scenario{trace: tr, disturbed: 150 * time.Millisecond, steps: 60}).run()
		within(t, "the peak", ratio(r, tr), 0, 1.25)
	}
	all["dear cycles"] = func(t testing.TB) {
		r := newSim(scenario{trace: loop(4*mib, 350), steps: 300, unscoped: true, cost: 8 * time.Millisecond}).run()
		within(t, "expected cost of a cycle, ms", r.believed.Seconds()*1000, 8, 16)
		share(t, r)
	}
	all["first cycle"] = func(t testing.TB) {
		var b Budget
		within(t, "its expected cost, ms", b.Cost(0).Seconds()*1000, 0.1, 2)
	}
	return all
}

func TestScenarios(t *testing.T) {
	for name, run := range scenarios(t) {
		t.Run(name, func(t *testing.T) { run(t) })
	}
}

// Each constant has a scenario that fails without it.
func TestEachConstantIsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		without func() (restore func())
		fails   []string // scenarios that must fail
	}{
		"floor":      {set(&floor, 0), []string{"goal alone"}},
		"minTarget":  {set(&minTarget, 0), []string{"tiny in scopes"}},
		"smallHeap":  {set(&smallHeap, never), []string{"gpt-eval, unscoped true"}},
		"reserve":    {set(&reserve, 0), []string{"small heap, scarce budget: 16 KiB in 8 us"}},
		"halfLife":   {set(&halfLife, never), []string{"program that becomes smaller"}},
		"minYield":   {set(&minYield, 1e-9), []string{"scarce budget"}},
		"burst":      {set(&burst, 0), []string{"gru-eval, unscoped true"}},
		"overhead":   {set(&overhead, 1), []string{"scarce budget"}},
		"baseCost":   {set(&baseCost, 0), []string{"first cycle"}},
		"markRate":   {set(&markRate, 1e18), []string{"Go heap that grows"}},
		"outlier":    {set(&outlier, 1e9), []string{"disturbed cycles"}},
		"costWeight": {set(&costWeight, 0), []string{"dear cycles"}},
	} {
		t.Run(name, func(t *testing.T) {
			defer c.without()()
			failing := ""
			for name, run := range scenarios(t) {
				f := &recorder{T: t}
				run(f)
				if f.failed {
					failing += name + "; "
				}
			}
			t.Logf("these scenarios fail without it: %s", failing)
			for _, name := range c.fails {
				if !strings.Contains(failing, name) {
					t.Errorf("%s passes without it", name)
				}
			}
		})
	}
}

func set[T any](p *T, v T) func() func() {
	return func() func() {
		was := *p
		*p = v
		return func() { *p = was }
	}
}

// recorder records that a scenario has failed.
type recorder struct {
	*testing.T
	failed bool
}

func (r *recorder) Errorf(string, ...any) { r.failed = true }
