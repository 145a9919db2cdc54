package autograd_test

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// threads starts n goroutines, each locked to an OS thread of its own, and returns a function that runs f on the i-th.
func threads(t *testing.T, n int) (on func(i int, f func())) {
	work, done := make([]chan func(), n), make(chan bool)
	for i := range work {
		work[i] = make(chan func())
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for f := range work[i] {
				f()
				done <- true
			}
			done <- true
		}()
	}
	t.Cleanup(func() {
		for _, w := range work {
			close(w)
			<-done
		}
	})
	return func(i int, f func()) { work[i] <- f; <-done }
}

// TestOrderOnSeveralThreads tests that a backward pass runs the operators in the reverse of their order, on whatever
// threads they ran.
func TestOrderOnSeveralThreads(t *testing.T) {
	leak.Check(t)
	const n = 12
	on := threads(t, 3)
	order := func(thread func(i int) int) (order []int) {
		x := tensor.Ones([]int{2}).RequiresGrad_()
		defer x.Release()
		var sum *tensor.Tensor
		for i := range n {
			on(thread(i), func() {
				y := x.Mul(i)
				if _, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) {
					order = append(order, i)
					return nil, nil
				}); err != nil {
					t.Error(err)
				}
				if sum == nil {
					sum = y
				} else {
					sum = sum.Add(y)
				}
			})
		}
		if err := sum.Sum().Backward(); err != nil {
			t.Error(err)
		}
		return order
	}
	want := order(func(int) int { return 0 })
	for range 3 {
		if got := order(func(i int) int { return i % 3 }); !slices.Equal(got, want) {
			t.Errorf("the operators of one thread are differentiated in the order %v, those of three in the order %v", want, got)
		}
	}
}

// child reports whether this process is a child that runs the test alone. If not, it runs such children.
func child(t *testing.T, times int) bool {
	t.Helper()
	const variable = "LINSTOCK_TEST_CHILD"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	leak.Check(t)
	for range times {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), variable+"="+t.Name())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return false
}

// TestGoexitInAPass tests that a goroutine that ends within a backward pass takes its thread with it: other goroutines
// would inherit the modes of the pass. The memory of the pass is not freed, so that a child process runs the test.
func TestGoexitInAPass(t *testing.T) {
	if !child(t, 1) {
		return
	}
	leave := func() ([]*tensor.Tensor, error) { runtime.Goexit(); return nil, nil }
	for _, backward := range []func() error{
		func() error {
			x := tensor.Ones([]int{2}).RequiresGrad_()
			_, _ = x.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { _, _ = leave(); return nil, nil })
			return x.Sum().Backward()
		},
		func() error {
			x := tensor.Ones([]int{2}).RequiresGrad_()
			return applied(&either{backward: leave})(x).Sum().Backward()
		},
		func() error {
			x := tensor.Ones([]int{2}).RequiresGrad_()
			first := true
			y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				if !first {
					runtime.Goexit()
				}
				first = false
				return in[0].Mul(2).Exp()
			}, x)
			return y.Sum().Backward()
		},
	} {
		for range 5 {
			var ended sync.WaitGroup
			ended.Go(func() { t.Errorf("the pass returned %v", backward()) })
			ended.Wait()
		}
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			time.Sleep(time.Millisecond) // so that they need many threads
			if !tensor.GradEnabled() {
				t.Error("a goroutine began without gradients")
			}
			x := tensor.Ones([]int{2}).RequiresGrad_()
			if err := x.Mul(x).Sum().Backward(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestExitDuringAPass tests that a process may end while goroutines compute. Under the race detector it ends through C's
// exit.
func TestExitDuringAPass(t *testing.T) {
	if !child(t, 4) {
		return
	}
	// C's exit must not run while libtorch is loaded.
	if err := tensor.Ones([]int{1}).Err(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		go func() {
			for {
				_ = tensor.WithScope(func() error {
					x := tensor.Randn([]int{16, 8}).RequiresGrad_()
					return x.Tanh().Pow(2).Sum().Backward()
				})
			}
		}()
	}
	time.Sleep(50 * time.Millisecond)
	os.Exit(0)
}
