package tensor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/vram"
)

// parallel runs f on n goroutines and waits for them.
func parallel(n int, f func(g int)) {
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() { f(g) })
	}
	wg.Wait()
}

// TestReleaseRaces releases tensors while operators on other goroutines use them: each call returns a result or
// ErrReleased.
func TestReleaseRaces(t *testing.T) {
	begin(t)
	const rounds = 200
	for range rounds {
		var shared [8]*Tensor
		for i := range shared {
			shared[i] = Ones([]int{64})
			if i%2 == 0 {
				shared[i].Keep()
			}
		}
		parallel(18, func(g int) {
			rng := rand.New(rand.NewPCG(7, uint64(g)))
			run := func() error {
				for range 12 {
					x, y := shared[rng.IntN(len(shared))], shared[rng.IntN(len(shared))]
					var err error
					switch rng.IntN(9) {
					case 0:
						if g%3 == 0 {
							x.Release()
						}
					case 1:
						_, err = Data[float32](x)
					case 2:
						err = Cat([]*Tensor{x, y}).Err()
					case 3:
						a := x.Alias()
						err = a.Add(1).Err()
						a.Release()
					case 4:
						_ = x.String()
						_ = x.Shape()
					case 5:
						err = x.Index(From(3).By(2)).Err()
					case 6:
						_, err = x.Split(16)
					default:
						err = x.Add(y).Err()
					}
					if err != nil && !errors.Is(err, ErrReleased) {
						t.Error(err)
					}
				}
				return nil
			}
			if g%2 == 0 {
				if err := WithScope(run); err != nil && !errors.Is(err, ErrReleased) {
					t.Error(err)
				}
			} else {
				_ = run()
			}
		})
		for _, x := range shared {
			x.Release()
		}
	}
}

// TestCloseRaces closes a scope while other goroutines use, keep, adopt and move out its tensors.
func TestCloseRaces(t *testing.T) {
	begin(t)
	for range 200 {
		scope := open(t)
		var xs [16]*Tensor
		for i := range xs {
			xs[i] = Ones([]int{16})
		}
		other := make(chan struct{})
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				<-other
				own, err := NewScope()
				if err != nil {
					t.Error(err)
					return
				}
				defer own.Close()
				switch x := xs[g]; g % 5 {
				case 0:
					x.Keep().Release()
				case 1:
					_ = own.Adopt(x)
				case 2:
					x.MoveOut().Release()
				case 3:
					_ = x.Add(xs[(g+1)%16])
				case 4:
					x.Release()
				}
				_ = own.Len() + scope.Len()
			})
		}
		close(other)
		if err := scope.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		for _, x := range xs {
			x.Release()
		}
	}
}

// TestOneScopeOnManyGoroutines counts, searches, empties, sweeps, adopts into and joins a scope from many goroutines.
func TestOneScopeOnManyGoroutines(t *testing.T) {
	begin(t)
	for range 20 {
		s := open(t)
		kept := Ones([]int{4})
		parallel(8, func(g int) {
			err := s.Join(func() error {
				for k := range 16 {
					x := Ones([]int{4})
					switch (g + k) % 8 {
					case 0:
						_, _ = s.Len(), s.Contains(x)
					case 1:
						if err := s.ReleaseExcept(kept); err != nil {
							return err
						}
					case 2:
						_, _ = s.Statistics(), ReadStatistics()
					case 3:
						if err := vram.Collect(); err != nil {
							return err
						}
					case 4:
						_ = x.Add(Ones([]int{3})) // an error for the scope
					case 5:
						x.Keep().Release()
					case 6:
						if err := s.Adopt(Ones([]int{4}).Keep()); err != nil && !errors.Is(err, ErrReleased) {
							return err
						}
					case 7:
						Track("a test's", x)
						if _, err := vram.Explain(CPU); err != nil {
							return err
						}
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		if kept.Err() != nil || !s.Contains(kept) {
			t.Error("a kept tensor was freed")
		}
		if err := s.Close(); err != nil && !errors.Is(err, ErrArgument) && !errors.Is(err, ErrReleased) {
			t.Error(err)
		}
	}
}

// TestScopesOfManyGoroutines tests that goroutines with nested scopes see only their own tensors.
func TestScopesOfManyGoroutines(t *testing.T) {
	begin(t)
	counted(t)
	parallel(64, func(g int) {
		for range 20 {
			err := WithScope(func() error {
				x := Full([]int{8}, g)
				for depth := range 3 {
					if err := WithScope(func() error {
						y := x.Add(depth)
						runtime.Gosched()
						v, err := y.Sum().Item()
						if want := float64(8 * (g + depth)); err == nil && v != want {
							err = fmt.Errorf("got %v, want %v", v, want)
						}
						if n := CurrentScope().Len(); n != 2 {
							err = fmt.Errorf("the scope has %d tensors, want 2", n)
						}
						return err
					}); err != nil {
						return err
					}
				}
				if n := CurrentScope().Len(); n != 1 {
					return fmt.Errorf("the scope has %d tensors, want 1", n)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestPipeline passes tensors that belong to no scope over channels.
func TestPipeline(t *testing.T) {
	begin(t)
	c := make(chan *Tensor, 4)
	go func() {
		defer close(c)
		for i := range 100 {
			_ = WithScope(func() error { c <- Full([]int{4}, i).Add(1).Keep(); return nil })
		}
	}()
	sum := 0.0
	for x := range c {
		v, err := x.Sum().Item()
		if err != nil {
			t.Fatal(err)
		}
		sum += v
		x.Release()
	}
	equal(t, "sum", sum, 4*5050)
}

// TestGradsOfManyGoroutines reads and replaces the gradients of tensors that other goroutines' backward passes add to.
func TestGradsOfManyGoroutines(t *testing.T) {
	begin(t)
	scoped(t, func() {
		w := Ones([]int{1000}).RequiresGrad_()
		h := w.Mul(2)
		if err := h.RetainGrad(); err != nil {
			t.Fatal(err)
		}
		both, g := []*Tensor{w, h}, Ones([]int{1000})
		read := func(g *Tensor) error {
			if g == nil {
				return nil
			}
			_, err := Data[float32](g)
			return err
		}
		parallel(6, func(who int) {
			for i := range 1000 {
				if err := WithScope(func() (err error) {
					switch who {
					case 0:
						return w.Mul(3).Sum().Backward()
					case 1:
						return h.Sum().Backward(RetainGraph(true))
					case 2:
						return ZeroGrads(both, i%2 == 0)
					case 3:
						return errors.Join(w.SetGrad(g.Clone()), h.SetGrad(nil))
					case 4:
						gs, err := Grads(both)
						if err != nil {
							return err
						}
						return errors.Join(read(gs[0]), read(gs[1]))
					}
					return errors.Join(read(w.Grad()), read(h.Grad()))
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	})
}

// TestStringOfChangingShape prints a tensor whose shape another goroutine changes.
func TestStringOfChangingShape(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{16})
		var done atomic.Bool
		parallel(2, func(who int) {
			if who == 0 {
				defer done.Store(true)
				for range 20_000 {
					_ = x.String()
				}
				return
			}
			for i := 0; !done.Load(); i++ {
				if err := WithScope(func() error {
					_, err := Call("aten::resize_", x, []int{1 + 15*(i%2)})
					return err
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	})
}

// TestGarbage tests that unreachable tensors outside scopes are freed on many goroutines.
func TestGarbage(t *testing.T) {
	begin(t)
	parallel(16, func(int) {
		for range 200 {
			x := Ones([]int{256}).Add(1)
			if _, err := x.Item(); err == nil {
				t.Error("256 elements have no single value")
			}
		}
	})
}

func TestTooManyGoroutines(t *testing.T) {
	begin(t)
	before := SetMaxScopedGoroutines(3)
	hold := func(n int) (opened, refused int64) {
		release, tried := make(chan struct{}), make(chan struct{}, n)
		var o, r atomic.Int64
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				s, err := NewScope()
				tried <- struct{}{}
				if err != nil {
					if !errors.Is(err, ErrScope) {
						t.Error(err)
					}
					// A goroutine without a scope can compute and is not locked to a thread.
					x := Ones([]int{1})
					if err := x.Add(1).Err(); err != nil {
						t.Error(err)
					}
					x.Release()
					r.Add(1)
					return
				}
				o.Add(1)
				_ = Ones([]int{1})
				if inner, err := NewScope(); err != nil {
					t.Error("a goroutine that holds one scope may hold more", err)
				} else {
					_ = inner.Close()
				}
				<-release
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		for range n {
			<-tried
		}
		close(release)
		wg.Wait()
		return o.Load(), r.Load()
	}
	o, r := hold(10)
	if o < 3 || o > 3 || r != 7 {
		t.Errorf("%d opened and %d refused, want 3 and 7", o, r)
	}
	equal(t, "bound", SetMaxScopedGoroutines(before), 3)
	equal(t, "default", before, 1000)
	n := 1100
	if raceEnabled {
		// The race detector allows 8,128 goroutines, but threads make it slow.
		n = 1020
	}
	o, r = hold(n)
	if o != 1000 || r != int64(n-1000) {
		t.Errorf("%d opened and %d refused, want 1000 and %d", o, r, n-1000)
	}
	scoped(t, func() { _ = Ones([]int{1}) })
	equal(t, "goroutines that hold scopes", held.Load(), 0)
}

// TestModesOutliveScopes tests that a mode holds until it ends even if the scope around it is closed in it, and that a scope
// opened in it and left open belongs to the scope around it.
func TestModesOutliveScopes(t *testing.T) {
	begin(t)
	before := held.Load()
	parallel(32, func(int) {
		for range 30 {
			outer, err := NewScope()
			if err != nil {
				t.Error(err)
				return
			}
			var inner *Scope
			_ = withGrad(false, func() (err error) {
				inner, err = NewScope()
				_ = Ones([]int{1})
				return err
			})
			if err := outer.Close(); err != nil || inner.Len() != 0 {
				t.Errorf("the scope of a mode that has ended has %v after its parent closed: %v", inner, err)
			}
			if outer, err = NewScope(); err != nil {
				t.Error(err)
				return
			}
			_ = withGrad(false, func() error {
				if err := outer.Close(); err != nil {
					t.Error(err)
				}
				for range 100 {
					runtime.Gosched()
					if GradEnabled() {
						t.Error("the mode has ended with the scope around it")
						return nil
					}
				}
				return nil
			})
			if !GradEnabled() {
				t.Error("the mode has not ended")
			}
			scoped(t, func() { _ = Ones([]int{1}) })
		}
	})
	equal(t, "goroutines that hold scopes", held.Load(), before)
}

// TestModesStay tests that modes apply only to their goroutine.
func TestModesStay(t *testing.T) {
	begin(t)
	x := Ones([]int{2}).RequiresGrad_()
	defer x.Release()
	parallel(32, func(g int) {
		for range 30 {
			on := g%2 == 0
			f := func() error {
				runtime.Gosched()
				y := x.Mul(2)
				defer y.Release()
				if y.RequiresGrad() != on || GradEnabled() != on {
					return fmt.Errorf("recording is %v, want %v", !on, on)
				}
				return nil
			}
			var err error
			switch g % 4 {
			case 0:
				err = f()
			case 1:
				err = withGrad(false, f)
			case 2:
				err = withGrad(false, func() error { return withGrad(true, f) })
			case 3:
				err = withInference(true, func() error {
					y := x.Mul(2)
					defer y.Release()
					if !y.IsInference() || !InferenceEnabled() {
						return errors.New("not in inference mode")
					}
					return nil
				})
			}
			if err != nil {
				t.Error(err)
			}
			if !GradEnabled() || InferenceEnabled() {
				t.Error("a mode leaked")
			}
			// A goroutine started here does not inherit the mode.
			_ = withGrad(false, func() error {
				seen := make(chan bool)
				go func() { seen <- GradEnabled() }()
				if !<-seen {
					t.Error("a mode applies to another goroutine")
				}
				return nil
			})
		}
	})
	mine := errors.New("mine")
	if err := withGrad(false, func() error { return mine }); err != mine {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = withGrad(false, func() error { panic("mine") })
	}()
	if !GradEnabled() {
		t.Error("a panic left the mode")
	}
}

// TestNumThreads tests that SetNumThreads applies to threads that have computed before and to new ones.
func TestNumThreads(t *testing.T) {
	begin(t)
	defer restoreSettings()()
	const n = 24
	check := make([]chan int, n)
	got := make(chan int)
	for g := range check {
		check[g] = make(chan int)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			_ = WithScope(func() error { return Ones([]int{1 << 16}).Exp().Sum().Err() })
			got <- 0
			for range check[g] {
				got <- NumThreads()
			}
		}()
	}
	for range check {
		<-got
	}
	for _, want := range []int{3, 1, 2} {
		if err := SetNumThreads(want); err != nil {
			t.Fatal(err)
		}
		for g := range check {
			check[g] <- 0
			equal(t, "threads", <-got, want)
		}
		fresh := make(chan int)
		go func() { runtime.LockOSThread(); fresh <- NumThreads() }()
		equal(t, "threads of a new thread", <-fresh, want)
	}
	for g := range check {
		close(check[g])
	}
	for _, bad := range []int{0, -1, 1 << 40, 1 << 20, -1 << 63} {
		wantErr(t, fmt.Sprint(bad), SetNumThreads(bad), ErrArgument)
	}
}

func TestSettings(t *testing.T) {
	begin(t)
	defer restoreSettings()()
	if err := ManualSeed(7); err != nil {
		t.Fatal(err)
	}
	scoped(t, func() {
		state := RNGState()
		a := values(t, Rand([]int{5}))
		if err := SetRNGState(state); err != nil {
			t.Fatal(err)
		}
		b := values(t, Rand([]int{5}))
		if err := ManualSeed(7); err != nil {
			t.Fatal(err)
		}
		c := values(t, Rand([]int{5}))
		equal(t, "drawn", fmt.Sprint(b), fmt.Sprint(a))
		equal(t, "drawn", fmt.Sprint(c), fmt.Sprint(a))
		if err := SetRNGState(Zeros([]int{3})); err == nil {
			t.Error("no error")
		}
	})
	if err := SetDeterministic(true); err != nil || !Deterministic() {
		t.Error(err)
	}
	if err := SetDeterministic(true, WarnOnly); err != nil || !Deterministic() {
		t.Error(err)
	}
	if err := SetDeterministic(false); err != nil || Deterministic() {
		t.Error(err)
	}
	for _, p := range []string{"high", "medium", "highest"} {
		if err := SetMatMulPrecision(p); err != nil {
			t.Error(err)
		}
		equal(t, "precision", MatMulPrecision(), p)
	}
	wantErr(t, "precision", SetMatMulPrecision("best"), ErrArgument)
	if err := SetDefaultDType(Float64); err != nil || DefaultDType() != Float64 {
		t.Error(err)
	}
	x := Zeros([]int{1})
	equal(t, "dtype", x.DType(), Float64)
	x.Release()
	for d, want := range map[DType]DType{Float64: Complex128, Float32: Complex64, BFloat16: Complex64, Float16: Complex32} {
		if err := SetDefaultDType(d); err != nil {
			t.Error(err)
		}
		x := FromScalar(1 + 2i)
		equal(t, "dtype of a complex number", x.DType(), want)
		if v, err := Item[complex128](x); v != 1+2i {
			t.Errorf("a complex number with the default dtype %v: %v, %v", d, v, err)
		}
		x.Release()
	}
	for _, d := range []DType{Int64, Bool, Invalid, 99} {
		wantErr(t, d.String(), SetDefaultDType(d), ErrArgument)
	}
	if err := Synchronize(CPU); err != nil {
		t.Error(err)
	}
	if err := Synchronize(Device{99, 3}); err == nil {
		t.Error("no error")
	}
}

// TestFromMapped tests that the memory passed to FromMapped is returned once no tensor uses it.
func TestFromMapped(t *testing.T) {
	begin(t)
	dropped := 0
	data := make([]byte, 32)
	x := FromMapped(Float32, []int{8}, data, func() { dropped++ })
	if err := x.Err(); err != nil {
		t.Fatal(err)
	}
	y := x.Slice(0, Start(4))
	x.Release()
	Flush()
	equal(t, "dropped", dropped, 0)
	y.Release()
	Flush()
	equal(t, "dropped", dropped, 1)
	for _, bad := range []*Tensor{FromMapped(Float32, []int{9}, data, func() { dropped++ }), FromMapped(Float32, []int{-8}, data, nil), FromMapped(99, []int{32}, data, nil),
		FromMapped(Float32, []int{1 << 62}, data, nil), FromMapped(Float32, []int{7}, data[1:29], nil)} {
		wantErr(t, "FromMapped", bad.Err(), ErrArgument)
	}
	equal(t, "dropped", dropped, 2)
}

// TestFromMappedDropsOnce tests that a call that fails drops the memory once, also if the failure comes after the native
// tensor was made and another goroutine looks for what was dropped.
func TestFromMappedDropsOnce(t *testing.T) {
	begin(t)
	data := make([]byte, 64)
	keep := FromMapped(Uint8, []int{64}, data, nil) // while it lives, operators look for what was dropped
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			_ = WithScope(func() error { return nil })
		}
	})
	start := time.Now()
	for k := int64(0); time.Since(start) < 300*time.Millisecond; k++ {
		var drops atomic.Int32
		disarm := arm(t, cshim.Fault{Point: cshim.FaultShim, Skip: k % 12, Times: 1, Mine: true})
		x := FromMapped(Uint8, []int{64}, data, func() { drops.Add(1) })
		disarm()
		x.Release()
		Flush()
		if n := drops.Load(); n > 1 {
			t.Fatalf("drop ran %d times", n)
		}
	}
	stop.Store(true)
	wg.Wait()
	keep.Release()
	Flush()
}

// TestFromMappedPanics tests that a function that panics keeps none of the others from being called.
func TestFromMappedPanics(t *testing.T) {
	begin(t)
	var calls atomic.Int32 // also from the pacer's goroutine
	for range 3 {
		FromMapped(Uint8, []int{64}, make([]byte, 64), func() { calls.Add(1); panic("mine") }).Release()
	}
	for end := time.Now().Add(time.Minute); calls.Load() < 3 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		func() {
			defer func() { _ = recover() }()
			Flush()
		}()
	}
	equal(t, "calls", calls.Load(), 3)
}

// TestScopesDoNotBlock tests that a goroutine that waits in a scope does not block other goroutines' scopes.
func TestScopesDoNotBlock(t *testing.T) {
	begin(t)
	stop := make(chan struct{})
	waits := make(chan struct{})
	go func() {
		_ = WithScope(func() error { _ = Ones([]int{1}); <-stop; return nil })
		close(waits)
	}()
	start := time.Now()
	parallel(16, func(int) {
		for range 100 {
			_ = WithScope(func() error { return Ones([]int{1}).Add(1).Err() })
		}
	})
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
	close(stop)
	<-waits
	if m, err := cshim.MemoryStats(CPU.word()); err != nil || m.Peak < m.Allocated {
		t.Error(m, err)
	}
}

// TestHoldReleased tests that a value may be attached to a tensor that another goroutine has just released.
func TestHoldReleased(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for range 100 {
			x := Zeros([]int{3})
			x.Release()
			hold(x, new(int))()
		}
	})
	for range 3 {
		if err := vram.Collect(); err != nil {
			t.Fatal(err)
		}
	}
}
