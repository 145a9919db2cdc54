//go:build unix

// Package syncdir makes changes of a directory durable.
package syncdir

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Sync makes a rename in a directory durable. Some file systems cannot sync a directory, and one that may be written but not
// read cannot be opened; these errors are ignored, since the rename has succeeded.
func Sync(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
