// Package elsewhere has tests run in a process of their own, and goroutines go on on another thread.
package elsewhere

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

const variable = "LINSTOCK_TEST_ALONE"

// Process runs the test alone in a process of its own, which passes or fails for it, and says whether this is that
// process: elsewhere the test has nothing more to do.
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

// Thread lets the goroutine go on on another thread where nothing holds it on its own.
func Thread() {
	woken := make(chan struct{})
	go func() {
		runtime.LockOSThread() // ends with its goroutine: whom it wakes goes on elsewhere
		woken <- struct{}{}
	}()
	<-woken
}
