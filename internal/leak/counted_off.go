//go:build !linstock_gc

package leak

import "testing"

// Counted is for tests that count unreachable tensors, sweeps or allocations: with the build tag linstock_gc, it turns
// forced collections off for the test.
func Counted(testing.TB) {}
