package checkpoint

import "sync/atomic"

// mapping is the pages of a file. They are unmapped when the File is closed and no tensor lies in them.
type mapping struct {
	data  []byte // without the header
	unmap func()
	users atomic.Int64
}

func (m *mapping) release() {
	if m.users.Add(-1) == 0 {
		m.unmap()
	}
}
