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

// Amount is an amount of memory: a number of bytes, or a share of a device's memory.
type Amount struct {
	bytes     int64
	share     float64
	unlimited bool
}

// Bytes returns an amount of n bytes, n > 0.
func Bytes(n int64) Amount { return Amount{bytes: n} }

// Share returns a share f of a device's memory, 0 < f <= 1. For the CPU it is a share of the least of the machine's memory,
// the cgroup's limit, and GOMEMLIMIT less the Go heap, which counts as 64 MiB if it is less.
func Share(f float64) Amount { return Amount{share: f} }

// Unlimited returns the amount for no limit.
func Unlimited() Amount { return Amount{unlimited: true} }

// String returns the amount as [ParseAmount] reads it. An amount that no limit can have, such as Amount{} or Share(2), has a
// text that ParseAmount refuses: "0B", "200%".
func (a Amount) String() string {
	switch {
	case a.unlimited:
		return "none"
	case a.share > 1: // as a number without a unit it would be bytes
		return strconv.FormatFloat(100*a.share, 'g', -1, 64) + "%"
	case a.share != 0:
		return strconv.FormatFloat(a.share, 'g', -1, 64)
	}
	return strconv.FormatInt(a.bytes, 10) + "B"
}

// MarshalText returns String's text, for JSON, logs and flags; for Amount{} an empty one.
func (a Amount) MarshalText() ([]byte, error) {
	if a == (Amount{}) {
		return []byte{}, nil
	}
	return []byte(a.String()), nil
}

// UnmarshalText sets a to the amount that [ParseAmount] reads, or to Amount{} if the text is empty.
func (a *Amount) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*a = Amount{}
		return nil
	}
	*a, err = ParseAmount(string(text))
	return err
}

// ParseAmount parses an amount such as "8GiB", "500MB", "1073741824", "0.9", "90%" or "none". A number without a unit
// is a share up to 1, and otherwise a whole number of bytes.
func ParseAmount(s string) (Amount, error) {
	bad := refused("invalid amount %q: want 8GiB, 500MB, 0.9, 90%% or none", s)
	t := strings.ToLower(strings.TrimSpace(s))
	if t == "none" || t == "off" {
		return Unlimited(), nil
	}
	if p, ok := strings.CutSuffix(t, "%"); ok {
		f, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || !(f > 0 && f <= 100) {
			return Amount{}, bad
		}
		return Share(f / 100), nil
	}
	unit := int64(1)
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12}, {"b", 1}, {"", 0}} {
		if p, ok := strings.CutSuffix(t, u.suffix); ok {
			t, unit = strings.TrimSpace(p), u.bytes
			break
		}
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil || !(f > 0) {
		return Amount{}, bad
	}
	if unit == 0 { // no unit
		if f <= 1 {
			return Share(f), nil
		}
		unit = 1
	}
	if n, err := strconv.ParseInt(t, 10, 64); err == nil && n <= math.MaxInt64/unit { // a float64 cannot represent all integers
		return Bytes(n * unit), nil
	}
	if f *= float64(unit); f < 1 || f >= 1<<60 || unit == 1 && f != math.Trunc(f) {
		return Amount{}, bad
	}
	return Bytes(int64(f)), nil
}

func (a Amount) of(capacity int64) (int64, error) {
	switch {
	case a.unlimited:
		return 0, nil
	case a.bytes > 0:
		return a.bytes, nil
	case a.share > 0 && a.share <= 1 && capacity == 0:
		return 0, refused("the device's memory is unknown: want a number of bytes, not a share of it")
	case a.share > 0 && a.share <= 1:
		return max(1, int64(a.share*float64(capacity))), nil // 0 is no limit
	}
	return 0, refused("invalid amount: want more than 0 bytes, or a share in (0, 1]")
}

// SetLimit sets the hard limit of a device. An allocation that would take the live bytes past it waits for a sweep, and
// fails with *[OutOfMemoryError] if sweeps and reclaimers make no room. Tensors that are live stay live. The default is
// Share(0.95) for a CUDA device and Share(0.9) for the CPU. The CPU's limit counts sizes as the allocator rounds them, up
// by an eighth at most: 195 MiB count as 208.
//
// In a memory cgroup the CPU's default limit also leaves room for the other memory in the group, the Go heap included, and
// follows that as it grows and shrinks (docs/memory.md). A limit of SetLimit does not: the kernel may kill the process if
// the limit is more than the cgroup has room for.
//
// On a CUDA device the limit is for the bytes that tensors have requested. The cache of libtorch's allocator stays below
// the limit, too, unless an allocation within the limit would fail for that; if it is larger now, SetLimit empties it as
// [EmptyCache] does. PyTorch: torch.cuda.set_per_process_memory_fraction.
func SetLimit(d Device, n Amount) error {
	return set(d, n, (*account).setLimit)
}

func (a *account) setLimit(bytes int64) error {
	a.follows.Store(false)
	return cshim.MemorySetLimit(a.word, bytes)
}

// SetSoftLimit sets the soft limit of a device. Above it [Paced] sweeps more often: also for little garbage, as long as its
// time budget has the cost of a sweep. Allocations do not fail at the soft limit. The default is Share(0.9) for a CUDA
// device and Share(0.8) for the CPU. A soft limit that is not below the hard limit counts as 8/9 of that; so does one above 8/9
// while the CPU's hard limit follows a cgroup.
func SetSoftLimit(d Device, n Amount) error {
	return set(d, n, (*account).setSoftLimit)
}

func (a *account) setSoftLimit(bytes int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.soft = bytes
	return nil
}

// softLimit returns the soft limit while the hard limit is limit. The caller holds a.mu.
func (a *account) softLimit(limit int64) int64 {
	if a.soft > 0 && limit > 0 && (a.follows.Load() || a.soft >= limit) {
		return min(a.soft, limit/9*8)
	}
	return a.soft
}

func set(d Device, n Amount, f func(*account, int64) error) error {
	a, err := accountFor(d)
	if err != nil {
		return err
	}
	<-defaultsSet
	return a.set(n, f)
}

// defaultsSet is closed when the defaults and those of the environment have been set, which must not replace the program's.
var defaultsSet = make(chan struct{})

func (a *account) set(n Amount, f func(*account, int64) error) error {
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

// SetGCPercent sets how far the live bytes of a device may grow above what the last sweep found reachable before the next
// sweep, like debug.SetGCPercent. The default is 100. With a negative percent sweeps run at the hard limit alone. It returns
// the percent before.
func SetGCPercent(d Device, percent int) (int, error) {
	a, err := accountFor(d)
	if err != nil {
		return 0, err
	}
	<-defaultsSet
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

// memory returns what size found last, or the limit, if that has followed the cgroups above it. The caller holds a.mu.
func (a *account) memory(limit int64) int64 {
	if a.follows.Load() {
		return max(a.capacity, limit)
	}
	return a.capacity
}

// size returns the memory of the device that this process may use.
func (a *account) size() int64 {
	var n int64
	if a.word == cpuWord {
		n = hostMemory()
	} else if total, err := cshim.MemoryTotal(a.word); err == nil {
		n = total
	}
	a.mu.Lock()
	a.capacity = n
	a.mu.Unlock()
	return n
}

// memoryFraction returns per_process_memory_fraction of PYTORCH_CUDA_ALLOC_CONF. A text that libtorch cannot read is
// reported when a device is used.
func memoryFraction() float64 {
	s, _, err := cshim.CUDAAllocatorSettings()
	if err != nil || s.MemoryFraction <= 0 {
		return 1
	}
	return s.MemoryFraction
}

func setDefaults() {
	for _, a := range known() {
		limit, soft := 0.90, 0.80
		if a.word != cpuWord {
			limit, soft = 0.95, 0.90
			if f := memoryFraction(); f < 1 {
				limit, soft = f, f*soft/limit
			}
		}
		size := a.size()
		if size == 0 {
			continue
		}
		if a.word == cpuWord && followCGroups(limit, size) {
			a.follows.Store(true)
		} else if err := cshim.MemorySetLimit(a.word, int64(limit*float64(size))); err != nil {
			complain("the default limit of "+string(nameOf(a.word)), err)
		}
		_ = a.setSoftLimit(int64(soft * float64(size))) // never an error
	}
	environment()
}

// followCGroups makes the CPU's limit follow the cgroups, whose limits may rise above size, that of the start. It reports
// whether there are any.
func followCGroups(share float64, size int64) bool {
	groups := limitedGroups("/proc/self")
	most := share * float64(max(size, besideGo(physicalMemory("/proc/meminfo"))))
	return len(groups) > 0 && cshim.MemoryFollowCGroups(groups, int64(most), share, goMemory()) == nil
}

// complain reports a setting that has no effect on standard error, since no function could return the error.
func complain(setting string, err error) {
	fmt.Fprintf(os.Stderr, "linstock: %s is ignored: %s\n", setting, strings.TrimPrefix(err.Error(), "linstock: vram: "))
}

// environment applies the settings of environment variables.
func environment() {
	each := func(name string, f func(*account, int64) error) {
		for _, part := range strings.FieldsFunc(os.Getenv(name), func(r rune) bool { return r == ',' }) {
			dev, amount, ok := strings.Cut(part, "=")
			if !ok {
				dev, amount = "cpu", part
			}
			n, err := ParseAmount(amount)
			var a *account
			if err == nil {
				a, err = accountFor(Name(strings.TrimSpace(dev)))
			}
			if err == nil {
				err = a.set(n, f)
			}
			if err != nil {
				complain(fmt.Sprintf("%q in %s", strings.TrimSpace(part), name), err)
			}
		}
	}
	each("LINSTOCK_LIMIT", (*account).setLimit)
	each("LINSTOCK_SOFT_LIMIT", (*account).setSoftLimit)
	if s := os.Getenv("LINSTOCK_GCPERCENT"); s != "" {
		percent, err := strconv.Atoi(s)
		if s == "off" {
			percent, err = -1, nil
		}
		if err != nil {
			complain("LINSTOCK_GCPERCENT", fmt.Errorf("invalid percent %q: want a number or off", s))
		} else {
			for _, a := range known() {
				a.setPercent(percent)
			}
		}
	}
	use := func(p Policy) { policy.CompareAndSwap(&initial, &p) } // the program may have set one
	switch s := strings.ToLower(os.Getenv("LINSTOCK_POLICY")); s {
	case "", "paced":
	case "off":
		use(Off{})
	case "threshold":
		use(Threshold{})
	case "rates":
		use(Rates{})
	case "liveshare":
		use(LiveShare{})
	default:
		complain("LINSTOCK_POLICY", fmt.Errorf("unknown policy %q: want paced, off, threshold, rates or liveshare", s))
	}
}

// hostMemory returns the least of machineMemory and what GOMEMLIMIT leaves; 0 if neither is known.
func hostMemory() int64 { return besideGo(machineMemory()) }

// besideGo returns the least of that many bytes and what GOMEMLIMIT leaves; 0 if neither is known.
func besideGo(bytes int64) int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return leastKnown(bytes, max(64<<20, limit-int64(m.HeapInuse)))
	}
	return bytes
}

// machineMemory is reclaim.MachineMemory.
func machineMemory() int64 {
	return leastKnown(physicalMemory("/proc/meminfo"), cgroup.Limit("/proc/self"))
}

// leastKnown returns the smaller of two sizes, where 0 means unknown.
func leastKnown(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// physicalMemory returns MemTotal of a file like /proc/meminfo, or what the kernel says where there is no such file.
func physicalMemory(meminfo string) int64 {
	f, err := os.Open(meminfo)
	if err != nil {
		return kernelMemory()
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "MemTotal:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return kernelMemory()
			}
			return kb << 10
		}
	}
	return kernelMemory()
}

// limitedGroups returns the memory cgroups of a process that have a limit.
func limitedGroups(proc string) []cgroup.Group {
	return slices.DeleteFunc(cgroup.Of(proc), func(g cgroup.Group) bool { return g.Limit() == 0 })
}

// goMemory returns how many bytes the Go runtime has from the system.
func goMemory() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}

// returnIdleHeap returns free pages of the Go heap to the system if an allocation of that many bytes would fail because
// the cgroup has no room. It reports whether another try may succeed.
func (a *account) returnIdleHeap(bytes int64) bool {
	const worth = 8 << 20 // bytes that are worth another collection
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
