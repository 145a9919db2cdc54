//go:build linstock_gc

package leak

import (
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// Counted is for a test that counts what nobody can reach, sweeps, or allocations: with the build tag linstock_gc
// nothing is forced in it.
func Counted(t testing.TB) {
	before := cshim.Quiet.Swap(true)
	t.Cleanup(func() { cshim.Quiet.Store(before) })
}
