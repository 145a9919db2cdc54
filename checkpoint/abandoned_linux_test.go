package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestAbandonedFileOnNFS tests that a save removes what a killed one has left on a file system that locks only a file that is
// open for writing, and where signals interrupt locks. A local file system also locks a file that may not be written.
func TestAbandonedFileOnNFS(t *testing.T) {
	leak.Check(t)
	defer func() { flock = unix.Flock }()
	temp := t.TempDir()
	dir := filepath.Join(temp, "dir")
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(temp), 0o711)); err != nil {
		t.Fatal(err)
	}
	path, left := filepath.Join(dir, "x"), filepath.Join(dir, ".x1234567890123456789")
	x := tensor.Ones([]int{2})
	defer x.Release()
	check := func(on string) {
		t.Helper()
		if err := Save(path, map[string]*tensor.Tensor{"x": x}, nil); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("on %s: %v, %v", on, entries, err)
		}
	}
	abandon := func(mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(left, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	abandon(0o666)
	calls := 0
	flock = func(fd, how int) error {
		if calls++; calls%2 == 1 {
			return unix.EINTR
		}
		if access, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || access&unix.O_ACCMODE == unix.O_RDONLY {
			return errors.Join(err, unix.EBADF)
		}
		return unix.Flock(fd, how)
	}
	check("NFS")
	if calls != 4 {
		t.Errorf("%d calls, want two for the file that is left and two for the new one", calls)
	}

	flock = unix.Flock
	abandon(0o444)
	if os.Geteuid() == 0 { // root may write it
		const nobody = 65534
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(nobody); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setfsuid(0) }()
	}
	check("a local disk")
}
