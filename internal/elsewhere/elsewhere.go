// Package elsewhere runs tests in a new process and moves goroutines to other threads.
package elsewhere

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

const variable = "LINSTOCK_TEST_ALONE"

// Process runs the current test alone in a new process, whose result becomes the result of the test. It reports whether
// this is the new process; otherwise the test must return.
func Process(t *testing.T) bool {
	if os.Getenv(variable) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// Thread moves the goroutine to another thread, unless it is locked to its thread.
func Thread() {
	woken := make(chan struct{})
	go func() {
		runtime.LockOSThread() // occupies this thread until the goroutine ends, so that the one it wakes runs on another
		woken <- struct{}{}
	}()
	<-woken
}
