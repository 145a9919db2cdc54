package vram_test

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// object contains a pointer, so that the runtime does not combine it with other small objects.
type object struct{ _ *object }

// A program's own reclaimers, cleanups and finalizers may wait for a mutex that the allocating goroutine holds,
// or forever. Unreachable tensors are freed without them, and an allocation that then fits does not fail.
func TestFreeingDoesNotWaitForTheProgram(t *testing.T) {
	unreachable := func(i, n int, attach func(*object)) {
		if i%500 == 0 {
			for range n {
				attach(new(object))
			}
		}
	}
	for name, before := range map[string]func(t *testing.T, i int, wait func()){
		"Reclaim": func(t *testing.T, i int, wait func()) {
			if i == 0 {
				t.Cleanup(vram.Register(vram.Reclaimer{Name: "test", Reclaim: func(int64) { wait() }}))
			}
		},
		"Prepare": func(t *testing.T, i int, wait func()) {
			if i == 0 {
				t.Cleanup(vram.Register(vram.Reclaimer{Name: "test", Prepare: wait, Reclaim: func(int64) {}}))
			}
		},
		"a cleanup": func(_ *testing.T, i int, wait func()) {
			unreachable(i, 1, func(o *object) { runtime.AddCleanup(o, func(int) { wait() }, 0) })
		},
		"as many cleanups as run at once": func(_ *testing.T, i int, wait func()) {
			unreachable(i, 4*runtime.GOMAXPROCS(0), func(o *object) { runtime.AddCleanup(o, func(int) { wait() }, 0) })
		},
		"a finalizer": func(_ *testing.T, i int, wait func()) {
			unreachable(i, 1, func(o *object) { runtime.SetFinalizer(o, func(*object) { wait() }) })
		},
	} {
		for _, way := range []string{"takes the mutex", "blocks"} {
			for _, scoped := range []bool{false, true} {
				where := "outside scopes"
				if scoped {
					where = "in an open scope"
				}
				t.Run(name+" "+way+", "+where, func(t *testing.T) {
					leak.Check(t)
					var mu sync.Mutex
					end := make(chan struct{})
					t.Cleanup(func() { close(end) })
					wait := func() { <-end }
					if way != "blocks" {
						wait = func() { mu.Lock(); defer mu.Unlock() }
					}
					reachable := tensor.Empty([]int{12 * mib}) // 48 MiB of 64
					defer reachable.Release()
					limit(t, 16*mib)
					loop := func() error {
						mu.Lock()
						defer mu.Unlock()
						for i := range 3000 {
							before(t, i, wait)
							if err := tensor.Empty([]int{mib / 4}).Err(); err != nil { // 1 MiB
								return err
							}
						}
						return nil
					}
					inTime(t, scoped, loop)
				})
			}
		}
	}
}

// inTime reports an error of loop, or that it took a minute.
func inTime(t *testing.T, scoped bool, loop func() error) {
	t.Helper()
	start := time.Now()
	var err error
	if scoped {
		err = tensor.WithScope(loop)
	} else {
		err = loop()
	}
	if took := time.Since(start); err != nil || took > time.Minute {
		t.Errorf("%v: %v", took, err)
	}
}

// The same for a function of tensor.FromMapped, which the goroutine calls itself when its scope closes.
func TestFreeingDoesNotWaitForMappedMemory(t *testing.T) {
	for _, scoped := range []bool{false, true} {
		t.Run(fmt.Sprint("scoped ", scoped), func(t *testing.T) {
			leak.Check(t)
			leak.Counted(t) // a forced collection would call drop while the loop holds mu
			var mu sync.Mutex
			var dropped atomic.Int32
			drop := func() { mu.Lock(); defer mu.Unlock(); dropped.Add(1) }
			data := make([]byte, 64)
			limit(t, 16*mib)
			loop := func() error {
				mu.Lock()
				defer mu.Unlock()
				for i := range 3000 {
					if i%500 == 0 {
						tensor.FromMapped(tensor.Uint8, []int{64}, data, drop).Release()
					}
					if err := tensor.Empty([]int{mib / 4}).Err(); err != nil { // 1 MiB
						return err
					}
				}
				return nil
			}
			start := time.Now()
			inTime(t, scoped, loop)
			for ; dropped.Load() < 6 && time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
				vram.Flush()
			}
			if n := dropped.Load(); n != 6 {
				t.Errorf("%d functions were called, want 6", n)
			}
		})
	}
}

// A function of tensor.FromMapped that blocks leaves reclaimers their time: the allocation succeeds by theirs.
func TestReclaimersBesideABlockedFunction(t *testing.T) {
	leak.Check(t)
	leak.Counted(t) // a forced collection would wait for the function
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	cache := tensor.Empty([]int{12 * mib}) // 48 MiB of 64
	limit(t, 16*mib)
	remove := vram.Register(vram.Reclaimer{Name: "slow cache", Reclaim: func(int64) {
		time.Sleep(100 * time.Millisecond)
		cache.Release()
	}})
	defer remove()
	tensor.FromMapped(tensor.Uint8, []int{64}, make([]byte, 64), func() { <-end }).Release()
	x := tensor.Empty([]int{8 * mib}) // 32 MiB
	defer x.Release()
	ok(t, x.Err())
}

// The time of the collector is not taken from reclaimers, cleanup functions and finalizers: the allocation succeeds by
// theirs.
func TestASlowCollectorLeavesTheProgramItsTime(t *testing.T) {
	if !elsewhere.Process(t) { // set a function before the pacer calls it
		return
	}
	// The program's functions have a second, a round has two.
	const collector, reclaimer, short = 500 * time.Millisecond, 600 * time.Millisecond, 50 * time.Millisecond
	var slow atomic.Bool
	weaken := reclaim.Weaken
	reclaim.Weaken = func() {
		weaken()
		if slow.Load() {
			time.Sleep(collector)
		}
	}
	type holder struct{ *tensor.Tensor }
	for name, cache := range map[string]func(x *tensor.Tensor) vram.Reclaimer{
		"Reclaim after Prepare": func(x *tensor.Tensor) vram.Reclaimer {
			return vram.Reclaimer{Prepare: func() {}, Reclaim: func(int64) { time.Sleep(short); x.Release() }}
		},
		"a cleanup": func(x *tensor.Tensor) vram.Reclaimer {
			o := new(object)
			runtime.AddCleanup(o, func(x *tensor.Tensor) { time.Sleep(short); x.Release() }, x)
			return vram.Reclaimer{Reclaim: func(int64) { o = nil }}
		},
		"a finalizer": func(x *tensor.Tensor) vram.Reclaimer {
			h := &holder{x}
			runtime.SetFinalizer(h, func(*holder) {})
			return vram.Reclaimer{Reclaim: func(int64) { h = nil }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			usePolicy(t, vram.Off{})
			limit(t, 16*mib)
			if err := tensor.Empty([]int{8 * mib}).Err(); !errors.Is(err, vram.ErrOutOfMemory) { // the first takes more rounds
				t.Errorf("32 MiB: %v", err)
			}
			defer vram.Register(vram.Reclaimer{Name: "slow", Rank: -1, Reclaim: func(int64) { time.Sleep(reclaimer) }})()
			defer vram.Register(cache(tensor.Empty([]int{3 * mib})))() // 12 MiB
			slow.Store(true)
			x := tensor.Empty([]int{2 * mib}) // 8 MiB
			slow.Store(false)
			defer x.Release()
			ok(t, x.Err())
		})
	}
}

// The pacer calls the functions of tensor.FromMapped. One that panics or ends its goroutine does not end the process and
// keeps none of the others from being called.
func TestThePacerSurvivesMappedMemory(t *testing.T) {
	leak.Check(t)
	data := make([]byte, 64)
	for name, bad := range map[string]func(){"panic": func() { panic("mine") }, "Goexit": runtime.Goexit} {
		done := make(chan struct{})
		for _, drop := range []func(){bad, func() { close(done) }} {
			x := tensor.FromMapped(tensor.Uint8, []int{64}, data, drop)
			ok(t, x.Err())
			x.Release()
		}
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Errorf("%s: a function was not called", name)
		}
	}
}

// If reachable tensors leave no room, the error comes within seconds and names the reclaimer that has not
// returned. That reclaimer is not called again until it has returned.
func TestAnErrorNamesAReclaimerThatBlocks(t *testing.T) {
	leak.Check(t)
	end, calls := make(chan struct{}), 0
	defer vram.Register(vram.Reclaimer{Name: "stuck cache", Reclaim: func(int64) { calls++; <-end }})()
	limit(t, 4*mib)
	for range 2 {
		start := time.Now()
		err := tensor.Empty([]int{2 * mib}).Err()
		var oom *vram.OutOfMemoryError
		if !errors.As(err, &oom) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the error took %v", took)
		}
		if !strings.Contains(err.Error(), `reclaimer "stuck cache"`) || len(oom.Blocked) != 1 || oom.Blocked[0].For < time.Second/2 {
			t.Errorf("%v; blocked: %v", err, oom.Blocked)
		}
	}
	report, err := vram.Report(5)
	ok(t, err)
	if !strings.Contains(report, `reclaimer "stuck cache"`) {
		t.Errorf("the report does not name the reclaimer:\n%s", report)
	}
	close(end)
	for len(vram.BlockedCalls()) != 0 {
		time.Sleep(time.Millisecond)
	}
	if calls != 1 {
		t.Errorf("%d calls before the first has returned", calls)
	}
	if err := tensor.Empty([]int{2 * mib}).Err(); err == nil || strings.Contains(err.Error(), "stuck cache") || calls != 2 {
		t.Errorf("after it has returned: %d calls, %v", calls, err)
	}
}

// A finalizer that blocks delays one failure: the cleanup functions that other collections call are not mistaken for
// it, neither while a sweep waits for it nor later.
func TestABlockedFinalizerStaysKnown(t *testing.T) {
	leak.Check(t)
	x := tensor.Empty([]int{1}) // each collection calls a function if a tensor is outside scopes
	ok(t, x.Err())
	end := make(chan struct{})
	runtime.SetFinalizer(new(object), func(*object) { <-end })
	limit(t, 4*mib)
	failed := make(chan error)
	go func() { failed <- tensor.Empty([]int{2 * mib}).Err() }()
	for waits := true; waits; {
		runtime.GC()
		select {
		case err := <-failed:
			if waits = false; !errors.Is(err, vram.ErrOutOfMemory) {
				t.Errorf("got %v", err)
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	for range 5 {
		executed := cleanupsExecuted()
		for runtime.GC(); cleanupsExecuted() == executed; {
			time.Sleep(time.Millisecond)
		}
	}
	if list := vram.BlockedCalls(); len(list) != 1 {
		t.Errorf("the blocked calls are %v", list)
	}
	close(end)
	for len(vram.BlockedCalls()) != 0 {
		time.Sleep(time.Millisecond)
	}
	x.Release()
}

func cleanupsExecuted() uint64 {
	s := [1]metrics.Sample{{Name: "/gc/cleanups/executed:cleanups"}}
	metrics.Read(s[:])
	return s[0].Value.Uint64()
}

// The same for a cleanup function.
func TestAnErrorNamesACleanupThatBlocks(t *testing.T) {
	leak.Check(t)
	end := make(chan struct{})
	for range 4 * runtime.GOMAXPROCS(0) {
		runtime.AddCleanup(new(object), func(int) { <-end }, 0)
	}
	limit(t, 4*mib)
	for range 2 {
		start := time.Now()
		err := tensor.Empty([]int{2 * mib}).Err()
		if !errors.Is(err, vram.ErrOutOfMemory) || !strings.Contains(err.Error(), "runtime.AddCleanup") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the error took %v", took)
		}
	}
	close(end)
	for len(vram.BlockedCalls()) != 0 {
		time.Sleep(time.Millisecond)
	}
}
