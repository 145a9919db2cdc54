package vram

import (
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// idleCache shrinks what the CPU's allocator keeps while nobody allocates.
type idleCache struct{ allocations int64 }

func (c *idleCache) tick() {
	m, err := cshim.MemoryStats(cpuWord)
	if err == nil && m.Cached > 0 && m.Allocations == c.allocations {
		start := time.Now()
		freed, _ := cshim.MemoryTrim(cpuWord, m.Cached/2)
		caches.gave(freed, start)
	}
	c.allocations = m.Allocations
}

// relieve is reclaim.Relieve: a deep sweep, and the cache of the device's allocator is emptied, outside every lock. The
// cache stays where the limit refuses the bytes, since it does not count towards the limit. Where their number is unknown
// every device's cache is emptied. While the calling thread captures a CUDA graph, relieve does nothing.
func relieve(device int32, asked int64) bool {
	if cshim.Capturing() {
		return false
	}
	frees := func() int64 { return sumOverDevices(func(m cshim.Pace) int64 { return m.Freed }) }
	before := frees()
	sweeper.Lock()
	defer sweeper.Unlock()
	sweep(Deep, 1<<62, nil).finish(nil)
	progress := frees() != before
	for _, a := range known() {
		m, err := cshim.MemoryPace(a.word)
		if err != nil || a.word == cpuWord || asked != 0 && a.word != device || m.Reserved <= m.Live ||
			m.Limit > 0 && m.Live+asked > m.Limit {
			continue
		}
		start := time.Now()
		_ = cshim.MemoryEmptyCache(a.word)
		if now, err := cshim.MemoryPace(a.word); err == nil {
			caches.gave(m.Reserved-now.Reserved, start)
			progress = progress || now.Reserved < m.Reserved
		}
	}
	return progress
}
