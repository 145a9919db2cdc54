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
