//go:build !linux

package tensor

import "runtime"

// thread does not tell threads apart on this system.
func thread() int { return 0 }

// lockThread locks the goroutine to its thread. On this system the main thread cannot be identified.
func lockThread() { runtime.LockOSThread() }

const triesToLeave = 0

func leaveMainThread() {}
