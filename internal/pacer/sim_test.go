package pacer

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

const mib = 1 << 20

// trace is the memory events of a step of a program, recorded by tests/bench/peak -record. record.go there has the format.
type trace struct {
	base   int64 // reachable between steps
	events []event
	native map[int64]bool // blocks that libtorch references beside the program
}

type event struct {
	kind byte
	n    int64
}

func recorded(t testing.TB, name string) *trace {
	t.Helper()
	f, err := os.Open("testdata/" + name + ".trace.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	tr := &trace{native: map[int64]bool{}}
	for s := bufio.NewScanner(z); s.Scan(); {
		var kind string
		var n int64
		_, _ = fmt.Sscan(s.Text(), &kind, &n)
		switch kind {
		case "base":
			tr.base = n
		case "o", "b", "a", "u", "f":
			tr.events = append(tr.events, event{kind[0], n})
			if kind == "f" {
				tr.native[n] = true
			}
		}
	}
	return tr
}

// written returns a trace from text in the same format, on one line.
func written(base int64, text string) *trace {
	tr := &trace{base: base, native: map[int64]bool{}}
	f := strings.Fields(text)
	for i := 0; i < len(f); i += 2 {
		var n int64
		_, _ = fmt.Sscan(f[i+1], &n)
		tr.events = append(tr.events, event{f[i][0], n})
	}
	return tr
}

// peak returns the peak above the base if each block is freed at its last use, as reference counting does.
func (tr *trace) peak() int64 {
	s := newSim(scenario{trace: tr, refcounts: true, steps: 2})
	return s.run().peak - tr.base
}

type block struct {
	bytes           int64
	program, native bool // whether the program and libtorch reference it
}

// proc is a goroutine that runs steps.
type proc struct {
	at      int
	now     time.Duration
	blocks  []*block
	garbage []*block // blocks after their last use
	steps   int
	asked   bool // the question before the next operator was asked
	waits   time.Duration
	round   bool // a cycle has run for the allocation that waits
}

// scenario is a program and its environment.
type scenario struct {
	trace      *trace
	then       *trace // for the second half of the steps
	steps      int
	goroutines int
	unscoped   bool
	refcounts  bool
	lastUse    bool    // the program releases each block at its last use
	speed      float64 // of the program; 0: as recorded
	cost       time.Duration
	noise      float64 // of a cycle's cost: the mean of an exponential distribution, as a multiple
	scan       func(step int) int64
	rate       float64 // bytes of the Go heap that cycles really scan in a second; 0: markRate
	share      float64 // 0: DefaultShare
	percent    int     // 0: 100
	limit      int64   // above the base
	soft       int64
	warm       float64       // the share of the steps before peaks and shares are measured; 0: a third
	growing    bool          // nothing ever becomes unreachable
	disturbed  time.Duration // each hundredth cycle takes so much longer
}

type result struct {
	peak, first            int64   // live bytes; in the first half of the steps
	cycles, rounds, before int     // measured; all before
	part, all              float64 // of the time in cycles, measured and from the start
	spent, elapsed         time.Duration
	ooms                   int
	believed               time.Duration // the expected cost of a cycle at the end
}

// sim is a discrete-event simulation of package vram. The proc with the least time runs its next event.
type sim struct {
	scenario
	r           *rand.Rand
	c           Controller
	b           Budget
	live, total int64
	procs       []*proc

	nextLive, nextTotal, waitTrigger int64
	due                              bool

	// The cycle under way.
	running bool
	ends    time.Duration
	took    time.Duration
	found   []*block
	cycle   Cycle

	result
	spentAt, nowAt time.Duration
}

func newSim(sc scenario) *sim {
	def := func(p *float64, v float64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&sc.speed, 1)
	def(&sc.share, DefaultShare)
	def(&sc.warm, 1./3)
	sc.steps = max(sc.steps, 30)
	if sc.percent == 0 {
		sc.percent = 100
	}
	if sc.cost == 0 {
		sc.cost = 700 * time.Microsecond
	}
	if sc.rate == 0 {
		sc.rate = 2 << 30
	}
	if sc.scan == nil {
		sc.scan = func(int) int64 { return 0 }
	}
	s := &sim{scenario: sc, r: rand.New(rand.NewPCG(1, 2)), live: sc.trace.base, total: sc.trace.base}
	for i := range max(1, sc.goroutines) {
		s.procs = append(s.procs, &proc{now: time.Duration(i) * 100 * time.Microsecond})
	}
	s.b.SetShare(0, max(0, sc.share))
	s.c.mark = s.total
	s.plan(s.state(s.procs[0]).Decide())
	return s
}

func (s *sim) state(p *proc) State {
	st := s.c.State(p.now, s.live, s.total)
	st.Percent, st.Share, st.SoftLimit = s.percent, s.share, s.soft
	if s.limit > 0 {
		st.Limit = s.trace.base + s.limit
	}
	scan := s.scan(p.steps)
	st.Available, st.Cost = s.b.Available(p.now, scan), s.b.Cost(scan)
	return st
}

func add(a, b int64) int64 {
	if b == never {
		return never
	}
	return a + b
}

func (s *sim) plan(p Plan) {
	s.nextLive, s.nextTotal, s.waitTrigger = add(s.live, p.Live), add(s.total, p.Total), add(s.live, p.Wait)
}

func (s *sim) free(b *block) {
	if !b.program && !b.native {
		s.live -= b.bytes
		b.bytes = 0
	}
}

// start begins a cycle on p. It finds the blocks that are unreachable now.
func (s *sim) start(p *proc, request int64, round bool) {
	cost := float64(s.cost) + float64(s.scan(p.steps))/s.rate*1e9
	if round {
		cost *= 1.5
		s.rounds++
	}
	cost *= 1 + s.noise*s.r.ExpFloat64()
	s.took = time.Duration(cost)
	if s.cycles++; s.cycles%100 == 0 {
		s.took += s.disturbed
	}
	s.running, s.ends, s.cycle = true, p.now+s.took, Cycle{Total: s.total, Outcome: Complete, Request: request}
	for _, q := range s.procs {
		s.found = append(s.found, q.garbage...)
		q.garbage = nil
	}
	// The threads that a cycle wakes slow the next operators down.
	p.now = s.ends + s.took/4
}

func (s *sim) finish() {
	for _, b := range s.found {
		b.program = false
		s.free(b)
	}
	s.found, s.running = nil, false
	s.spent += s.took
	p := s.procs[0]
	s.b.Charge(s.ends, s.took, s.scan(p.steps))
	s.c.Finished(s.ends, s.live, s.total, s.cycle)
	s.plan(s.state(&proc{now: s.ends, steps: p.steps}).Decide())
}

// boundary asks before an operator, and reports whether a cycle has begun.
func (s *sim) boundary(p *proc, last bool) bool {
	if !last && !s.due && s.live <= s.nextLive && s.total <= s.nextTotal {
		return false
	}
	s.due = false
	st := s.state(p)
	st.Last = last
	switch d := st.Decide(); {
	case !d.Collect:
		if !last {
			s.plan(d)
		}
	case s.running: // another proc collects; this one continues
		s.nextTotal = s.total + 16*mib
	default:
		s.start(p, st.Request, false)
		return true
	}
	return false
}

// admit reports whether n bytes are allocated. If not, p waits.
func (s *sim) admit(p *proc, n int64) bool {
	if s.live+n > s.waitTrigger && p.waits < 250*time.Millisecond {
		if s.running {
			p.waits += s.ends - p.now
			p.now = s.ends
			return false
		}
		s.c.Waited(p.now, s.live, n)
		st := s.state(p)
		st.Request, st.Largest = n, n
		if st.Decide().Collect {
			s.start(p, n, true)
			p.waits += s.took
			return false
		}
		p.now += 40 * time.Microsecond
		s.due = true
		s.plan(s.state(p).Decide())
	}
	if limit := s.trace.base + s.limit; s.limit > 0 && s.live+n > limit {
		if !p.round {
			if s.running {
				p.now = s.ends
			} else {
				s.start(p, n, true)
				p.round = true
			}
			return false
		}
		s.ooms++
	}
	p.waits, p.round = 0, false
	return true
}

func (s *sim) endStep(p *proc, tr *trace) {
	for _, b := range p.blocks {
		b.native = false
		if b.bytes != 0 && b.program && s.unscoped {
			p.garbage = append(p.garbage, b)
			continue
		}
		if b.bytes != 0 {
			b.program = false
			s.free(b)
		}
	}
	if !s.unscoped {
		p.garbage = nil
	}
	p.at, p.blocks = 0, nil
	p.steps++
}

func (s *sim) step(p *proc) {
	tr := s.trace
	if s.then != nil && p.steps >= s.steps/2 {
		tr = s.then
	}
	if p.at == len(tr.events) {
		s.endStep(p, tr)
		return
	}
	e := tr.events[p.at]
	switch e.kind {
	case 'o', 'b':
		if !p.asked && !s.refcounts {
			p.asked = true
			if s.boundary(p, e.kind == 'b') {
				return
			}
		}
		p.asked = false
		p.now += time.Duration(float64(e.n) * 1000 / s.speed)
	case 'a':
		n := max(e.n, -e.n)
		if !s.refcounts && !s.admit(p, n) {
			return
		}
		p.blocks = append(p.blocks, &block{n, e.n > 0, e.n < 0 || tr.native[int64(len(p.blocks))]})
		s.live += n
		s.total += n
		s.peak = max(s.peak, s.live)
		if p.steps < s.steps/2 {
			s.first = max(s.first, s.live)
		}
	case 'u':
		if b := p.blocks[e.n]; s.refcounts || s.lastUse {
			b.program = false
			s.free(b)
		} else if !s.growing {
			p.garbage = append(p.garbage, b)
		}
	case 'f':
		b := p.blocks[e.n]
		b.native = false
		s.free(b)
	}
	p.at++
}

func (s *sim) run() result {
	measured := false
	for {
		p := s.procs[0]
		for _, q := range s.procs {
			if q.now < p.now {
				p = q
			}
		}
		if s.running && p.now >= s.ends {
			s.finish()
		}
		if first := s.procs[0]; first.steps >= s.steps {
			s.elapsed = first.now
			s.part = float64(s.spent-s.spentAt) / float64(first.now-s.nowAt)
			s.all = float64(s.spent) / float64(first.now)
			s.believed = s.b.Cost(s.scan(first.steps))
			return s.result
		} else if !measured && float64(first.steps) >= s.warm*float64(s.steps) {
			measured = true
			s.peak, s.spentAt, s.nowAt = s.live, s.spent, first.now
			s.before, s.cycles, s.rounds = s.cycles, 0, 0
		}
		s.step(p)
	}
}
