package tensor

import (
	"runtime"
	"sync/atomic"
	"syscall"
)

// The main thread never ends: where a goroutine that holds it ends, the Go runtime puts it to rest for good, and nothing
// would tell that the scope it had open is an orphan. So scopes are opened on other threads, and the first one that would
// be on the main thread retires it in just that way.

var (
	mainRetired atomic.Bool
	retirements atomic.Int32
	process     = syscall.Getpid()
)

func onMainThread() bool { return syscall.Gettid() == process }

// retireMainThread is the last call of a goroutine; where that is on the main thread, the thread ends with it.
func retireMainThread() {
	runtime.LockOSThread()
	if onMainThread() {
		mainRetired.Store(true)
		return
	}
	runtime.UnlockOSThread()
}

// leaveMainThread lets this goroutine go on on another thread than the main one, unless the program has locked it there.
func leaveMainThread() {
	if mainRetired.Load() || !onMainThread() {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		retireMainThread()
	}()
	<-done // the new goroutine is the next that this thread runs
	if retirements.Add(1) == 16 {
		mainRetired.Store(true) // the program's own goroutine has it
	}
}
