package vram

import (
	"math"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/pacer"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"golang.org/x/sys/unix"
)

// account holds the settings and estimates of one device. The C side counts its bytes.
type account struct {
	word int32

	mu        sync.Mutex // guards the fields below
	pacer     pacer.Controller
	soft      int64 // of SetSoftLimit
	percent   int   // of SetGCPercent
	capacity  int64
	peakOther int64 // Memory.PeakOther
	light     int64 // bytes allocated in total when the last light sweep ended

	follows atomic.Bool // the limit follows the cgroups
	far     atomic.Bool // the next question is due after the live bytes have doubled, or later
}

func newAccount(word int32) *account { return &account{word: word, percent: 100} }

var cpuOnly = []*account{newAccount(cpuWord)}

// allAccounts makes the accounts of the other devices, whose number is known once libtorch is loaded and does not change.
var allAccounts = sync.OnceValue(func() []*account {
	list := slices.Clone(cpuOnly)
	for _, t := range cshim.DeviceTypes {
		for i := range t.Count() {
			list = append(list, newAccount(t.Word(i)))
		}
	}
	return list
})

// known returns the accounts of all devices; before libtorch is loaded, the CPU's.
func known() []*account {
	if cshim.Path() == "" {
		return cpuOnly
	}
	return allAccounts()
}

// accountOf returns the account of a device, which must exist.
func accountOf(word int32) *account {
	list := known()
	return list[slices.IndexFunc(list, func(a *account) bool { return a.word == word })]
}

// accountFor loads libtorch and returns the account of a device.
func accountFor(d Device) (*account, error) {
	w, err := loaded(d)
	if err != nil {
		return nil, err
	}
	return accountOf(w), nil
}

// timeBudget pays for the sweeps of all devices. It does not fill while the process is idle: the steps after a pause would
// spend on sweeps what the process saved in it.
var timeBudget struct {
	sync.Mutex
	pacer.Budget
	clock runClock
}

// runClock measures the time that the process runs: the elapsed time, except that it advances by no more than the CPU time
// that the process has used between two readings.
type runClock struct{ elapsed, cpu, ran time.Duration }

func (c *runClock) now() time.Duration {
	elapsed, cpu := now(), cpuTime()
	c.ran += max(0, min(elapsed-c.elapsed, cpu-c.cpu))
	c.elapsed, c.cpu = elapsed, cpu
	return c.ran
}

// cpuTime returns the CPU time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return now()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// now is the pacer's clock. Unlike time.Now, it is the same inside and outside a bubble of testing/synctest.
func now() time.Duration { return clock() - epoch }

var epoch = clock()

func clock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // fails only for a clock that does not exist
	return time.Duration(t.Nano())
}

// scannable returns the number of bytes that the Go collector scanned in its last cycle, except the tensors in open
// scopes, which a sweep does not scan if they are unreachable.
func scannable() int64 {
	s := [1]metrics.Sample{{Name: "/gc/scan/total:bytes"}}
	metrics.Read(s[:])
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	const tensorBytes = 56 // of a tensor and its entry, in the size class of both
	return max(0, int64(s[0].Value.Uint64())-tensorBytes*reclaim.Scoped())
}

// counters returns the device's counters. It fails only for a device that does not exist, which has no account.
func (a *account) counters() cshim.Pace {
	m, _ := cshim.MemoryPace(a.word)
	return m
}

// state returns the input of the policy before an operator.
func (a *account) state() State {
	m, scan := a.counters(), scannable()
	timeBudget.Lock()
	available, cost := timeBudget.Available(timeBudget.clock.now(), scan), timeBudget.Cost(scan)
	timeBudget.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pacer.State(now(), m.Live, m.Total)
	return State{
		Device: nameOf(a.word), Live: m.Live, Reserved: m.Reserved, Capacity: a.memory(m.Limit), Limit: m.Limit,
		SoftLimit: a.softLimit(m.Limit), Reachable: p.Reachable, Target: p.Target, Request: p.Request, Allocated: p.Yield,
		Percent: a.percent, Available: available, Cost: cost, total: m.Total, light: max(0, a.light-(m.Total-p.Yield)),
	}
}

// replan asks the policy and sets the triggers of the next question.
func (a *account) replan() {
	s := a.state()
	a.plan(s, s.decide(State.askApart))
}

func replanAll() {
	for _, a := range known() {
		a.replan()
	}
}

// plan sets the triggers of the next question after decision d in state s.
func (a *account) plan(s State, d Decision) {
	after := func(from, bytes int64) int64 {
		if bytes <= 0 || bytes > math.MaxInt64-from {
			return math.MaxInt64
		}
		return from + bytes
	}
	a.far.Store(d.Sweep == None && d.Again > s.Live)
	if d.Sweep == None {
		d.Again = max(d.Again, leastStep)
	} else { // the next sweep sets them again
		d.Again, d.Total = sweepStep, sweepStep
	}
	_ = cshim.MemorySetTriggers(a.word, after(s.Live, d.Again), after(s.total, d.Total), after(s.Live, d.Wait))
}

const (
	// leastStep is the minimum number of bytes between two calls of the policy.
	leastStep = 1 << 20
	// sweepStep is that number from a decision to sweep to the end of the sweep.
	sweepStep = 16 << 20
)

// finished records a sweep and sets the triggers again.
func (a *account) finished(c pacer.Cycle) {
	m := a.counters()
	a.mu.Lock()
	a.pacer.Finished(now(), m.Live, m.Total, c)
	a.mu.Unlock()
	a.replan()
}

// finishedLight is finished for a light sweep.
func (a *account) finishedLight() {
	m := a.counters()
	a.mu.Lock()
	a.light = m.Total
	a.mu.Unlock()
	a.replan()
}

// waited records the size of an allocation that waits.
func (a *account) waited(bytes int64) {
	m := a.counters()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pacer.Waited(now(), m.Live, bytes)
}

// fits reports whether the hard limit leaves room for that many bytes.
func (a *account) fits(bytes int64) bool {
	m := a.counters()
	return m.Limit > 0 && m.Live+bytes <= m.Limit
}

func sumOverDevices(f func(cshim.Pace) int64) (sum int64) {
	for _, a := range known() {
		sum += f(a.counters())
	}
	return sum
}

// liveHandles returns the number of tensors that are not freed.
func liveHandles() int64 {
	m, _ := cshim.MemoryStats(0xff)
	return m.Handles
}

func liveEverywhere() int64 { return sumOverDevices(func(m cshim.Pace) int64 { return m.Live }) }
