package leak

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

// FailEachCall runs f in a scope, again and again, while one of its calls into libtorch fails: the first, the second and so
// on, first with all later calls, as when a device is lost in the middle of f, and then alone, as when memory runs out
// once. If there are many calls, some are left out. f may only return: t fails if it panics. FailEachCall returns the
// number of calls that f makes when none fails.
func FailEachCall(t testing.TB, f func()) (calls int64) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls = failCall(t, f, 1<<40, 1)
	for _, times := range []int64{-1, 1} {
		for k := int64(0); k < calls; k += 1 + calls/64 {
			failCall(t, f, k, times)
		}
	}
	return calls
}

func failCall(t testing.TB, f func(), k, times int64) (calls int64) {
	t.Helper()
	if err := (cshim.Fault{Point: cshim.FaultEntry, Skip: k, Times: times, Mine: true}).Set(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		calls, _ = cshim.FaultEntry.Counts()
		if err := (cshim.Fault{Point: cshim.FaultEntry}).Set(); err != nil {
			t.Error(err)
		}
		if r := recover(); r != nil {
			t.Errorf("call %d fails (times: %d): panic: %v\n%s", k, times, r, debug.Stack())
		}
	}()
	// An error of f's is expected, and that of a scope too.
	_ = tensor.WithScope(func() error { f(); return nil })
	return calls
}
