//go:build unix

package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// openRegular opens a regular file and returns an error for any other: opening a named pipe waits for a writer,
// and opening a device may have side effects. If a pipe replaces the file between the two calls, O_NONBLOCK
// keeps the second from waiting.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(info.Mode()); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// newMapping maps the file privately, so that writes of in-place operators do not change the file.
func newMapping(f *os.File, size, dataAt int64) (*mapping, error) {
	if size > math.MaxInt {
		return nil, fmt.Errorf("a file of %d bytes cannot be mapped", size)
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var all []byte
	// Without MAP_NORESERVE a system with strict overcommit would reserve as much memory as the file's size.
	controlErr := conn.Control(func(fd uintptr) {
		all, err = unix.Mmap(int(fd), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|noReserve)
	})
	if err := errors.Join(controlErr, err); err != nil {
		return nil, fmt.Errorf("mmap: %w (checkpoint.Mapped(false) reads the file instead)", err)
	}
	m := &mapping{data: all[dataAt:size:size], unmap: func() { _ = unix.Munmap(all) }}
	m.users.Store(1)
	return m, nil
}

// claim locks a file until release is called or the process ends, also if the file is renamed. ours is false if
// another process has locked or removed it. On a file system without locks removeUnclaimed removes nothing.
func claim(f *os.File) (release func(), ours bool) {
	// A second descriptor, which shares the lock: the first is closed before the file is renamed.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return func() {}, true
	}
	release = func() { _ = unix.Close(fd) }
	var now unix.Stat_t
	if err := lock(fd); errors.Is(err, unix.EWOULDBLOCK) || unix.Fstat(fd, &now) == nil && now.Nlink == 0 {
		release()
		return nil, false
	}
	return release, true
}

// removeUnclaimed removes a file unless a process has claimed it.
func removeUnclaimed(name string) {
	f, err := os.OpenFile(name, os.O_RDWR, 0) // NFS locks only a file that is open for writing
	if errors.Is(err, os.ErrPermission) {     // the file keeps the permissions of one that is write-protected
		f, err = os.Open(name)
	}
	if err != nil {
		return
	}
	defer f.Close()
	if lock(int(f.Fd())) == nil {
		_ = os.Remove(name)
	}
}

var flock = unix.Flock // tests replace it

// lock locks a file, or returns unix.EWOULDBLOCK if another process has locked it.
func lock(fd int) error {
	for {
		// On a network file system a signal may interrupt it.
		if err := flock(fd, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
