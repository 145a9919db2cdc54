package profiler

import (
	"cmp"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sites"
	"github.com/linstock-ml/linstock/tensor"
)

// ErrRunning: a profile is recorded already.
var ErrRunning = errors.New("a profile is recorded already")

// ErrStopped: a Profiler was used after its Stop.
var ErrStopped = errors.New("the profiler is stopped")

// An Option is an option of Start.
type Option interface{ apply(*settings) }

type settings struct {
	shapes   bool
	limit    int
	schedule Schedule
	whole    bool // without a schedule
	ready    func(*Trace) error
}

type option func(*settings)

func (o option) apply(s *settings) { o(s) }

// RecordShapes also records the sizes of the operators' operands; off by default. PyTorch: record_shapes=True.
func RecordShapes(on ...bool) Option { return option(func(s *settings) { s.shapes = options.On(on) }) }

// MaxEvents limits the events of a trace; later ones are counted in Trace.Dropped. The trace has the times of as many steps.
// An event takes 80 bytes while it is recorded, and its name and its shapes take theirs once; later events take none. The
// default is 1,048,576.
func MaxEvents(n int) Option { return option(func(s *settings) { s.limit = n }) }

// OnTraceReady makes Step and Stop call f with each complete trace, and return its error. Stop completes the trace of a
// cycle in which something was recorded. Nothing is recorded while f runs: the next cycle begins after it. PyTorch:
// on_trace_ready.
func OnTraceReady(f func(*Trace) error) Option { return option(func(s *settings) { s.ready = f }) }

// A Schedule is an option of Start that records some of the steps between which the program calls Step: it passes over
// SkipFirst steps; then come cycles of Wait steps in which nothing is recorded, Warmup steps whose events are dropped, and
// Active steps, which make one trace. There are Repeat cycles, or as many as the program has steps if Repeat is 0. PyTorch:
// torch.profiler.schedule.
type Schedule struct{ SkipFirst, Wait, Warmup, Active, Repeat int }

func (s Schedule) apply(to *settings) { to.schedule, to.whole = s, false }

type phase int

const (
	idle phase = iota
	warming
	active
	last // active, and the trace ends with this step
)

// phase returns that of a step, counted from 0.
func (s Schedule) phase(step int) phase {
	step -= s.SkipFirst
	cycle := s.Wait + s.Warmup + s.Active
	if step < 0 || s.Repeat > 0 && step/cycle >= s.Repeat {
		return idle
	}
	switch step %= cycle; {
	case step < s.Wait:
		return idle
	case step < s.Wait+s.Warmup:
		return warming
	case step < cycle-1:
		return active
	}
	return last
}

// A Profiler records the events of the process from Start to Stop. Several goroutines may use it.
type Profiler struct {
	settings settings
	step     int
	now      phase
	began    time.Time
	steps    []step
	trace    *Trace // the last complete one

	reporting bool // the function of OnTraceReady runs
}

// A step is one of the program's, within a trace.
type step struct {
	number     int
	began, end time.Time
}

// recording has the Profiler that records; its lock guards the fields of all.
var recording struct {
	sync.Mutex
	by *Profiler
}

// observers counts what ranges are for: a profile that is recorded, and EmitNVTX.
var observers atomic.Int32

// Start begins to record, or to follow a Schedule. Options: RecordShapes, MaxEvents, OnTraceReady, a Schedule. It returns
// ErrRunning if another profile has not been stopped. PyTorch: torch.profiler.profile.
func Start(opts ...Option) (*Profiler, error) {
	const op = "Start"
	p := &Profiler{settings: settings{limit: 1 << 20, whole: true}}
	for _, o := range opts {
		if s, ok := o.(*Schedule); o == nil || ok && s == nil {
			return nil, refuse.NilOption(op)
		}
		o.apply(&p.settings)
	}
	switch s := p.settings.schedule; {
	case p.settings.limit < 1:
		return nil, refuse.Error(op, tensor.ErrArgument, "MaxEvents: at least 1 is needed, got %d", p.settings.limit)
	case p.settings.whole:
	case min(s.SkipFirst, s.Wait, s.Warmup, s.Active-1, s.Repeat) < 0:
		return nil, refuse.Error(op, tensor.ErrArgument, "Schedule: %+v has a negative number or no active step", s)
	case s.Wait > 1<<40 || s.Warmup > 1<<40 || s.Active > 1<<40:
		return nil, refuse.Error(op, tensor.ErrArgument, "Schedule: %+v has too many steps", s)
	}
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	recording.Lock()
	defer recording.Unlock()
	if recording.by != nil {
		return nil, refuse.Error(op, ErrRunning, "a profile is recorded already, and a process records one at a time")
	}
	if err := p.enter(p.phase(0)); err != nil {
		return nil, handle.NativeError(op, err)
	}
	recording.by = p
	return p, nil
}

func (p *Profiler) phase(step int) phase {
	if p.settings.whole {
		return active
	}
	return p.settings.schedule.phase(step)
}

// enter begins the phase of a step. The caller holds the lock, and p is not recording.
func (p *Profiler) enter(now phase) error {
	if (now == active || now == last) && len(p.steps) < p.settings.limit {
		p.steps = append(p.steps, step{number: p.step, began: time.Now()})
	}
	// What was recorded of the steps before the first active one is dropped.
	if now != idle && (p.now == idle || p.now == warming && now != warming) {
		if err := cshim.TraceStart(p.settings.shapes, uint64(p.settings.limit)); err != nil {
			return err
		}
		p.began = time.Now()
	}
	if now != idle && p.now == idle {
		observers.Add(1)
	}
	p.now = now
	return nil
}

// leave ends what enter began, and returns the trace of the events, if they are kept.
func (p *Profiler) leave(keep bool) (*Trace, error) {
	if p.now == idle {
		return nil, nil
	}
	cshim.TraceStop()
	observers.Add(-1)
	p.now = idle
	end := time.Now()
	events, dropped := cshim.TraceTake()
	if !keep {
		return nil, nil
	}
	t, err := newTrace(events, p.steps, p.began, end)
	p.steps = nil
	if err != nil {
		return nil, err
	}
	t.Dropped = int(dropped)
	p.trace = t
	return t, nil
}

// Step ends a step of the program. At the end of the last active step of a cycle the trace is complete. PyTorch:
// torch.profiler.profile.step.
func (p *Profiler) Step() (err error) {
	const op = "Step"
	if p == nil {
		return refuse.Nil(op, "a profiler")
	}
	ready, err := p.advance(op)
	if ready == nil || err != nil {
		return err
	}
	// The next step begins after the function, also if that panics: its operators are in no trace.
	defer func() { err = cmp.Or(err, p.resume(op)) }()
	return p.settings.ready(ready)
}

// advance ends the current step and begins the next one. If a trace is complete and OnTraceReady has a function for it,
// advance returns the trace, and resume begins the step.
func (p *Profiler) advance(op string) (ready *Trace, err error) {
	recording.Lock()
	defer recording.Unlock()
	if recording.by != p {
		return nil, refuse.Error(op, ErrStopped, "the profiler is stopped")
	}
	p.endStep()
	if p.now == last {
		if ready, err = p.leave(true); err != nil {
			return nil, handle.NativeError(op, err)
		}
	}
	p.step++
	if ready != nil && p.settings.ready != nil {
		p.reporting = true
		return ready, nil
	}
	return nil, handle.NativeError(op, p.begin())
}

// resume begins the current step after the function of OnTraceReady.
func (p *Profiler) resume(op string) error {
	recording.Lock()
	defer recording.Unlock()
	p.reporting = false
	if recording.by != p {
		return nil
	}
	return handle.NativeError(op, p.begin())
}

// begin begins the current step, unless the function of OnTraceReady runs. The caller holds the lock.
func (p *Profiler) begin() (err error) {
	switch next := p.phase(p.step); {
	case p.reporting:
	case next == idle:
		_, err = p.leave(false)
	default:
		err = p.enter(next)
	}
	return err
}

func (p *Profiler) endStep() {
	if n := len(p.steps); n > 0 && p.steps[n-1].end.IsZero() {
		p.steps[n-1].end = time.Now()
	}
}

// Stop ends the recording and returns the trace: that of the steps recorded since the last one that was complete, or else
// the last one, which is empty if nothing was recorded. A second Stop returns the same trace.
func (p *Profiler) Stop() (*Trace, error) {
	const op = "Stop"
	if p == nil {
		return nil, refuse.Nil(op, "a profiler")
	}
	ready, trace, err := p.end()
	if err != nil {
		return nil, handle.NativeError(op, err)
	}
	if ready && p.settings.ready != nil {
		err = p.settings.ready(trace)
	}
	return trace, err
}

func (p *Profiler) end() (ready bool, _ *Trace, err error) {
	recording.Lock()
	defer recording.Unlock()
	if recording.by == p {
		recording.by = nil
		ready = p.now == active || p.now == last
		begun := ready && !p.settings.whole && p.steps[0].end.IsZero() // no step of the cycle was finished
		p.endStep()
		before := p.trace
		t, err := p.leave(ready)
		if err != nil {
			return false, nil, err
		}
		if begun && len(t.Events) == 0 && t.Dropped == 0 {
			ready, p.trace = false, before
		}
	}
	if p.trace == nil {
		p.trace = &Trace{}
	}
	return ready, p.trace, nil
}

// RecordFunction runs f and returns its error. While a profile is recorded or EmitNVTX runs, f is a range with the name:
// an event around those of its operators. The goroutine is locked to its OS thread then. Otherwise it only calls f. PyTorch:
// torch.profiler.record_function.
func RecordFunction(name string, f func() error) error {
	const op = "RecordFunction"
	if f == nil {
		return refuse.Nil(op, "a function")
	}
	if observers.Load() == 0 {
		return f()
	}
	return handle.WithThread(func() error {
		r, err := cshim.RangePush(strings.ReplaceAll(name, "\x00", "\uFFFD"))
		if err != nil {
			return handle.NativeError(op, err)
		}
		defer func() {
			cshim.RangePop(r)
			sites.Attach(0)
		}()
		return f()
	})
}

// EmitNVTX runs f and returns its error. Meanwhile each operator of the process, each node of a backward pass and each range
// of RecordFunction is an NVTX range, which NVIDIA's tools show beside the kernels:
//
//	nsys profile -t cuda,nvtx ./program
//
// A range's name has the operator's sequence number, by which backward nodes are matched with forward operators. EmitNVTX
// returns an error that wraps errors.ErrUnsupported if no CUDA device can be used. PyTorch:
// torch.autograd.profiler.emit_nvtx.
func EmitNVTX(f func() error) error {
	const op = "EmitNVTX"
	if f == nil {
		return refuse.Nil(op, "a function")
	}
	if err := cshim.Load(); err != nil {
		return err
	}
	if n, _ := cshim.CUDA(); n == 0 {
		return refuse.Error(op, errors.ErrUnsupported, "NVTX needs a CUDA device, and none can be used")
	}
	if err := cshim.NVTXSet(true); err != nil {
		return handle.NativeError(op, err)
	}
	observers.Add(1)
	defer func() {
		observers.Add(-1)
		_ = cshim.NVTXSet(false)
	}()
	return f()
}
