package tensor

import (
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/linstock-ml/linstock/cshim"
)

// The main thread never ends. If a goroutine that is locked to it ends, the Go runtime parks the thread forever, and
// nothing would reveal that the goroutine's open scope is orphaned. Therefore scopes are opened on other threads, and
// the first scope that would be opened on the main thread parks it in that way.

var (
	mainRetired atomic.Bool
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
	for tries := 0; ; tries++ {
		runtime.LockOSThread()
		if mainRetired.Load() || !onMainThread() || tries == triesToLeave || cshim.Path() != "" && cshim.ScopeGet() != 0 {
			return
		}
		runtime.UnlockOSThread()
		leaveMainThread()
	}
}

// triesToLeave is how often lockThread and holdThread try to leave the main thread. A goroutine that is still there is locked to it by
// the program. This must be found out for each scope: the program may unlock the goroutine at any time.
const triesToLeave = 8

// leaveMainThread retires the main thread if the goroutine runs on it. It fails if the goroutine is locked to the
// thread, or if another thread runs the new goroutine first, which is rare.
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
}
