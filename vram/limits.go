package vram

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/cgroup"
)

// Amount is how much memory: so many bytes, or a share of the device.
type Amount struct {
	bytes int64
	share float64
}

// Bytes is an absolute amount.
func Bytes(n int64) Amount { return Amount{bytes: n} }

// Share is a share of the device's memory, of what the process may use of the machine's for the CPU; 0.9 is nine tenths.
func Share(f float64) Amount { return Amount{share: f} }

// Unlimited is no limit at all.
func Unlimited() Amount { return Amount{share: math.Inf(1)} }

// ParseAmount reads "8GiB", "500MB", "1073741824", "0.9", "90%" or "none".
func ParseAmount(s string) (Amount, error) {
	bad := fmt.Errorf("vram: %q is no amount of memory; 8GiB, 500MB, 0.9, 90%% and none are", s)
	t := strings.ToLower(strings.TrimSpace(s))
	if t == "none" || t == "off" {
		return Unlimited(), nil
	}
	if p, ok := strings.CutSuffix(t, "%"); ok {
		f, err := strconv.ParseFloat(p, 64)
		if err != nil || !(f > 0 && f <= 100) {
			return Amount{}, bad
		}
		return Share(f / 100), nil
	}
	unit := 1.0
	for _, u := range []struct {
		suffix string
		n      float64
	}{{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1}} {
		if p, ok := strings.CutSuffix(t, u.suffix); ok {
			t, unit = strings.TrimSpace(p), u.n
			f, err := strconv.ParseFloat(t, 64)
			if err != nil || !(f > 0 && f*unit < 1<<60) {
				return Amount{}, bad
			}
			return Bytes(int64(f * unit)), nil
		}
	}
	f, err := strconv.ParseFloat(t, 64)
	switch {
	case err != nil || !(f > 0 && f < 1<<60):
		return Amount{}, bad
	case f <= 1:
		return Share(f), nil
	}
	return Bytes(int64(f)), nil
}

func (a Amount) of(capacity int64) (int64, error) {
	switch {
	case math.IsInf(a.share, 1):
		return 0, nil
	case a.bytes > 0:
		return a.bytes, nil
	case a.share > 0 && a.share <= 1:
		return int64(a.share * float64(capacity)), nil
	}
	return 0, fmt.Errorf("vram: an amount must be more than 0 bytes, or a share of (0, 1]")
}

// SetLimit sets a device's hard limit: an allocation that would take the live bytes beyond it waits for a sweep, and
// fails with *OutOfMemoryError when everything was tried. What is live already stays. The default is 0.95 of a CUDA
// device; for the CPU it is 0.90 of the least of the machine's memory, the cgroup's limit, and GOMEMLIMIT less the Go
// heap.
//
// In a memory cgroup the CPU's default limit is lower where the rest of the group's processes, this one's Go heap
// included, needs more room, and follows that as it grows and shrinks; docs/memory.md says how. A limit of SetLimit is
// kept as it was given: where it is more than the cgroup has room for, the kernel may kill the process.
//
// On a CUDA device the live bytes are those that tensors asked for; what libtorch's caching allocator holds
// beside them stays below the limit too, unless an allocation that the limit has room for would fail for it. PyTorch:
// torch.cuda.set_per_process_memory_fraction.
func SetLimit(d Device, n Amount) error {
	return set(d, n, (*account).setLimit)
}

func (a *account) setLimit(bytes int64) error {
	a.follows.Store(false)
	return cshim.MemorySetLimit(a.word, bytes)
}

// SetBudget sets a device's soft limit, where sweeps become more eager; 0.90 of a CUDA device and 0.80 for the CPU by
// default. While the CPU's limit follows a cgroup, the soft limit is at most eight ninths of it.
func SetBudget(d Device, n Amount) error {
	return set(d, n, func(a *account, bytes int64) error {
		a.setBudget(bytes)
		return nil
	})
}

func (a *account) setBudget(bytes int64) {
	a.mu.Lock()
	a.budget = bytes
	a.mu.Unlock()
}

// softLimit is the budget beside a limit.
func (a *account) softLimit(limit int64) int64 {
	if a.follows.Load() && a.budget > 0 && limit > 0 {
		return min(a.budget, limit/9*8)
	}
	return a.budget
}

func set(d Device, n Amount, f func(*account, int64) error) error {
	w, err := loaded(d)
	if err != nil {
		return err
	}
	if _, err := cshim.MemoryStats(w); err != nil {
		return err
	}
	a := accountOf(w)
	bytes, err := n.of(a.size())
	if err != nil {
		return err
	}
	if err := f(a, bytes); err != nil {
		return err
	}
	a.replan()
	return nil
}

// SetGCPercent sets how far a device's live bytes may grow beyond what was reachable at the last sweep, like Go's own
// GOGC; 100 by default. A negative percent turns sweeps off that no limit calls for. It returns the percent before.
func SetGCPercent(d Device, percent int) (int, error) {
	w, err := loaded(d)
	if err != nil {
		return 0, err
	}
	a := accountOf(w)
	before := a.setPercent(percent)
	a.replan()
	return before, nil
}

func (a *account) setPercent(percent int) (before int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, a.percent = a.percent, max(-1, min(percent, 100000))
	return before
}

// size is the memory that the device has for this process.
func (a *account) size() int64 {
	var n int64
	if a.word == cpuWord {
		n = hostMemory()
	} else if _, total, err := cshim.MemoryCapacity(a.word); err == nil {
		n = total
	}
	a.mu.Lock()
	a.capacity = n
	a.mu.Unlock()
	return n
}

func setDefaults() {
	words := []int32{cpuWord}
	for i := range cshim.DeviceCount(1) {
		words = append(words, 1<<8|int32(i))
	}
	for _, w := range words {
		a := accountOf(w)
		limit, budget := 0.90, 0.80
		if w != cpuWord {
			limit, budget = 0.95, 0.90
		}
		size := a.size()
		if size == 0 {
			continue
		}
		most := int64(limit * float64(size))
		var groups []cgroup.Group
		if w == cpuWord {
			groups = limitedGroups("/proc/self")
		}
		if len(groups) > 0 && cshim.MemoryFollowCGroups(groups, most, goMemory()) == nil {
			a.follows.Store(true)
		} else {
			_ = cshim.MemorySetLimit(w, most)
		}
		a.setBudget(int64(budget * float64(size)))
	}
	environment()
}

// environment applies the settings from outside; what cannot be read is said once on standard error, since there is
// nobody to return it to.
func environment() {
	complain := func(name string, err error) { fmt.Fprintf(os.Stderr, "linstock: %s is ignored: %v\n", name, err) }
	each := func(name string, f func(*account, int64)) {
		for _, part := range strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' }) {
			dev, amount, ok := strings.Cut(part, "=")
			if !ok {
				dev, amount = "cpu", part
			}
			w, err := word(Name(strings.TrimSpace(dev)))
			if err == nil {
				_, err = cshim.MemoryStats(w)
			}
			var n Amount
			if err == nil {
				n, err = ParseAmount(amount)
			}
			var bytes int64
			if err == nil {
				a := accountOf(w)
				if bytes, err = n.of(a.size()); err == nil {
					f(a, bytes)
				}
			}
			if err != nil {
				complain(name, err)
			}
		}
	}
	each("LINSTOCK_LIMIT", func(a *account, bytes int64) { _ = a.setLimit(bytes) })
	each("LINSTOCK_BUDGET", (*account).setBudget)
	if s := os.Getenv("LINSTOCK_GCPERCENT"); s != "" {
		percent, err := strconv.Atoi(s)
		if s == "off" {
			percent, err = -1, nil
		}
		if err != nil {
			complain("LINSTOCK_GCPERCENT", fmt.Errorf("%q is neither a number nor off", s))
		} else {
			for _, a := range known() {
				a.setPercent(percent)
			}
		}
	}
	switch s := strings.ToLower(os.Getenv("LINSTOCK_POLICY")); s {
	case "", "paced":
	case "off":
		use(Off{})
	case "threshold":
		use(Threshold{})
	case "rates":
		use(Rates{})
	case "budget":
		use(Budget{})
	default:
		complain("LINSTOCK_POLICY", fmt.Errorf("%q is none of paced, off, threshold, rates, budget", s))
	}
}

// hostMemory is the least of what the machine has, what the cgroup allows, and what GOMEMLIMIT leaves; 0 where none of
// them can be told.
func hostMemory() int64 {
	least := int64(0)
	take := func(n int64) {
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	take(physicalMemory())
	take(cgroupLimit("/proc/self"))
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		take(max(64<<20, limit-int64(m.HeapInuse)))
	}
	return least
}

func physicalMemory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kb << 10
		}
	}
	return 0
}

// limitedGroups are the memory cgroups of a process that have a limit.
func limitedGroups(proc string) []cgroup.Group {
	return slices.DeleteFunc(cgroup.Of(proc), func(g cgroup.Group) bool { return g.Limit() == 0 })
}

// cgroupLimit is the least limit of a process's memory cgroups; 0: none.
func cgroupLimit(proc string) int64 {
	least := int64(0)
	for _, g := range limitedGroups(proc) {
		if n := g.Limit(); least == 0 || n < least {
			least = n
		}
	}
	return least
}

// goMemory is how many bytes Go's runtime has from the system.
func goMemory() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// returnIdleHeap gives the pages that Go's heap keeps free back to the system, where an allocation of so many bytes
// would fail because the cgroup has no room for it. It reports whether another try is worth it.
func (a *account) returnIdleHeap(bytes int64) bool {
	const worth = 8 << 20 // a collection more, for less than that
	if a.word != cpuWord || !a.follows.Load() || a.fits(bytes) {
		return false
	}
	idle := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}}
	if metrics.Read(idle); idle[0].Value.Kind() != metrics.KindUint64 || idle[0].Value.Uint64() < worth {
		return false
	}
	debug.FreeOSMemory()
	return true
}
