package vram_test

import (
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// busy starts goroutines that continuously allocate and free small tensors in scopes, until the returned function is
// called.
func busy(t *testing.T, n int) (stop func()) {
	var stopped atomic.Bool
	var wg, began sync.WaitGroup
	for range n {
		began.Add(1)
		wg.Go(func() {
			for first := true; !stopped.Load(); first = false {
				if err := tensor.WithScope(func() error {
					x := tensor.Empty([]int{2000})
					for range 4 {
						x = x.Mul(2)
					}
					return x.Err()
				}); err != nil {
					t.Error(err)
				}
				if first {
					began.Done()
				}
			}
		})
	}
	began.Wait()
	return func() {
		stopped.Store(true)
		wg.Wait()
	}
}

// Small allocations and frees of other goroutines make no room: the reclaimers are called.
func TestReclaimerBesideBusyGoroutines(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	usePolicy(t, vram.Off{})
	limit(t, 100*mib)
	var mu sync.Mutex
	var cache []*tensor.Tensor
	calls := 0
	defer vram.Register(vram.Reclaimer{Name: "cache", Reclaim: func(int64) {
		if !mu.TryLock() {
			return
		}
		defer mu.Unlock()
		calls++
		for _, x := range cache {
			x.Release()
		}
		cache = nil
	}})()
	defer busy(t, 8)()
	for range 3 {
		for range 15 {
			x := tensor.Empty([]int{5 * mib / 4})
			mu.Lock()
			cache = append(cache, x)
			mu.Unlock()
		}
		mu.Lock()
		calls = 0
		mu.Unlock()
		before, collected := vram.ReadCounts(), collections()
		x := tensor.Empty([]int{10 * mib})
		ok(t, x.Err())
		c := vram.ReadCounts().Since(before)
		mu.Lock()
		if n := collections() - collected; calls != 1 || c.Deep > 4 || n > 20 {
			t.Errorf("%d calls of the reclaimer, %d deep sweeps, %d collections", calls, c.Deep, n)
		}
		mu.Unlock()
		x.Release()
	}
}

// An allocation that does not fit fails after few collections, although goroutines, reclaimers and finalizers free what they
// have just allocated.
func TestFewCollectionsBeforeAnError(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	usePolicy(t, vram.Off{})
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	held := tensor.Empty([]int{15 * mib})
	limit(t, 40*mib)
	temporary := func() { tensor.Ones([]int{4}).Release() }
	var ended atomic.Bool
	for name, begin := range map[string]func(t *testing.T) (end func()){
		"alone":           func(*testing.T) func() { return func() {} },
		"busy goroutines": func(t *testing.T) func() { return busy(t, 8) },
		"a reclaimer that uses operators": func(*testing.T) func() {
			return vram.Register(vram.Reclaimer{Name: "test", Reclaim: func(int64) { temporary() }})
		},
		"a reclaimer that frees little": func(*testing.T) func() {
			var cache []*tensor.Tensor
			for range 2000 {
				cache = append(cache, tensor.Empty([]int{256}))
			}
			unregister := vram.Register(vram.Reclaimer{Name: "test", Reclaim: func(int64) {
				if len(cache) > 0 {
					cache[0].Release()
					cache = cache[1:]
				}
			}})
			return func() {
				unregister()
				for _, x := range cache {
					x.Release()
				}
			}
		},
		"a finalizer of every collection": func(*testing.T) func() {
			ended.Store(false)
			var again func(*object)
			again = func(o *object) {
				temporary()
				if !ended.Load() {
					runtime.SetFinalizer(o, again)
				}
			}
			runtime.SetFinalizer(new(object), again)
			return func() {
				ended.Store(true)
				ok(t, vram.Collect())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			end := begin(t)
			for _, c := range []struct {
				elements int
				most     uint64
			}{{15 * mib, 110}, {40 * mib, 14}} { // less than the limit, and more
				before := collections()
				if err := tensor.WithScope(func() error { return tensor.Empty([]int{c.elements}).Err() }); !errors.Is(err, vram.ErrOutOfMemory) {
					t.Errorf("%d MiB: %v instead of out of memory", 4*c.elements/mib, err)
				}
				if n := collections() - before; n > c.most {
					t.Errorf("%d MiB: %d collections before it failed", 4*c.elements/mib, n)
				}
			}
			end()
		})
	}
	held.Release()
}

// Goroutines that take each other's room all get theirs.
func TestManyGoroutinesAtTheLimit(t *testing.T) {
	leak.Check(t)
	limit(t, 100*mib)
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			if err := tensor.Empty([]int{mib / 4}).Err(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ok(t, vram.Collect())
}
