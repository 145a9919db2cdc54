package vram_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Tests of what earlier systems do about native memory, row by row of the project's list. A test is named after
// its row: the system, and what its users get.

// R torch: collect after every 4,000 MB allocated. It counts allocations only. Here that is an optional policy;
// the default paces on live bytes, so that 3 GB of released tensors cause no sweep.
func TestSeedRTorchCollectsEveryThreshold(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	sweeps := func(p vram.Policy) int64 {
		usePolicy(t, p)
		ok(t, vram.Collect())
		before := vram.ReadCounts()
		for range 300 {
			x := tensor.Empty([]int{mib}) // 4 MiB
			ok(t, x.Err())
			x.Release()
		}
		return vram.ReadCounts().Full - before.Full
	}
	if n := sweeps(vram.Threshold{Bytes: 100 * mib}); n < 8 || n > 13 {
		t.Errorf("1,200 MB with a threshold of 100 MB: %d sweeps", n)
	}
	if n := sweeps(vram.Paced{}); n != 0 {
		t.Errorf("nothing is garbage, but the default has swept %d times", n)
	}
	s := vram.State{Live: 1 * mib, Allocated: 3999 << 20}
	if (vram.Threshold{}).Decide(s).Sweep != vram.None {
		t.Error("a sweep below 4,000 MB")
	}
	s.Allocated = 4000 << 20
	if (vram.Threshold{}).Decide(s).Sweep != vram.Full {
		t.Error("no sweep at 4,000 MB")
	}
}

// R torch: an allocation fails, collect, try again. Here this applies to every operator and within backward
// passes, and a full sweep that began after the request has run before the error.
func TestSeedRTorchCollectsAndTriesAgainBeforeAnError(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	usePolicy(t, vram.Off{})
	limit(t, 40*mib)
	before := vram.ReadCounts()
	for range 40 {
		ok(t, tensor.Empty([]int{mib}).Err())
	}
	if c := vram.ReadCounts(); c.Deep == before.Deep || c.Retries == before.Retries {
		t.Errorf("no sweep, no second try: %+v", c)
	}
	before = vram.ReadCounts()
	if err := tensor.Empty([]int{11 * mib}).Err(); !errors.Is(err, tensor.ErrOutOfMemory) {
		t.Fatalf("got %v", err)
	}
	if c := vram.ReadCounts(); c.Full+c.Deep == before.Full+before.Deep {
		t.Error("an error without a full sweep before it")
	}
}

// R torch: three rates for CUDA choose no, a light or a full collection. Here they are a policy.
func TestSeedRTorchRates(t *testing.T) {
	leak.Check(t)
	const gib = 1 << 30
	for _, c := range []struct {
		live, reserved int64
		want           vram.Depth
	}{
		{1 * gib, 1 * gib, vram.None},       // reserved/total 0.1
		{2 * gib, 5 * gib, vram.Light},      // allocated/reserved 0.4
		{9 * gib, 9*gib + gib/2, vram.Full}, // allocated/total 0.9
		{5 * gib, 6 * gib, vram.Full},       // allocated/reserved 0.83
		{3 * gib, 9 * gib, vram.Light},      //
	} {
		s := vram.State{Live: c.live, Reserved: c.reserved, Capacity: 10 * gib, Allocated: 2 * gib}
		if got := (vram.Rates{}).Decide(s).Sweep; got != c.want {
			t.Errorf("live %d GiB, reserved %d GiB of 10: %v, want %v", c.live/gib, c.reserved/gib, got, c.want)
		}
		// R torch keeps collecting here. Linstock does not sweep again while nothing new was allocated.
		s.Allocated = 0
		if got := (vram.Rates{}).Decide(s).Sweep; got != vram.None {
			t.Errorf("nothing was allocated, but %v", got)
		}
	}
}

// R torch: memory stats, summary, empty_cache, history and snapshot. Here they exist for the CPU too.
func TestSeedRTorchReports(t *testing.T) {
	leak.Check(t)
	ok(t, vram.RecordHistory(1000))
	x := tensor.Ones([]int{mib})
	var snapshot, profile bytes.Buffer
	ok(t, vram.Snapshot(&snapshot))
	ok(t, vram.WriteProfile(&profile))
	ok(t, vram.RecordHistory(0))
	text, err := vram.Summary(vram.CPU)
	ok(t, err)
	if !strings.Contains(text, "Allocated memory") || snapshot.Len() == 0 || profile.Len() == 0 {
		t.Errorf("a summary of %d bytes, a snapshot of %d, a profile of %d", len(text), snapshot.Len(), profile.Len())
	}
	x.Release()
	ok(t, vram.EmptyCache(vram.CPU))
	if m := memoryNow(t); m.Cached != 0 && m.Cached > mib {
		t.Errorf("%d bytes are kept after EmptyCache", m.Cached)
	}
}

// R torch: MPS collects after a failure and tries again. Here the same code serves every device: an allocation
// refused by a device's limit waits for a sweep and is tried again (TestPressure and TestLimit of the fake CUDA
// runtime test it on CUDA).
func TestSeedRTorchOtherDevicesUseTheSamePath(t *testing.T) {
	leak.Check(t)
	for _, name := range []vram.Name{vram.CPU} {
		if _, err := vram.Stats(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := vram.Stats(vram.Name("mps:0")); err == nil {
		t.Error("figures for a device that is not there")
	}
	devices, err := tensor.Devices()
	ok(t, err)
	for _, d := range devices {
		ok(t, vram.SetSoftLimit(d, vram.Share(0.5)))
		ok(t, vram.SetSoftLimit(d, vram.Share(0.8)))
	}
}

// goDl: a reference count, with a finalizer as a fallback. Here concurrent use is safe: an operator pins its
// operands while another goroutine releases them.
func TestSeedGoDlReferenceCountIsSafeAgainstConcurrentRelease(t *testing.T) {
	leak.Check(t)
	for range 200 {
		x := tensor.Ones([]int{64})
		var wg sync.WaitGroup
		var wrong atomic.Int64
		for range 4 {
			wg.Go(func() {
				y := x.Add(1)
				if err := y.Err(); err != nil && !errors.Is(err, tensor.ErrReleased) {
					wrong.Add(1)
				}
				y.Release()
			})
			wg.Go(x.Release)
		}
		wg.Wait()
		if wrong.Load() != 0 {
			t.Fatal("an operator saw something else than a result or ErrReleased")
		}
	}
	// The fallback: tensors dropped outside scopes are freed.
	before := memoryNow(t).Allocated
	func() { _ = tensor.Ones([]int{mib}) }()
	ok(t, vram.Collect())
	if n := memoryNow(t).Allocated; n != before {
		t.Errorf("%d bytes are left", n-before)
	}
}

// goDl: an autograd scope around forward, backward and step. Here scopes nest, belong to a goroutine, and are
// closed by a panic.
func TestSeedGoDlScopeNestsAndSurvivesPanics(t *testing.T) {
	leak.Check(t)
	var inner *tensor.Tensor
	func() {
		defer func() { _ = recover() }()
		_ = tensor.WithScope(func() error {
			return tensor.WithScope(func() error {
				inner = tensor.Ones([]int{2}) //linstockvet:ignore scopeescape the test uses it after its scope
				panic("in a step")
			})
		})
	}()
	if err := inner.Add(1).Err(); !errors.Is(err, tensor.ErrReleased) {
		t.Errorf("got %v", err)
	}
	ok(t, tensor.WithScope(func() error {
		mine := tensor.CurrentScope()
		done := make(chan bool)
		go func() { done <- tensor.CurrentScope() == nil }()
		if !<-done {
			t.Error("another goroutine is in this one's scope")
		}
		if tensor.CurrentScope() != mine {
			t.Error("the scope was lost")
		}
		return nil
	}))
}

// goDl: an out-of-memory callback collects and queues frees, so that nothing is freed before the retry. Here
// waiting allocations are woken after the frees: one round is enough.
func TestSeedGoDlFreesBeforeTheRetry(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	usePolicy(t, vram.Off{})
	limit(t, 20*mib)
	for range 5 {
		ok(t, tensor.Empty([]int{mib}).Err())
	}
	before := vram.ReadCounts()
	x := tensor.Empty([]int{mib})
	ok(t, x.Err())
	c := vram.ReadCounts().Since(before)
	if c.Waits != 1 || c.Retries != 1 || c.Rounds != 1 {
		t.Errorf("%d waits, %d retries, %d rounds; want 1 of each", c.Waits, c.Retries, c.Rounds)
	}
	x.Release()
}

// goDl: every 100 wraps compares a counter with a budget. It counts views twice and collects for ever above the
// budget. Here storages count once, and a sweep that frees nothing is not repeated at once.
func TestSeedGoDlBudgetCountsStoragesAndBacksOff(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	usePolicy(t, vram.LiveShare{})
	ok(t, vram.SetSoftLimit(vram.CPU, vram.Bytes(memoryNow(t).Allocated+40*mib)))
	defer func() { ok(t, vram.SetSoftLimit(vram.CPU, vram.Share(0.8))) }()
	held := tensor.Empty([]int{12 * mib}) // 48 MiB: above the budget, and reachable
	before := vram.ReadCounts()
	ok(t, tensor.WithScope(func() error {
		for range 1000 {
			_ = held.View(-1) // adds nothing
		}
		return nil
	}))
	c := vram.ReadCounts()
	if n := c.Full - before.Full; n > 2 {
		t.Errorf("%d sweeps above the budget, though nothing was allocated", n)
	}
	before = c
	for range 200 {
		ok(t, tensor.Empty([]int{mib / 4}).Err())
	}
	if c := vram.ReadCounts(); c.Full == before.Full {
		t.Error("no sweep above the budget")
	}
	held.Release()
}

// goDl: runtime.KeepAlive by hand at 50 sites. Here pins are generated and checked by linstockvet
// (vet.TestRepository, vet.TestMutantsOfTensor): an operand whose last use is the operator stays alive through
// it while the collector runs.
func TestSeedGoDlKeepAliveIsGenerated(t *testing.T) {
	leak.Check(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			_ = vram.Collect()
		}
	})
	for range 300 {
		v, err := tensor.Item[float64](tensor.Ones([]int{32}).Add(tensor.Ones([]int{32})).Sum().To(tensor.Float64))
		if err != nil || v != 64 {
			t.Fatalf("got %v, %v", v, err)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// floDl: drop at last use, cheap clone, no lifetime code. Here the usual forward pass has no lifetime code
// either: nn.Pipe frees each intermediate tensor between layers of package nn as soon as the next layer has
// used it.
func TestSeedFloDlDropsAtLastUse(t *testing.T) {
	leak.Check(t)
	ok(t, autograd.NoGrad(func() error {
		x := tensor.Ones([]int{mib})
		defer x.Release()
		var layers []nn.Layer
		for range 10 {
			layers = append(layers, &nn.Tanh{})
		}
		base := memoryNow(t).Allocated
		ok(t, vram.ResetPeak(vram.CPU))
		y := nn.Pipe(x, layers...)
		defer y.Release()
		if n := memoryNow(t).Peak - base; n > 8*mib+mib/2 {
			t.Errorf("ten layers of 4 MiB peak at %d MiB above their input", n/mib)
		}
		return y.Err()
	}))
}

// floDl: out of memory is recognized by a substring of the message. Here it is a type with the figures, and
// there are limits, snapshots, a hook and a retry.
func TestSeedFloDlOutOfMemoryIsTyped(t *testing.T) {
	leak.Check(t)
	limit(t, 4*mib)
	hooked := false
	defer vram.Register(vram.Reclaimer{Name: "hook", Reclaim: func(int64) { hooked = true }})()
	err := tensor.Empty([]int{2 * mib}).Err()
	var oom *vram.OutOfMemoryError
	if !errors.As(err, &oom) || oom.Asked != 8*mib {
		t.Fatalf("got %v", err)
	}
	if !hooked {
		t.Error("the reclaimer was not asked")
	}
}

// TorchSharp: dispose scopes and all their operations.
func TestSeedTorchSharpDisposeScopes(t *testing.T) {
	leak.Check(t)
	outer, err := tensor.NewScope()
	ok(t, err)
	before := outer.Statistics()
	inner, err := tensor.NewScope()
	ok(t, err)
	a, b, c, d := tensor.Ones([]int{1}), tensor.Ones([]int{1}), tensor.Ones([]int{1}), tensor.Ones([]int{1})
	a.MoveOut()                                                        // MoveToOuter
	ok(t, outer.Adopt(b))                                              // MoveToOther
	c.Keep()                                                           // Detach
	if !inner.Contains(d) || inner.Contains(a) || !outer.Contains(b) { // Contains
		t.Error("Contains is wrong")
	}
	e := d.Alias() // alias()
	ok(t, inner.ReleaseExcept(e))
	if inner.Len() != 1 {
		t.Errorf("%d tensors after ReleaseExcept", inner.Len())
	}
	ok(t, inner.ReleaseAll()) // DisposeEverything
	ok(t, inner.Close())
	ok(t, inner.Adopt()) // no tensors is not an error
	if err := inner.Adopt(c); !errors.Is(err, tensor.ErrScope) {
		t.Errorf("Adopt into a closed scope: %v", err)
	}
	after := outer.Statistics()
	if after == before {
		t.Error("the statistics have not changed")
	}
	ok(t, outer.Close())
	for _, x := range []*tensor.Tensor{a, b, d, e} {
		if err := x.Add(1).Err(); !errors.Is(err, tensor.ErrReleased) {
			t.Errorf("got %v", err)
		}
	}
	ok(t, c.Add(1).Err())
	c.Release()
	if s := tensor.ReadStatistics(); s.TotalCount == 0 && s.PeakCount == 0 {
		t.Errorf("%+v", s)
	}
}

// TorchSharp: Sequential frees between layers, and statistics find leaks. Here a profile of native memory by Go
// line finds them too. (For a loader's batches see data.TestFreedWithoutTheGarbageCollector.)
func TestSeedTorchSharpLeaksAreFoundByLine(t *testing.T) {
	leak.Check(t)
	rate(t, 1) // at the default rate, one block of 16 MiB in 3,000 is not sampled
	var leaked []*tensor.Tensor
	for range 4 {
		leaked = append(leaked, tensor.Ones([]int{4 * mib}).Keep()) // the line that leaks
	}
	holders, err := vram.Holders(vram.CPU)
	ok(t, err)
	if len(holders) == 0 || !strings.Contains(holders[0].Line, "seeds_test.go") || holders[0].Bytes < 60*mib {
		t.Errorf("%+v", holders)
	}
	for _, x := range leaked {
		x.Release()
	}
}

// The article on out-of-memory errors: memory is predicted and attributed; each technique with the memory it
// saves.
func TestSeedArticleTechniques(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	const features, layers = 128, 6
	step := func(batch int, dtype tensor.DType, checkpoint bool) error {
		return tensor.WithScope(func() error {
			var ws []*tensor.Tensor
			for range layers {
				ws = append(ws, tensor.Full([]int{features, features}, 0.01, dtype).RequiresGrad_())
			}
			x := tensor.Ones([]int{batch, features}, dtype).RequiresGrad_()
			for _, w := range ws {
				part := func(xs ...*tensor.Tensor) *tensor.Tensor {
					return xs[0].MatMul(w).Tanh().Mul(0.5).Exp().Tanh()
				}
				if checkpoint {
					x = autograd.Checkpoint(part, x)
				} else {
					x = part(x)
				}
			}
			return x.Sum().Backward()
		})
	}
	peak := func(batch int, dtype tensor.DType, checkpoint bool) int64 {
		e, err := vram.Measure(vram.CPU, func() error { return step(batch, dtype, checkpoint) })
		ok(t, err)
		return e
	}
	plain := peak(4096, tensor.Float32, false)
	if half := peak(4096, tensor.BFloat16, false); half > plain*6/10 {
		t.Errorf("bfloat16 takes %d of %d bytes", half, plain)
	}
	if less := peak(4096, tensor.Float32, true); less > plain/2 {
		t.Errorf("checkpointing takes %d of %d bytes", less, plain)
	}
	if small := peak(1024, tensor.Float32, false); small > plain/3 {
		t.Errorf("a quarter of the batch takes %d of %d bytes", small, plain)
	}
	// Predicted before the run, from two small runs.
	e, err := vram.Estimate(vram.CPU, 4096, func(batch int) error { return step(batch, tensor.Float32, false) })
	ok(t, err)
	if e.Peak < plain*9/10 || e.Peak > plain*11/10 || !e.Fits {
		t.Errorf("estimated %+v, measured %d", e, plain)
	}
	// Attributed during the run.
	held := tensor.Ones([]int{mib})
	parts, err := vram.Explain(vram.CPU)
	ok(t, err)
	if !strings.Contains(parts.String(), "activations") {
		t.Error(parts)
	}
	held.Release()
}
