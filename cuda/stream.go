package cuda

import (
	"errors"
	"fmt"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// ErrUnavailable: no CUDA device is available to this process. The error's text says why.
var ErrUnavailable = fmt.Errorf("no CUDA device can be used (%w)", errors.ErrUnsupported)

// ErrClosed: an event or a graph was used after its Close.
var ErrClosed = errors.New("used after Close")

// IsAvailable reports whether there is a CUDA device that this process can use. PyTorch: torch.cuda.is_available.
func IsAvailable() bool { return DeviceCount() > 0 }

// DeviceCount returns the number of CUDA devices that this process can use. PyTorch: torch.cuda.device_count.
func DeviceCount() int {
	if cshim.Load() != nil {
		return 0
	}
	return cshim.DeviceCount(int32(tensor.CUDAType))
}

// check returns an error if d is not a CUDA device that can be used.
func check(op string, d tensor.Device) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	n := DeviceCount()
	if n == 0 {
		return refuse.Error(op, ErrUnavailable, "no CUDA device can be used: %s", cshim.NoCUDA())
	}
	if d.Type != tensor.CUDAType || d.Index < 0 || d.Index >= n {
		return refuse.Error(op, tensor.ErrArgument, "a CUDA device is needed, got %v; this machine has %d", d, n)
	}
	return nil
}

func word(d tensor.Device) int32 { return cshim.DeviceWord(int32(d.Type), d.Index) }

// A Stream is a queue of work on a device; see the package documentation. Several goroutines may use one Stream. PyTorch:
// torch.cuda.Stream.
type Stream struct {
	native cshim.Stream
	device tensor.Device
}

// A StreamOption is an option of NewStream.
type StreamOption interface{ stream(*int) }

type priority int

func (p priority) stream(to *int) { *to = int(p) }

// Priority is the priority of a stream: 0, the default, or -1 and lower for work that the device prefers. PyTorch: the
// argument priority of torch.cuda.Stream.
func Priority(p int) StreamOption { return priority(p) }

// NewStream returns a stream of d. libtorch has 32 for each device and priority and returns them in turn; two of priority 0
// are for captures and their warm-ups and are not returned. Option: Priority. The error is ErrUnavailable without CUDA, and tensor.ErrArgument if d is not a CUDA
// device of this machine. PyTorch: torch.cuda.Stream.
func NewStream(d tensor.Device, opts ...StreamOption) (*Stream, error) {
	const op = "NewStream"
	if err := check(op, d); err != nil {
		return nil, err
	}
	priority := 0
	for _, o := range opts {
		if o == nil {
			return nil, refuse.NilOption(op)
		}
		o.stream(&priority)
	}
	if priority > 0 || priority < -100 {
		return nil, refuse.Error(op, tensor.ErrArgument, "priority %d: want 0, or less for a higher priority", priority)
	}
	s, err := cshim.StreamNew(word(d), priority)
	if err != nil {
		return nil, handle.NativeError(op, err)
	}
	return &Stream{s, d}, nil
}

// CurrentStream returns the stream of d to which this goroutine's operators give their work: that of the innermost
// WithStream for d, or the default stream. PyTorch: torch.cuda.current_stream.
func CurrentStream(d tensor.Device) (*Stream, error) {
	const op = "CurrentStream"
	if err := check(op, d); err != nil {
		return nil, err
	}
	s, err := cshim.StreamCurrent(word(d))
	if err != nil {
		return nil, handle.NativeError(op, err)
	}
	return &Stream{s, d}, nil
}

// DefaultStream returns the default stream of d. PyTorch: torch.cuda.default_stream.
func DefaultStream(d tensor.Device) (*Stream, error) {
	if err := check("DefaultStream", d); err != nil {
		return nil, err
	}
	return &Stream{cshim.Stream{Device: word(d)}, d}, nil
}

// WithStream runs f with s as the current stream of its device, and that device as the current one, on this goroutine,
// and returns f's error. The goroutine is locked to its OS thread meanwhile. Goroutines that f starts are not affected.
// The error is tensor.ErrCapture while another goroutine captures a graph on s. PyTorch: torch.cuda.stream.
func WithStream(s *Stream, f func() error) error {
	const op = "WithStream"
	if err := s.check(op); err != nil {
		return err
	}
	if f == nil {
		return refuse.Nil(op, "a function")
	}
	return handle.WithStream(op, s.native.Device, s.native.ID, f)
}

func (s *Stream) check(op string) error {
	if s == nil || s.device.Type != tensor.CUDAType {
		return refuse.Nil(op, "a stream")
	}
	return nil
}

// Device returns the stream's device.
func (s *Stream) Device() tensor.Device {
	if s == nil {
		return tensor.CPU
	}
	return s.device
}

// Equal reports whether s and t are the same queue.
func (s *Stream) Equal(t *Stream) bool { return s != nil && t != nil && s.native == t.native }

// String returns a text such as "stream 3 of cuda:0"; the default stream is stream 0.
func (s *Stream) String() string {
	if s == nil {
		return "no stream"
	}
	return fmt.Sprintf("stream %d of %v", s.native.ID, s.device)
}

// Synchronize waits until the work given to s is done. PyTorch: Stream.synchronize.
func (s *Stream) Synchronize() error {
	const op = "Synchronize"
	if err := s.check(op); err != nil {
		return err
	}
	return handle.NativeError(op, s.native.Synchronize())
}

// Query reports whether the work given to s is done. PyTorch: Stream.query.
func (s *Stream) Query() (bool, error) {
	const op = "Query"
	if err := s.check(op); err != nil {
		return false, err
	}
	done, err := s.native.Query()
	return done, handle.NativeError(op, err)
}

// WaitEvent makes work given to s from now on wait until the work before e's last Record is done. The goroutine does not
// wait. The event may belong to another device. PyTorch: Stream.wait_event.
func (s *Stream) WaitEvent(e *Event) error { return e.Wait(s) }

// WaitStream makes work given to s from now on wait until the work that t has now is done. The goroutine does not wait.
// PyTorch: Stream.wait_stream.
func (s *Stream) WaitStream(t *Stream) error {
	const op = "WaitStream"
	if err := errors.Join(s.check(op), t.check(op)); err != nil {
		return err
	}
	return handle.NativeError(op, s.native.WaitFor(t.native))
}

var recordStream = handle.RecordStream.(func(t *tensor.Tensor, device int32, id int64) error)

// RecordStream records that s uses t's memory: when t is freed, its memory is reused only after the work that s has at
// that time is done. Operators do so themselves; call it for uses that are not operators. The error is tensor.ErrArgument
// if t and s are on different devices, and tensor.ErrCapture while another goroutine captures a graph on s. PyTorch: Tensor.record_stream.
func RecordStream(t *tensor.Tensor, s *Stream) error {
	if err := s.check("RecordStream"); err != nil {
		return err
	}
	return recordStream(t, s.native.Device, s.native.ID)
}
