//go:build linux

package checkpoint_test

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/checkpoint"
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

// Files that a program drops without Close do not exhaust the descriptors.
func TestLoadManyFiles(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "file")
	x := tensor.Ones([]int{8})
	defer x.Release()
	if err := checkpoint.Save(path, map[string]*tensor.Tensor{"x": x}, nil); err != nil {
		t.Fatal(err)
	}
	fewDescriptors(t, 20)
	for i := range 100 {
		if _, err := checkpoint.Load(path); err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
	}
}
