// Package balance holds a test to what it began with: native bytes and handles, goroutines, file descriptors. It is for
// package tensor's own tests; the others use internal/leak, which is this and imports package tensor.
package balance

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/testdevice"
)

// Figures are what must be at the end of a test as at its start.
type Figures struct {
	Bytes, Handles          int64 // native, of the CPU and the other devices asked for
	Goroutines, Descriptors int   // descriptors: 0 where the system does not list them
}

func (f Figures) String() string {
	return fmt.Sprintf("%d native bytes, %d handles, %d goroutines, %d file descriptors", f.Bytes, f.Handles, f.Goroutines, f.Descriptors)
}

// Read is what there is now, on the CPU and other devices. libtorch must be loaded.
func Read(devices ...int32) (f Figures, err error) {
	for i, d := range append([]int32{0}, devices...) {
		m, err := cshim.MemoryStats(d)
		if err != nil {
			return f, err
		}
		if f.Bytes += m.Allocated; i == 0 {
			f.Handles = m.Handles // those of all devices
		}
	}
	f.Goroutines = runtime.NumGoroutine()
	if d, err := os.ReadDir("/proc/self/fd"); err == nil {
		f.Descriptors = len(d)
	}
	return f, nil
}

// Settle collects garbage until the figures are those wanted, or, with nil, until they stand still. flush frees what the
// collector has found: its cleanups run on goroutines of the runtime's, some time after the collection.
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

// Hold makes t fail unless it ends with exactly the figures that it began with. What is unreachable by then does not
// count. Call it before the test makes anything; tests that use it must not run beside others of the process. Without
// libtorch the test fails: one that did not run must not look like one that passed.
func Hold(t testing.TB, flush func()) {
	t.Helper()
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	once(t)
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

// once makes what the Go runtime makes at its first use and keeps: the poller's descriptors.
func once(t testing.TB) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	_ = w.Close()
}
