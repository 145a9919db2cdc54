// Package leak holds a test to the native memory it began with.
package leak

import (
	"runtime"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

// Check makes t fail unless it ends with exactly the native bytes and handles of the CPU that it began with.
// What is unreachable by then does not count: the collector is run first. Call it before the test makes
// anything; tests that use it must not run in parallel with others of the process. Without libtorch the test
// fails.
func Check(t testing.TB) {
	t.Helper()
	if err := cshim.Load(); err != nil {
		// Not skipped: a test that did not run must not look like one that passed.
		t.Fatal(err)
	}
	// libtorch allocates some things once and for good at their first use: the engine's threads, the default
	// generator. They must not count against the test that happens to come first.
	warm()
	before := settle(nil)
	t.Cleanup(func() {
		after := settle(&before)
		if after.Allocated != before.Allocated || after.Handles != before.Handles {
			t.Errorf("leak: native bytes went from %d to %d (%+d), handles from %d to %d (%+d)",
				before.Allocated, after.Allocated, after.Allocated-before.Allocated,
				before.Handles, after.Handles, after.Handles-before.Handles)
		}
	})
}

func warm() {
	_ = tensor.WithScope(func() error {
		x := tensor.Ones([]int{2}).RequiresGrad_()
		return x.Mul(x).Sum().Backward()
	})
}

// settle collects until the figures stand still, or are those wanted. Cleanups run on goroutines of the
// runtime's, some time after the collection that found them due.
func settle(want *cshim.Memory) cshim.Memory {
	var last cshim.Memory
	for round := range 12 {
		runtime.GC()
		tensor.Flush()
		now, err := cshim.MemoryStats(0)
		if err != nil {
			return now
		}
		same := now.Allocated == last.Allocated && now.Handles == last.Handles
		if want != nil && now.Allocated == want.Allocated && now.Handles == want.Handles {
			return now
		}
		if want == nil && same && round >= 2 {
			return now
		}
		last = now
		time.Sleep(time.Duration(round) * time.Millisecond)
	}
	return last
}
