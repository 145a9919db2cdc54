package vram

import (
	"cmp"
	"time"

	"github.com/linstock-ml/linstock/cshim"
)

// idleCache shrinks the cache of the CPU's allocator by half of the bytes that the program has not used for some ticks.
type idleCache struct {
	allocations int64
	unused      int64 // the fewest cached bytes at a tick
	ticks       int   // since the cache was shrunk
}

// tick shrinks the cache if the program has allocated nothing since the last tick, or at every eighth tick. A training
// step uses its cache at some point, and a tick can come at any point: one of eight ticks finds little left. A program
// that allocates keeps a few MiB: otherwise malloc would place the next blocks elsewhere, and the process would grow by
// more than that.
func (c *idleCache) tick() {
	const (
		busy  = 8
		least = 16 << 20 // bytes
	)
	m, err := cshim.MemoryStats(cpuWord)
	if err != nil {
		return
	}
	if c.ticks++; c.ticks == 1 || m.Cached < c.unused {
		c.unused = m.Cached
	}
	idle := m.Allocations == c.allocations
	c.allocations = m.Allocations
	if !idle && c.ticks < busy {
		return
	}
	if c.unused > 0 && (idle || c.unused >= least) {
		start := time.Now()
		freed, _ := cshim.MemoryTrim(cpuWord, m.Cached-c.unused/2)
		caches.gave(freed, start)
	}
	c.ticks = 0
}

// unknown is the number of bytes that reclaimers are asked for if it is not known how many the device has refused.
const unknown = 1 << 62

// relieve is reclaim.Relieve. It runs a deep sweep and empties the cache of the device's allocator, or of every device's
// if asked, the number of bytes, is 0. As in [EmptyCache], that may empty the caches of other CUDA devices, too. It
// leaves the cache alone if the hard limit refuses the bytes, since cached blocks do not count towards that. relieve does
// nothing while the calling thread captures a CUDA graph, and nothing for an operator of a reclaimer, for which a sweep
// waits.
func relieve(device int32, asked int64) bool {
	if cshim.Capturing() || cshim.Sweeping() {
		return false
	}
	frees := func() int64 { return sumOverDevices(func(m cshim.Pace) int64 { return m.Freed }) }
	before := frees()
	sweeper.Lock()
	defer sweeper.Unlock()
	sweep(Deep, cmp.Or(asked, unknown), nil).finish(nil)
	progress := frees() != before
	for _, a := range known() {
		m := a.counters()
		if a.word == cpuWord || asked != 0 && a.word != device || m.Reserved <= m.Live ||
			m.Limit > 0 && m.Live+asked > m.Limit {
			continue
		}
		start := time.Now()
		_ = cshim.MemoryEmptyCache(a.word)
		freed := m.Reserved - a.counters().Reserved
		caches.gave(freed, start)
		progress = progress || freed > 0
	}
	return progress
}
