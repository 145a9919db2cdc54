//go:build !linux

package tensor

// leaveMainThread does nothing: on this system the main thread cannot be identified.
func leaveMainThread() {}
