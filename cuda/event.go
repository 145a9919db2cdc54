package cuda

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// An Event marks a point in a stream's work. Several goroutines may use one Event. The native event is made by the first
// Record, and freed by Close or after the Event has become unreachable. PyTorch: torch.cuda.Event.
type Event struct {
	id     uint64 // the order in which two events are locked
	timing bool
	bad    error // of NewEvent

	mu      sync.RWMutex // held for writing by Record and Close
	native  cshim.StreamEvent
	closed  bool
	cleanup runtime.Cleanup
}

// An EventOption is an option of NewEvent.
type EventOption interface{ event(*Event) }

type timing bool

func (t timing) event(e *Event) { e.timing = bool(t) }

// EnableTiming makes the event usable with ElapsedTime; off by default. PyTorch: the argument enable_timing of
// torch.cuda.Event.
func EnableTiming(on ...bool) EventOption { return timing(options.On(on)) }

var events atomic.Uint64

// NewEvent returns an event that has not been recorded. If an option is nil, the event's methods return that
// error. Option: EnableTiming. PyTorch: torch.cuda.Event.
func NewEvent(opts ...EventOption) *Event {
	e := &Event{id: events.Add(1)}
	for _, o := range opts {
		if o == nil {
			e.bad = refuse.NilOption("NewEvent")
			break
		}
		o.event(e)
	}
	return e
}

// use calls f with the event locked for reading. native is 0 before the first Record.
func (e *Event) use(op string, f func(native cshim.StreamEvent) error) error {
	if e == nil {
		return refuse.Nil(op, "an event")
	}
	if e.bad != nil {
		return e.bad
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return refuse.Error(op, ErrClosed, "the event was closed")
	}
	return f(e.native)
}

// Record marks the point in s after the work that s has now, instead of the point that an earlier Record has marked. An
// event belongs to the device of its first Record; a stream of another one is tensor.ErrArgument. PyTorch: Event.record.
func (e *Event) Record(s *Stream) error {
	const op = "Record"
	if e == nil {
		return refuse.Nil(op, "an event")
	}
	if e.bad != nil {
		return e.bad
	}
	if err := s.check(op); err != nil {
		return err
	}
	freeDropped()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return refuse.Error(op, ErrClosed, "the event was closed")
	}
	if e.native == 0 {
		native, err := cshim.EventNew(s.native.Device, e.timing)
		if err != nil {
			return handle.NativeError(op, err)
		}
		e.native = native
		e.cleanup = runtime.AddCleanup(e, dropEvent, native)
	}
	err := e.native.Record(s.native)
	runtime.KeepAlive(e)
	return handle.NativeError(op, err)
}

// Wait makes work given to s from now on wait until the work before the event is done. It does nothing if the event was
// never recorded. The goroutine does not wait. If the event was recorded in a capture, s becomes part of it: the error is
// tensor.ErrCapture outside of that capture, or if s is the current stream of another goroutine. PyTorch: Event.wait.
func (e *Event) Wait(s *Stream) error {
	const op = "Wait"
	if err := s.check(op); err != nil {
		return err
	}
	return e.use(op, func(n cshim.StreamEvent) error {
		if n == 0 {
			return nil
		}
		return handle.NativeError(op, n.Wait(s.native))
	})
}

// Query reports whether the work before the event is done. It is true if the event was never recorded. The error is
// tensor.ErrCapture if the event was recorded in a capture. PyTorch: Event.query.
func (e *Event) Query() (done bool, err error) {
	const op = "Query"
	err = e.use(op, func(n cshim.StreamEvent) error {
		if n == 0 {
			done = true
			return nil
		}
		var err error
		done, err = n.Query()
		return handle.NativeError(op, err)
	})
	return done, err
}

// Synchronize waits until the work before the event is done. It returns at once if the event was never recorded. The error
// is tensor.ErrCapture if the event was recorded in a capture. PyTorch: Event.synchronize.
func (e *Event) Synchronize() error {
	const op = "Synchronize"
	return e.use(op, func(n cshim.StreamEvent) error {
		if n == 0 {
			return nil
		}
		return handle.NativeError(op, n.Synchronize())
	})
}

// ElapsedTime returns the time on the device between e and end, to about half a microsecond. Both must have been made with
// EnableTiming, recorded, and be done; otherwise the error is tensor.ErrArgument. PyTorch: Event.elapsed_time, which
// returns milliseconds.
func (e *Event) ElapsedTime(end *Event) (time.Duration, error) {
	const op = "ElapsedTime"
	var ms float64
	between := func(from, to cshim.StreamEvent) error {
		if from == 0 || to == 0 {
			return refuse.Error(op, tensor.ErrArgument, "both events must be recorded")
		}
		var err error
		ms, err = from.Elapsed(to)
		return handle.NativeError(op, err)
	}
	var err error
	switch {
	case e == nil || end == nil:
		return 0, refuse.Nil(op, "an event")
	case e == end:
		err = e.use(op, func(n cshim.StreamEvent) error { return between(n, n) })
	case e.id < end.id:
		err = e.use(op, func(from cshim.StreamEvent) error {
			return end.use(op, func(to cshim.StreamEvent) error { return between(from, to) })
		})
	default:
		err = end.use(op, func(to cshim.StreamEvent) error {
			return e.use(op, func(from cshim.StreamEvent) error { return between(from, to) })
		})
	}
	return time.Duration(ms * float64(time.Millisecond)), err
}

// Close frees the event. Streams that wait for it go on waiting. Later uses return ErrClosed; a second Close does nothing.
func (e *Event) Close() error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && e.native != 0 {
		e.cleanup.Stop()
		e.native.Free()
	}
	e.closed, e.native = true, 0
	return nil
}

// dropped holds the frees of events and graphs that became unreachable, until a later call of this package or a sweep:
// the goroutine of the runtime's cleanups must not wait for the driver.
var dropped struct {
	sync.Mutex
	frees []func()
	any   atomic.Bool
}

func drop(free func()) {
	dropped.Lock()
	defer dropped.Unlock()
	dropped.frees = append(dropped.frees, free)
	dropped.any.Store(true)
}

func dropEvent(n cshim.StreamEvent) { drop(n.Free) }
func dropGraph(n cshim.Graph)       { drop(n.Free) }

func init() { reclaim.DrainDevices = freeDropped }

// freeDropped runs the dropped frees, except during a capture of this goroutine.
func freeDropped() {
	if !dropped.any.Load() || cshim.GraphCapturing() {
		return
	}
	defer reclaim.FreesEnd(reclaim.FreesBegin())
	dropped.Lock()
	frees := dropped.frees
	dropped.frees = nil
	dropped.any.Store(false)
	dropped.Unlock()
	for _, free := range frees {
		free()
	}
}
