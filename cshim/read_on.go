//go:build linstock_gc

package cshim

import "sync/atomic"

// OnRead is called wherever a handle goes to C. Package tensor sets it, once.
var OnRead = func() {}

// Quiet is for tests that count what nobody can reach, sweeps, or allocations: nothing is forced meanwhile.
var Quiet atomic.Bool

func reading() {
	if !Quiet.Load() {
		OnRead()
	}
}
