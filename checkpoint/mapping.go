package checkpoint

import "sync/atomic"

// mapping is a file's pages, which go when the File and all tensors in them have.
type mapping struct {
	data   []byte // without the header
	copies bool   // data is Go's memory, where no tensor may lie
	unmap  func()
	users  atomic.Int64
}

// hold counts one more user; false if the last has gone.
func (m *mapping) hold() bool {
	for {
		n := m.users.Load()
		if n == 0 {
			return false
		}
		if m.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *mapping) release() {
	if m.users.Add(-1) == 0 {
		m.unmap()
	}
}
