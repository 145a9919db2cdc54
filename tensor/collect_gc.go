//go:build linstock_gc

package tensor

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/vram"
)

// With the build tag linstock_gc, a sweep runs whenever a handle is passed to C, when only the pins of the operator
// keep its tensors alive. The sweep frees everything unreachable, inside and outside scopes, so that a missing pin
// becomes a use after free. A call site, identified by its four innermost calls, sweeps at each of its first 100 reads
// (LINSTOCK_GC_READS sets another number) and at every 1,000th after that. LINSTOCK_GC_COUNT names a folder in which
// each process writes the number of its sweeps.
var forced struct {
	first    int64
	sites    sync.Map // [4]uintptr → *atomic.Int64
	sweeping atomic.Bool
	made     int // number of sweeps; written only by the goroutine that sweeps
	count    string
}

func init() {
	forced.first = 100
	if n, err := strconv.ParseInt(os.Getenv("LINSTOCK_GC_READS"), 10, 64); err == nil {
		forced.first = n
	}
	if dir := os.Getenv("LINSTOCK_GC_COUNT"); dir != "" {
		forced.count = filepath.Join(dir, strconv.Itoa(os.Getpid()))
	}
	cshim.OnRead = collectOnRead
}

func collectOnRead() {
	var site [4]uintptr
	runtime.Callers(4, site[:])
	reads, ok := forced.sites.Load(site)
	if !ok {
		reads, _ = forced.sites.LoadOrStore(site, new(atomic.Int64))
	}
	if n := reads.(*atomic.Int64).Add(1); n > forced.first && n%1000 != 0 {
		return
	}
	// Reads by a sweep itself, and by other goroutines during one, do not sweep.
	if !forced.sweeping.CompareAndSwap(false, true) {
		return
	}
	defer forced.sweeping.Store(false)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	within := cshim.SweepingSet(true)
	cshim.SweepingSet(within)
	if within {
		return
	}
	// A report reads handles while it holds marking, which a sweep would wait for. Such reads never sweep otherwise.
	if !marking.TryLock() {
		return
	}
	marking.Unlock()
	_ = vram.Collect()
	if forced.made++; forced.count != "" && forced.made%10 == 0 {
		_ = os.WriteFile(forced.count, []byte(strconv.Itoa(forced.made)), 0o666)
	}
}
