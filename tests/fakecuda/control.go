// Package fakecuda runs libtorch's CUDA part on devices that do not exist: build.sh describes what it builds,
// fakecuda.h what can be set. A Control maps the control words of a process that runs over it, from that
// process or another, without C.
package fakecuda

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Classes of functions that a Rule can name. Any other string is the name of a function.
const (
	Any    = "any"
	Alloc  = "alloc"
	Launch = "launch"
	Free   = "free"
	Sync   = "sync"
	Copy   = "copy"
)

// Kind is the effect of an injected error.
type Kind int64

// The kinds, as in fakecuda.h.
const (
	Once   Kind = 0 // this call fails, nothing else changes
	Sticky Kind = 1 // the device is lost
	Async  Kind = 2 // the call succeeds; the next one that waits loses the device
)

// Forever is a value for Rule.Times.
const Forever = -1

// A Rule lets the first Skip calls of Function on Device succeed and makes the next Times calls fail with
// Error, or, when Error is 0, take Micros longer. Kernels of a device run one after another.
type Rule struct {
	Function string
	Device   int // -1: any device
	Skip     int64
	Times    int64
	Error    int // cudaError_t
	Kind     Kind
	Micros   int64
}

// The layout of fakecuda_state, in words.
const (
	magicWord = iota
	devicesWord
	rulesWord
	callsWord
	errorsWord
	doubleFreesWord
	foreignFreesWord
	badCopiesWord
	hostLiveWord
	capturingWord
	clockWord
	kernelWord
	copyWord
	graphsWord
	nodesWord
	invalidatedWord

	firstDevice = 16
	deviceWords = 8
	maxDevices  = 64
	firstRule   = firstDevice + deviceWords*maxDevices
	ruleWords   = 8
	maxRules    = 8
	eventsWord  = firstRule + ruleWords*maxRules
	contextWord = eventsWord + 1 // the first device's
	allWords    = contextWord + maxDevices

	magic = 0x316475636b6166
)

// A Control is the control words of one process.
type Control struct {
	mapped    []byte
	words     []int64
	temporary string // the file, if Close is to remove it
}

// Open maps the control words in the file. A file that does not exist is created with the given number of
// devices, each of the given capacity in bytes. A process finds the file by FAKECUDA_CONTROL.
func Open(file string, devices int, capacity int64) (*Control, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(allWords * 8); err != nil {
		return nil, err
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, allWords*8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", file, err)
	}
	c := &Control{mapped: m, words: unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(m))), allWords)}
	if c.load(magicWord) != magic {
		c.store(devicesWord, int64(devices))
		for i := range maxDevices {
			c.SetCapacity(i, capacity)
		}
		c.store(magicWord, magic)
	}
	return c, nil
}

// Close unmaps the words. The process continues to use them.
func (c *Control) Close() error {
	if c.temporary != "" {
		_ = os.Remove(c.temporary)
	}
	return syscall.Munmap(c.mapped)
}

func (c *Control) load(i int) int64     { return atomic.LoadInt64(&c.words[i]) }
func (c *Control) store(i int, v int64) { atomic.StoreInt64(&c.words[i], v) }
func (c *Control) of(device, i int) int { return firstDevice + deviceWords*device + i }

// SetCapturing marks the default stream of a thread as capturing. The thread is given by its kernel ID; 0 means
// none.
func (c *Control) SetCapturing(thread int) { c.store(capturingWord, int64(thread)) }

// Clock returns the host's time by the simulated clock; see src/streams.c.
func (c *Control) Clock() time.Duration { return time.Duration(c.load(clockWord)) }

// Advance adds d to the simulated clock.
func (c *Control) Advance(d time.Duration) { c.store(clockWord, c.load(clockWord)+int64(d)) }

// SetTimes sets the times that a kernel and a copy take by the simulated clock. They are 0 at first.
func (c *Control) SetTimes(kernel, copy time.Duration) {
	c.store(kernelWord, int64(kernel))
	c.store(copyWord, int64(copy))
}

// Graphs returns the number of live instantiated graphs.
func (c *Control) Graphs() int64 { return c.load(graphsWord) }

// Nodes returns the number of nodes of the graph instantiated last.
func (c *Control) Nodes() int64 { return c.load(nodesWord) }

// Invalidated returns the number of captures that calls have made invalid.
func (c *Control) Invalidated() int64 { return c.load(invalidatedWord) }

// Events returns the number of live events.
func (c *Control) Events() int64 { return c.load(eventsWord) }

// Contexts returns the number of processes that have made a context on the device.
func (c *Control) Contexts(device int) int64 { return c.load(contextWord + device) }

// SetCapacity sets a device's capacity in bytes. Live memory is kept.
func (c *Control) SetCapacity(device int, bytes int64) { c.store(c.of(device, 0), bytes) }

// Live returns the bytes allocated on the device, including blocks in libtorch's cache.
func (c *Control) Live(device int) int64 { return c.load(c.of(device, 1)) }

// Occupy adds to the bytes of a device that are in use, as another process does.
func (c *Control) Occupy(device int, bytes int64) { c.store(c.of(device, 1), c.Live(device)+bytes) }

// Peak returns the maximum of Live.
func (c *Control) Peak(device int) int64 { return c.load(c.of(device, 2)) }

// ResetPeak sets Peak to Live.
func (c *Control) ResetPeak(device int) { c.store(c.of(device, 2), c.Live(device)) }

// Allocations returns the number of allocations.
func (c *Control) Allocations(device int) int64 { return c.load(c.of(device, 3)) }

// Frees returns the number of frees.
func (c *Control) Frees(device int) int64 { return c.load(c.of(device, 4)) }

// Launches returns the number of kernels launched.
func (c *Control) Launches(device int) int64 { return c.load(c.of(device, 5)) }

// Lost returns the sticky error of a device, or 0.
func (c *Control) Lost(device int) int { return int(c.load(c.of(device, 6))) }

// Lose gives the device a sticky error. An error of 0 removes it, which no real device allows.
func (c *Control) Lose(device, cudaError int) { c.store(c.of(device, 6), int64(cudaError)) }

// Calls returns the number of calls of functions that touch a device.
func (c *Control) Calls() int64 { return c.load(callsWord) }

// Errors returns the number of injected errors.
func (c *Control) Errors() int64 { return c.load(errorsWord) }

// HostLive returns the bytes of pinned memory.
func (c *Control) HostLive() int64 { return c.load(hostLiveWord) }

// Misuse returns an error that describes the first incorrect use of the API, or nil.
func (c *Control) Misuse() error {
	double, foreign, copies := c.load(doubleFreesWord), c.load(foreignFreesWord), c.load(badCopiesWord)
	if double == 0 && foreign == 0 && copies == 0 {
		return nil
	}
	return fmt.Errorf("fake CUDA: %d double frees, %d frees of unknown pointers, %d copies from or to device memory that does not exist", double, foreign, copies)
}

// AddRule adds a rule. All rules apply to each call; the first one that makes the call fail decides its error.
func (c *Control) AddRule(r Rule) error {
	n := c.load(rulesWord)
	if n >= maxRules {
		return fmt.Errorf("fake CUDA: there are %d rules already", n)
	}
	at := firstRule + ruleWords*int(n)
	for i, v := range []int64{function(r.Function), int64(r.Device), r.Skip, r.Times, int64(r.Error), int64(r.Kind), r.Micros, 0} {
		c.store(at+i, v)
	}
	c.store(rulesWord, n+1)
	return nil
}

// ClearRules removes all rules.
func (c *Control) ClearRules() { c.store(rulesWord, 0) }

// Seen returns the number of calls that rule i applied to.
func (c *Control) Seen(i int) int64 { return c.load(firstRule + ruleWords*i + 7) }

// function returns the number of a class, or the FNV-1a hash of a name.
func function(name string) int64 {
	for i, class := range []string{Any, Alloc, Launch, Free, Sync, Copy} {
		if name == class {
			return int64(i)
		}
	}
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return int64(h)
}
