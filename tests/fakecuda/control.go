// Package fakecuda runs libtorch's CUDA part on devices that are not there: see build.sh for what it makes, and
// fakecuda.h for what can be set. A Control maps the words of a process that runs over it, from the same process or
// another, without C.
package fakecuda

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// The classes of functions that a Rule can name; anything else is a function's name.
const (
	Any    = "any"
	Alloc  = "alloc"
	Launch = "launch"
	Free   = "free"
	Sync   = "sync"
	Copy   = "copy"
)

// Kind says what an injected error leaves behind.
type Kind int64

// The kinds, as in fakecuda.h.
const (
	Once   Kind = 0 // the error of this call only
	Sticky Kind = 1 // the device is lost
	Async  Kind = 2 // the call succeeds; the next one that waits loses the device
)

// Forever, as Rule.Times.
const Forever = -1

// A Rule lets Skip calls of Function on Device through and makes the next Times of them fail with Error, or, where
// that is 0, only take Micros longer. Kernels that do run one after another on their device.
type Rule struct {
	Function string
	Device   int // -1: any
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

	firstDevice = 16
	deviceWords = 8
	maxDevices  = 64
	firstRule   = firstDevice + deviceWords*maxDevices
	ruleWords   = 8
	maxRules    = 8
	allWords    = firstRule + ruleWords*maxRules

	magic = 0x316475636b6166
)

// A Control is the words of one process.
type Control struct {
	mapped    []byte
	words     []int64
	temporary string // the file, where Close removes it
}

// Open maps the words in the file, which is made where it is not there: with this many devices of so many bytes. The
// process that it is for finds it by FAKECUDA_CONTROL.
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

// Close unmaps the words; the process goes on with them.
func (c *Control) Close() error {
	if c.temporary != "" {
		_ = os.Remove(c.temporary)
	}
	return syscall.Munmap(c.mapped)
}

func (c *Control) load(i int) int64     { return atomic.LoadInt64(&c.words[i]) }
func (c *Control) store(i int, v int64) { atomic.StoreInt64(&c.words[i], v) }
func (c *Control) of(device, i int) int { return firstDevice + deviceWords*device + i }

// SetCapturing has the default stream of a thread, by the kernel's number, count as being captured; 0: none.
func (c *Control) SetCapturing(thread int) { c.store(capturingWord, int64(thread)) }

// SetCapacity sets a device's bytes; what is live stays.
func (c *Control) SetCapacity(device int, bytes int64) { c.store(c.of(device, 0), bytes) }

// Live is the device's bytes that are given out, cached ones of libtorch's among them.
func (c *Control) Live(device int) int64 { return c.load(c.of(device, 1)) }

// Peak is the most that was live.
func (c *Control) Peak(device int) int64 { return c.load(c.of(device, 2)) }

// ResetPeak starts it anew.
func (c *Control) ResetPeak(device int) { c.store(c.of(device, 2), c.Live(device)) }

// Allocations counts what was given out.
func (c *Control) Allocations(device int) int64 { return c.load(c.of(device, 3)) }

// Frees counts what was taken back.
func (c *Control) Frees(device int) int64 { return c.load(c.of(device, 4)) }

// Launches counts kernels.
func (c *Control) Launches(device int) int64 { return c.load(c.of(device, 5)) }

// Lost is the sticky error of a device; 0: none.
func (c *Control) Lost(device int) int { return int(c.load(c.of(device, 6))) }

// Lose gives the device a sticky error; 0 takes it away, which no real device does.
func (c *Control) Lose(device, cudaError int) { c.store(c.of(device, 6), int64(cudaError)) }

// Calls counts the functions called that touch a device.
func (c *Control) Calls() int64 { return c.load(callsWord) }

// Errors counts the errors injected.
func (c *Control) Errors() int64 { return c.load(errorsWord) }

// HostLive is the bytes of pinned memory.
func (c *Control) HostLive() int64 { return c.load(hostLiveWord) }

// Misuse says what was done that no program may do; nil: nothing.
func (c *Control) Misuse() error {
	double, foreign, copies := c.load(doubleFreesWord), c.load(foreignFreesWord), c.load(badCopiesWord)
	if double == 0 && foreign == 0 && copies == 0 {
		return nil
	}
	return fmt.Errorf("fake CUDA: %d double frees, %d frees of what was never given out, %d copies from or to device memory that is not there", double, foreign, copies)
}

// AddRule adds a rule; all apply, the first that fails a call decides.
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

// ClearRules takes all rules away.
func (c *Control) ClearRules() { c.store(rulesWord, 0) }

// Seen counts the calls that the i-th rule applied to.
func (c *Control) Seen(i int) int64 { return c.load(firstRule + ruleWords*i + 7) }

// function is a class's number, or a name's FNV-1a hash.
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
