//go:build !linux

package tensor

// thread does not tell threads apart on this system.
func thread() int { return 0 }

// leaveMainThread does nothing: on this system the main thread cannot be identified.
func leaveMainThread() {}
