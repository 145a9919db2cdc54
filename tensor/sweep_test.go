package tensor

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/linstock-ml/linstock/vram"
)

// sweepNow runs a sweep as the pacer does.
func sweepNow(t testing.TB) {
	t.Helper()
	if err := vram.Collect(); err != nil {
		t.Fatal(err)
	}
}

//go:noinline
func makeGarbage(n int) {
	for range n {
		_ = Ones([]int{100}).Add(1)
	}
}

func TestSweepFreesUnreachableTensorsInAnOpenScope(t *testing.T) {
	begin(t)
	counted(t)
	s := open(t)
	defer s.Close()
	kept := Ones([]int{10})
	view := kept.View(2, 5)
	start := handlesNow(t)
	makeGarbage(50)
	equal(t, "handles before", handlesNow(t)-start, 100)
	sweepNow(t)
	equal(t, "handles after", handlesNow(t)-start, 0)
	equal(t, "entries", s.Len(), 2)
	if err := kept.Add(view.Reshape(10)).Err(); err != nil {
		t.Error(err)
	}
	// Live tensors can still be released, kept and moved: their slots in the scope are correct.
	view.Release()
	kept.Keep()
	equal(t, "entries that are left", s.Len(), 2) // the results of Reshape and Add
	kept.Release()
}

func TestSweepOfSeveralScopesAndGoroutines(t *testing.T) {
	begin(t)
	start := handlesNow(t)
	const goroutines = 16
	var live [goroutines]*Tensor
	var ready, done sync.WaitGroup
	finish := make(chan struct{})
	ready.Add(goroutines)
	for g := range goroutines {
		done.Go(func() {
			err := WithScope(func() error {
				x := Full([]int{10}, float64(g))
				return WithScope(func() error {
					makeGarbage(20)
					live[g] = x.Add(1) //linstockvet:ignore scopeescape the scope stays open until all have been read
					ready.Done()
					<-finish
					if v, err := Item[float64](live[g].Sum().To(Float64)); err != nil || v != float64(10*(g+1)) {
						t.Errorf("goroutine %d: %v, %v", g, v, err)
					}
					runtime.KeepAlive(x)
					return nil
				})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	ready.Wait()
	sweepNow(t)
	if n := handlesNow(t) - start; n != 2*goroutines {
		t.Errorf("%d handles are left, want %d", n, 2*goroutines)
	}
	close(finish)
	done.Wait()
	clear(live[:])
	settle(t)
	equal(t, "handles", handlesNow(t), start)
}

// TestSweepConcurrentWithEverything runs sweeps concurrently with operators, releases, closes and moves: each
// operand is usable or released.
func TestSweepConcurrentWithEverything(t *testing.T) {
	begin(t)
	n := 400
	if testing.Short() {
		n = 100
	}
	var stop atomic.Bool
	var wg, sweeps sync.WaitGroup
	sweeps.Go(func() {
		for !stop.Load() {
			sweepNow(t)
		}
	})
	outer := open(t)
	shared := Ones([]int{8})
	for g := range 8 {
		wg.Go(func() {
			for i := range n {
				err := WithScope(func() error {
					a := shared.Mul(float64(g + 1))
					makeGarbage(3)
					b := a.Add(a)
					switch i % 5 {
					case 0:
						b = b.Keep()
						defer b.Release()
					case 1:
						a.Release()
					case 2:
						b = Tidy(func() *Tensor { return b.Add(0) })
					case 3:
						if err := CurrentScope().ReleaseExcept(b); err != nil {
							return err
						}
					case 4:
						w := b.Detach().RequiresGrad_()
						if err := w.Mul(w).Sum().Backward(); err != nil {
							return err
						}
					}
					v, err := Item[float64](b.Sum().To(Float64))
					if err == nil && v != float64(16*(g+1)) {
						t.Errorf("goroutine %d: got %v", g, v)
					}
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	sweeps.Wait()
	if err := outer.Close(); err != nil {
		t.Error(err)
	}
}

func TestScopeReleaseAllAndExcept(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	a, b, c := Ones([]int{1}), Ones([]int{1}), Ones([]int{1})
	if err := s.ReleaseExcept(b); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "a", a.Add(1).Err(), ErrReleased)
	wantErr(t, "c", c.Add(1).Err(), ErrReleased)
	if !s.Contains(b) || s.Contains(a) || s.Len() != 1 {
		t.Errorf("after ReleaseExcept the scope has %d tensors, b among them: %v, a: %v", s.Len(), s.Contains(b), s.Contains(a))
	}
	d := b.Add(1)
	if err := s.ReleaseAll(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "b", b.Add(1).Err(), ErrReleased)
	wantErr(t, "d", d.Add(1).Err(), ErrReleased)
	equal(t, "entries", s.Len(), 0)
	e := Ones([]int{1})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "e", e.Add(1).Err(), ErrReleased)
	wantErr(t, "ReleaseAll of a closed scope", s.ReleaseAll(), ErrScope)
	var none *Scope
	wantErr(t, "ReleaseAll of nil", none.ReleaseAll(), ErrNil)
}

func TestScopeJoin(t *testing.T) {
	begin(t)
	s := open(t)
	var made, inner, late *Tensor
	joinedNow, closed := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.Join(func() error {
			made = Ones([]int{3})
			if CurrentScope() != s || !s.Contains(made) {
				t.Error("what a joined goroutine makes is not the scope's")
			}
			wantErr(t, "Close by a goroutine that has joined", s.Close(), ErrScope)
			if err := WithScope(func() error {
				inner = made.Add(1) //linstockvet:ignore scopeescape the test checks whether it was freed
				wantErr(t, "Close from a scope inside", s.Close(), ErrScope)
				return nil
			}); err != nil {
				t.Error(err)
			}
			close(joinedNow)
			<-closed
			late = Ones([]int{3})
			return late.Err()
		})
		if err != nil {
			t.Error(err)
		}
		if CurrentScope() != nil {
			t.Error("a scope is left on the goroutine that joined")
		}
	})
	<-joinedNow
	wantErr(t, "inner", inner.Add(1).Err(), ErrReleased)
	equal(t, "entries", s.Len(), 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	close(closed)
	wg.Wait()
	wantErr(t, "made", made.Add(1).Err(), ErrReleased)
	if err := late.Add(1).Err(); err != nil {
		t.Error(err)
	}
	late.Release()
	wantErr(t, "Join of a closed scope", s.Join(func() error { return nil }), ErrScope)
}

// TestScopeJoinAndExit tests that a scope stays open if a goroutine ends inside Join.
func TestScopeJoinAndExit(t *testing.T) {
	begin(t)
	s := open(t)
	var x *Tensor
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Join(func() error {
			x = Ones([]int{3})
			runtime.Goexit()
			return nil
		})
	}()
	<-done
	Flush()
	if err := x.Add(1).Err(); err != nil {
		t.Error(err)
	}
	equal(t, "entries", s.Len(), 2)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestUseAfterScopeNamesTheLines(t *testing.T) {
	begin(t)
	debugAlloc = true
	defer func() { debugAlloc = false }()
	s := open(t)
	x := Ones([]int{3})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, file, _, _ := runtime.Caller(0)
	text := x.Add(1).Err().Error()
	for _, want := range []string{"scope, opened at", "made at sweep_test.go", "Keep or MoveOut", "; it was used at " + file} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	y := Ones([]int{1})
	y.Release()
	text = y.Add(1).Err().Error()
	for _, want := range []string{"was released (it was made at sweep_test.go", ") before it was used at " + file} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}
