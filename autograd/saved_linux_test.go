//go:build linux

package autograd_test

import (
	"os"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// fewDescriptors lets the process open n files more until the test ends, and keeps the collector from closing any.
func fewDescriptors(t *testing.T, n uint64) {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	now := was
	now.Cur = uint64(len(open)) + n
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	percent := debug.SetGCPercent(-1)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
}

// The graphs that a program drops without a backward pass do not exhaust the descriptors.
func TestSaveOnDiskManyFiles(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{8}).RequiresGrad_()
	defer x.Release()
	fewDescriptors(t, 20)
	dir := t.TempDir()
	region := func() {
		t.Helper()
		y := autograd.SavedTensors(autograd.SaveOnDisk(dir, autograd.MinBytes(0)), func() *tensor.Tensor { return x.Exp().Sin() })
		if err := y.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		region()
	}
	// Other files have taken the rest.
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		defer f.Close()
	}
	region()
}
