package profiler

import (
	"cmp"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// A Trace has the events of a profile.
type Trace struct {
	Events  []Event // by their beginnings; the events around an event come before it
	Dropped int     // how many more there were than MaxEvents
	Began   time.Time
	Ended   time.Time

	steps []step
}

// An Event is one call of an operator, one node of a backward pass, or one range of RecordFunction.
type Event struct {
	Name     string // as in PyTorch: "aten::addmm", "AddmmBackward0", or the name of the range
	Line     string // of the program: "model.go:31 (main.forward)"; "unknown" if there is none
	Operator string // the function of Linstock that this line calls, such as "MatMul"
	Shapes   string // the sizes of the operands, with RecordShapes: "[[8, 4], [4, 3]]"

	Range    bool   // made by RecordFunction
	Backward bool   // a node of a backward pass, or within one
	Thread   uint64 // libtorch's number of the OS thread
	Parent   int    // the index in Trace.Events of the event around it, or -1
	Forward  int    // of a node: the index of the forward operator, or -1
	Sequence int64  // autograd's number, which a forward operator and its node share, or -1

	Began     time.Time
	Time      time.Duration // from its beginning to its end
	SelfTime  time.Duration // less the Time of the events directly within it
	CPUMemory int64         // bytes that tensors on the CPU requested in it less those that were freed in it
	// The same less what the events directly within it requested and freed.
	SelfCPUMemory int64
	// The same for all other devices.
	DeviceMemory, SelfDeviceMemory int64

	site uint32
}

type threadSequence struct {
	thread   uint64
	sequence int64
}

// builder makes a Trace of native events, which are in the order of their ends for each thread.
type builder struct {
	native []cshim.TraceEvent
	parent []int
	texts  map[uint32]string
	node   []int // of the event in which the engine runs a node: the node; else -1
	// forward has the events of forward operators with a sequence number, by their beginnings.
	forward map[threadSequence][]int
	sites   []uint32 // what site has found; unset before
	places  map[uint32]sites.Place
}

const unset = cshim.NoSite - 1

func newTrace(native []cshim.TraceEvent, steps []step, began, ended time.Time) (*Trace, error) {
	b := builder{native: native, texts: map[uint32]string{0: ""}, places: map[uint32]sites.Place{}}
	b.nest()
	b.sort()
	b.merge()
	b.link()
	t := &Trace{Began: began, Ended: ended, steps: steps, Events: make([]Event, len(b.native))}
	for i := range b.native {
		if err := b.event(t.Events, i); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// nest finds the parents: the events of a thread that end before an event and are deeper lie within it.
func (b *builder) nest() {
	b.parent = make([]int, len(b.native))
	pending := map[uint64][]int{}
	for i := range b.native {
		e := &b.native[i]
		b.parent[i] = -1
		list := pending[e.Thread]
		for n := len(list); n > 0 && b.native[list[n-1]].Depth > e.Depth; n-- {
			b.parent[list[n-1]] = i
			list = list[:n-1]
		}
		pending[e.Thread] = append(list, i)
	}
}

// sort orders the events by their beginnings, and those around an event before it.
func (b *builder) sort() {
	order := make([]int, len(b.native))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := &b.native[i], &b.native[j]
		return cmp.Or(cmp.Compare(x.StartNS, y.StartNS), cmp.Compare(x.Thread, y.Thread), cmp.Compare(x.Depth, y.Depth))
	})
	b.keep(order)
}

// keep leaves the events of order, in that order.
func (b *builder) keep(order []int) {
	at := make([]int, len(b.native))
	native, parent := make([]cshim.TraceEvent, len(order)), make([]int, len(order))
	for to, from := range order {
		at[from] = to
	}
	for to, from := range order {
		native[to], parent[to] = b.native[from], b.parent[from]
		if parent[to] >= 0 {
			parent[to] = at[parent[to]]
		}
	}
	b.native, b.parent = native, parent
}

// merge removes an event that is the only one in an event of the same name, as PyTorch does: an operator and the kernel
// that it forwards to.
func (b *builder) merge() {
	children := make([]int, len(b.native))
	for _, p := range b.parent {
		if p >= 0 {
			children[p]++
		}
	}
	into := make([]int, len(b.native)) // of a removed event: its parent
	var order []int
	for i, e := range b.native {
		into[i] = i
		p := b.parent[i]
		if p >= 0 {
			p = into[p]
			b.parent[i] = p
		}
		if p >= 0 && children[p] == 1 && b.native[p].Name == e.Name {
			into[i], children[p] = p, children[i]
			continue
		}
		order = append(order, i)
	}
	b.keep(order)
}

// link indexes the nodes and the forward operators.
func (b *builder) link() {
	b.forward = map[threadSequence][]int{}
	b.sites = make([]uint32, len(b.native))
	b.node = make([]int, len(b.native))
	for i, e := range b.native {
		b.sites[i], b.node[i] = unset, -1
		if p := b.parent[i]; e.Kind == cshim.TraceBackward && p >= 0 && b.native[p].Kind == cshim.TraceOperator {
			b.node[p] = i
		}
	}
	for i, e := range b.native {
		if e.Kind == cshim.TraceOperator && e.Sequence >= 0 && b.node[i] < 0 {
			k := threadSequence{e.Thread, e.Sequence}
			b.forward[k] = append(b.forward[k], i)
		}
	}
}

// forwardOf returns the forward operator of a node or of the event that runs it: the last one before it with its number,
// or -1. Operators around that one have the same number.
func (b *builder) forwardOf(i int) int {
	if b.node[i] >= 0 {
		i = b.node[i]
	}
	e := &b.native[i]
	if e.ForwardThread == 0 || e.Sequence < 0 {
		return -1
	}
	list := b.forward[threadSequence{e.ForwardThread, e.Sequence}]
	n, _ := slices.BinarySearch(list, i)
	if n == 0 {
		return -1
	}
	return list[n-1]
}

// site returns the site of the line that an event belongs to.
func (b *builder) site(i int) uint32 {
	if b.sites[i] != unset {
		return b.sites[i]
	}
	e := &b.native[i]
	s := e.Site
	switch {
	case e.Inside != 0 && s != cshim.NoSite: // called by the program within a backward pass
	case b.forwardOf(i) >= 0:
		s = b.site(b.forwardOf(i))
	case b.parent[i] >= 0 && (s == cshim.NoSite || b.backward(b.parent[i])):
		s = b.site(b.parent[i])
	}
	b.sites[i] = s
	return s
}

// backward reports whether an event is a node or what runs it, or lies within one.
func (b *builder) backward(i int) bool {
	for ; i >= 0; i = b.parent[i] {
		if b.native[i].Kind == cshim.TraceBackward || b.node[i] >= 0 {
			return true
		}
	}
	return false
}

func (b *builder) text(n uint32) (string, error) {
	s, ok := b.texts[n]
	if !ok {
		var err error
		if s, err = cshim.TraceText(n); err != nil {
			return "", err
		}
		b.texts[n] = s
	}
	return s, nil
}

func (b *builder) event(events []Event, i int) (err error) {
	n := &b.native[i]
	site := b.site(i)
	place, ok := b.places[site]
	if !ok {
		place = sites.Of(site)
		b.places[site] = place
	}
	e := &events[i]
	*e = Event{
		Line: place.Line(), Operator: place.Operator, Range: n.Kind == cshim.TraceRange, Backward: b.backward(i), Thread: n.Thread,
		Parent: b.parent[i], Forward: -1, Sequence: n.Sequence, Began: time.Unix(0, n.StartNS), Time: time.Duration(n.EndNS - n.StartNS),
		CPUMemory: n.Bytes, DeviceMemory: n.DeviceBytes, site: site,
	}
	if n.Kind == cshim.TraceBackward {
		e.Forward = b.forwardOf(i)
	}
	e.SelfTime, e.SelfCPUMemory, e.SelfDeviceMemory = e.Time, e.CPUMemory, e.DeviceMemory
	if p := e.Parent; p >= 0 {
		events[p].SelfTime -= e.Time
		events[p].SelfCPUMemory -= e.CPUMemory
		events[p].SelfDeviceMemory -= e.DeviceMemory
	}
	if e.Name, err = b.text(n.Name); err != nil {
		return err
	}
	e.Shapes, err = b.text(n.Shapes)
	return err
}
