package vram

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

var history struct {
	sync.Mutex
	on   atomic.Bool
	rate int64 // of the profile, outside a history
}

func init() { history.rate = DefaultProfileRate }

// RecordHistory starts to record the last n events of each device for [Snapshot]: allocations and frees with the Go stack of
// the allocation, segments that a CUDA device's allocator takes and returns, and out-of-memory errors. 0 stops recording
// and drops the events. Temporary blocks of an operator have a stack if the goroutine is locked to its thread, as in every
// scope. Recording samples every block, which makes operators slower. PyTorch:
// torch.cuda.memory._record_memory_history.
func RecordHistory(n int) error {
	if n < 0 {
		return refused("RecordHistory: want 0 events or more, got %d", n)
	}
	if err := cshim.Load(); err != nil {
		return err
	}
	history.Lock()
	defer history.Unlock()
	if err := cshim.HistorySet(uint64(n)); err != nil {
		return err
	}
	if on := n != 0; history.on.Swap(on) != on {
		sites.AttachEveryCall(on)
	}
	if n == 0 {
		cshim.SamplesSetRate(history.rate)
	} else {
		cshim.SamplesSetRate(1)
	}
	return nil
}

// Snapshot writes the live blocks and the history of [RecordHistory] in the format of PyTorch's snapshots. PyTorch's memory
// viewer (pytorch.org/memory_viz, or the script torch/cuda/_memory_viz.py) opens it. The frames of blocks and events are
// the Go stacks of the allocations. CUDA devices keep their numbers; the CPU has the number after the last CUDA device,
// and each of its blocks is a segment. PyTorch: torch.cuda.memory._dump_snapshot.
func Snapshot(w io.Writer) error {
	if w == nil {
		return refused("Snapshot: a writer is needed, got nil")
	}
	if err := cshim.Load(); err != nil {
		return err
	}
	caching, err := readCachingState()
	if err != nil {
		return err
	}
	s := snapshotter{pickler: newPickler(), caching: caching, cpu: max(cshim.DeviceCount(1), caching.devices), places: map[uint32]*sites.Place{},
		histories: map[int32]*deviceHistory{}}
	if err := s.read(); err != nil {
		return err
	}
	s.write()
	_, err = w.Write(s.Bytes())
	return err
}

// outOfMemoryEvent adds an out-of-memory error to the history of [RecordHistory], with the stack of the caller.
func outOfMemoryEvent(device int32, asked, free int64) {
	if history.on.Load() {
		// This also attributes what the operator had allocated; otherwise the next operator would.
		_ = cshim.HistoryOutOfMemory(device, asked, max(0, free), sites.Attach(0))
	}
}

// cachingState is the state of PyTorch's caching allocator.
type cachingState struct {
	devices               int // the number of devices that it manages
	segments, annotations *types.List
	settings              any
}

func readCachingState() (*cachingState, error) {
	d := &cachingState{0, &types.List{}, &types.List{}, nil}
	if n, _ := cshim.CUDA(); n == 0 {
		return d, nil
	}
	text, err := cshim.CUDASnapshot()
	if err != nil || len(text) == 0 { // empty: no device has been used
		return d, err
	}
	u := pickle.NewUnpickler(bytes.NewReader(text))
	v, err := u.Load()
	if err != nil {
		return nil, fmt.Errorf("linstock: vram: the devices' snapshot cannot be read: %w", err)
	}
	dict, ok := v.(*types.Dict)
	if !ok {
		return nil, errors.New("linstock: vram: the snapshot of the CUDA devices is not a dict")
	}
	traces := &types.List{}
	for name, list := range map[string]**types.List{"segments": &d.segments, "device_traces": &traces, "external_annotations": &d.annotations} {
		if v, ok := dict.Get(name); ok {
			if l, ok := v.(*types.List); ok {
				*list = l
			}
		}
	}
	d.devices = traces.Len()
	d.settings, _ = dict.Get("allocator_settings")
	return d, nil
}

// deviceHistory is the history of one device.
type deviceHistory struct {
	events []cshim.Event
	live   map[uint64]cshim.Event // live blocks by address; for a CUDA device, those when its segments were read
	stacks map[uint64]uint32      // sites of segments by address
}

type snapshotter struct {
	*pickler
	caching *cachingState
	cpu     int // the CPU's number
	places  map[uint32]*sites.Place

	histories map[int32]*deviceHistory // by device word
	blocks    []cshim.Event            // live blocks of the CPU
	memory    cshim.Memory
}

func (s *snapshotter) of(device int32) *deviceHistory {
	h := s.histories[device]
	if h == nil {
		h = &deviceHistory{live: map[uint64]cshim.Event{}, stacks: map[uint64]uint32{}}
		s.histories[device] = h
	}
	return h
}

// read reads the state of the shim. It reads the events last and applies them to the live blocks, since allocations continue.
func (s *snapshotter) read() (err error) {
	for _, e := range cshim.HistoryLive() {
		s.of(e.Device).live[e.Address] = e
	}
	if s.memory, err = cshim.MemoryStats(cpuWord); err != nil {
		return err
	}
	for _, e := range cshim.HistoryEvents() {
		h := s.of(e.Device)
		h.events = append(h.events, e)
	}
	for device, h := range s.histories {
		h.name()
		if device == cpuWord {
			h.after(h.events)
			continue
		}
		// The segments are those of the last snapshot: events after it are undone.
		for i := len(h.events) - 1; i >= 0; i-- {
			if h.events[i].Kind == cshim.SnapshotTaken {
				h.before(h.events[i+1:])
				h.events = h.events[:i+1]
				break
			}
		}
	}
	for _, e := range s.of(cpuWord).live {
		s.blocks = append(s.blocks, e)
	}
	slices.SortFunc(s.blocks, func(a, b cshim.Event) int { return cmp.Compare(a.Address, b.Address) })
	return nil
}

// name sets the site of a free to that of its allocation, and the site of a segment to that of the block it was taken for.
func (h *deviceHistory) name() {
	made := map[uint64]uint32{}          // the site of the last allocation at an address
	taken := map[uint32][]*cshim.Event{} // new segments by thread; the thread's next allocation uses them
	for i := range h.events {
		switch e := &h.events[i]; e.Kind {
		case cshim.Allocated:
			made[e.Address] = e.Site
			for _, segment := range taken[e.Thread] {
				segment.Site = e.Site
				h.stacks[segment.Address] = e.Site
			}
			delete(taken, e.Thread)
		case cshim.Freed, cshim.FreeRequested:
			if site, ok := made[e.Address]; ok {
				e.Site = site
			} else if b, ok := h.live[e.Address]; ok && e.Kind == cshim.FreeRequested {
				e.Site = b.Site
			}
		case cshim.SegmentAllocated, cshim.SegmentMapped:
			taken[e.Thread] = append(taken[e.Thread], e)
		}
	}
}

// after applies events to the live blocks.
func (h *deviceHistory) after(events []cshim.Event) {
	for _, e := range events {
		switch e.Kind {
		case cshim.Allocated:
			h.live[e.Address] = e
		case cshim.Freed:
			delete(h.live, e.Address)
		}
	}
}

// before undoes events in the live blocks.
func (h *deviceHistory) before(events []cshim.Event) {
	for _, e := range slices.Backward(events) {
		switch e.Kind {
		case cshim.Allocated:
			delete(h.live, e.Address)
		case cshim.Freed:
			h.live[e.Address] = e
		}
	}
}

func (s *snapshotter) place(site uint32) *sites.Place {
	p := s.places[site]
	if p == nil {
		at := sites.Of(site)
		p = &at
		s.places[site] = p
	}
	return p
}

// frames returns a function that writes the frames of a site, the innermost first, below one for the operator.
func (s *snapshotter) frames(site uint32) func() {
	return func() {
		p := s.place(site)
		s.Share(p, func() {
			extra := 0
			if p.Operator != "" && !p.Foreign {
				extra = 1
			}
			s.List(len(p.Frames)+extra, func(i int) {
				if i < extra {
					s.fields("name", p.Operator, "filename", "linstock", "line", 0)
					return
				}
				f := p.Frames[i-extra]
				s.fields("name", f.Function, "filename", f.File, "line", f.Line)
			})
		})
	}
}

func (s *snapshotter) write() {
	s.fields(
		"segments", func() { s.segments() },
		"device_traces", func() {
			s.List(s.cpu+1, func(i int) {
				if i == s.cpu {
					s.trace()
				} else {
					s.deviceTrace(s.of(1<<8 | int32(i)))
				}
			})
		},
		"allocator_settings", func() {
			if s.caching.settings != nil {
				s.value(s.caching.settings)
				return
			}
			s.fields("PYTORCH_CUDA_ALLOC_CONF", os.Getenv("PYTORCH_CUDA_ALLOC_CONF"), "max_split_size", -1,
				"garbage_collection_threshold", 0.0, "expandable_segments", false, "roundup_power2_divisions", func() { s.Dict(0, nil) })
		},
		"external_annotations", s.caching.annotations,
	)
}

// segments writes the segments of the CUDA devices, the blocks of the CPU, the CPU's memory from before the history, and the
// cache of its allocator.
func (s *snapshotter) segments() {
	var known, asked int64
	for i := range s.blocks {
		e := &s.blocks[i]
		e.Asked = min(e.Asked, e.Bytes)
		known, asked = known+e.Bytes, asked+e.Asked
	}
	list := []func(){}
	for _, v := range *s.caching.segments {
		list = append(list, func() { s.deviceSegment(v) })
	}
	for _, e := range s.blocks {
		list = append(list, func() { s.segment(e.Address, e.Bytes, e.Asked, true, s.frames(e.Site)) })
	}
	none := func() { s.List(0, nil) }
	at := uint64(1 << 12) // no block is as low
	if rest := s.memory.Allocated - known; rest > 0 {
		start := at
		list = append(list, func() { s.segment(start, rest, max(0, min(rest, s.memory.Requested-asked)), true, none) })
		at += uint64(rest)
	}
	if s.memory.Cached > 0 {
		list = append(list, func() { s.segment(at, s.memory.Cached, 0, false, none) })
	}
	s.List(len(list), func(i int) { list[i]() })
}

func (s *snapshotter) segment(address uint64, bytes, asked int64, live bool, frames func()) {
	kind, state, allocated := "large", "active_allocated", bytes
	if bytes < 1<<20 {
		kind = "small"
	}
	if !live {
		state, allocated = "inactive", 0
	}
	s.fields("device", s.cpu, "address", int64(address), "total_size", bytes, "allocated_size", allocated, "active_size", allocated,
		"requested_size", asked, "stream", 0, "segment_type", kind, "segment_pool_id", func() { s.Op('K', 0, 'K', 0, 0x86) },
		"is_expandable", false, "frames", frames, "blocks", func() {
			s.List(1, func(int) {
				s.fields("address", int64(address), "size", bytes, "requested_size", asked, "state", state, "frames", frames)
			})
		})
}

// deviceSegment writes a segment of PyTorch's allocator, with the stacks of its blocks and its own.
func (s *snapshotter) deviceSegment(v any) {
	segment, ok := v.(*types.Dict)
	if !ok {
		s.value(v)
		return
	}
	h := s.of(1<<8 | int32(number(segment, "device")))
	address := number(segment, "address")
	s.with(segment, h.stacks, address, "blocks", func(v any) {
		blocks, ok := v.(*types.List)
		if !ok {
			s.value(v)
			return
		}
		at := address
		s.List(blocks.Len(), func(i int) {
			block, ok := (*blocks)[i].(*types.Dict)
			if !ok {
				s.value((*blocks)[i])
				return
			}
			stacks := map[uint64]uint32{}
			if state, _ := block.Get("state"); state != "inactive" {
				if e, ok := h.live[uint64(at)]; ok {
					stacks[e.Address] = e.Site
				}
			}
			s.with(block, stacks, at, "", nil)
			at += number(block, "size")
		})
	})
}

// with writes a dict, with the frames of an address in place of its own. write writes the value of the key special.
func (s *snapshotter) with(d *types.Dict, stacks map[uint64]uint32, address int64, special string, write func(any)) {
	kv := []any{}
	for _, e := range *d {
		switch e.Key {
		case "frames":
		case special:
			kv = append(kv, e.Key, func() { write(e.Value) })
		default:
			kv = append(kv, e.Key, e.Value)
		}
	}
	site, ok := stacks[uint64(address)]
	if !ok {
		site = cshim.NoSite
	}
	s.fields(append(kv, "frames", s.frames(site))...)
}

// number returns an integer of a dict.
func number(d *types.Dict, name string) int64 {
	v, _ := d.Get(name)
	switch v := v.(type) {
	case int:
		return int64(v)
	case int64:
		return v
	case *big.Int:
		return v.Int64()
	}
	return 0
}

var actions = map[cshim.EventKind]string{
	cshim.Allocated: "alloc", cshim.Freed: "free_completed", cshim.FreeRequested: "free_requested",
	cshim.SegmentAllocated: "segment_alloc", cshim.SegmentFreed: "segment_free", cshim.SegmentMapped: "segment_map",
	cshim.SegmentUnmapped: "segment_unmap", cshim.SnapshotTaken: "snapshot", cshim.NoMemory: "oom",
}

// deviceTrace writes the events of a CUDA device.
func (s *snapshotter) deviceTrace(h *deviceHistory) {
	s.List(len(h.events), func(i int) { s.entry(actions[h.events[i].Kind], &h.events[i]) })
}

// trace writes the events of the CPU. For the viewer each block is also a segment.
func (s *snapshotter) trace() {
	type entry struct {
		action string
		e      *cshim.Event
	}
	events := s.of(cpuWord).events
	entries := make([]entry, 0, 3*len(events))
	for i := range events {
		e := &events[i]
		switch e.Kind {
		case cshim.Allocated:
			entries = append(entries, entry{"segment_alloc", e}, entry{"alloc", e})
		case cshim.Freed:
			entries = append(entries, entry{"free_requested", e}, entry{"free_completed", e}, entry{"segment_free", e})
		default:
			entries = append(entries, entry{actions[e.Kind], e})
		}
	}
	s.List(len(entries), func(i int) { s.entry(entries[i].action, entries[i].e) })
}

func (s *snapshotter) entry(action string, e *cshim.Event) {
	address := "addr"
	if e.Kind == cshim.NoMemory {
		address = "device_free"
	}
	s.fields("action", action, address, int64(e.Address), "size", e.Bytes, "stream", int64(e.Stream), "time_us", e.TimeNS/1000,
		"compile_context", "N/A", "user_metadata", s.place(e.Site).Operator, "frames", s.frames(e.Site))
}
