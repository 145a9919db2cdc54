package tensor

import (
	"runtime"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// begin is how every test begins: it needs libtorch, and ends with exactly the native bytes and handles that
// it began with. (internal/leak is this for the other packages; it imports this one.)
func begin(t testing.TB) {
	t.Helper()
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	before := settle(t, nil)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		if after := settle(t, &before); after.Allocated != before.Allocated || after.Handles != before.Handles {
			t.Errorf("the test began with %d native bytes and %d handles, and ended with %d and %d",
				before.Allocated, before.Handles, after.Allocated, after.Handles)
		}
	})
}

// settle collects garbage until the native memory is at want; where nothing is wanted, until it no longer changes.
func settle(t testing.TB, want *cshim.Memory) cshim.Memory {
	t.Helper()
	var last cshim.Memory
	same := 0
	for range 100 {
		runtime.GC()
		Flush()
		now, err := cshim.MemoryStats(CPU.word())
		if err != nil {
			t.Fatal(err)
		}
		if want != nil && now.Allocated == want.Allocated && now.Handles == want.Handles {
			return now
		}
		if now.Allocated == last.Allocated && now.Handles == last.Handles {
			if same++; same == 5 && want == nil {
				return now
			}
		} else {
			same = 0
		}
		last = now
		time.Sleep(2 * time.Millisecond) // cleanups run on a goroutine of the runtime's
	}
	return last
}

// scoped runs f in a scope and fails the test with its error.
func scoped(t testing.TB, f func()) {
	t.Helper()
	if err := WithScope(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// values are x's elements as float64.
func values(t testing.TB, x *Tensor) []float64 {
	t.Helper()
	v, err := Data[float64](x.To(Float64))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
