//go:build unix

package dcp

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

var flock = unix.Flock // tests replace it

// lock makes the file at path and locks it until it is closed or the process ends. free is false if it is locked already;
// sure is false on a file system without locks.
func lock(path string) (f *os.File, sure, free bool, err error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
		if err != nil {
			return nil, false, false, err
		}
		switch err := flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case errors.Is(err, unix.EWOULDBLOCK):
			_ = f.Close()
			return nil, false, false, nil
		case errors.Is(err, unix.EINTR): // on a network file system; the file is not locked
			_ = f.Close()
			continue
		case err != nil:
			return f, false, true, nil
		}
		own, err := f.Stat()
		here, gone := os.Stat(path)
		if err == nil && gone == nil && os.SameFile(own, here) {
			return f, true, true, nil
		}
		_ = f.Close() // the save that had locked it has removed it
	}
}
