package checkpoint_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestUnreadableDirectory tests that a save to a directory that may be written but not read succeeds.
func TestUnreadableDirectory(t *testing.T) {
	leak.Check(t)
	temp := t.TempDir()
	dir := filepath.Join(temp, "dir")
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o333), os.Chmod(filepath.Dir(temp), 0o711)); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	scoped(t, func() {
		x := tensor.Ones([]int{2})
		if os.Geteuid() == 0 { // root may read it
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := unix.Setfsuid(nobody); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Setfsuid(0) }()
		}
		if _, err := os.ReadDir(dir); err == nil {
			t.Skip("the directory can be read")
		}
		if err := checkpoint.Save(filepath.Join(dir, "x"), map[string]*tensor.Tensor{"x": x}, nil); err != nil {
			t.Error(err)
		}
	})
}
