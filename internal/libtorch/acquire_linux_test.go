package libtorch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/internal/locate"
)

// unprivileged runs f on a thread for which the permissions of files hold, also if the test runs as root. It makes dir
// writable to f.
func unprivileged(t *testing.T, dir string, f func() error) error {
	t.Helper()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			const nobody = 65534
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0)
			if id, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0); id != nobody { // the one before
				done <- errPrivileged
				return
			}
		}
		if _, err := os.Stat(dir); err != nil {
			done <- errPrivileged
			return
		}
		done <- f()
	}()
	err := <-done
	if err == errPrivileged {
		t.Skip("root cannot act as another user here, or that user cannot reach the temporary directory")
	}
	return err
}

var errPrivileged = errors.New("not as another user")

// TestLockIsOpenForWriting tests that the cache is locked through a descriptor that NFS can lock.
func TestLockIsOpenForWriting(t *testing.T) {
	in := &installer{Progress: silent{}, cfg: Config{Cache: t.TempDir()}}
	// access returns the access mode of the open lock file.
	access := func() (mode int) {
		t.Helper()
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		mode = -1
		for _, fd := range fds {
			if path, _ := os.Readlink("/proc/self/fd/" + fd.Name()); path != filepath.Join(in.cfg.Cache, "setup.lock") {
				continue
			}
			info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
			if err != nil {
				t.Fatal(err)
			}
			_, flags, _ := strings.Cut(string(info), "flags:")
			if _, err := fmt.Sscanf(flags, "%o", &mode); err != nil {
				t.Fatal(err)
			}
			mode &= syscall.O_ACCMODE
		}
		return mode
	}
	unlock, err := in.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if mode := access(); mode != os.O_RDWR {
		t.Errorf("the lock file is open in mode %d", mode)
	}
	unlock()
	// A local file system also locks the file of another user, who did not let this one write to it.
	if err := os.Chmod(filepath.Join(in.cfg.Cache, "setup.lock"), 0o444); err != nil {
		t.Fatal(err)
	}
	err = unprivileged(t, in.cfg.Cache, func() (err error) {
		unlock, err = in.acquire(t.Context())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if mode := access(); mode != os.O_RDONLY {
		t.Errorf("the file of another user is open in mode %d", mode)
	}
	unlock()

	in.cfg.Cache = t.TempDir()
	if err := os.Mkdir(filepath.Join(in.cfg.Cache, "setup.lock"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := in.acquire(t.Context()); !errors.Is(err, syscall.EISDIR) || !strings.Contains(err.Error(), locate.EnvCache) {
		t.Errorf("a file that cannot be locked: %v", err)
	}
}
