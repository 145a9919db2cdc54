//go:build !linstock_gc

package leak

import "testing"

// Counted is for a test that counts what nobody can reach, sweeps, or allocations: with the build tag linstock_gc
// nothing is forced in it.
func Counted(testing.TB) {}
