package tensor

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/handle"
)

// TestGoexitOnTheMainThread tests that a goroutine may end with an open scope on any thread, including the main one: it
// starts as many goroutines as there are threads, so that one of them would be on the main thread.
func TestGoexitOnTheMainThread(t *testing.T) { goexitOnAllThreads(t) }

func goexitOnAllThreads(t *testing.T) {
	begin(t)
	before := held.Load()
	for range 5 {
		var opened, ended sync.WaitGroup
		opened.Add(64)
		for range 64 {
			ended.Go(func() {
				if _, err := NewScope(); err != nil {
					t.Error(err)
				}
				_ = Ones([]int{10})
				if onMainThread() {
					t.Error("a scope is on the main thread")
				}
				opened.Done()
				opened.Wait()
				runtime.Goexit()
			})
		}
		ended.Wait()
	}
	settle(t)
	equal(t, "goroutines that hold scopes", held.Load(), before)
}

// mainThreadRuns reports whether goroutines still run on the main thread: it starts as many goroutines, each locked to
// a thread, that one would be on it. Each calls f.
func mainThreadRuns(f func()) (runs bool) {
	var held, ended sync.WaitGroup
	threads, _ := os.ReadDir("/proc/self/task")
	n := len(threads) + 8
	held.Add(n)
	var mu sync.Mutex
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			mu.Lock()
			runs = runs || onMainThread()
			mu.Unlock()
			held.Done()
			held.Wait()
			runtime.UnlockOSThread()
			f()
		})
	}
	ended.Wait()
	return runs
}

// TestMainThreadRetires tests that a retired main thread runs no goroutine any more. It runs in a new process, in
// which no other test has retired the main thread.
func TestMainThreadRetires(t *testing.T) {
	if !elsewhere.Process(t) {
		return
	}
	// Do this before libtorch is loaded, because its pacer locks a thread, possibly this one.
	for range 100 { // the main thread is not always among those that run
		mainThreadRuns(retireMainThread)
		if mainRetired.Load() {
			break
		}
	}
	if !mainRetired.Load() {
		t.Fatal("no goroutine was on the main thread")
	}
	begin(t)
	for range 20 {
		if mainThreadRuns(func() {}) {
			t.Fatal("the main thread runs goroutines after it has been retired")
		}
	}
}

// TestGoexitAfterTheMainThreadWasLocked tests that a goroutine may end with an open scope on any thread after the program
// has opened scopes on a goroutine that it had locked to the main thread. It runs in a new process, in which no other
// test has retired the main thread.
func TestGoexitAfterTheMainThreadWasLocked(t *testing.T) {
	if !elsewhere.Process(t) {
		return
	}
	var opened atomic.Int32
	for range 100 { // the main thread is not always among those that run
		var ready, ended sync.WaitGroup
		ready.Add(32)
		for range 32 {
			ended.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				ready.Done()
				ready.Wait() // 32 threads
				for range 20 {
					if !onMainThread() {
						return
					}
					s, err := NewScope()
					if err != nil {
						t.Error(err)
						return
					}
					opened.Add(1)
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		ended.Wait()
		if opened.Load() != 0 {
			break
		}
	}
	equal(t, "scopes on the main thread", opened.Load(), 20)
	goexitOnAllThreads(t)
}

// TestPoliciesStayOnTheirThread tests that the goroutine of a policy for saved tensors, which belongs to the thread, is
// locked to it, also outside of a scope.
func TestPoliciesStayOnTheirThread(t *testing.T) {
	begin(t)
	moves := func() error {
		thread := syscall.Gettid()
		for range 10 {
			elsewhere.Thread()
		}
		if syscall.Gettid() != thread {
			t.Error("the goroutine has changed its thread")
		}
		return nil
	}
	if err := withSaved(handle.SavedPolicy{Kind: cshim.SavedCPU}, moves); err != nil {
		t.Error(err)
	}
	if err := withRemade(nil, func(int) (*Tensor, error) { return nil, nil }, moves); err != nil {
		t.Error(err)
	}
}

// TestYield tests that a goroutine yields at an operator, after a backward pass and at the end of a scope if it has not for
// long: another goroutine that is ready runs, though there is one processor.
func TestYield(t *testing.T) {
	begin(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	threads := NumThreads()
	if err := SetNumThreads(2); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := SetNumThreads(threads); err != nil {
			t.Error(err)
		}
	}()
	x, data := Ones([]int{4}).RequiresGrad_(true), Ones([]int{4})
	for name, call := range map[string]func(loss *Tensor, s *Scope) error{
		"typed":    func(*Tensor, *Scope) error { return x.Add(x).Err() },
		"boxed":    func(*Tensor, *Scope) error { return x.CumSum(0).Err() },
		"in place": func(*Tensor, *Scope) error { return data.CumSum_(0).Err() },
		"backward": func(loss *Tensor, _ *Scope) error { return loss.Backward() },
		"scope":    func(_ *Tensor, s *Scope) error { return s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			yields := 0
			for range 10 {
				loss := x.Sum()
				s, err := NewScope()
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Millisecond)
				var ran atomic.Bool
				go ran.Store(true)
				err = call(loss, s)
				if ran.Load() {
					yields++
				}
				if err := errors.Join(err, s.Close()); err != nil {
					t.Fatal(err)
				}
			}
			// Once in 61 times the scheduler resumes this goroutine first.
			if yields < 7 {
				t.Errorf("another goroutine ran in %d of 10 calls", yields)
			}
		})
	}
}

// TestThreadsOfScopes tests that the limit of goroutines with open scopes bounds the threads that these occupy, also while
// they yield after their scopes. It runs in a new process, because threads that other tests have left would serve it.
func TestThreadsOfScopes(t *testing.T) {
	if !elsewhere.Process(t) {
		return
	}
	begin(t)
	const limit = 200
	defer SetMaxScopedGoroutines(SetMaxScopedGoroutines(limit))
	threads := func() int {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks)
	}
	if err := SetNumThreads(1); err != nil {
		t.Fatal(err)
	}
	before := threads()
	for range 4 {
		parallel(6000, func(int) {
			err := WithScope(func() error {
				x := Randn([]int{16, 1024})
				_, err := x.MatMul(x.T()).Sum().Item()
				return err
			})
			if err != nil && !errors.Is(err, ErrScope) {
				t.Error(err)
			}
		})
	}
	if n := threads() - before; n > 10*limit {
		t.Errorf("%d threads more, with at most %d goroutines in scopes", n, limit)
	}
}
