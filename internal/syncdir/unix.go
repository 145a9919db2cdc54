//go:build unix

// Package syncdir makes changes of a directory durable.
package syncdir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Sync makes a rename in a directory durable. Some file systems cannot sync a directory; their error is ignored.
func Sync(dir string) error {
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
