package checkpoint

import "sync/atomic"

// mapping is the mapped pages of a file. They are unmapped when the File has been closed and no tensor uses
// them.
type mapping struct {
	data  []byte // pages without the header
	unmap func()
	users atomic.Int64
}

func (m *mapping) release() {
	if m.users.Add(-1) == 0 {
		m.unmap()
	}
}
