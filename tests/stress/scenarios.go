package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/program"
	"github.com/linstock-ml/linstock/vram"
)

// scenarios lists all scenarios; init fills it, because mix runs the others.
var scenarios []scenario

func init() {
	scenarios = []scenario{
		{name: "train", weight: 10, what: "each goroutine trains an MLP, a CNN, a GRU or attention; the losses must be those of an undisturbed run", run: training},
		{name: "serve", weight: 10, what: "requests to one model, some of them cancelled; the answers must be correct", run: serving},
		{name: "pipeline", weight: 10, what: "tensors handed from goroutine to goroutine by Keep, MoveOut, Adopt and Join", run: pipeline},
		{name: "scopes", weight: 10, what: "scopes left open, closed elsewhere or twice, panics, goroutines that end", run: abuse},
		{name: "release", weight: 10, what: "tensors released and scopes closed while other goroutines compute with them", run: races},
		{name: "garbage", weight: 5, what: "handles dropped everywhere while the collector runs", run: garbage},
		{name: "autograd", weight: 8, what: "Go functions, hooks and checkpoints on the engine's threads, with errors and panics", run: differentiation},
		{name: "loader", weight: 5, what: "loops over batches, left by break, return and panic", run: loading},
		{name: "checkpoint", weight: 5, what: "files saved, mapped and closed while their tensors are used", run: saving},
		{name: "settings", weight: 10, what: "limits, budgets, policies and threads changed under training; reports read", run: settings},
		{name: "storm", weight: 8, what: "all goroutines constantly at the limit", run: storm},
		{name: "programs", weight: 6, what: "random programs with a limit 5 % above what they can reach", alone: true, where: "cpu", run: programs},
		{name: "mix", weight: 10, what: "several of the others at once", alone: true, run: mix},
		{name: "faults", weight: 10, what: "allocations and calls of the device fail", where: "fake", alone: true, run: fakeFaults},
		{name: "lost", weight: 3, what: "a device is lost during training; the other continues", where: "fake", alone: true, spoils: true, run: lost},
		{name: "pairs", what: "releases and closes, each beside uses of the same handle (-check release)", alone: true, where: "cpu", run: pairs},
		{name: "operators", what: "operators of many kinds, every value checked (-check strict-gc)", alone: true, where: "cpu", run: operators},
	}
}

const steps = 4 // of training in a lesson

func training(r *round) error {
	if err := r.study(steps); err != nil {
		return err
	}
	return r.each(func(g int, rng *rand.Rand) error {
		for range 2 {
			if err := r.learn(kinds[rng.IntN(len(kinds))], rng.Uint64N(lessons), steps); err != nil {
				return err
			}
		}
		return nil
	})
}

// serving handles as many requests at once as there are cores; the others wait.
func serving(r *round) error {
	t, err := newTrainee(r.device, kinds[r.seed%2*3], 1) // mlp or attention, which have no running statistics
	defer t.end()
	if err != nil {
		return unless(err, r.excused()...)
	}
	question := func(i int) *tensor.Tensor {
		return tensor.Full(t.input, 0.1*float64(i), r.device).Mul(tensor.Full(t.input, 1.5, r.device))
	}
	var want [8][]float32
	for i := range want {
		if err := tensor.WithScope(func() (err error) {
			want[i], err = tensor.Data[float32](t.forward(question(i)).To(tensor.CPU))
			return err
		}); err != nil {
			return unless(err, r.excused()...)
		}
	}
	jobs := make(chan struct{}, runtime.GOMAXPROCS(0))
	return r.each(func(g int, rng *rand.Rand) error {
		for range 20 {
			i := rng.IntN(len(want))
			jobs <- struct{}{}
			err := autograd.NoGrad(func() error {
				return tensor.WithScope(func() error {
					x := question(i)
					if rng.IntN(5) == 0 {
						return nil // the client has disconnected
					}
					y := t.forward(x)
					if rng.IntN(4) == 0 {
						y = y.Keep() // into a cache, for example
						defer y.Release()
					}
					got, err := tensor.Data[float32](y.To(tensor.CPU))
					if err == nil && r.computes() {
						err = same(got, want[i])
					}
					return err
				})
			})
			<-jobs
			if err != nil {
				return err
			}
			r.work.Add(1)
		}
		return nil
	})
}

// excused returns the errors that are valid results of a scenario.
func (r *round) excused() []error {
	if r.squeezed {
		return []error{tensor.ErrOutOfMemory}
	}
	return nil
}

func same(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d values, want %d", len(got), len(want))
	}
	for i := range got {
		if d := got[i] - want[i]; !(d*d <= 1e-8*(1+want[i]*want[i])) {
			return fmt.Errorf("value %d is %v, want %v", i, got[i], want[i])
		}
	}
	return nil
}

// pipeline makes numbers on some goroutines, processes them on others and adds them up.
func pipeline(r *round) error {
	const each = 24
	lanes := max(1, r.goroutines/3)
	made, worked := make(chan *tensor.Tensor, 4), make(chan *tensor.Tensor, 4)
	var sum, want atomic.Int64
	var failed sync.Once
	var first error
	fail := func(err error) {
		if unless(err, r.excused()...) != nil {
			failed.Do(func() { first = err })
		}
	}
	produce := func(g int, rng *rand.Rand) {
		for range each {
			n := rng.IntN(1000)
			// MoveOut from the inner scope to the outer, then Keep; the scope is closed before or after.
			fail(tensor.WithScope(func() error {
				x := tensor.Tidy(func() *tensor.Tensor { return tensor.Full([]int{4}, float64(n), r.device).Add(1) })
				if err := x.Err(); err != nil {
					return err
				}
				want.Add(4 * 2 * int64(n+1))
				made <- x.Keep()
				r.work.Add(1)
				return nil
			}))
		}
	}
	work := func(rng *rand.Rand) {
		for x := range made {
			fail(tensor.WithScope(func() error {
				scope := tensor.CurrentScope()
				if err := scope.Adopt(x); err != nil {
					return err
				}
				y := x.Mul(2)
				if rng.IntN(2) == 0 {
					// A helper goroutine computes in this scope.
					done := make(chan error, 1)
					go func() { done <- scope.Join(func() error { y = x.Add(x); return y.Err() }) }()
					if err := <-done; err != nil {
						return err
					}
				}
				if err := y.Err(); err != nil {
					want.Add(-1 << 40) // makes the sum wrong; the error gives the reason
					return err
				}
				worked <- y.MoveOut() // out of the outermost scope means out of all
				return nil
			}))
		}
	}
	var producers, workers, consumers sync.WaitGroup
	for g := range lanes {
		producers.Go(func() { produce(g, r.rand(g)) })
		workers.Go(func() { work(r.rand(1000 + g)) })
		consumers.Go(func() {
			for y := range worked {
				v, err := y.Sum().Item()
				fail(err)
				sum.Add(int64(v))
				y.Release()
			}
		})
	}
	producers.Wait()
	close(made)
	workers.Wait()
	close(worked)
	consumers.Wait()
	if first == nil && !r.squeezed && r.computes() && sum.Load() != want.Load() {
		first = fmt.Errorf("the sum is %d, want %d", sum.Load(), want.Load())
	}
	return first
}

// abuse misuses scopes in various ways. Each must result in an error or have no effect, and leak nothing.
func abuse(r *round) error {
	return r.each(func(g int, rng *rand.Rand) error {
		for range 12 {
			r.work.Add(1)
			if err := misuse(r, rng); err != nil {
				return err
			}
			if tensor.CurrentScope() != nil {
				return errors.New("a scope is left")
			}
		}
		return nil
	})
}

func misuse(r *round, rng *rand.Rand) error {
	ones := func() *tensor.Tensor { return tensor.Ones([]int{8}, r.device) }
	scope, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer scope.Close()
	x := ones()
	if err := x.Err(); err != nil {
		return err
	}
	switch rng.IntN(9) {
	case 0: // closed on another goroutine
		done := make(chan error)
		//linstockvet:ignore scopeclose the test expects an error
		go func() { done <- scope.Close() }()
		if err := <-done; !errors.Is(err, tensor.ErrScope) {
			return fmt.Errorf("scope.Close on another goroutine returned %v", err)
		}
		return x.Add(1).Err()
	case 1: // inner ones left open, closed with the outer; closed twice
		for range 1 + rng.IntN(4) {
			//linstockvet:ignore scopeclose closed by the Close of the outer scope
			if _, err := tensor.NewScope(); err != nil {
				return err
			}
			ones()
		}
		return errors.Join(scope.Close(), scope.Close())
	case 2: // a goroutine that ends with an open scope
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := tensor.NewScope(); err == nil {
				ones()
				runtime.Goexit()
			}
		}()
		<-done
		return nil
	case 3: // a panic
		func() {
			defer func() { _ = recover() }()
			_ = tensor.WithScope(func() error { ones(); panic("on purpose") })
		}()
		return x.Add(1).Err()
	case 4: // used after its scope closed
		y := tensor.Tidy(func() *tensor.Tensor { return ones() })
		var inner *tensor.Tensor
		if err := tensor.WithScope(func() error { inner = ones(); return inner.Err() }); err != nil {
			return err
		}
		if err := inner.Add(y).Err(); !errors.Is(err, tensor.ErrReleased) {
			return fmt.Errorf("a tensor of a closed scope returned %v", err)
		}
		return nil
	case 5: // released twice, moved afterwards
		x.Release()
		x.Release()
		if err := x.Keep().Err(); !errors.Is(err, tensor.ErrReleased) {
			return fmt.Errorf("x.Keep of a released tensor returned %v", err)
		}
		return nil
	case 6: // Close returns an unread error
		err := tensor.WithScope(func() error { _ = tensor.Ones([]int{2}, r.device).Add(tensor.Ones([]int{3}, r.device)); return nil })
		if !errors.Is(err, tensor.ErrArgument) && !errors.Is(err, tensor.ErrOutOfMemory) {
			return fmt.Errorf("shapes that do not fit returned %v", err)
		}
		return nil
	case 7: // emptied while its goroutine uses it
		done := make(chan error)
		go func() { done <- scope.ReleaseExcept(x) }()
		for range 8 {
			y := ones()
			if err := unless(y.Add(x).Err(), tensor.ErrReleased); err != nil {
				<-done
				return err
			}
		}
		if err := <-done; err != nil {
			return err
		}
		return x.Add(1).Err()
	default: // nested deeply, moved outward
		y := x
		var up func(depth int) *tensor.Tensor
		up = func(depth int) *tensor.Tensor {
			if depth == 0 {
				return y.Add(1)
			}
			return tensor.Tidy(func() *tensor.Tensor { return up(depth - 1).Mul(1) })
		}
		return up(1 + rng.IntN(20)).Err()
	}
}

// races shares tensors that any goroutine may release.
func races(r *round) error {
	for i := range 8 {
		var shared [8]*tensor.Tensor
		for k := range shared {
			shared[k] = tensor.Full([]int{16}, float64(k), r.device)
			if k%2 == 0 {
				shared[k].Keep()
			}
		}
		err := r.each(func(g int, rng *rand.Rand) error {
			f := func() error {
				for range 10 {
					r.work.Add(1)
					a, b := rng.IntN(len(shared)), rng.IntN(len(shared))
					if err := unless(race(r, rng, shared[a], shared[b], float64(a), float64(b), g%3 == i%3), tensor.ErrReleased); err != nil {
						return err
					}
				}
				return nil
			}
			if g%2 == 0 {
				return unless(tensor.WithScope(f), tensor.ErrReleased)
			}
			return f()
		})
		for _, x := range shared {
			x.Release()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func race(r *round, rng *rand.Rand, x, y *tensor.Tensor, a, b float64, may bool) error {
	first := func(t *tensor.Tensor, want float64) error {
		one := t.Select(0, 0)
		return lasts(one, func() error {
			v, err := one.Item()
			if err == nil && r.computes() && v != want {
				err = fmt.Errorf("value %v, want %v", v, want)
			}
			return err
		})
	}
	computed := func(t *tensor.Tensor, want float64) error {
		return lasts(t, func() error { return first(t, want) })
	}
	switch rng.IntN(9) {
	case 0:
		if may {
			x.Release()
		}
		return nil
	case 1:
		return first(x, a)
	case 2:
		return tensor.Cat([]*tensor.Tensor{x, y}).Err()
	case 3:
		z := x.Alias()
		defer z.Release()
		return computed(z, a)
	case 4:
		_, _ = x.Shape(), x.String()
		return nil
	case 5:
		return x.Index(tensor.From(3).By(2)).Err()
	case 6:
		_, err := x.Split(4)
		return err
	case 7:
		return computed(x.Narrow(0, 3, 2), a)
	}
	return computed(x.Add(y), a+b)
}

func garbage(r *round) error {
	return r.each(func(g int, rng *rand.Rand) error {
		for i := range 60 {
			x := tensor.Ones([]int{64 * (1 + rng.IntN(8))}, r.device)
			y := x.Add(1).View(-1)
			if rng.IntN(3) == 0 {
				x.Release()
			}
			if i%16 == g%16 {
				runtime.GC()
			}
			if err := y.Sum().Err(); err != nil {
				return err
			}
			r.work.Add(3)
		}
		return nil
	})
}

var errOnPurpose = errors.New("on purpose")

// cube computes x³ in Go. It fails or panics as requested.
type cube struct{ how int }

func (c cube) Forward(ctx *autograd.Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if c.how == 1 {
		return nil, errOnPurpose
	}
	ctx.SaveForBackward(inputs[0])
	x := inputs[0]
	return []*tensor.Tensor{x.Mul(x).Mul(x)}, nil
}

func (c cube) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	switch c.how {
	case 2:
		return nil, errOnPurpose
	case 3:
		panic(errOnPurpose)
	}
	x := ctx.Saved()[0]
	return []*tensor.Tensor{grads[0].Mul(x).Mul(x).Mul(3)}, nil
}

func differentiation(r *round) error {
	return r.each(func(g int, rng *rand.Rand) error {
		for range 10 {
			r.work.Add(1)
			if err := tensor.WithScope(func() error { return differentiate(r, rng) }); err != nil {
				return err
			}
		}
		return nil
	})
}

func differentiate(r *round, rng *rand.Rand) error {
	n := float64(1 + rng.IntN(5))
	x := tensor.Full([]int{4}, n, tensor.Float32, r.device).RequiresGrad_()
	how := rng.IntN(8)
	y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
		out, err := autograd.Apply(cube{how}, in[0])
		if err != nil {
			return tensor.Failed(err)
		}
		return out[0]
	}, x)
	hooked := make(chan struct{}, 4)
	if rng.IntN(2) == 0 {
		remove, err := x.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { hooked <- struct{}{}; return nil, nil })
		if err != nil {
			return err
		}
		defer remove()
	}
	err := y.Sum().Backward()
	var panicked *autograd.PanicError
	switch {
	case how == 3 && errors.As(err, &panicked), (how == 1 || how == 2) && errors.Is(err, errOnPurpose):
		return nil
	case err != nil:
		return err
	case how >= 1 && how <= 3:
		return fmt.Errorf("a function that fails (%d) returned no error", how)
	}
	v, err := x.Grad().Select(0, 0).Item()
	if err == nil && r.computes() && v != 3*n*n {
		err = fmt.Errorf("the gradient is %v, want %v", v, 3*n*n)
	}
	return err
}

func loading(r *round) error {
	set, err := data.NewSamples(96, []int{3}, nil, func(i int, in []float32, out []int64) error {
		in[0], in[1], out[0] = float32(i), float32(i*i), int64(i)
		return nil
	})
	if err != nil {
		return err
	}
	return r.each(func(g int, rng *rand.Rand) error {
		loader, err := data.NewLoader(set, data.BatchSize(8), data.Workers(rng.IntN(3)), data.Shuffle(true), data.Seed(uint64(g)), data.Device(r.device))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		leave := rng.IntN(14)
		loop := func() (err error) {
			defer func() {
				if p := recover(); p != nil && p != errOnPurpose {
					err = fmt.Errorf("panic: %v", p)
				}
			}()
			seen := 0
			for b, err := range loader.Batches(ctx) {
				if err != nil {
					return unless(err, context.Canceled)
				}
				v, err := tensor.Item[float64](b.Inputs.Select(1, 0).Sub(b.Targets).Abs().Sum())
				if err != nil {
					return err
				}
				if r.computes() && v != 0 {
					return fmt.Errorf("inputs and targets of a batch differ by %v", v)
				}
				r.work.Add(1)
				if seen++; seen == leave {
					switch rng.IntN(4) {
					case 0:
						panic(errOnPurpose)
					case 1:
						cancel()
						continue
					case 2:
						return nil
					}
					break
				}
			}
			return nil
		}
		return loop()
	})
}

func saving(r *round) error {
	return r.each(func(g int, rng *rand.Rand) error {
		name := filepath.Join(r.dir, fmt.Sprintf("%d.safetensors", g%4)) // several goroutines save to the same file
		for range 3 {
			r.work.Add(1)
			n := float64(g % 4)
			if err := tensor.WithScope(func() error {
				return checkpoint.Save(name, map[string]*tensor.Tensor{"a": tensor.Full([]int{1000}, n, r.device), "b": tensor.Full([]int{3, 5}, n+1, r.device)}, nil)
			}); err != nil {
				return err
			}
			f, err := checkpoint.Load(name)
			if err != nil {
				return err
			}
			a := f.Tensor("a")
			if rng.IntN(2) == 0 {
				a = a.View(10, 100)
			}
			if err := f.Close(); err != nil { // the mapping lives as long as a
				return err
			}
			v, err := tensor.Item[float64](a.Sum())
			a.Release()
			if err != nil {
				return err
			}
			if r.computes() && v != 1000*n {
				return fmt.Errorf("the sum of what was saved is %v, want %v", v, 1000*n)
			}
		}
		return nil
	})
}

// settings changes all settings while half of the goroutines train.
func settings(r *round) error {
	if err := r.study(steps); err != nil {
		return err
	}
	was := r.squeezed
	r.squeezed = true
	defer func() { r.squeezed = was }()
	threads := tensor.NumThreads()
	percent, err := vram.SetGCPercent(r.device, 100)
	if err != nil {
		return err
	}
	policy := vram.CurrentPolicy()
	defer func() {
		_, _ = vram.SetGCPercent(r.device, percent)
		vram.SetPolicy(policy)
		_ = tensor.SetNumThreads(threads)
		r.resetLimits()
	}()
	var done atomic.Bool
	var changers sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		changers.Go(func() {
			rng := r.rand(5000 + i)
			for !done.Load() && errs[i] == nil {
				errs[i] = change(r, rng)
				time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
			}
		})
	}
	err = r.each(func(g int, rng *rand.Rand) error {
		for range 2 {
			if err := r.learn(kinds[rng.IntN(len(kinds))], rng.Uint64N(lessons), steps); err != nil {
				return err
			}
		}
		return nil
	})
	done.Store(true)
	changers.Wait()
	return errors.Join(append(errs, err)...)
}

// resetLimits restores the default limits.
func (m *machine) resetLimits() {
	_ = vram.SetLimit(m.device, vram.Share(0.9))
	_ = vram.SetSoftLimit(m.device, vram.Share(0.8))
}

func change(r *round, rng *rand.Rand) error {
	switch rng.IntN(14) {
	case 0, 1:
		now, err := program.Live(r.device)
		if err != nil {
			return err
		}
		return vram.SetLimit(r.device, vram.Bytes(now+int64(rng.IntN(4<<20))))
	case 2:
		return vram.SetLimit(r.device, vram.Share(0.9))
	case 3:
		return vram.SetSoftLimit(r.device, vram.Bytes(int64(1+rng.IntN(8<<20))))
	case 4:
		vram.SetPolicy([]vram.Policy{vram.Paced{}, vram.Off{}, vram.Threshold{Bytes: 1 << 18}, vram.Rates{}, vram.LiveShare{}, vram.Any{vram.Paced{}, vram.Threshold{Bytes: 1 << 20}}}[rng.IntN(6)])
	case 5:
		_, err := vram.SetGCPercent(r.device, []int{-1, 1, 100, 1000}[rng.IntN(4)])
		return err
	case 6:
		return vram.EmptyCache(r.device)
	case 7:
		return vram.ResetPeak(r.device)
	case 8:
		_, err := vram.Explain(r.device)
		return err
	case 9:
		_, err := vram.Summary(r.device)
		return err
	case 10:
		_, err := vram.Report(3)
		return err
	case 11:
		return tensor.SetNumThreads(1 + rng.IntN(2))
	case 12:
		return vram.Collect()
	case 13:
		vram.ReadMetrics([]vram.MetricSample{{Name: "/sweeps/full:sweeps"}})
		vram.WaitQuantiles()
		_ = tensor.ReadStatistics()
	}
	return nil
}

// storm gives all goroutines together room for fewer blocks than there are goroutines.
func storm(r *round) error {
	defer r.resetLimits()
	x := tensor.Ones([]int{16 << 10}, r.device)
	defer x.Release()
	now, err := program.Live(r.device)
	if err != nil {
		return err
	}
	block := int64(64 << 10)
	if r.device != tensor.CPU {
		block = 2 << 20 // the granularity of its allocator
	}
	if err := vram.SetLimit(r.device, vram.Bytes(now+block*int64(max(4, r.goroutines*3/4)))); err != nil {
		return err
	}
	return r.each(func(g int, rng *rand.Rand) error {
		for range 40 {
			r.work.Add(3)
			if err := tensor.WithScope(func() error {
				_ = x.Add(1)
				return x.Add(1).Err()
			}); err != nil {
				return unless(err, tensor.ErrOutOfMemory) // waiting goroutines may hold all of it at once
			}
			_ = x.Add(1)
			if rng.IntN(64) == 0 {
				done := make(chan struct{})
				go func() { defer close(done); _ = x.Add(1) }()
				<-done
			}
		}
		return nil
	})
}

func programs(r *round) error {
	defer r.resetLimits()
	r.resetLimits()
	g, err := program.NewGroup(r.device, r.seed, 1+int(r.seed%uint64(r.goroutines)), 24, 8<<10)
	if err != nil {
		return err
	}
	if _, err := r.settle(nil); err != nil {
		return err
	}
	now, err := program.Live(r.device)
	if err != nil {
		return err
	}
	if err := vram.SetLimit(r.device, vram.Bytes(now+g.Reach+g.Reach/20)); err != nil {
		return err
	}
	sums, _, err := g.Run(r.device)
	r.work.Add(int64(len(g.Programs)) * 24)
	for i := range sums {
		if err == nil && sums[i] != g.Sums[i] {
			err = fmt.Errorf("program %d gives %v, want %v", i, sums[i], g.Sums[i])
		}
	}
	return err
}

// mix runs three other scenarios at once, each with a share of the goroutines.
func mix(r *round) error {
	if err := r.study(steps); err != nil {
		return err
	}
	rng := r.rand(9000)
	var from []scenario
	for _, s := range scenarios {
		if !s.alone && s.weight > 0 {
			from = append(from, s)
		}
	}
	rng.Shuffle(len(from), func(i, k int) { from[i], from[k] = from[k], from[i] })
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for i := range errs {
		part := &round{machine: r.machine, seed: rng.Uint64(), goroutines: max(1, r.goroutines/3), notes: map[string]int64{}, squeezed: true}
		wg.Go(func() {
			if err := unless(from[i].run(part), tensor.ErrOutOfMemory); err != nil {
				errs[i] = fmt.Errorf("%s: %w", from[i].name, err)
			}
			r.work.Add(part.work.Load())
		})
	}
	wg.Wait()
	r.resetLimits()
	return errors.Join(errs...)
}
