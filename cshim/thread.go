package cshim

import (
	"runtime"
	"sync/atomic"
)

// recorded is set while events are recorded (TraceStart). The shim records events by OS thread, and a call names those that
// it has made, so the goroutine stays on its thread until then.
var recorded atomic.Bool

// NameCall is called after each call while events are recorded, on the thread that made the call. Package sites sets it.
var NameCall = func() {}

// call reports whether a call keeps its thread and names its events.
type call bool

// enter is called before a call that may run operators.
func enter() call {
	if !recorded.Load() {
		return false
	}
	runtime.LockOSThread()
	return true
}

// leave is called after it.
func (c call) leave() {
	if c {
		c.name()
	}
}

func (c call) name() {
	NameCall()
	runtime.UnlockOSThread()
}
