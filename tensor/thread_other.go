//go:build !linux

package tensor

// leaveMainThread does nothing: which thread is the main one cannot be asked here.
func leaveMainThread() {}
