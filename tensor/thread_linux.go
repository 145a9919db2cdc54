package tensor

import (
	"runtime"
	"sync/atomic"
	"syscall"
)

// The main thread never ends. If a goroutine that is locked to it ends, the Go runtime parks the thread forever, and
// nothing would reveal that the goroutine's open scope is orphaned. Therefore scopes are opened on other threads, and
// the first scope that would be opened on the main thread parks it in that way.

var (
	mainRetired atomic.Bool
	retirements atomic.Int32
	process     = syscall.Getpid()
)

// thread identifies the OS thread.
func thread() int { return syscall.Gettid() }

func onMainThread() bool { return syscall.Gettid() == process }

// retireMainThread is the last call of a goroutine. If it runs on the main thread, the runtime parks the thread for
// good.
func retireMainThread() {
	runtime.LockOSThread()
	if onMainThread() {
		mainRetired.Store(true)
		return
	}
	runtime.UnlockOSThread()
}

// lockThread locks the goroutine to its thread. If that is the main thread, the goroutine first leaves it, unless the
// program has locked the goroutine to it.
func lockThread() {
	for {
		runtime.LockOSThread()
		if mainRetired.Load() || !onMainThread() {
			return
		}
		runtime.UnlockOSThread()
		leaveMainThread()
	}
}

// leaveMainThread retires the main thread if the goroutine runs on it. Another thread may run the new goroutine first, and
// this one may return to the main thread.
func leaveMainThread() {
	if !onMainThread() {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		retireMainThread()
	}()
	<-done // the runtime runs the new goroutine next on this thread
	if retirements.Add(1) == 16 {
		mainRetired.Store(true) // a goroutine of the program is locked to it
	}
}
