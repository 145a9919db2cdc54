//go:build !unix

package checkpoint

import (
	"io"
	"os"
)

// newMapping reads the file where it cannot be mapped.
func newMapping(f *os.File, size, dataAt int64) (*mapping, error) {
	data := make([]byte, size-dataAt)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, err
	}
	m := &mapping{data: data, copies: true, unmap: func() {}}
	m.users.Store(1)
	return m, nil
}

// syncDir does nothing: a directory cannot be opened for it here.
func syncDir(string) error { return nil }

// claim does nothing, and nothing is removed: there are no locks that end with the process here.
func claim(*os.File) (release func(), ours bool) { return func() {}, true }

func removeUnclaimed(string) {}
