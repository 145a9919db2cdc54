package tensor_test

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestStatisticsOfAScope tests the counts of TorchSharp's statistics: created and disposed inside and outside scopes,
// attached, detached, live, TotalCount and PeakCount.
func TestStatisticsOfAScope(t *testing.T) {
	leak.Check(t)
	before := tensor.ReadStatistics()
	outside := tensor.Zeros([]int{2})
	scope, err := tensor.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	a := tensor.Zeros([]int{2})
	b := a.Add(1.0)
	b.Release()
	kept := a.Mul(2.0).Keep()
	if err := scope.Adopt(outside); err != nil {
		t.Fatal(err)
	}
	inner, err := tensor.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	moved := a.Add(3.0).MoveOut()
	counted := a.Add(4.0)
	if got, want := inner.Statistics(), (tensor.Statistics{CreatedInScopes: 2, Detached: 1, LiveInScopes: 1, TotalCount: 1}); got != want {
		t.Errorf("the inner scope: %+v, want %+v", got, want)
	}
	if err := inner.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := inner.Statistics(), (tensor.Statistics{CreatedInScopes: 2, DisposedInScopes: 1, Detached: 1}); got != want {
		t.Errorf("the inner scope after its end: %+v, want %+v", got, want)
	}
	runtime.KeepAlive(counted)
	want := tensor.Statistics{CreatedInScopes: 3, DisposedInScopes: 1, Attached: 2, Detached: 1, LiveInScopes: 3, TotalCount: 3}
	if got := scope.Statistics(); got != want || scope.Len() != 3 {
		t.Errorf("the scope: %+v, want %+v; it has %d", got, want, scope.Len())
	}
	open := minus(tensor.ReadStatistics(), before)
	if open.CreatedInScopes != 5 || open.DisposedInScopes != 2 || open.Attached != 2 || open.Detached != 2 || open.LiveInScopes != 3 ||
		open.CreatedOutside != 1 || open.DisposedOutside != 0 || open.TotalCount != 4 {
		t.Errorf("the process, with the scope open: %+v", open)
	}
	// The test counts tensors that only their scope frees, also where linstock go compiles it.
	runtime.KeepAlive(a)
	if moved.Err() != nil || outside.Err() != nil {
		t.Error("an error")
	}
	if err := scope.Close(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(moved.Err(), tensor.ErrReleased) || !errors.Is(outside.Err(), tensor.ErrReleased) {
		t.Error("the scope freed its tensors, and they do not tell")
	}
	kept.Release()
	end := minus(tensor.ReadStatistics(), before)
	if end.CreatedInScopes != 5 || end.DisposedInScopes != 5-1+1 || end.LiveInScopes != 0 || end.CreatedOutside != 1 ||
		end.DisposedOutside != 1 || end.TotalCount != 0 {
		t.Errorf("the process, in the end: %+v", end)
	}
	if (*tensor.Scope)(nil).Statistics() != (tensor.Statistics{}) {
		t.Error("a nil scope counts")
	}
}

func minus(a, b tensor.Statistics) tensor.Statistics {
	a.CreatedInScopes -= b.CreatedInScopes
	a.CreatedOutside -= b.CreatedOutside
	a.DisposedInScopes -= b.DisposedInScopes
	a.DisposedOutside -= b.DisposedOutside
	a.Attached -= b.Attached
	a.Detached -= b.Detached
	a.Swept -= b.Swept
	a.LiveInScopes -= b.LiveInScopes
	a.TotalCount -= b.TotalCount
	return a
}

func TestStatisticsOfManyGoroutines(t *testing.T) {
	leak.Check(t)
	before := tensor.ReadStatistics()
	const goroutines, rounds, each = 8, 50, 20
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range rounds {
				if err := tensor.WithScope(func() error {
					for range each {
						_ = tensor.Zeros([]int{2})
					}
					tensor.ReadStatistics()
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := minus(tensor.ReadStatistics(), before)
	if got.CreatedInScopes != goroutines*rounds*each || got.DisposedInScopes != got.CreatedInScopes || got.LiveInScopes != 0 || got.CreatedOutside != 0 {
		t.Errorf("%+v", got)
	}
}

func TestStatisticsCountSweeps(t *testing.T) {
	leak.Check(t)
	scope, err := tensor.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	defer scope.Close()
	kept := tensor.Zeros([]int{2})
	for range 10 {
		runtime.KeepAlive(kept.Add(1.0)) // after this call linstock go leaves the tensor to sweeps
	}
	if err := vram.Collect(); err != nil {
		t.Fatal(err)
	}
	// The last tensor may still be on the stack.
	s := scope.Statistics()
	if s.CreatedInScopes != 11 || s.Swept < 9 || s.DisposedInScopes != s.Swept || s.LiveInScopes != 11-s.Swept {
		t.Errorf("%+v", s)
	}
	runtime.KeepAlive(kept)
}

func TestStatisticsOfReleaseExcept(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	scope, err := tensor.NewScope()
	if err != nil {
		t.Fatal(err)
	}
	defer scope.Close()
	kept := tensor.Zeros([]int{2})
	for range 5 {
		_ = kept.Add(1.0)
	}
	if err := scope.ReleaseExcept(kept); err != nil {
		t.Fatal(err)
	}
	if got, want := scope.Statistics(), (tensor.Statistics{CreatedInScopes: 6, DisposedInScopes: 5, LiveInScopes: 1, TotalCount: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestPeakCount(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	defer vram.SetPolicy(vram.SetPolicy(vram.Off{})) // unreachable tensors stay
	before := tensor.ReadStatistics()
	// More than ever existed at once, so that this test determines the peak of the process.
	n := int(before.PeakCount-before.TotalCount) + 20000
	err := tensor.WithScope(func() error {
		for range n {
			runtime.KeepAlive(tensor.Zeros([]int{1})) // freed when the scope closes, also where linstock go compiles this
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := before.TotalCount + int64(n)
	// Each thread that other tests have left may be short by 64.
	if got := tensor.ReadStatistics().PeakCount; got < want-want/20 || got > want+want/20 {
		t.Errorf("the peak is %d, want %d within a twentieth", got, want)
	}
}
