//go:build !unix

package checkpoint

import "os"

// openRegular opens a regular file and returns an error for any other.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(info.Mode()); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// newMapping returns nil: on this system files are read.
func newMapping(*os.File, int64, int64) (*mapping, error) { return nil, nil }

// claim does nothing: on this system no lock ends with its process, so removeUnclaimed removes nothing.
func claim(*os.File) (release func(), ours bool) { return func() {}, true }

func removeUnclaimed(string) {}
