//go:build linstock_gc

package cshim

import "sync/atomic"

// OnRead is called whenever a handle is passed to C. Package tensor sets it, once.
var OnRead = func() {}

// Quiet disables forced collections, for tests that count unreachable tensors, sweeps or allocations.
var Quiet atomic.Bool

func reading() {
	if !Quiet.Load() {
		OnRead()
	}
}
