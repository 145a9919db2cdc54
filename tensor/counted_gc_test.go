//go:build linstock_gc

package tensor

import (
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// counted does the same as Counted of internal/leak.
func counted(t testing.TB) {
	before := cshim.Quiet.Swap(true)
	t.Cleanup(func() { cshim.Quiet.Store(before) })
}
