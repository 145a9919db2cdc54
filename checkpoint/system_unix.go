//go:build unix

package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// newMapping maps the file so that writes stay in this process: an operator that works in place may write into a
// tensor that lies there.
func newMapping(f *os.File, size, dataAt int64) (*mapping, error) {
	if size > math.MaxInt {
		return nil, fmt.Errorf("a file of %d bytes cannot be mapped", size)
	}
	// Without MAP_NORESERVE a system with strict overcommit would set as much memory aside as the file is large.
	all, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|noReserve)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	m := &mapping{data: all[dataAt:size:size], unmap: func() { _ = unix.Munmap(all) }}
	m.users.Store(1)
	return m, nil
}

// syncDir makes a rename last. Some file systems cannot sync a directory, and say so.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// claim locks a file until release, or the end of the process, under whatever name it goes. It is not ours when
// somebody else has locked or removed it. Where a file system has no locks nobody else removes it either.
func claim(f *os.File) (release func(), ours bool) {
	// A descriptor of its own: the file's is closed before it is renamed, and the lock is that of both.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return func() {}, true
	}
	release = func() { _ = unix.Close(fd) }
	var now unix.Stat_t
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) || unix.Fstat(fd, &now) == nil && now.Nlink == 0 {
		release()
		return nil, false
	}
	return release, true
}

// removeUnclaimed removes a file that nobody has claimed.
func removeUnclaimed(name string) {
	f, err := os.Open(name)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(name)
	}
}
