// Package leak checks that a test ends with the native memory and handles that it began with.
package leak

import (
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/tensor"
)

// Check makes t fail unless it ends with exactly the native bytes and handles of the CPU, goroutines and file
// descriptors that it began with; see balance.Hold. Every test that can reach native memory calls it, which a test of
// this package checks.
func Check(t testing.TB) {
	t.Helper()
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	// libtorch allocates some things once, at first use: the engine's threads, the default generator. They must not
	// count against the first test.
	warm()
	balance.Hold(t, tensor.Flush)
}

func warm() {
	_ = tensor.WithScope(func() error {
		x := tensor.Ones([]int{2}).RequiresGrad_()
		y := x.Mul(x)
		if testdevice.On {
			// The thread of libtorch's engine for a GPU counts as a goroutine once it has called Go.
			if _, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, nil }); err != nil {
				return err
			}
		}
		return y.Sum().Backward()
	})
}
