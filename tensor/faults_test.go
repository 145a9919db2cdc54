package tensor

import (
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// arm injects a fault into this thread's calls until the test ends or disarm is called.
func arm(t *testing.T, f cshim.Fault) (disarm func() (struck bool)) {
	t.Helper()
	runtime.LockOSThread()
	f.Mine = true
	if err := f.Set(); err != nil {
		t.Fatal(err)
	}
	done := false
	disarm = func() bool {
		if done {
			return false
		}
		done = true
		_, failed := f.Point.Counts()
		if err := (cshim.Fault{Point: f.Point}).Set(); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
		return failed != 0
	}
	t.Cleanup(func() { disarm() })
	return disarm
}

func TestMetadataIsReadAgain(t *testing.T) {
	begin(t)
	x := Zeros([]int{2, 3}).RequiresGrad_()
	disarm := arm(t, cshim.Fault{Point: cshim.FaultEntry, Times: 1, Throw: 4})
	shape := x.Shape()
	if !disarm() {
		t.Fatal("nothing was thrown")
	}
	if !slices.Equal(shape, []int{2, 3}) {
		t.Errorf("the shape is %v after one failure to read it", shape)
	}
}

// TestFunctionWithoutMemory tests that tieFunction leaks nothing if any of its allocations fails.
func TestFunctionWithoutMemory(t *testing.T) {
	begin(t)
	x := Ones([]int{2}).RequiresGrad_()
	f := nativeFunction(nil)
	live := nativeLive.Load()
	faults := 0
	for k := int64(0); ; k++ {
		y := Ones([]int{2})
		disarm := arm(t, cshim.Fault{Point: cshim.FaultShim, Skip: k, Times: -1})
		out, err := tieFunction([]*Tensor{x}, []*Tensor{y}, []*Tensor{x}, false, f)
		struck := disarm()
		for _, o := range append(out, y) { // y was connected in place
			o.Release()
		}
		if err != nil && !errors.Is(err, ErrOutOfMemory) {
			t.Fatalf("allocation %d fails: %v", k, err)
		}
		Flush()
		forgetDropped()
		if now := nativeLive.Load(); now != live {
			t.Fatalf("allocation %d fails (%v): %d functions are kept, %d were before", k, err, now, live)
		}
		if !struck {
			break
		}
		faults++
	}
	if faults < 5 {
		t.Errorf("only %d faults", faults)
	}
}
