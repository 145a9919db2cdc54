package fakecuda

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() {
	for name, f := range map[string]func(*Control) error{
		"currents": currents, "events": order, "reuse": reuse, "capture": captures, "refusals": refusals,
		"beside": beside, "shared": shared, "hooked": hooked, "pool": pool, "graphed": graphed, "graphed-modes": graphedModes, "graphed-inputs": graphedInputs,
		"graphed-copies": graphedCopies, "freeing": freeing, "step": wholeStep, "steps": capturedSteps, "streams-lost": streamsLost,
		"freed-in-use": freedInUse, "refusals-elsewhere": refusalsElsewhere,
	} {
		scenarios[name] = f
	}
}

func TestCurrentStreams(t *testing.T)  { run(t, "currents", 2, 1<<30) }
func TestEvents(t *testing.T)          { run(t, "events", 2, 1<<30) }
func TestReuseOnStreams(t *testing.T)  { run(t, "reuse", 1, 1<<30) }
func TestLimitAndStreams(t *testing.T) { run(t, "freeing", 1, 1<<30) }
func TestReportsOfFreedBlocks(t *testing.T) {
	run(t, "freed-in-use", 1, 1<<30)
}
func TestCapture(t *testing.T)        { run(t, "capture", 1, 1<<30) }
func TestCaptureRefuses(t *testing.T) { run(t, "refusals", 2, 1<<30) }
func TestCaptureRefusesOnAnyDevice(t *testing.T) {
	run(t, "refusals-elsewhere", 2, 1<<30)
}
func TestCaptureBesideOthers(t *testing.T) {
	run(t, "beside", 1, 1<<30)
}
func TestCaptureOfUsedStream(t *testing.T) { run(t, "shared", 1, 1<<30) }
func TestStreamsInHooks(t *testing.T)      { run(t, "hooked", 1, 1<<30) }
func TestGraphPool(t *testing.T)           { run(t, "pool", 1, 1<<30) }
func TestGraphedCallables(t *testing.T)    { run(t, "graphed", 1, 1<<30) }
func TestGraphedCallablesModes(t *testing.T) {
	run(t, "graphed-modes", 1, 1<<30)
}
func TestGraphedCallablesReturnInputs(t *testing.T) {
	run(t, "graphed-inputs", 1, 1<<30)
}
func TestGraphedCallablesCopies(t *testing.T) {
	run(t, "graphed-copies", 1, 1<<30)
}
func TestCapturedSteps(t *testing.T) { run(t, "steps", 1, 1<<30) }
func TestGraphOfTrainingStep(t *testing.T) {
	run(t, "step", 1, 1<<30)
}
func TestStreamsOfLostDevice(t *testing.T) { run(t, "streams-lost", 1, 1<<30) }

// expect returns an error if err is not of the kind.
func expect(what string, err, kind error) error {
	if !errors.Is(err, kind) {
		return fmt.Errorf("%s: got %v, want %v", what, err, kind)
	}
	return nil
}

// isCurrent returns an error if s is not the current stream of its device.
func isCurrent(where string, s *cuda.Stream) error {
	now, err := cuda.CurrentStream(s.Device())
	if err != nil || !now.Equal(s) {
		return fmt.Errorf("%s: the current stream is %v, want %v; %w", where, now, s, err)
	}
	return nil
}

// currents: the current stream follows a goroutine, whatever OS threads the goroutines run on.
func currents(*Control) error {
	a, err := cuda.NewStream(tensor.CUDA(0))
	if err != nil {
		return err
	}
	b, err := cuda.NewStream(tensor.CUDA(1), cuda.Priority(-1))
	if err != nil {
		return err
	}
	zero, err := cuda.DefaultStream(tensor.CUDA(0))
	if err != nil {
		return err
	}
	one, err := cuda.DefaultStream(tensor.CUDA(1))
	if err != nil {
		return err
	}
	err = cuda.WithStream(a, func() error {
		// A goroutine of its own has the default streams.
		other := make(chan error)
		go func() { other <- isCurrent("in another goroutine", zero) }()
		if err := errors.Join(isCurrent("inside", a), isCurrent("inside, the other device", one), <-other); err != nil {
			return err
		}
		err := cuda.WithStream(b, func() error {
			return cuda.WithStream(zero, func() error {
				return errors.Join(isCurrent("nested", zero), isCurrent("nested, the other device", b))
			})
		})
		return errors.Join(err, isCurrent("after nested ones", a), isCurrent("after nested ones, the other device", one))
	})
	if err != nil {
		return err
	}
	failed := errors.New("failed")
	if err := cuda.WithStream(a, func() error { return failed }); err != failed {
		return fmt.Errorf("WithStream returned %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = cuda.WithStream(a, func() error { panic("of f") })
	}()
	if err := isCurrent("after a panic", zero); err != nil {
		return err
	}
	// 64 goroutines, each with a stream of its own, and as many without one, on few threads.
	var group sync.WaitGroup
	errs := make(chan error, 128)
	for range 64 {
		s, err := cuda.NewStream(tensor.CUDA(0))
		if err != nil {
			return err
		}
		loop := func(s *cuda.Stream) error {
			for range 50 {
				runtime.Gosched()
				if err := isCurrent("among many", s); err != nil {
					return err
				}
			}
			return nil
		}
		group.Go(func() { errs <- cuda.WithStream(s, func() error { return loop(s) }) })
		group.Go(func() { errs <- loop(zero) })
	}
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	_, err = cuda.NewStream(tensor.CPU)
	err = errors.Join(expect("a stream of the CPU", err, tensor.ErrArgument))
	_, none := cuda.NewStream(tensor.CUDA(2))
	_, low := cuda.NewStream(tensor.CUDA(0), cuda.Priority(1))
	x := tensor.Zeros([]int{4}, tensor.CUDA(1))
	defer x.Release()
	return errors.Join(err, expect("a device that is not there", none, tensor.ErrArgument), expect("a low priority", low, tensor.ErrArgument),
		expect("a tensor of another device", cuda.RecordStream(x, a), tensor.ErrArgument), cuda.RecordStream(x, b))
}

// order: events, by the simulated clock. A kernel takes a millisecond.
func order(c *Control) error {
	a, err := cuda.NewStream(tensor.CUDA(0))
	if err != nil {
		return err
	}
	b, err := cuda.NewStream(tensor.CUDA(0))
	if err != nil {
		return err
	}
	elsewhere, err := cuda.NewStream(tensor.CUDA(1))
	if err != nil {
		return err
	}
	x := tensor.Zeros([]int{1 << 10}, tensor.CUDA(0))
	defer x.Release()
	if err := errors.Join(x.Err(), tensor.Synchronize(tensor.CUDA(0))); err != nil {
		return err
	}
	start, middle, end := cuda.NewEvent(cuda.EnableTiming(true)), cuda.NewEvent(), cuda.NewEvent(cuda.EnableTiming(true))
	c.SetTimes(time.Millisecond, 0)
	defer c.SetTimes(0, 0)
	kernels := func(s *cuda.Stream, n int) error {
		return cuda.WithStream(s, func() error {
			for range n {
				if err := x.Add_(1).Err(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	// 3 ms on a, then b waits for them, and works for 2 ms.
	err = errors.Join(start.Record(a), kernels(a, 3), middle.Record(a), b.WaitEvent(middle), kernels(b, 2), end.Record(b))
	if err != nil {
		return err
	}
	busy := func(what string, query func() (bool, error), want bool) error {
		if done, err := query(); err != nil || done != want {
			return fmt.Errorf("%s is done: %v, want %v; %w", what, done, want, err)
		}
		return nil
	}
	_, early := start.ElapsedTime(end)
	_, untimed := start.ElapsedTime(middle)
	err = errors.Join(busy("a", a.Query, false), busy("end", end.Query, false), expect("ElapsedTime before the end", early, tensor.ErrArgument),
		expect("ElapsedTime without timing", untimed, tensor.ErrArgument))
	if err != nil {
		return err
	}
	c.Advance(3 * time.Millisecond)
	if err := errors.Join(busy("a", a.Query, true), busy("middle", middle.Query, true), busy("b", b.Query, false), end.Synchronize(), busy("b", b.Query, true)); err != nil {
		return err
	}
	if took, err := start.ElapsedTime(end); err != nil || took != 5*time.Millisecond {
		return fmt.Errorf("from start to end: %v, want 5ms; %w", took, err)
	}
	// A stream waits for a stream, here of another device.
	from := c.Clock()
	if err := errors.Join(kernels(a, 4), elsewhere.WaitStream(a), elsewhere.Synchronize()); err != nil {
		return err
	}
	if waited := c.Clock() - from; waited != 4*time.Millisecond {
		return fmt.Errorf("the other device waited for %v, want 4ms", waited)
	}
	if err := expect("an event of another device", end.Record(elsewhere), tensor.ErrArgument); err != nil {
		return err
	}
	if err := errors.Join(start.Close(), middle.Close(), middle.Close()); err != nil {
		return err
	}
	_, closed := start.Query()
	err = errors.Join(expect("Record after Close", start.Record(a), cuda.ErrClosed), expect("Query after Close", closed, cuda.ErrClosed),
		expect("WaitEvent after Close", a.WaitEvent(middle), cuda.ErrClosed))
	// An event that becomes unreachable is freed, too, by a later call.
	end = nil
	other := cuda.NewEvent()
	for range 100 {
		runtime.GC()
		time.Sleep(time.Millisecond)
		if err := errors.Join(err, other.Record(a)); err != nil {
			return err
		}
		if c.Events() == 1 {
			break
		}
	}
	if n := c.Events(); n != 1 {
		return fmt.Errorf("%d events live, want 1", n)
	}
	return other.Close()
}

// reuse: the memory of a tensor that another stream still reads is not reused, however the tensor is freed.
func reuse(c *Control) error {
	d := tensor.CUDA(0)
	const n = 8 << 20 // elements: a segment of its own
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	deaths := map[string]func(use func(x *tensor.Tensor) error) error{
		"Release": func(use func(*tensor.Tensor) error) error {
			x := tensor.Zeros([]int{n}, d)
			defer x.Release()
			return use(x)
		},
		"a scope": func(use func(*tensor.Tensor) error) error {
			return tensor.WithScope(func() error { return use(tensor.Zeros([]int{n}, d)) })
		},
		"a sweep": func(use func(*tensor.Tensor) error) error {
			if err := use(tensor.Zeros([]int{n}, d)); err != nil {
				return err
			}
			for range 3 {
				if err := vram.Collect(); err != nil {
					return err
				}
			}
			return nil
		},
	}
	for name, die := range deaths {
		for _, read := range []bool{false, true} {
			if err := errors.Join(tensor.Synchronize(d), vram.EmptyCache(d)); err != nil {
				return err
			}
			c.SetTimes(time.Millisecond, 0)
			err := die(func(x *tensor.Tensor) error {
				if err := errors.Join(x.Err(), tensor.Synchronize(d)); err != nil || !read {
					return err
				}
				return cuda.WithStream(side, func() error {
					y := x.Sum()
					defer y.Release()
					return y.Err()
				})
			})
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			before := c.Allocations(0)
			y := tensor.Empty([]int{n}, d)
			if err := y.Err(); err != nil {
				return err
			}
			if fresh := c.Allocations(0) != before; fresh != read {
				return fmt.Errorf("%s, read on another stream %v: the next tensor got new memory: %v", name, read, fresh)
			}
			if read {
				// Once the other stream is done, the memory is used again.
				c.Advance(time.Second)
				before := c.Allocations(0)
				z := tensor.Empty([]int{n}, d)
				if err := z.Err(); err != nil {
					return err
				}
				if c.Allocations(0) != before {
					return fmt.Errorf("%s: the memory is not used again when the stream is done", name)
				}
				z.Release()
			}
			y.Release()
			c.SetTimes(0, 0)
		}
	}
	return nil
}

// freeing: at the limit, memory that another stream has used is free as soon as that stream is done, and an allocation
// waits for that, as PyTorch's does.
func freeing(c *Control) error {
	const n = 60 << 20
	d := tensor.CUDA(0)
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	if err := vram.SetLimit(d, vram.Bytes(100<<20)); err != nil {
		return err
	}
	c.SetTimes(time.Millisecond, 0)
	defer c.SetTimes(0, 0)
	for _, wait := range []bool{true, false} {
		x := tensor.Zeros([]int{n}, tensor.Uint8, d)
		err := cuda.WithStream(side, func() error {
			return tensor.WithScope(func() error { return x.Narrow(0, 0, 1).Add(1).Err() })
		})
		if wait {
			err = errors.Join(err, side.Synchronize())
		}
		x.Release()
		tensor.Flush()
		before := vram.ReadCounts()
		y := tensor.Zeros([]int{n}, tensor.Uint8, d)
		if err := errors.Join(err, y.Err()); err != nil {
			return fmt.Errorf("the other stream is done: %v: %w", wait, err)
		}
		if more := vram.ReadCounts().Since(before); wait && more.Deep != 0 {
			return fmt.Errorf("%+v sweeps for memory that is free", more)
		}
		// A tensor that lives still takes its memory.
		z := tensor.Zeros([]int{n}, tensor.Uint8, d)
		if err := expect("beside a tensor that lives", z.Err(), tensor.ErrOutOfMemory); err != nil {
			return err
		}
		y.Release()
	}
	return nil
}

// freedInUse: the reports of a device's memory contain a block that was freed but that a stream still uses once, among the
// activations.
func freedInUse(c *Control) error {
	d := tensor.CUDA(0)
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	weight, x := tensor.Zeros([]int{1000}, d), tensor.Zeros([]int{100}, d) // 4000 bytes of 4096, 400 of 512
	defer weight.Release()
	tensor.Track(vram.Weights, weight)
	c.SetTimes(time.Millisecond, 0)
	err = cuda.WithStream(side, func() error {
		return tensor.WithScope(func() error { return x.Add(1).Err() })
	})
	if err != nil {
		return err
	}
	// check compares the reports with those before, less what has changed.
	var before map[string]int64
	check := func(when string, live, waiting int64, less map[string]int64) error {
		tensor.Flush()
		m, err := vram.Stats(d)
		if err != nil {
			return err
		}
		if m.Allocated != live || m.Active != live+waiting || m.Reserved != m.Active+m.Cached {
			return fmt.Errorf("%s: %+v", when, m)
		}
		e, err := vram.Explain(d)
		if err != nil {
			return err
		}
		parts, sum := map[string]int64{}, int64(0)
		for _, p := range e.Parts {
			parts[p.Name] = p.Bytes + less[p.Name]
			sum += p.Bytes
		}
		if sum != e.Reserved || e.Reserved != m.Reserved || before != nil && !maps.Equal(parts, before) {
			return fmt.Errorf("%s: parts of %d bytes in all, before %v:\n%s", when, sum, before, e)
		}
		before = parts
		return nil
	}
	if err := check("before the free", 4096+512, 0, nil); err != nil {
		return err
	}
	x.Release()
	if err := check("after it", 4096, 512, nil); err != nil {
		return err
	}
	c.Advance(time.Second)
	tensor.Zeros([]int{1}, d).Release() // the allocator asks whether the stream is done
	return check("when the stream is done", 4096, 0, map[string]int64{vram.Activations: 400, vram.Fragmentation: 112, vram.Cache: -512})
}

// captures: a graph's nodes, its replays, its inputs that are copied in place, and its end.
func captures(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.FromSlice([]float32{1, 2, 3}, nil, d)
	defer x.Release()
	var y *tensor.Tensor
	defer func() { y.Release() }()
	calls := 0
	var launches int64
	f := func() error {
		calls++
		launches = c.Launches(0)
		z := x.Add(1).Mul(2) // freed with the scope, 2 kernels
		return errors.Join(z.Err(), tensor.Replace(&y, x.Clone()))
	}
	g, err := cuda.Capture(d, f)
	if err != nil {
		return err
	}
	if calls != 1 || c.Nodes() != 3 || c.Graphs() != 1 || c.Launches(0) != launches {
		return fmt.Errorf("%d calls, %d nodes, %d graphs, %d launches", calls, c.Nodes(), c.Graphs(), c.Launches(0)-launches)
	}
	for i, in := range [][]float32{{4, 5, 6}, {7, 8, 9}} {
		batch := tensor.FromSlice(in, nil)
		err := errors.Join(x.Copy_(batch).Err(), g.Replay())
		batch.Release()
		out, err2 := tensor.Data[float32](y)
		if err != nil || err2 != nil || len(out) != 3 || out[0] != in[0] || out[2] != in[2] {
			return fmt.Errorf("replay %d gave %v, want %v; %w %w", i, out, in, err, err2)
		}
	}
	if n := c.Launches(0) - launches; n != 2*3 { // the launch of a graph counts, too
		return fmt.Errorf("2 replays of 2 kernels: %d launches", n)
	}
	// On another stream, and by another goroutine.
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() { done <- cuda.WithStream(side, g.Replay) }()
	if err := errors.Join(<-done, side.Synchronize()); err != nil {
		return err
	}
	// With a warm-up, and with streams that fork from the captured one and join it.
	calls = 0
	fork := func() error {
		calls++
		now, err := cuda.CurrentStream(d)
		if err != nil {
			return err
		}
		if !cuda.IsCurrentStreamCapturing() && calls == 3 {
			return errors.New("the third call does not capture")
		}
		if err := side.WaitStream(now); err != nil {
			return err
		}
		err = cuda.WithStream(side, func() error { return x.Add(1).Err() })
		return errors.Join(err, now.WaitStream(side), x.Mul(2).Err())
	}
	forked, err := cuda.Capture(d, fork, cuda.Warmup(2))
	if err != nil {
		return err
	}
	if calls != 3 || c.Nodes() != 2 {
		return fmt.Errorf("a fork with a warm-up of 2: %d calls, %d nodes", calls, c.Nodes())
	}
	if err := errors.Join(forked.Replay(), forked.Close(), g.Close(), g.Close()); err != nil {
		return err
	}
	if n := c.Graphs(); n != 0 || cuda.IsCurrentStreamCapturing() {
		return fmt.Errorf("%d graphs live", n)
	}
	return expect("Replay after Close", g.Replay(), cuda.ErrClosed)
}

// refusals: what cannot be captured is an error, the device is well, and the next capture works.
func refusals(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{4}, d)
	defer x.Release()
	g, err := cuda.Capture(d, func() error { return x.Add(1).Err() })
	if err != nil {
		return err
	}
	defer g.Close()
	closed, err := cuda.Capture(d, func() error { return x.Add(1).Err() })
	if err := errors.Join(err, closed.Close()); err != nil {
		return err
	}
	stream, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	other, err := cuda.NewStream(tensor.CUDA(1))
	if err != nil {
		return err
	}
	zero, err := cuda.DefaultStream(d)
	if err != nil {
		return err
	}
	boom := errors.New("boom")
	for _, e := range []struct {
		name string
		f    func() error
		kind error
		opts []cuda.CaptureOption
	}{
		{"Item", func() error { return second(x.Sum().Item()) }, tensor.ErrCapture, nil},
		{"Item whose error is not returned", func() error { _, _ = x.Sum().Item(); return nil }, tensor.ErrCapture, nil},
		{"Data", func() error { return second(tensor.Data[float32](x)) }, tensor.ErrCapture, nil},
		{"Synchronize of the device", func() error { return tensor.Synchronize(d) }, tensor.ErrCapture, nil},
		{"Synchronize of the stream", func() error {
			s, err := cuda.CurrentStream(d)
			return errors.Join(err, s.Synchronize())
		}, tensor.ErrCapture, nil},
		{"an event's Synchronize", func() error {
			e := cuda.NewEvent()
			defer e.Close()
			s, err := cuda.CurrentStream(d)
			return errors.Join(err, e.Record(s), e.Synchronize())
		}, tensor.ErrCapture, nil},
		{"a fork that does not join", func() error {
			s, err := cuda.CurrentStream(d)
			return errors.Join(err, stream.WaitStream(s), cuda.WithStream(stream, func() error { return x.Add(1).Err() }))
		}, tensor.ErrCapture, nil},
		{"another Capture", func() error { return second(cuda.Capture(d, func() error { return nil })) }, tensor.ErrCapture, nil},
		{"a Capture on another device", func() error { return second(cuda.Capture(tensor.CUDA(1), func() error { return nil })) }, tensor.ErrCapture, nil},
		{"Replay", g.Replay, tensor.ErrCapture, nil},
		{"an error", func() error { return boom }, boom, nil},
		{"an operator's error", func() error { return x.Add(tensor.Ones([]int{3}, d)).Err() }, tensor.ErrArgument, nil},
		{"a stream of another device", func() error { return nil }, tensor.ErrArgument, []cuda.CaptureOption{cuda.On(other)}},
		{"the default stream", func() error { return nil }, tensor.ErrArgument, []cuda.CaptureOption{cuda.On(zero)}},
		{"a negative warm-up", func() error { return nil }, tensor.ErrArgument, []cuda.CaptureOption{cuda.Warmup(-1)}},
		{"no pool", func() error { return nil }, tensor.ErrNil, []cuda.CaptureOption{cuda.Pool(nil)}},
		{"a closed graph's pool", func() error { return nil }, cuda.ErrClosed, []cuda.CaptureOption{cuda.Pool(closed)}},
		{"no function", nil, tensor.ErrNil, nil},
	} {
		bad, err := cuda.Capture(d, e.f, e.opts...)
		if bad != nil || err == nil || e.kind != nil && !errors.Is(err, e.kind) {
			return fmt.Errorf("%s: %v, want %v", e.name, err, e.kind)
		}
		var first *tensor.Error
		if e.name == "Item" && (!errors.As(err, &first) || first.Op != "Item" || !strings.Contains(first.Caller, "streams_test.go")) {
			return fmt.Errorf("the error does not say that Item cannot be captured: %w", err)
		}
		if cuda.IsCurrentStreamCapturing() || c.Lost(0) != 0 {
			return fmt.Errorf("%s: still capturing, or the device is lost", e.name)
		}
		// The next one works, and the memory of the failed one is free.
		next, err := cuda.Capture(d, func() error { return x.Add(1).Err() })
		if err != nil {
			return fmt.Errorf("after %s: %w", e.name, err)
		}
		drawn := tensor.Randn([]int{4}, d)
		if err := errors.Join(next.Replay(), next.Close(), second(x.Sum().Item()), drawn.Err()); err != nil {
			return fmt.Errorf("after %s: %w", e.name, err)
		}
		drawn.Release()
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = cuda.Capture(d, func() error { panic("of f") })
	}()
	if cuda.IsCurrentStreamCapturing() {
		return errors.New("capturing after a panic")
	}
	if n := c.Graphs(); n != 1 {
		return fmt.Errorf("%d graphs live, want 1", n)
	}
	return second(x.Sum().Item())
}

// refusalsElsewhere: what Go code refuses in a capture makes the capture fail on any device, and other devices are not used.
func refusalsElsewhere(c *Control) error {
	d := tensor.CUDA(1)
	w := tensor.Ones([]int{4}, d).RequiresGrad_()
	defer w.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{w}, 0.1, optim.Momentum(0.9))
	if err != nil {
		return err
	}
	defer opt.Release()
	calls := map[string]func() error{
		"a Capture": func() error { return second(cuda.Capture(d, func() error { return nil })) },
		"a first step": func() error {
			defer opt.ZeroGrad()
			return errors.Join(w.Mul(2).Sum().Backward(), opt.Step())
		},
	}
	check := func(when string) error {
		for name, f := range calls {
			_, err := cuda.Capture(d, func() error { return expect(name, f(), tensor.ErrCapture) })
			if err := expect(when+", "+name+" whose error is not returned", err, tensor.ErrCapture); err != nil {
				return err
			}
		}
		return nil
	}
	if err := check("before cuda:0 is used"); err != nil {
		return err
	}
	if n := c.Contexts(0); n != 0 {
		return fmt.Errorf("%d contexts on cuda:0, which is not used", n)
	}
	x := tensor.Ones([]int{4}, tensor.CUDA(0))
	g, err := cuda.Capture(tensor.CUDA(0), func() error { return x.Add(1).Err() })
	if err != nil {
		return err
	}
	c.Lose(0, 700)
	if err := expect("an operator on cuda:0", second(x.Sum().Item()), tensor.ErrDeviceLost); err != nil {
		return err
	}
	calls["Replay"] = g.Replay
	if err := check("after cuda:0 is lost"); err != nil {
		return err
	}
	next, err := cuda.Capture(d, func() error { return w.Mul(2).Err() })
	return errors.Join(err, next.Replay(), next.Close(), g.Close())
}

func second[T any](_ T, err error) error { return err }

// beside: other goroutines compute, free and sweep while one captures; what they must not do is an error of theirs.
func beside(c *Control) error {
	d := tensor.CUDA(0)
	defer vram.SetPolicy(vram.SetPolicy(vram.Threshold{Bytes: 4 << 20}))
	stream, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	x := tensor.Ones([]int{1 << 10}, d)
	defer x.Release()
	locked, err := tensor.Call("aten::pin_memory", tensor.Ones([]int{1 << 10}))
	if err != nil {
		return err
	}
	page := locked[0].(*tensor.Tensor)
	host := func() int64 { return c.HostLive() }
	// Another goroutine, call by call. It is not locked to a thread.
	elsewhere := func(f func() error) error {
		done := make(chan error)
		go func() { done <- f() }()
		return <-done
	}
	kept := false
	frees := func() int64 { return vram.ReadCounts().Full + vram.ReadCounts().Deep }
	event := cuda.NewEvent()
	defer event.Close()
	g, err := cuda.Capture(d, func() error {
		if err := event.Record(stream); err != nil {
			return err
		}
		if err := errors.Join(x.Copy_(page, tensor.NonBlocking(true)).Err(), cuda.RecordStream(x, stream)); err != nil {
			return err
		}
		// Pinned memory that the captured stream uses is freed by another goroutine, and a sweep.
		before := host()
		if err := elsewhere(func() error { page.Release(); return nil }); err != nil {
			return err
		}
		kept = host() == before
		sweeps := frees()
		err := elsewhere(func() error {
			for range 64 {
				y := tensor.Zeros([]int{1 << 18}, d).Add(1)
				if err := y.Err(); err != nil {
					return err
				}
			}
			return errors.Join(vram.Collect(), second(tensor.Ones([]int{2}, d).Sum().Item()), vram.EmptyCache(d))
		})
		if err != nil {
			return fmt.Errorf("another goroutine: %w", err)
		}
		if frees() == sweeps {
			return errors.New("there was no sweep")
		}
		// The capturing goroutine sweeps if the program asks for it.
		sweeps = frees()
		if err := vram.Collect(); err != nil || frees() == sweeps {
			return fmt.Errorf("Collect inside the capture: %d sweeps, %w", frees()-sweeps, err)
		}
		if err := vram.EmptyCache(d); err != nil {
			return fmt.Errorf("EmptyCache inside the capture: %w", err)
		}
		// libtorch 2.11 has one generator state for the device, whether captured or not.
		err = elsewhere(func() error {
			y := tensor.Randn([]int{4}, d)
			defer y.Release()
			return y.Err()
		})
		if err != nil && !errors.Is(err, tensor.ErrCapture) {
			return fmt.Errorf("another goroutine draws: %w", err)
		}
		for name, f := range map[string]func() error{
			"WithStream":          func() error { return cuda.WithStream(stream, func() error { return nil }) },
			"a stream's Query":    func() error { return second(stream.Query()) },
			"Synchronize":         stream.Synchronize,
			"an event's Query":    func() error { return second(event.Query()) },
			"an event's wait":     event.Synchronize,
			"RecordStream":        func() error { return cuda.RecordStream(x, stream) },
			"Record":              func() error { return cuda.NewEvent().Record(stream) },
			"device Synchronize":  func() error { return tensor.Synchronize(d) },
			"Capture":             func() error { return second(cuda.Capture(d, func() error { return nil })) },
			"Capture on a stream": func() error { return second(cuda.Capture(d, func() error { return nil }, cuda.On(stream))) },
		} {
			if err := expect(name+" of another goroutine", elsewhere(f), tensor.ErrCapture); err != nil {
				return err
			}
		}
		return x.Mul(2).Err()
	}, cuda.On(stream))
	if err != nil {
		return err
	}
	if !kept || c.Invalidated() != 0 {
		return fmt.Errorf("pinned memory kept %v, %d captures made invalid", kept, c.Invalidated())
	}
	if err := errors.Join(g.Replay(), tensor.Synchronize(d), second(x.Sum().Item())); err != nil {
		return err
	}
	// The pinned block is used again: it waits for no event that never comes.
	before := host()
	again, err := tensor.Call("aten::pin_memory", tensor.Ones([]int{1 << 10}))
	if err != nil {
		return err
	}
	again[0].(*tensor.Tensor).Release()
	if host() != before {
		return fmt.Errorf("pinned memory grew from %d to %d bytes", before, host())
	}
	return g.Close()
}

// shared: work of another goroutine never becomes part of a capture.
func shared(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{4}, d)
	defer x.Release()
	stream, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	// Another goroutine, which stays inside WithStream and runs there what it is asked to.
	calls, results := make(chan func() error), make(chan error)
	ended := make(chan error)
	go func() {
		ended <- cuda.WithStream(stream, func() error {
			results <- nil
			for f := range calls {
				results <- f()
			}
			return nil
		})
	}()
	<-results
	elsewhere := func(f func() error) error {
		calls <- f
		return <-results
	}
	captured := false
	_, err = cuda.Capture(d, func() error {
		captured = true
		return elsewhere(func() error { return x.Add(1).Err() })
	}, cuda.On(stream))
	if err := expect("Capture on the current stream of another goroutine", err, tensor.ErrCapture); err != nil || captured {
		return fmt.Errorf("the function was called %v; %w", captured, err)
	}
	event := cuda.NewEvent()
	defer event.Close()
	free, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	var ours *cuda.Stream
	g, err := cuda.Capture(d, func() error {
		now, err := cuda.CurrentStream(d)
		if err != nil {
			return err
		}
		ours = now
		if err := errors.Join(x.Add(1).Err(), event.Record(now)); err != nil {
			return err
		}
		err = expect("WaitEvent of another goroutine", elsewhere(func() error { return free.WaitEvent(event) }), tensor.ErrCapture)
		if err != nil {
			return err
		}
		before := c.Launches(0)
		err = elsewhere(func() error {
			return errors.Join(x.Add(1).Err(), cuda.WithStream(free, func() error { return x.Add(1).Err() }))
		})
		if n := c.Launches(0) - before; n != 2 {
			return fmt.Errorf("2 kernels of another goroutine: %d launches; %w", n, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	if n := c.Nodes(); n != 1 || c.Invalidated() != 0 {
		return fmt.Errorf("the graph has %d nodes, want 1; %d captures made invalid", n, c.Invalidated())
	}
	for range 70 {
		s, err := cuda.NewStream(d)
		if err != nil {
			return err
		}
		if s.Equal(ours) {
			return fmt.Errorf("NewStream returned %v, on which graphs are captured", s)
		}
	}
	// A refused call of the captured function itself leaves no graph.
	_, err = cuda.Capture(d, func() error {
		now, err := cuda.CurrentStream(d)
		return errors.Join(err, x.Add(1).Err(),
			expect("WaitStream of the current stream of another goroutine", stream.WaitStream(now), tensor.ErrCapture))
	})
	if err := expect("Capture with a refused WaitStream", err, tensor.ErrCapture); err != nil {
		return err
	}
	close(calls)
	if err := errors.Join(<-ended, g.Close()); err != nil {
		return err
	}
	// Once it has left, the stream can be captured. An event of the first capture does not belong to another.
	_, err = cuda.Capture(d, func() error {
		return errors.Join(expect("WaitEvent of another capture's event", stream.WaitEvent(event), tensor.ErrCapture), x.Add(1).Err())
	}, cuda.On(stream))
	if err := expect("Capture with a refused WaitEvent", err, tensor.ErrCapture); err != nil {
		return err
	}
	g, err = cuda.Capture(d, func() error { return x.Add(1).Err() }, cuda.On(stream))
	return errors.Join(err, g.Close())
}

// hooked: functions that a captured backward pass calls, on a thread of autograd, belong to the capture.
func hooked(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{4}, d).RequiresGrad_()
	defer x.Release()
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	replay, err := cuda.Capture(d, func() error { return x.Detach().Add(1).Err() })
	if err != nil {
		return err
	}
	defer replay.Close()
	called, replays := 0, false
	fork := func(grad *tensor.Tensor) (*tensor.Tensor, error) {
		called++
		now, err := cuda.CurrentStream(d)
		if err != nil {
			return nil, err
		}
		if !cuda.IsCurrentStreamCapturing() {
			return nil, errors.New("the hook is not inside the capture")
		}
		event := cuda.NewEvent()
		defer event.Close()
		if err := errors.Join(event.Record(now), side.WaitEvent(event)); err != nil {
			return nil, err
		}
		if err := cuda.WithStream(side, func() error { return grad.Add(1).Err() }); err != nil {
			return nil, err
		}
		err = errors.Join(now.WaitStream(side), cuda.WithStream(now, func() error { return grad.Add(1).Err() }))
		if replays {
			err = errors.Join(err, expect("Replay", replay.Replay(), tensor.ErrCapture))
		}
		return nil, err
	}
	capture := func() (*cuda.Graph, error) {
		return cuda.Capture(d, func() error {
			y := x.Mul(2)
			if _, err := y.RegisterHook(fork); err != nil {
				return err
			}
			return errors.Join(y.Sum().Backward(), x.SetGrad(nil))
		})
	}
	g, err := capture()
	if err != nil {
		return err
	}
	if called != 1 || c.Invalidated() != 0 {
		return fmt.Errorf("the hook was called %d times, %d captures made invalid", called, c.Invalidated())
	}
	replays = true
	_, err = capture()
	return errors.Join(expect("Capture with a refused Replay in a hook", err, tensor.ErrCapture), g.Replay(), g.Close())
}

// pool: no other tensor gets the memory of a graph until the graph is closed.
func pool(c *Control) error {
	d := tensor.CUDA(0)
	const n = 8 << 20 // 32 MiB
	x := tensor.Zeros([]int{n}, d)
	defer x.Release()
	var y *tensor.Tensor
	capture := func(opts ...cuda.CaptureOption) (*cuda.Graph, error) {
		return cuda.Capture(d, func() error {
			z := x.Add(1)
			z.Release() // its memory is the next one's
			return tensor.Replace(&y, x.Add(2))
		}, opts...)
	}
	base := c.Live(0)
	g, err := capture()
	if err != nil {
		return err
	}
	held := c.Live(0) - base
	if held < 4*n || held >= 8*n {
		return fmt.Errorf("a graph of two tensors of 32 MiB, the first freed, holds %d bytes", held)
	}
	y.Release()
	allocations := c.Allocations(0)
	other := tensor.Zeros([]int{n}, d)
	if err := other.Err(); err != nil || c.Allocations(0) == allocations {
		return fmt.Errorf("a tensor got memory of the graph; %w", err)
	}
	other.Release()
	// Another capture shares it.
	shared, err := capture(cuda.Pool(g))
	if err != nil {
		return err
	}
	if err := errors.Join(g.Replay(), shared.Replay(), vram.EmptyCache(d)); err != nil {
		return err
	}
	if now := c.Live(0) - base; now != held {
		return fmt.Errorf("two graphs with one pool hold %d bytes, one %d", now, held)
	}
	y.Release()
	if err := errors.Join(g.Close(), vram.EmptyCache(d)); err != nil {
		return err
	}
	if now := c.Live(0) - base; now != held {
		return fmt.Errorf("a graph lost its pool with %d of %d bytes when the other was closed", now, held)
	}
	// A graph that is unreachable is freed, too.
	shared = nil
	for range 100 {
		runtime.GC()
		time.Sleep(time.Millisecond)
		s, err := cuda.Capture(d, func() error { return x.Mul_(1).Err() })
		if err = errors.Join(err, s.Close(), vram.EmptyCache(d)); err != nil {
			return err
		}
		if c.Live(0) == base {
			return nil
		}
	}
	return fmt.Errorf("%d bytes are still held, %d graphs live", c.Live(0)-base, c.Graphs())
}

// graphed: a model whose layers are graphs trains.
func graphed(c *Control) error {
	d := tensor.CUDA(0)
	one := nn.NewSequential(nn.NewLinear(8, 16, nn.Device(d)), &nn.ReLU{})
	two := nn.NewLinear(16, 4, nn.Device(d))
	opt, err := optim.NewAdamW(append(nn.Parameters(one), nn.Parameters(two)...), 1e-3)
	if err != nil {
		return err
	}
	defer func() { opt.Release(); nn.Release(one); nn.Release(two) }()
	sample := tensor.Randn([]int{4, 8}, d)
	between := tensor.Randn([]int{4, 16}, d).RequiresGrad_()
	defer func() { sample.Release(); between.Release() }()
	made, err := cuda.MakeGraphedCallables([]nn.Layer{one, two}, []*tensor.Tensor{sample, between})
	if err != nil {
		return err
	}
	if n := c.Graphs(); n != 4 {
		return fmt.Errorf("two layers are %d graphs, want 4", n)
	}
	step := func() error {
		return tensor.WithScope(func() error {
			x := tensor.Randn([]int{4, 8}, d)
			y := made[1].Forward(made[0].Forward(x))
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			for _, p := range append(nn.Parameters(one), nn.Parameters(two)...) {
				grad := p.Grad()
				if grad == nil || grad.Err() != nil {
					return errors.New("a parameter has no gradient")
				}
			}
			defer opt.ZeroGrad()
			return opt.Step()
		})
	}
	for range 5 {
		if err := step(); err != nil {
			return err
		}
	}
	if n := len(nn.Parameters(nn.NewSequential(made[0], made[1]))); n != 4 {
		return fmt.Errorf("a module of graphed layers has %d parameters, want 4", n)
	}
	err = tensor.WithScope(func() error {
		return errors.Join(expect("another shape", made[0].Forward(tensor.Randn([]int{5, 8}, d)).Err(), tensor.ErrArgument),
			expect("another device", made[0].Forward(tensor.Randn([]int{4, 8})).Err(), tensor.ErrArgument),
			expect("another dtype", made[0].Forward(tensor.Zeros([]int{4, 8}, d, tensor.Float64)).Err(), tensor.ErrArgument))
	})
	if err != nil {
		return err
	}
	_, bad := cuda.MakeGraphedCallables([]nn.Layer{nn.Func(func(x *tensor.Tensor) *tensor.Tensor {
		_, _ = x.Sum().Item()
		return x.Add(1)
	})}, []*tensor.Tensor{sample}, cuda.Warmup(1))
	if err := errors.Join(expect("a layer with Item", bad, tensor.ErrCapture), made[0].Close(), made[1].Close(), made[1].Close()); err != nil {
		return err
	}
	if n := c.Graphs(); n != 0 {
		return fmt.Errorf("%d graphs live after Close", n)
	}
	x := tensor.Randn([]int{4, 8}, d)
	defer x.Release()
	return expect("Forward after Close", made[0].Forward(x).Err(), cuda.ErrClosed)
}

// counted counts the calls of its Forward.
type counted struct {
	nn.Mode
	Inner *nn.Linear
	calls int `nn:"-"`
}

func (l *counted) Forward(x *tensor.Tensor) *tensor.Tensor {
	l.calls++
	return l.Inner.Forward(x)
}

// graphedModes: graphs are replayed in the mode in which they were captured, and have no second derivative.
func graphedModes(*Control) error {
	d := tensor.CUDA(0)
	layer := &counted{Inner: nn.NewLinear(8, 4, nn.Device(d))}
	defer nn.Release(layer)
	x := tensor.Randn([]int{4, 8}, d).RequiresGrad_()
	defer x.Release()
	made, err := cuda.MakeGraphedCallables([]nn.Layer{layer}, []*tensor.Tensor{x})
	if err != nil {
		return err
	}
	forward := func(what string, calls int) error {
		return tensor.WithScope(func() error {
			before := layer.calls
			err := made[0].Forward(x).Sum().Backward()
			if n := layer.calls - before; n != calls {
				return fmt.Errorf("%s: %d calls of the layer, want %d; %w", what, n, calls, err)
			}
			return err
		})
	}
	if err := forward("in training mode", 0); err != nil {
		return err
	}
	nn.Eval(made[0])
	if err := forward("in evaluation mode", 1); err != nil {
		return err
	}
	nn.Train(made[0])
	if err := forward("in training mode again", 0); err != nil {
		return err
	}
	err = tensor.WithScope(func() error {
		_, err := autograd.Grad([]*tensor.Tensor{made[0].Forward(x).Sum()}, []*tensor.Tensor{x}, tensor.CreateGraph(true))
		return expect("a gradient with CreateGraph", err, tensor.ErrNotImplemented)
	})
	if err := errors.Join(err, forward("after CreateGraph", 0)); err != nil {
		return err
	}
	nn.Eval(made[0])
	return errors.Join(made[0].Close(), expect("Forward after Close", made[0].Forward(x).Err(), cuda.ErrClosed))
}

// graphedInputs: a layer may return its input. A tensor that a function returns and keeps, against the contract of nn.Func,
// stays, too.
func graphedInputs(*Control) error {
	d := tensor.CUDA(0)
	kept := tensor.Randn([]int{4, 8}, d)
	defer kept.Release()
	dropout := nn.NewDropout(0.5)
	nn.Eval(dropout)
	x := tensor.Randn([]int{4, 8}, d)
	defer x.Release()
	leaf := tensor.Randn([]int{4, 8}, d).RequiresGrad_()
	defer leaf.Release()
	for name, e := range map[string]struct {
		layer nn.Layer
		x     *tensor.Tensor
	}{
		"Identity": {&nn.Identity{}, x}, "Identity with a gradient": {&nn.Identity{}, leaf},
		"Dropout": {dropout, x}, "Dropout with a gradient": {dropout, leaf},
		"a function": {nn.Func(func(*tensor.Tensor) *tensor.Tensor { return kept }), x},
	} {
		err := tensor.WithScope(func() error {
			made, err := cuda.MakeGraphedCallables([]nn.Layer{e.layer}, []*tensor.Tensor{e.x})
			if err != nil {
				return err
			}
			y := made[0].Forward(e.x)
			if e.x == leaf {
				err = y.Sum().Backward()
			}
			return errors.Join(err, y.Err(), made[0].Close(), kept.Err())
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if leaf.Grad() == nil {
		return errors.New("the input has no gradient")
	}
	return nil
}

// graphedCopies: a copy of a graphed layer computes with its own weights, without the graphs, and does not close them.
func graphedCopies(*Control) error {
	d := tensor.CUDA(0)
	layer := &counted{Inner: nn.NewLinear(8, 4, nn.Device(d))}
	defer nn.Release(layer)
	x := tensor.Randn([]int{4, 8}, d)
	defer x.Release()
	made, err := cuda.MakeGraphedCallables([]nn.Layer{layer}, []*tensor.Tensor{x})
	if err != nil {
		return err
	}
	defer made[0].Close()
	average := nn.NewAveragedModel(nn.NewSequential(made[0]))
	defer nn.Release(average)
	if err := average.Err(); err != nil {
		return err
	}
	clone := nn.Clone(made[0])
	defer nn.Release(clone)
	averaged := average.Module.Layers[0].(*cuda.GraphedCallable)
	calls := func(g *cuda.GraphedCallable) (n int, err error) {
		l := g.Layer.(*counted)
		before := l.calls
		err = tensor.WithScope(func() error { return g.Forward(x).Sum().Backward() })
		return l.calls - before, err
	}
	for name, g := range map[string]*cuda.GraphedCallable{"Clone": clone, "NewAveragedModel": averaged} {
		n, err := calls(g)
		own, originals := nn.Parameters(g)[0].Grad(), nn.Parameters(layer)[0].Grad()
		if err != nil || n != 1 || own == nil || originals != nil {
			return fmt.Errorf("the copy of %s: %d calls of its layer, want 1, the gradients %v and %v; %w", name, n, own, originals, err)
		}
		if err := g.Close(); err != nil {
			return err
		}
		if n, err = calls(made[0]); err != nil || n != 0 {
			return fmt.Errorf("the original after Close of the copy of %s: %d calls of the layer, want 0; %w", name, n, err)
		}
		if err := nn.ZeroGrad(layer); err != nil {
			return err
		}
	}
	if err := made[0].Close(); err != nil {
		return err
	}
	if n, err := calls(clone); err != nil || n != 1 {
		return fmt.Errorf("a copy after Close of the original: %d calls of its layer, want 1; %w", n, err)
	}
	return nil
}

// capturedSteps: a step whose replays would compute with numbers of the captured one is refused.
func capturedSteps(*Control) error {
	d := tensor.CUDA(0)
	type newer func(params []*tensor.Tensor, lr float64, opts ...optim.Option) (*optim.Optimizer, error)
	for _, e := range []struct {
		name  string
		make  newer
		works bool
	}{
		{"SGD", optim.NewSGD, true}, {"Adam", optim.NewAdam, true}, {"AdamW", optim.NewAdamW, true}, {"Muon", optim.NewMuon, true},
		{"RAdam", optim.NewRAdam, false}, {"NAdam", optim.NewNAdam, false}, {"Adamax", optim.NewAdamax, false},
		{"Adagrad", optim.NewAdagrad, false}, {"ASGD", optim.NewASGD, false}, {"RMSprop", optim.NewRMSprop, true},
		{"Adadelta", optim.NewAdadelta, true}, {"Rprop", optim.NewRprop, true},
	} {
		w := tensor.Ones([]int{2, 2}, d).RequiresGrad_()
		var opts []optim.Option
		if e.name == "SGD" {
			opts = append(opts, optim.Momentum(0.9))
		}
		opt, err := e.make([]*tensor.Tensor{w}, 0.1, opts...)
		if err != nil {
			return err
		}
		backward := func() error { return w.Mul(2).Sum().Backward() }
		step := func() error {
			if err := backward(); err != nil {
				return err
			}
			defer opt.ZeroGrad()
			return opt.Step()
		}
		_, err = cuda.Capture(d, step)
		if err := expect(e.name+": the first step", err, tensor.ErrCapture); err != nil {
			return err
		}
		_, err = cuda.Capture(d, func() error {
			err := step()
			return expect(e.name+": a step whose error is ignored", err, tensor.ErrCapture)
		})
		if err := expect(e.name+": a capture that ignores the error", err, tensor.ErrCapture); err != nil {
			return err
		}
		if err := tensor.WithScope(step); err != nil {
			return fmt.Errorf("%s: an eager step: %w", e.name, err)
		}
		captures := func(what string, f func() error) error {
			g, err := cuda.Capture(d, f, cuda.Warmup(1))
			if e.works {
				return errors.Join(err, g.Replay(), g.Close())
			}
			return expect(e.name+": "+what, err, tensor.ErrCapture)
		}
		if err := captures("a later step", step); err != nil {
			return err
		}
		remove, err := opt.StepInBackward()
		if err := errors.Join(err, captures("a step in a backward pass", backward)); err != nil {
			return err
		}
		remove()
		opt.ZeroGrad()
		if err := tensor.WithScope(step); err != nil {
			return fmt.Errorf("%s: an eager step after the captures: %w", e.name, err)
		}
		opt.Release()
		w.Release()
	}
	return nil
}

// wholeStep: a training step as a graph, in a loop that leaves garbage.
func wholeStep(c *Control) error {
	d := tensor.CUDA(0)
	m, err := newMLP(d)
	if err != nil {
		return err
	}
	defer m.release()
	x, y := tensor.Zeros([]int{16, 32}, d).Keep(), tensor.Zeros([]int{16}, tensor.Int64, d).Keep()
	defer func() { x.Release(); y.Release() }()
	var loss, read *tensor.Tensor
	defer func() { loss.Release(); read.Release() }()
	g, err := cuda.Capture(d, func() error {
		if err := tensor.Replace(&read, x.Clone()); err != nil {
			return err
		}
		l := nn.CrossEntropy(m.net.Forward(x), y)
		if err := l.Backward(); err != nil {
			return err
		}
		if err := m.opt.Step(); err != nil {
			return err
		}
		m.opt.ZeroGrad()
		return tensor.Replace(&loss, l.Detach())
	}, cuda.Warmup(3))
	if err != nil {
		return err
	}
	defer g.Close()
	if nodes := c.Nodes(); nodes < 10 {
		return fmt.Errorf("a step is %d nodes", nodes)
	}
	base, err := stats(d)
	if err != nil {
		return err
	}
	// Each replay launches the same kernels, and reads the batch that was copied.
	var each int64
	for i := range 50 {
		err := tensor.WithScope(func() error {
			batch := tensor.Full([]int{16, 32}, i)
			if err := x.Copy_(batch).Err(); err != nil {
				return err
			}
			before := c.Launches(0)
			if err := g.Replay(); err != nil {
				return err
			}
			if n := c.Launches(0) - before; i == 0 {
				each = n
			} else if n != each {
				return fmt.Errorf("replay %d launched %d kernels, the first %d", i, n, each)
			}
			seen, err := tensor.Data[float32](read)
			if err != nil || seen[0] != float32(i) {
				return fmt.Errorf("replay %d read a batch of %v; %w", i, seen[0], err)
			}
			return second(loss.Item())
		})
		if err != nil {
			return err
		}
	}
	if each < 10 {
		return fmt.Errorf("a replay launches %d kernels", each)
	}
	return settled(d, base.Allocated)
}

// streamsLost: after a sticky error, streams, events and graphs are errors and their frees do nothing.
func streamsLost(c *Control) error {
	d := tensor.CUDA(0)
	s, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	x := tensor.Ones([]int{1 << 10}, d)
	e := cuda.NewEvent()
	g, err := cuda.Capture(d, func() error { return x.Add(1).Err() })
	if err != nil {
		return err
	}
	err = cuda.WithStream(s, func() error {
		if err := errors.Join(x.Mul_(2).Err(), e.Record(s)); err != nil {
			return err
		}
		c.Lose(0, 700)
		return expect("an operator", second(x.Sum().Item()), tensor.ErrDeviceLost)
	})
	if err != nil {
		return err
	}
	_, stream := cuda.NewStream(d)
	_, query := e.Query()
	_, again := cuda.Capture(d, func() error { return nil })
	err = errors.Join(expect("NewStream", stream, tensor.ErrDeviceLost), expect("Query", query, tensor.ErrDeviceLost), expect("Synchronize", s.Synchronize(), tensor.ErrDeviceLost),
		expect("Replay", g.Replay(), tensor.ErrDeviceLost), expect("Capture", again, tensor.ErrDeviceLost), e.Close(), g.Close())
	x.Release()
	return err
}
