package tensor

import (
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/testdevice"
)

// begin starts a test: it needs libtorch, and fails the test if native memory at the end differs from the start. Other
// packages use internal/leak, which imports this package.
func begin(t testing.TB) {
	t.Helper()
	if testdevice.On {
		hookOnce()
	}
	balance.Hold(t, Flush)
}

// hookOnce: the thread of libtorch's engine for a GPU counts as a goroutine once it has called Go.
var hookOnce = sync.OnceFunc(func() {
	_ = WithScope(func() error {
		x := Ones([]int{2}).RequiresGrad_()
		if _, err := x.RegisterHook(func(*Tensor) (*Tensor, error) { return nil, nil }); err != nil {
			return err
		}
		return x.Sum().Backward()
	})
})

// settle collects garbage until the native memory no longer changes.
func settle(t testing.TB) {
	t.Helper()
	if _, err := balance.Settle(Flush, nil); err != nil {
		t.Fatal(err)
	}
}

// scoped runs f in a scope and fails the test with its error.
func scoped(t testing.TB, f func()) {
	t.Helper()
	if err := WithScope(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// values returns x's elements as float64.
func values(t testing.TB, x *Tensor) []float64 {
	t.Helper()
	v, err := Data[float64](x.To(Float64))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
