// Package sites numbers the call stacks that allocate native memory. The shim stores the numbers with its samples;
// package tensor passes them, and package vram turns them into profiles and reports.
package sites

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/callsite"
)

const depth = 32

type stack [depth]uintptr

var known struct {
	sync.Mutex
	ids    map[stack]uint32
	stacks []stack
}

// attached is the number of samples at the last Attach, or everyCall if every call is to be attached.
var attached atomic.Uint64

const everyCall = 1<<64 - 1

var every struct {
	sync.Mutex
	n int // calls of AttachEveryCall with true less those with false
}

// AttachEveryCall makes Sampled always return true, until it was called with false as often as with true.
func AttachEveryCall(on bool) {
	every.Lock()
	defer every.Unlock()
	if on {
		every.n++
	} else {
		every.n--
	}
	if every.n != 0 {
		attached.Store(everyCall)
	} else {
		attached.Store(0)
	}
}

// Sampled reports whether the shim has taken a sample since the last Attach. It costs three loads.
func Sampled() bool { return cshim.SamplesSeen() != attached.Load() }

// Attach makes the caller's stack the site of this thread's last samples and of the block of result, which may be 0. It
// returns the site.
func Attach(result cshim.Handle) uint32 {
	if was := attached.Load(); was != everyCall {
		attached.CompareAndSwap(was, cshim.SamplesSeen())
	}
	id := number(3)
	cshim.SamplesAttach(id, result)
	return id
}

func init() {
	cshim.NameCall = func() { cshim.SamplesAttach(number(4), 0) }
}

// Caller returns the innermost line of a program on a site's stack as callsite.Line does, or "".
func Caller(site uint32) string {
	if p := Of(site); !p.Foreign {
		return fmt.Sprintf("%s:%d", p.Frames[0].File, p.Frames[0].Line)
	}
	return ""
}

// Here returns the site of the caller.
func Here() uint32 { return number(3) }

// Line returns the innermost line of a program on a site's stack, such as "model.go:31 (main.forward)".
func Line(site uint32) string {
	p := Of(site)
	return p.Line()
}

func number(skip int) uint32 {
	var s stack
	runtime.Callers(skip, s[:])
	known.Lock()
	id, ok := known.ids[s]
	if !ok {
		if known.ids == nil {
			known.ids, known.stacks = map[stack]uint32{}, make([]stack, 1) // 0 is no site: an Event that a program has made
		}
		id = uint32(len(known.stacks))
		known.ids[s] = id
		known.stacks = append(known.stacks, s)
	}
	known.Unlock()
	return id
}

func stackOf(site uint32) []uintptr {
	known.Lock()
	defer known.Unlock()
	if int64(site) >= int64(len(known.stacks)) {
		return nil
	}
	s := known.stacks[site]
	n := slices.Index(s[:], 0)
	if n < 0 {
		n = len(s)
	}
	return s[:n:n]
}

// Place is a site in readable form.
type Place struct {
	Frames   []runtime.Frame // the program's frames, innermost first, or Linstock's own if there are none
	Operator string          // the exported function of Linstock that the program called, such as "MatMul"
	Foreign  bool            // there are no frames of the program
}

// Of returns the place of a site.
func Of(site uint32) (p Place) {
	pcs := stackOf(site)
	if len(pcs) == 0 {
		p.Foreign = true
		return p
	}
	var own []runtime.Frame
	for frames := runtime.CallersFrames(pcs); ; {
		f, more := frames.Next()
		switch {
		case len(p.Frames) != 0 || !callsite.Library(f):
			p.Frames = append(p.Frames, f)
		default:
			own = append(own, f)
			name := strings.TrimSuffix(f.Function, "[...]") // of a generic function
			name = name[strings.LastIndexByte(name, '.')+1:]
			if p.Operator == "" && len(name) > 0 && name[0] >= 'A' && name[0] <= 'Z' && !strings.Contains(f.Function, "/cshim.") {
				p.Operator = name
			}
		}
		if !more {
			break
		}
	}
	if len(p.Frames) == 0 {
		p.Frames, p.Foreign = own, true
	}
	// Remove the frames with which Go starts a goroutine.
	for n := len(p.Frames); n > 1 && strings.HasPrefix(p.Frames[n-1].Function, "runtime."); n-- {
		p.Frames = p.Frames[:n-1]
	}
	return p
}

// Line returns the innermost line of a program, such as "model.go:31 (main.forward)".
func (p *Place) Line() string {
	switch {
	case len(p.Frames) == 0:
		return "unknown"
	case p.Foreign:
		return "Linstock itself"
	}
	f := p.Frames[0]
	name := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
	return fmt.Sprintf("%s:%d (%s)", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line, name)
}
