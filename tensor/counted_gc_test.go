//go:build linstock_gc

package tensor

import (
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// counted is internal/leak's Counted.
func counted(t testing.TB) {
	before := cshim.Quiet.Swap(true)
	t.Cleanup(func() { cshim.Quiet.Store(before) })
}
