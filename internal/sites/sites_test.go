package sites

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/balance"
	"github.com/linstock-ml/linstock/internal/unordered"
)

func TestLocks(t *testing.T) {
	balance.Hold(t, func() {})
	for _, f := range []func(){func() { Here() }, func() { stackOf(0) }} {
		unordered.Go(f, func() {
			known.Lock()
			defer known.Unlock()
			ids, stacks := known.ids, known.stacks
			known.ids, known.stacks = ids, stacks
		})
	}
}

// TestSitesAreCountedOnce tests that a line gets the same number each time.
func TestSitesAreCountedOnce(t *testing.T) {
	balance.Hold(t, func() {})
	var ids [2]uint32
	for i := range ids {
		ids[i] = Here()
	}
	if ids[0] != ids[1] {
		t.Errorf("one line is both %d and %d", ids[0], ids[1])
	}
}
