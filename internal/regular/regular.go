// Package regular distinguishes regular files from others, which must be neither read nor replaced.
package regular

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Kind returns what a file is that is not regular.
func Kind(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&os.ModeNamedPipe != 0:
		return "a named pipe (FIFO)"
	case mode&os.ModeSocket != 0:
		return "a socket"
	case mode&os.ModeDevice != 0:
		return "a device"
	}
	return "not a regular file"
}

// Destination returns the path of the regular file that path names, which need not exist, with symbolic links at its end
// followed. Its directory must exist.
func Destination(path string) (string, error) {
	if path == "" {
		return "", errors.New("the path is empty")
	}
	at := path
	for range 40 { // as many as Linux follows
		info, err := os.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if _, err := os.Stat(filepath.Dir(at)); err != nil {
				return "", fmt.Errorf("the directory of %s: %w", path, err)
			}
			return at, nil
		case err != nil:
			return "", err
		case info.Mode()&os.ModeSymlink == 0:
			if !info.Mode().IsRegular() {
				return "", fmt.Errorf("%s is %s; a file is replaced by a new one", path, Kind(info.Mode()))
			}
			return at, nil
		}
		link, err := os.Readlink(at)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(filepath.Dir(at), link)
		}
		at = link
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}
