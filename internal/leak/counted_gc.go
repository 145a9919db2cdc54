//go:build linstock_gc

package leak

import (
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// Counted is for tests that count unreachable tensors, sweeps or allocations: with the build tag linstock_gc, it turns
// forced collections off for the test.
func Counted(t testing.TB) {
	before := cshim.Quiet.Swap(true)
	t.Cleanup(func() { cshim.Quiet.Store(before) })
}
