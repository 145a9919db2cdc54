// Package elsewhere runs tests in a new process and functions on other goroutines, and moves goroutines to other threads.
package elsewhere

import (
	"errors"
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

// ErrLeft is the error of Call if the function has not returned.
var ErrLeft = errors.New("the call did not return")

// Call calls f on a new goroutine and returns its error, or ErrLeft if f panics or ends the goroutine.
func Call(f func() error) error {
	result := make(chan error)
	go func() {
		err := ErrLeft
		defer func() {
			_ = recover()
			result <- err
		}()
		err = f()
	}()
	return <-result
}
