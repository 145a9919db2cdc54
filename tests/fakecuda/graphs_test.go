package fakecuda

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() {
	for name, f := range map[string]func(*Control) error{
		"dropped": dropped, "casts": casts, "stale": stale, "drawn": drawn, "unmapped": unmapped,
		"waits": waits, "broken": broken, "alongside": alongside, "assigned": assigned,
		"seeds": seeds, "exclusive": exclusive, "workspaces": workspaces, "emptied": emptied, "densities": densities,
		"recast": recast, "interrupted": interrupted,
	} {
		scenarios[name] = f
	}
}

func TestDroppedGraph(t *testing.T)             { run(t, "dropped", 1, 1<<30) }
func TestGraphCastsByItself(t *testing.T)       { run(t, "casts", 1, 1<<30) }
func TestCastsAfterReplay(t *testing.T)         { run(t, "recast", 1, 1<<30) }
func TestInterruptedWarmup(t *testing.T)        { run(t, "interrupted", 1, 1<<30) }
func TestCaptureAfterEagerStep(t *testing.T)    { run(t, "stale", 1, 1<<30) }
func TestRandomNumbersOfTwoGraphs(t *testing.T) { run(t, "drawn", 1, 1<<30) }
func TestCaptureRefusesWaits(t *testing.T)      { run(t, "waits", 1, 1<<30) }
func TestCaptureOfAssignments(t *testing.T)     { run(t, "assigned", 1, 1<<30) }
func TestCaptureOfDensities(t *testing.T)       { run(t, "densities", 1, 1<<30) }
func TestFreesInBrokenCapture(t *testing.T)     { run(t, "broken", 1, 1<<30) }
func TestFreesBesideCapture(t *testing.T)       { run(t, "alongside", 1, 1<<30) }
func TestReplaysWithSeedsInTurn(t *testing.T)   { run(t, "seeds", 1, 1<<30) }
func TestDrawsWaitForReplay(t *testing.T)       { run(t, "exclusive", 1, 1<<30) }
func TestCloseWaitsForReplays(t *testing.T) {
	run(t, "unmapped", 1, 1<<30, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
}

// dropped: an unreachable graph is freed without a call of package cuda, by an allocation that needs its memory and by
// Collect.
func dropped(c *Control) error {
	d := tensor.CUDA(0)
	capture := func() error {
		g, err := cuda.Capture(d, func() error { return tensor.Empty([]int{600 << 20}, tensor.Uint8, d).Fill_(1).Err() })
		if err != nil {
			return err
		}
		return errors.Join(g.Replay(), tensor.Synchronize(d))
	}
	if err := capture(); err != nil {
		return err
	}
	x := tensor.Empty([]int{700 << 20}, tensor.Uint8, d)
	if err := x.Err(); err != nil {
		return fmt.Errorf("700 MiB of 1 GiB, when a graph of 600 MiB has become unreachable: %w", err)
	}
	x.Release()
	if n := c.Graphs(); n != 0 {
		return fmt.Errorf("%d graphs live, want 0", n)
	}
	if err := errors.Join(vram.EmptyCache(d), capture()); err != nil {
		return err
	}
	for range 100 {
		if err := vram.Collect(); err != nil || c.Graphs() == 0 {
			return err
		}
	}
	return fmt.Errorf("%d graphs live after Collect, want 0", c.Graphs())
}

// A castLayer computes in bfloat16.
type castLayer struct{ Inner *nn.Linear }

func (l castLayer) Forward(x *tensor.Tensor) *tensor.Tensor {
	return autograd.Autocast(tensor.CUDAType, tensor.BFloat16, func() *tensor.Tensor { return l.Inner.Forward(x) })
}

// casts: a graph that is captured in an autocast region casts the weights at each replay, and leaves no casts that have no
// values before the first one.
func casts(c *Control) error {
	d := tensor.CUDA(0)
	lin := nn.NewLinear(64, 64, nn.Device(d))
	defer nn.Release(lin)
	x := tensor.Ones([]int{8, 64}, d).Keep()
	defer x.Release()
	within := func(f func() error) error { return autograd.WithAutocast(tensor.CUDAType, tensor.BFloat16, f) }
	forward := func(l nn.Layer) func() error {
		return func() error { return tensor.WithScope(func() error { return l.Forward(x).Err() }) }
	}
	plain, inner := forward(lin), forward(castLayer{lin})
	launches := func(f func() error) (int64, error) {
		before := c.Launches(0)
		err := f()
		return c.Launches(0) - before, err
	}
	var want int64 // of a forward pass that casts
	err := within(func() (err error) { want, err = launches(plain); return err })
	if err != nil {
		return err
	}
	var nodes int64
	g, err := cuda.Capture(d, inner, cuda.Warmup(2))
	if err != nil {
		return err
	}
	nodes = c.Nodes()
	if err := g.Close(); err != nil {
		return err
	}
	for _, e := range []struct {
		name   string
		before func() error
		f      func() error
		opts   []cuda.CaptureOption
	}{
		{"without a warm-up", func() error { return nil }, plain, nil},
		{"with a warm-up", func() error { return nil }, plain, []cuda.CaptureOption{cuda.Warmup(2)}},
		{"after an eager pass", plain, plain, nil},
		{"a region in a region", plain, inner, nil},
		{"with a region inside another one, after a warm-up", plain, inner, []cuda.CaptureOption{cuda.Warmup(2)}},
	} {
		err := within(func() error {
			if err := e.before(); err != nil {
				return err
			}
			g, err := cuda.Capture(d, e.f, e.opts...)
			if err != nil {
				return err
			}
			defer g.Close()
			if n := c.Nodes(); n != nodes {
				return fmt.Errorf("the graph has %d nodes, want %d", n, nodes)
			}
			if e.opts != nil {
				return nil // the warm-up has cast
			}
			if n, err := launches(plain); err != nil || n != want {
				return fmt.Errorf("the next eager pass has launched %d kernels, want %d; %w", n, want, err)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	// Both passes, after an eager step whose casts the region still keeps.
	graphed := func(l nn.Layer) (int64, error) {
		made, err := cuda.MakeGraphedCallables([]nn.Layer{l}, []*tensor.Tensor{x})
		if err != nil {
			return 0, err
		}
		defer made[0].Close()
		return launches(func() error { return autograd.NoGrad(func() error { return made[0].Forward(x).Err() }) })
	}
	if want, err = graphed(castLayer{lin}); err != nil {
		return err
	}
	return within(func() error {
		if err := errors.Join(plain(), lin.Forward(x).Sum().Backward()); err != nil {
			return err
		}
		if n, err := graphed(lin); err != nil || n != want {
			return fmt.Errorf("a layer captured in a region launches %d kernels, want %d; %w", n, want, err)
		}
		return nil
	})
}

// recast: in an autocast region, a replay of a captured step makes the next eager pass cast the weights again; one of a
// graphed layer, which changes no weights, does not.
func recast(c *Control) error {
	d := tensor.CUDA(0)
	lin, other := nn.NewLinear(64, 64, nn.Device(d)), nn.NewLinear(64, 64, nn.Device(d))
	defer nn.Release(lin)
	defer nn.Release(other)
	opt, err := optim.NewSGD(nn.Parameters(lin), 0.1)
	if err != nil {
		return err
	}
	defer opt.Release()
	x := tensor.Ones([]int{8, 64}, d).Keep()
	defer x.Release()
	g, err := cuda.Capture(d, func() error {
		defer opt.ZeroGrad()
		if err := (castLayer{lin}).Forward(x).Sum().Backward(); err != nil {
			return err
		}
		return opt.Step()
	}, cuda.Warmup(1))
	if err != nil {
		return err
	}
	defer g.Close()
	made, err := cuda.MakeGraphedCallables([]nn.Layer{other}, []*tensor.Tensor{x})
	if err != nil {
		return err
	}
	defer made[0].Close()
	launches := func() (int64, error) {
		before := c.Launches(0)
		err := tensor.WithScope(func() error { return lin.Forward(x).Err() })
		return c.Launches(0) - before, err
	}
	return autograd.WithAutocast(tensor.CUDAType, tensor.BFloat16, func() error {
		casting, err := launches()
		if err != nil {
			return err
		}
		kept, err := launches()
		if err != nil || kept >= casting {
			return fmt.Errorf("a pass launches %d kernels, and one with casts that are kept %d; %w", casting, kept, err)
		}
		graphed := func() error {
			return tensor.WithScope(func() error { return made[0].Forward(x).Sum().Backward() })
		}
		for _, e := range []struct {
			after  string
			replay func() error
			want   int64
		}{{"both passes of a graphed layer", graphed, kept}, {"a replay", g.Replay, casting}, {"nothing", func() error { return nil }, kept}} {
			if err := e.replay(); err != nil {
				return err
			}
			if n, err := launches(); err != nil || n != e.want {
				return fmt.Errorf("after %s a pass launches %d kernels, want %d; %w", e.after, n, e.want, err)
			}
		}
		return nil
	})
}

// interrupted: the current stream waits for a warm-up that panics or ends its goroutine, and eager passes do not use its
// casts.
func interrupted(c *Control) error {
	d := tensor.CUDA(0)
	lin := nn.NewLinear(64, 64, nn.Device(d))
	defer nn.Release(lin)
	x := tensor.Ones([]int{8, 64}, d).Keep()
	defer x.Release()
	zero, err := cuda.DefaultStream(d)
	if err != nil {
		return err
	}
	forward := func() error { return tensor.WithScope(func() error { return lin.Forward(x).Add(1).Err() }) }
	panics := func() { panic("of f") }
	capture := func(end func()) {
		defer func() { _ = recover() }()
		_, _ = cuda.Capture(d, func() error {
			defer end()
			return forward()
		}, cuda.Warmup(1))
	}
	for name, end := range map[string]func(){"a panic": panics, "Goexit": runtime.Goexit} {
		if err := tensor.Synchronize(d); err != nil {
			return err
		}
		c.SetTimes(10*time.Millisecond, 0)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			capture(end)
		}()
		<-ended
		done, err := zero.Query()
		c.SetTimes(0, 0)
		if err != nil || done {
			return fmt.Errorf("after %s the current stream, which is to wait for the warm-up, is done: %v; %w", name, done, err)
		}
	}
	launches := func() (int64, error) {
		before := c.Launches(0)
		err := forward()
		return c.Launches(0) - before, err
	}
	return autograd.WithAutocast(tensor.CUDAType, tensor.BFloat16, func() error {
		want, err := launches()
		if err != nil {
			return err
		}
		capture(panics)
		if n, err := launches(); err != nil || n != want {
			return fmt.Errorf("after a panic a pass launches %d kernels, want %d; %w", n, want, err)
		}
		return nil
	})
}

// stale: the graph of an eager step that is not freed yet does not disturb a capture.
func stale(*Control) error {
	d := tensor.CUDA(0)
	lin := nn.NewLinear(64, 64, nn.Device(d))
	defer nn.Release(lin)
	x := tensor.Ones([]int{8, 64}, d).Keep()
	defer x.Release()
	step := func() error { return lin.Forward(x).Sum().Backward() }
	for range 3 {
		for _, warmup := range []int{0, 3} {
			if err := step(); err != nil {
				return err
			}
			g, err := cuda.Capture(d, step, cuda.Warmup(warmup))
			if err := errors.Join(err, g.Close()); err != nil {
				return fmt.Errorf("a step as a graph, after an eager one, with Warmup(%d): %w", warmup, err)
			}
		}
		if err := step(); err != nil {
			return err
		}
		made, err := cuda.MakeGraphedCallables([]nn.Layer{lin}, []*tensor.Tensor{x})
		if err != nil {
			return fmt.Errorf("a graphed layer, after an eager step: %w", err)
		}
		if err := made[0].Close(); err != nil {
			return err
		}
	}
	return nil
}

// drawn: random numbers that one graph has drawn cannot be repeated by another one.
func drawn(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Randn([]int{64, 64}, d).RequiresGrad_().Keep()
	defer x.Release()
	part := func(p float64) nn.Func {
		return func(x *tensor.Tensor) *tensor.Tensor {
			return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				return in[0].Dropout(p, tensor.Train(p != 0)).Tanh()
			}, x)
		}
	}
	_, err := cuda.MakeGraphedCallables([]nn.Layer{part(0.5)}, []*tensor.Tensor{x})
	if err := expect("a checkpoint with dropout as two graphs", err, tensor.ErrCapture); err != nil {
		return err
	}
	made, err := cuda.MakeGraphedCallables([]nn.Layer{part(0)}, []*tensor.Tensor{x})
	if err != nil {
		return fmt.Errorf("a checkpoint without dropout as two graphs: %w", err)
	}
	if err := errors.Join(made[0].Forward(x).Sum().Backward(), made[0].Close()); err != nil {
		return err
	}
	step := func() error {
		return errors.Join(part(0.5)(x).Sum().Backward(), x.SetGrad(nil))
	}
	state := func() []byte { s, _ := stateOf(0); return s }
	g, err := cuda.Capture(d, step, cuda.Warmup(2))
	if err != nil {
		return fmt.Errorf("both passes in one graph: %w", err)
	}
	before := state()
	if err := errors.Join(g.Replay(), g.Close()); err != nil {
		return err
	}
	if bytes.Equal(before, state()) {
		return errors.New("a replay has drawn no random numbers")
	}
	// One pass is captured, and the other is not.
	var y *tensor.Tensor
	defer func() { y.Release() }()
	g, err = cuda.Capture(d, func() error { return tensor.Replace(&y, part(0.5)(x).Sum()) })
	if err != nil {
		return err
	}
	if err := errors.Join(g.Replay(), expect("an eager backward pass of a captured part", y.Backward(), tensor.ErrCapture), g.Close()); err != nil {
		return err
	}
	before = state()
	if err := step(); err != nil || bytes.Equal(before, state()) {
		return fmt.Errorf("an eager step after the refusals: %w", err)
	}
	return nil
}

// unmapped: the memory of a graph is not unmapped before its last replay, on another stream than the captured one, is
// done.
func unmapped(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{8 << 20}, d).Keep()
	defer x.Release()
	zero, err := cuda.DefaultStream(d)
	if err != nil {
		return err
	}
	g, err := cuda.Capture(d, func() error { return x.Add(1).Err() })
	if err != nil {
		return err
	}
	if err := tensor.Synchronize(d); err != nil {
		return err
	}
	c.SetTimes(10*time.Millisecond, 0)
	defer c.SetTimes(0, 0)
	live := c.Live(0)
	if err := g.Replay(); err != nil {
		return err
	}
	if done, err := zero.Query(); err != nil || done {
		return fmt.Errorf("the replay is done: %v; %w", done, err)
	}
	if err := errors.Join(g.Close(), vram.EmptyCache(d)); err != nil {
		return err
	}
	done, err := zero.Query()
	if freed := live - c.Live(0); err != nil || freed == 0 || !done {
		return fmt.Errorf("%d bytes are unmapped; the replay that uses them is done: %v; %w", freed, done, err)
	}
	// Close inside a capture does not end it.
	g, err = cuda.Capture(d, func() error { return x.Add(1).Err() })
	if err != nil {
		return err
	}
	other, err := cuda.Capture(d, func() error { return errors.Join(x.Mul(2).Err(), g.Close(), x.Add(2).Err()) })
	return errors.Join(err, other.Replay(), other.Close())
}

// waits: a call that would wait for the device, or that cannot be captured for another reason, is an error, and there is no
// graph. Frees after it are safe, and the next capture works.
func waits(*Control) error {
	d := tensor.CUDA(0)
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	x := tensor.Ones([]int{4}, d)
	defer x.Release()
	other := tensor.Ones([]int{4}, d)
	defer other.Release()
	mask := x.Gt(0)
	defer mask.Release()
	host := tensor.Ones([]int{4})
	defer host.Release()
	locked, err := tensor.Call("aten::pin_memory", host)
	if err != nil {
		return err
	}
	page := locked[0].(*tensor.Tensor)
	defer page.Release()
	call := func(op string, args ...any) func() error {
		return func() error { return second(tensor.Call(op, args...)) }
	}
	event := cuda.NewEvent()
	defer event.Close()
	if err := event.Record(side); err != nil {
		return err
	}
	captured := cuda.NewEvent()
	defer captured.Close()
	older, err := cuda.Capture(d, func() error {
		s, err := cuda.CurrentStream(d)
		if err != nil {
			return err
		}
		return errors.Join(x.Add(1).Err(), captured.Record(s))
	})
	if err != nil {
		return err
	}
	defer older.Close()
	drawing, seed := tensor.NewGenerator(d), uint64(0)
	defer drawing.Release()
	for name, f := range map[string]func() error{
		"Item":                          func() error { return second(x.Sum().Item()) },
		"Data":                          func() error { return second(tensor.Data[float32](x)) },
		"is_nonzero":                    func() error { return second(tensor.Call("aten::is_nonzero", x.Sum())) },
		"equal":                         call("aten::equal", x, other),
		"nonzero":                       call("aten::nonzero", x),
		"nonzero.out":                   call("aten::nonzero.out", x, tensor.Empty([]int{0}, tensor.Int64, d).Keep()),
		"masked_select":                 call("aten::masked_select", x, mask),
		"an index of booleans":          func() error { return x.Index(mask).Err() },
		"To the CPU":                    func() error { return x.To(tensor.CPU).Err() },
		"a copy to pageable memory":     func() error { return host.Copy_(x).Err() },
		"a copy from pageable memory":   func() error { return x.Copy_(host).Err() },
		"a copy to pinned memory":       func() error { return page.Copy_(x).Err() },
		"a copy from pinned memory":     func() error { return x.Copy_(page).Err() },
		"Synchronize of the device":     func() error { return tensor.Synchronize(d) },
		"Synchronize of a stream":       side.Synchronize,
		"Query of a stream":             func() error { return second(side.Query()) },
		"Synchronize of an older event": event.Synchronize,
		"Query of an older event":       func() error { return second(event.Query()) },
		"Replay of an older graph":      older.Replay,
		"Synchronize of the device on a stream beside the capture": func() error {
			return cuda.WithStream(side, func() error { return tensor.Synchronize(d) })
		},
		"a wait for an event of another capture": func() error {
			err := side.WaitEvent(captured)
			if !cuda.IsCurrentStreamCapturing() {
				return expect("WaitEvent outside of captures", err, tensor.ErrCapture)
			}
			return err
		},
		"a Capture": func() error {
			inner, err := cuda.Capture(d, func() error { return x.Add(1).Err() })
			return errors.Join(err, inner.Close())
		},
		"a new seed": func() error { seed++; return drawing.ManualSeed(seed).Err() },
	} {
		_, err := cuda.Capture(d, func() error {
			// Freed at the end of the scope, after the call.
			if err := cuda.RecordStream(x.Add(1), side); err != nil {
				return err
			}
			return f()
		})
		if err := expect("the capture with "+name, err, tensor.ErrCapture); err != nil {
			return err
		}
		_, err = cuda.Capture(d, func() error { return expect(name, f(), tensor.ErrCapture) })
		if err := expect("a capture that ignores the error of "+name, err, tensor.ErrCapture); err != nil {
			return err
		}
		// The next one works.
		g, err := cuda.Capture(d, func() error {
			return errors.Join(x.Copy_(page, tensor.NonBlocking(true)).Err(), page.Copy_(x, tensor.NonBlocking(true)).Err())
		})
		if err := errors.Join(err, g.Replay(), g.Close(), second(x.Sum().Item()), f()); err != nil {
			return fmt.Errorf("after %s: %w", name, err)
		}
	}
	return nil
}

// assigned: SetIndex does not wait for the device where PyTorch's does not.
func assigned(*Control) error {
	d := tensor.CUDA(0)
	scope, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer scope.Close()
	x, ints := tensor.Zeros([]int{2, 3}, d), tensor.Zeros([]int{3}, tensor.Int64, d)
	host, number := tensor.FromScalar(float32(2)), tensor.Ones(nil, d)
	i, flag := tensor.Ones(nil, tensor.Int64, d), tensor.Ones(nil, tensor.Uint8, d)
	for name, c := range map[string]struct {
		x          *tensor.Tensor
		idx, value any
		waits      bool
	}{
		"a tensor on the CPU into a row":            {x, 0, host, false},
		"a number at an index":                      {x, i, 1, false},
		"a number at an index of int32":             {x, i.To(tensor.Int32), 1, false},
		"a number at two indices":                   {x, []any{i, i}, 1, false},
		"a number at an index after a slice":        {x, []any{tensor.All, i}, 1, false},
		"a tensor at an index":                      {x, i, number, false},
		"a tensor on the CPU at an index":           {x, i, host, true},
		"a tensor of another dtype at an index":     {x, i, i, true},
		"a row at an index":                         {x, i, tensor.Ones([]int{3}, d), true},
		"an element of the same tensor at an index": {x, i, x.Index(0, 0), true},
		"a number at an index of the same tensor":   {ints, ints.Index(0), 1, true},
		"a number at an index of uint8":             {x, flag, 1, true},
		"a number of uint16 at an index":            {x.To(tensor.Uint16), i, 1, true},
	} {
		g, err := cuda.Capture(d, func() error { return c.x.SetIndex(c.idx, c.value) })
		if c.waits {
			err = expect("the capture", err, tensor.ErrCapture)
		} else {
			err = errors.Join(err, g.Replay(), g.Close())
		}
		if err := errors.Join(err, c.x.SetIndex(c.idx, c.value)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// densities: LogProb and CDF do not wait for the device if ValidateArgs is false, though parameters bound the support.
func densities(*Control) error {
	d := tensor.CUDA(0)
	scope, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer scope.Close()
	zero, one, x := tensor.Zeros(nil, d), tensor.Ones(nil, d), tensor.Full(nil, 0.5, d)
	off := distributions.ValidateArgs(false)
	uniform := distributions.NewUniform(zero, one, off)
	for name, f := range map[string]func() *tensor.Tensor{
		"Uniform.LogProb":      func() *tensor.Tensor { return uniform.LogProb(x) },
		"Uniform.CDF":          func() *tensor.Tensor { return uniform.CDF(x) },
		"a transform":          func() *tensor.Tensor { return distributions.NewCumulativeDistributionTransform(uniform).Forward(x) },
		"Independent, Uniform": func() *tensor.Tensor { return distributions.NewIndependent(uniform, 0).LogProb(x) },
		"Kumaraswamy":          func() *tensor.Tensor { return distributions.NewKumaraswamy(one, one, off).LogProb(x) },
		"Pareto":               func() *tensor.Tensor { return distributions.NewPareto(one, one, off).LogProb(x) },
		"Binomial":             func() *tensor.Tensor { return distributions.NewBinomial(one, distributions.Probs(x), off).LogProb(x) },
		"GeneralizedPareto":    func() *tensor.Tensor { return distributions.NewGeneralizedPareto(zero, one, one, off).LogProb(x) },
	} {
		g, err := cuda.Capture(d, func() error { return tensor.WithScope(func() error { return f().Err() }) })
		if err := errors.Join(err, g.Replay(), g.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// broken: tensors that two streams used can be freed in a capture that CUDA has made invalid. They are freed when it has
// ended.
func broken(c *Control) error {
	d := tensor.CUDA(0)
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	x := tensor.Ones([]int{4}, d)
	defer x.Release()
	eager := cuda.NewEvent()
	defer eager.Close()
	if err := eager.Record(side); err != nil {
		return err
	}
	before, err := vram.Stats(d)
	if err != nil {
		return err
	}
	_, err = cuda.Capture(d, func() error {
		y := x.Add(1)
		if err := cuda.RecordStream(y, side); err != nil {
			return err
		}
		s, err := cuda.CurrentStream(d)
		if err != nil {
			return err
		}
		// Work outside of the capture, which a graph cannot wait for.
		err = s.WaitEvent(eager)
		y.Release()
		return err
	})
	if err := expect("WaitEvent of an event from outside", err, tensor.ErrCapture); err != nil {
		return err
	}
	if n := c.Invalidated(); n != 1 {
		return fmt.Errorf("%d captures made invalid, want 1", n)
	}
	if after, err := vram.Stats(d); err != nil || after.Allocated != before.Allocated {
		return fmt.Errorf("%d bytes live after the capture, %d before; %w", after.Allocated, before.Allocated, err)
	}
	g, err := cuda.Capture(d, func() error { return x.Add(1).Err() })
	return errors.Join(err, g.Replay(), g.Close(), second(x.Sum().Item()))
}

// alongside: another goroutine frees tensors during a capture, among them an operand of the warm-up. Neither the capture nor
// the goroutine's allocations fail, and memory is used again only when all streams are done; libtorch 2.11 and 2.12 forget
// the streams.
func alongside(c *Control) error {
	d := tensor.CUDA(0)
	const n = 8 << 20 // elements: a segment of its own
	side, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	before, err := vram.Stats(d)
	if err != nil {
		return err
	}
	x, z := tensor.Zeros([]int{n}, d).Keep(), tensor.Zeros([]int{2 * n}, d).Keep()
	read := func() error { return tensor.WithScope(func() error { return x.Add(1).Err() }) }
	var y *tensor.Tensor
	free := func() error {
		c.SetTimes(time.Millisecond, 0)
		err := cuda.WithStream(side, func() error { return tensor.WithScope(func() error { return z.Sum().Err() }) })
		c.SetTimes(0, 0)
		z.Release()
		x.Release()
		y = tensor.Empty([]int{3 * n}, d).Keep() // libtorch asks for the end of the streams' work
		return errors.Join(err, y.Err())
	}
	warm := true
	g, err := cuda.Capture(d, func() error {
		if warm {
			warm = false
			return read()
		}
		freed := make(chan error)
		go func() { freed <- free() }()
		return errors.Join(<-freed, tensor.WithScope(func() error { return tensor.Ones([]int{4}, d).Err() }))
	}, cuda.Warmup(1))
	if err != nil {
		return err
	}
	if n := c.Invalidated(); n != 0 {
		return fmt.Errorf("%d captures made invalid, want 0", n)
	}
	fresh := func(elements int) (bool, error) {
		before := c.Allocations(0)
		y := tensor.Empty([]int{elements}, d)
		defer y.Release()
		return c.Allocations(0) != before, y.Err()
	}
	forgets := cshim.VersionLoaded()[1] < 13 // rule 12 of package cuda
	for _, e := range []struct {
		what     string
		elements int
		want     bool
	}{{"x, of which all streams are done", n, false}, {"z, which a stream reads", 2 * n, !forgets}} {
		if got, err := fresh(e.elements); got != e.want {
			return fmt.Errorf("the size of %s: new memory %v, want %v; %w", e.what, got, e.want, err)
		}
	}
	y.Release()
	c.Advance(time.Second)
	if err := errors.Join(g.Replay(), tensor.Synchronize(d), g.Close(), second(fresh(2*n))); err != nil {
		return err
	}
	if after, err := vram.Stats(d); err != nil || after.Allocated != before.Allocated {
		return fmt.Errorf("%d bytes live after the capture, %d before; %w", after.Allocated, before.Allocated, err)
	}
	return nil
}

func TestCloseKeepsWorkspaces(t *testing.T) {
	run(t, "workspaces", 1, 1<<30, "TORCH_CUBLAS_WORKSPACE_CACHE=1") // from libtorch 2.15 on
}

// seeds: replays of a graph that draws random numbers run one after another also on two streams, because kernels before each
// write the seed to memory of the graph.
func seeds(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{4}, d).Keep()
	defer x.Release()
	one, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	two, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	g, err := cuda.Capture(d, func() error { return x.Dropout(0.5, tensor.Train(true)).Err() }, cuda.Warmup(1))
	if err != nil {
		return err
	}
	defer g.Close()
	if err := tensor.Synchronize(d); err != nil {
		return err
	}
	c.SetTimes(10*time.Millisecond, 0)
	defer c.SetTimes(0, 0)
	took := func(streams ...*cuda.Stream) (time.Duration, error) {
		before := c.Clock()
		for _, s := range streams {
			if err := cuda.WithStream(s, g.Replay); err != nil {
				return 0, err
			}
		}
		err := tensor.Synchronize(d)
		return c.Clock() - before, err
	}
	single, err := took(one)
	if err != nil {
		return err
	}
	if both, err := took(one, two); err != nil || both != 2*single {
		return fmt.Errorf("a replay takes %v, and one on each of two streams %v; %w", single, both, err)
	}
	// That memory belongs to the default stream.
	zero, err := cuda.DefaultStream(d)
	if err != nil {
		return err
	}
	if err := errors.Join(cuda.WithStream(one, g.Replay), g.Close(), zero.Synchronize()); err != nil {
		return err
	}
	if done, err := one.Query(); err != nil || !done {
		return fmt.Errorf("the default stream is done, and a replay of the closed graph: %v; %w", done, err)
	}
	return nil
}

// exclusive: what a replay and an operator on another goroutine draw does not overlap.
func exclusive(c *Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{4}, d).Keep()
	defer x.Release()
	g, err := cuda.Capture(d, func() error { return x.Dropout(0.5, tensor.Train(true)).Err() }, cuda.Warmup(1))
	if err != nil {
		return err
	}
	defer g.Close()
	before, err := stateOf(0)
	if err != nil {
		return err
	}
	// The kernel that writes the seed is slow.
	if err := c.AddRule(Rule{Function: Launch, Device: 0, Times: 1, Micros: 300_000}); err != nil {
		return err
	}
	replayed := make(chan error)
	go func() { replayed <- g.Replay() }()
	for c.Seen(0) == 0 {
		time.Sleep(time.Millisecond)
	}
	during, err := stateOf(0)
	if err := errors.Join(err, <-replayed); err != nil {
		return err
	}
	after, err := stateOf(0)
	if err != nil || bytes.Equal(before, after) || !bytes.Equal(during, after) {
		return fmt.Errorf("the state was %v before a replay, %v during, %v after; %w", before, during, after, err)
	}
	return nil
}

// workspaces: a graph that is closed keeps the workspaces of cuBLAS, which other graphs use.
func workspaces(*Control) error {
	d := tensor.CUDA(0)
	x := tensor.Ones([]int{64, 64}, d).Keep()
	defer x.Release()
	var graphs [3]*cuda.Graph
	for i := range graphs {
		g, err := cuda.Capture(d, func() error { return x.MatMul(x).Add(1).Err() }, cuda.Warmup(i%2))
		if err != nil {
			return err
		}
		defer g.Close()
		graphs[i] = g
	}
	before, err := stats(d)
	if err != nil {
		return err
	}
	for i, g := range graphs[:2] {
		if err := g.Close(); err != nil {
			return err
		}
		after, err := stats(d)
		if err != nil || after.Allocated != before.Allocated {
			return fmt.Errorf("%d bytes were allocated, %d when %d of 3 graphs are closed; %w", before.Allocated, after.Allocated, i+1, err)
		}
	}
	// A failed capture keeps them, too.
	_, err = cuda.Capture(d, func() error { return second(x.MatMul(x).Sum().Item()) })
	if err := expect("a capture with Item", err, tensor.ErrCapture); err != nil {
		return err
	}
	after, err := stats(d)
	if err != nil || after.Allocated != before.Allocated {
		return fmt.Errorf("%d bytes were allocated, %d after a failed capture; %w", before.Allocated, after.Allocated, err)
	}
	return graphs[2].Replay()
}

func TestEmptyCacheInCapture(t *testing.T) {
	for _, expandable := range []string{"False", "True"} {
		t.Run("expandable "+expandable, func(t *testing.T) {
			run(t, "emptied", 2, 1<<30, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:"+expandable)
		})
	}
}

// emptied: a call that empties the cache of another device ends no capture: neither on the capturing goroutine nor on
// another.
func emptied(c *Control) error {
	const mib = 1 << 20
	d, other := tensor.CUDA(0), tensor.CUDA(1)
	stream, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	y := tensor.Ones([]int{8}, d)
	cached := func() error {
		x := tensor.Empty([]int{24 * mib}, tensor.Uint8, other)
		x.Release()
		tensor.Flush()
		if c.Live(1) < 24*mib {
			return fmt.Errorf("%d bytes are cached on cuda:1", c.Live(1))
		}
		return nil
	}
	elsewhere := func(f func() error) error {
		done := make(chan error)
		go func() { done <- f() }()
		return <-done
	}
	here := func(f func() error) error { return f() }
	for name, on := range map[string]func(func() error) error{"the capturing goroutine": here, "another goroutine": elsewhere} {
		// The memory is in the caches only during the capture, which begins by emptying them.
		var x *tensor.Tensor
		if err := cuda.WithStream(stream, func() error {
			x = tensor.Empty([]int{24 * mib}, tensor.Uint8, d)
			return x.Err()
		}); err != nil {
			return err
		}
		g, err := cuda.Capture(d, func() error {
			x.Release()
			for name, f := range map[string]func() error{
				"EmptyCache": func() error { return vram.EmptyCache(other) },
				"SetLimit":   func() error { return vram.SetLimit(other, vram.Bytes(8*mib)) },
			} {
				if err := errors.Join(elsewhere(cached), on(f)); err != nil || c.Live(1) != 0 {
					return fmt.Errorf("%s of cuda:1: %d bytes are left; %w", name, c.Live(1), err)
				}
				if err := vram.SetLimit(other, vram.Bytes(1<<30)); err != nil {
					return err
				}
			}
			return y.Add(1).Err()
		}, cuda.On(stream))
		if err != nil || c.Invalidated() != 0 {
			return fmt.Errorf("on %s: %w; %d captures made invalid", name, err, c.Invalidated())
		}
		if err := g.Close(); err != nil {
			return err
		}
	}
	return nil
}
