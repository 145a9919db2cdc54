package vram

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
)

// An allocation that would make a new peak, far below the limit, waits until the sweep has freed something or all: tensors
// outside of scopes go by cleanups, which run after the collector has marked.
func TestANewPeakWaitsForCleanups(t *testing.T) {
	balance.Hold(t, func() {})
	if err := Collect(); err != nil {
		t.Fatal(err)
	}
	live := func() int64 {
		m, err := cshim.MemoryPace(cpuWord)
		if err != nil {
			t.Fatal(err)
		}
		return m.Live
	}
	type owner struct{ _ *owner } // with a pointer: not in a place with others
	data := make([]float32, 1<<18)
	before := live()
	for range 50 {
		func() {
			const float = 6
			r := cshim.TensorFromData(float, []int{len(data)}, unsafe.Pointer(unsafe.SliceData(data)), 4*len(data))
			if r.Err != nil {
				t.Fatal(cshim.Take(r.Err))
			}
			runtime.AddCleanup(new(owner), func(h cshim.Handle) { cshim.TensorFree(h) }, r.Handle)
		}()
		time5.mu.Lock()
		time5.spare = time.Second // it can be paid
		time5.mu.Unlock()
		serve(&cshim.Pressure{Device: cpuWord, Bytes: 1 << 20})
		if now := live(); now != before {
			t.Fatalf("%d bytes that nobody can reach are live after the round", now-before)
		}
	}
}
