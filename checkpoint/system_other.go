//go:build !unix

package checkpoint

import "os"

// openRegular opens a file, and nothing that is not one.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(info.Mode()); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// newMapping returns nil: files are read here.
func newMapping(*os.File, int64, int64) (*mapping, error) { return nil, nil }

// syncDir does nothing: a directory cannot be opened for it here.
func syncDir(string) error { return nil }

// claim does nothing: no lock here ends with its process, and removeUnclaimed removes nothing.
func claim(*os.File) (release func(), ours bool) { return func() {}, true }

func removeUnclaimed(string) {}
