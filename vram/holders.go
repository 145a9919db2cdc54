package vram

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/callsite"
)

// The call stacks that made memory, each with a number that the shim keeps beside its samples.
const stackDepth = 32

type stack [stackDepth]uintptr

var sites struct {
	sync.Mutex
	ids    map[stack]uint32
	stacks []stack
}

// attached is how many samples there were at the last AttachSite; never so many while a history is kept, where each
// call has its own name.
var attached atomic.Uint64

const keepsHistory = 1<<64 - 1

// Sampled says, for the price of three loads, that something has been sampled since the last AttachSite: for calls
// whose result does not say it.
func Sampled() bool { return cshim.SamplesSeen() != attached.Load() }

// AttachSite tells the shim that the caller's stack is what has made this thread's samples, and the block of result,
// which may be 0. Package tensor calls it. It returns the stack's number.
func AttachSite(result cshim.Handle) uint32 {
	if was := attached.Load(); was != keepsHistory {
		attached.CompareAndSwap(was, cshim.SamplesSeen())
	}
	id := site(3)
	cshim.SamplesAttach(id, result)
	return id
}

// Site is a number for the caller's stack, for [SiteLine].
func Site() uint32 { return site(3) }

// SiteLine is the first line of a program on a site's stack: "model.go:31 (main.forward)".
func SiteLine(site uint32) string {
	p := placeOf(site)
	return p.line()
}

func site(skip int) uint32 {
	var s stack
	runtime.Callers(skip, s[:])
	sites.Lock()
	id, ok := sites.ids[s]
	if !ok {
		if sites.ids == nil {
			sites.ids = map[stack]uint32{}
		}
		id = uint32(len(sites.stacks))
		sites.ids[s] = id
		sites.stacks = append(sites.stacks, s)
	}
	sites.Unlock()
	return id
}

func stackOf(site uint32) []uintptr {
	sites.Lock()
	defer sites.Unlock()
	if int64(site) >= int64(len(sites.stacks)) {
		return nil
	}
	s := sites.stacks[site]
	n := slices.Index(s[:], 0)
	if n < 0 {
		n = len(s)
	}
	return s[:n:n]
}

// place is a site for people: the program's frames, innermost first, and the function of Linstock's that it called.
// Where there are no frames of a program's, they are Linstock's own.
type place struct {
	frames   []runtime.Frame
	operator string // "MatMul"
	foreign  bool   // no frame is the program's
}

func placeOf(site uint32) (p place) {
	pcs := stackOf(site)
	if len(pcs) == 0 {
		p.foreign = true
		return p
	}
	var own []runtime.Frame
	for frames := runtime.CallersFrames(pcs); ; {
		f, more := frames.Next()
		switch {
		case len(p.frames) != 0 || !callsite.Library(f):
			p.frames = append(p.frames, f)
		default:
			own = append(own, f)
			name := f.Function[strings.LastIndexByte(f.Function, '.')+1:]
			if p.operator == "" && len(name) > 0 && name[0] >= 'A' && name[0] <= 'Z' {
				p.operator = name
			}
		}
		if !more {
			break
		}
	}
	if len(p.frames) == 0 {
		p.frames, p.foreign = own, true
	}
	// How Go starts a goroutine is of no interest.
	for n := len(p.frames); n > 1 && strings.HasPrefix(p.frames[n-1].Function, "runtime."); n-- {
		p.frames = p.frames[:n-1]
	}
	return p
}

// line is the first line of a program: "model.go:31 (main.forward)".
func (p *place) line() string {
	switch {
	case len(p.frames) == 0:
		return "unknown"
	case p.foreign:
		return "Linstock itself"
	}
	f := p.frames[0]
	name := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
	return fmt.Sprintf("%s:%d (%s)", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line, name)
}

// Holder is a line of the program and the memory made there that is live, by the samples.
type Holder struct {
	Line    string // "model.go:31 (main.forward)"
	Device  Name
	Bytes   int64
	Tensors int64
}

// Holders are the lines of the program that hold most of a device's memory, largest first. The figures are estimates
// from samples (see [SetProfileRate]); blocks much smaller than the rate may be missing.
func Holders(d Device) ([]Holder, error) {
	w, err := loaded(d)
	if err != nil {
		return nil, err
	}
	return holders(w), nil
}

func holders(w int32) []Holder {
	byLine := map[string]*Holder{}
	for _, s := range cshim.SampledSites() {
		if s.Device != w || s.LiveBytes <= 0 {
			continue
		}
		p := placeOf(s.Site)
		line := p.line()
		h := byLine[line]
		if h == nil {
			h = &Holder{Line: line, Device: nameOf(w)}
			byLine[line] = h
		}
		h.Bytes += s.LiveBytes
		h.Tensors += s.LiveCount
	}
	list := make([]Holder, 0, len(byLine))
	for _, h := range byLine {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Line, b.Line))
	})
	return list
}

// DefaultProfileRate is the number of bytes between samples.
const DefaultProfileRate = 2 << 20

// SetProfileRate sets about how many bytes of allocation pass between two samples of the profile; 1 samples every
// block, 0 none. It is for the start of a program, like runtime.MemProfileRate.
func SetProfileRate(bytes int) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	history.Lock()
	defer history.Unlock()
	history.rate = int64(max(0, bytes))
	if history.events == 0 {
		cshim.SamplesSetRate(history.rate)
	}
	return nil
}
