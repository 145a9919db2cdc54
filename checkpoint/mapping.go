package checkpoint

import "sync/atomic"

// mapping is a file's pages, which go when the File and all tensors in them have.
type mapping struct {
	data   []byte // without the header
	copies bool   // data is Go's memory, where no tensor may lie
	unmap  func()
	users  atomic.Int64
}

func (m *mapping) release() {
	if m.users.Add(-1) == 0 {
		m.unmap()
	}
}
