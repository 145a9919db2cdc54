package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestWithoutCUDA tests that every entry of the package returns an error that says so on a machine without CUDA. With a
// device the tests in tests/fakecuda and tests/gpu apply.
func TestWithoutCUDA(t *testing.T) {
	leak.Check(t)
	if cuda.IsAvailable() {
		t.Skip("this machine has a CUDA device")
	}
	d := tensor.CUDA(0)
	if n := cuda.DeviceCount(); n != 0 {
		t.Errorf("%d devices", n)
	}
	if cuda.IsCurrentStreamCapturing() {
		t.Error("capturing")
	}
	x := tensor.Ones([]int{2})
	defer x.Release()
	layer := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x })
	for name, err := range map[string]error{
		"NewStream":            second(cuda.NewStream(d)),
		"CurrentStream":        second(cuda.CurrentStream(d)),
		"DefaultStream":        second(cuda.DefaultStream(d)),
		"Capture":              second(cuda.Capture(d, func() error { return nil })),
		"MakeGraphedCallables": second(cuda.MakeGraphedCallables([]nn.Layer{layer}, []*tensor.Tensor{x})),
	} {
		var e *tensor.Error
		if !errors.Is(err, cuda.ErrUnavailable) || !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &e) || e.Op != name {
			t.Errorf("%s: %v", name, err)
		} else if !strings.Contains(err.Error(), "CUDA") || !strings.Contains(e.Caller, "cuda_test.go") {
			t.Errorf("%s: the error does not say what is missing and where: %v", name, err)
		}
	}
}

// TestNil tests that nil streams, events and graphs are errors.
func TestNil(t *testing.T) {
	leak.Check(t)
	var s *cuda.Stream
	var e *cuda.Event
	var g *cuda.Graph
	x := tensor.Ones([]int{2})
	defer x.Release()
	for name, err := range map[string]error{
		"WithStream":                cuda.WithStream(s, func() error { return nil }),
		"a stream's Query":          second(s.Query()),
		"Synchronize":               s.Synchronize(),
		"WaitStream":                s.WaitStream(s),
		"WaitEvent":                 s.WaitEvent(e),
		"RecordStream":              cuda.RecordStream(x, s),
		"Record":                    e.Record(s),
		"an event's Query":          second(e.Query()),
		"ElapsedTime":               second(e.ElapsedTime(e)),
		"Replay":                    g.Replay(),
		"a zero stream":             (&cuda.Stream{}).Synchronize(),
		"an event on a zero stream": cuda.NewEvent().Record(&cuda.Stream{}),
	} {
		if !errors.Is(err, tensor.ErrNil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(e.Close(), g.Close()); err != nil {
		t.Error(err)
	}
	if s.Equal(s) || s.String() == "" || s.Device() != tensor.CPU || g.Device() != tensor.CPU {
		t.Error("the nil stream or graph")
	}
}

// TestEvent tests an event that was never recorded, and one that was closed.
func TestEvent(t *testing.T) {
	leak.Check(t)
	e := cuda.NewEvent(cuda.EnableTiming(true))
	if done, err := e.Query(); err != nil || !done {
		t.Errorf("Query: %v, %v", done, err)
	}
	if err := e.Synchronize(); err != nil {
		t.Error(err)
	}
	if _, err := e.ElapsedTime(e); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("ElapsedTime: %v", err)
	}
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{"Query": second(e.Query()), "Synchronize": e.Synchronize(), "ElapsedTime": second(e.ElapsedTime(e))} {
		if !errors.Is(err, cuda.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

// TestGraphedCallable tests a nil GraphedCallable and one that MakeGraphedCallables did not make.
func TestGraphedCallable(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{2})
	defer x.Release()
	var none *cuda.GraphedCallable
	unmade := &cuda.GraphedCallable{Layer: &nn.Identity{}}
	if err := none.Forward(x).Err(); !errors.Is(err, tensor.ErrNil) {
		t.Errorf("Forward of nil: %v", err)
	}
	if err := unmade.Forward(x).Err(); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("Forward of one that was not made: %v", err)
	}
	if err := errors.Join(none.Close(), unmade.Close()); err != nil {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }
