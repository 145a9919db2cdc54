// Package regular distinguishes regular files from others, which must be neither read nor replaced.
package regular

import (
	"cmp"
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

// Destination returns the path of the regular file that path names, which need not exist, without symbolic links. Its
// directory must exist.
func Destination(path string) (string, error) {
	if path == "" {
		return "", errors.New("the path is empty")
	}
	at := path
	for range 40 { // as many as Linux follows
		info, err := os.Lstat(at)
		isLink := err == nil && info.Mode()&os.ModeSymlink != 0
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		case err == nil && !isLink && !info.Mode().IsRegular():
			return "", fmt.Errorf("%s is %s; a file is replaced by a new one", path, Kind(info.Mode()))
		}
		// A .. after a link leads out of the directory that the link names. So the links are followed before Join and the
		// caller's Dir, which remove .. from the text of a path.
		dir, base := filepath.Split(at)
		if dir, err = filepath.EvalSymlinks(cmp.Or(dir, ".")); err != nil {
			return "", fmt.Errorf("the directory of %s: %w", path, err)
		}
		if !isLink {
			return filepath.Join(dir, base), nil
		}
		link, err := os.Readlink(at)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(link) {
			link = dir + string(filepath.Separator) + link
		}
		at = link
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}
