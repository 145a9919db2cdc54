// Package balance checks that a test ends with the native bytes and handles, goroutines and file descriptors it began
// with. It is for package tensor's own tests. Other packages use internal/leak, which does the same and imports package
// tensor.
package balance

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/testdevice"
)

// Figures are the counts that must be equal at the start and the end of a test.
type Figures struct {
	Bytes, Handles          int64 // native, of the CPU and of other requested devices
	Goroutines, Descriptors int   // Descriptors is 0 if the system does not list them
}

func (f Figures) String() string {
	return fmt.Sprintf("%d native bytes, %d handles, %d goroutines, %d file descriptors", f.Bytes, f.Handles, f.Goroutines, f.Descriptors)
}

// Read returns the current figures of the CPU and the given devices. libtorch must be loaded.
func Read(devices ...int32) (f Figures, err error) {
	for i, d := range append([]int32{0}, devices...) {
		m, err := cshim.MemoryStats(d)
		if err != nil {
			return f, err
		}
		if i == 0 {
			f.Bytes, f.Handles = m.Allocated, m.Handles // handles of all devices
		} else {
			f.Bytes += m.Allocated % testdevice.Workspace
		}
	}
	f.Goroutines = runtime.NumGoroutine()
	if d, err := os.ReadDir("/proc/self/fd"); err == nil {
		f.Descriptors = len(d)
	}
	return f, nil
}

// Settle collects garbage until the figures equal want or, if want is nil, until they no longer change. flush frees
// what the collector has found unreachable; the runtime runs cleanups some time after the collection.
func Settle(flush func(), want *Figures, devices ...int32) (Figures, error) {
	var last Figures
	same := 0
	for round := range 100 {
		runtime.GC()
		flush()
		now, err := Read(devices...)
		if err != nil || want != nil && now == *want {
			return now, err
		}
		if same++; now != last {
			same = 0
		}
		if want == nil && same == 4 {
			return now, nil
		}
		last = now
		time.Sleep(time.Duration(min(round, 10)) * time.Millisecond)
	}
	return last, nil
}

// guard gives tensors guard pages where LINSTOCK_GUARD_PAGES is "end" or "start".
var guard = sync.OnceValue(func() error {
	switch at := os.Getenv("LINSTOCK_GUARD_PAGES"); at {
	case "":
		return nil
	case "end":
		return cshim.GuardPageAtEnd.Set()
	case "start":
		return cshim.GuardPageAtStart.Set()
	default:
		return fmt.Errorf("LINSTOCK_GUARD_PAGES=%s: want end or start", at)
	}
})

// Hold makes t fail unless it ends with exactly the figures that it began with. Values that are unreachable by then do
// not count. Call it before the test makes anything. Tests that use it must not run in parallel with others. If
// libtorch cannot be loaded, the test fails, so that a test that did not run does not look like one that passed.
func Hold(t testing.TB, flush func()) {
	t.Helper()
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	once(t)
	if err := guard(); err != nil {
		t.Fatal(err)
	}
	var devices []int32
	if strings.HasPrefix(testdevice.Name(), "cuda") {
		devices = append(devices, 1<<8) // cuda:0
	}
	before, err := Settle(flush, nil, devices...)
	if err != nil {
		t.Fatal(err)
	}
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		after, err := Settle(flush, &before, devices...)
		if err != nil {
			t.Fatal(err)
		}
		if after == before {
			return
		}
		t.Errorf("leak: the test began with %v and ended with %v", before, after)
		if err := goleak.Find(running); err != nil && after.Goroutines != before.Goroutines {
			t.Error(err)
		}
	})
}

// once makes the Go runtime allocate what it allocates at first use and keeps: the poller's descriptors.
func once(t testing.TB) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
}
