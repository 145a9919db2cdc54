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

// With the build tag linstock_gc a sweep runs wherever a handle goes to C, at the moment when nothing but what the
// operator does for it keeps its tensor alive: what nobody can reach is freed, in scopes and outside, and a missing pin
// is a use after free. A call site (the four innermost calls) has a sweep at each of its first 100 reads, or as many as
// LINSTOCK_GC_READS says, and at one of every 1,000 after that. LINSTOCK_GC_COUNT is a folder for files with how many
// each process has made.
var forced struct {
	first    int64
	sites    sync.Map // [4]uintptr → *atomic.Int64
	sweeping atomic.Bool
	made     int // by the one who sweeps
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
	// What a sweep reads itself has one, and what others read during it.
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
	_ = vram.Collect()
	if forced.made++; forced.count != "" && forced.made%10 == 0 {
		_ = os.WriteFile(forced.count, []byte(strconv.Itoa(forced.made)), 0o666)
	}
}
