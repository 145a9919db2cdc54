package vram

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/nlpodyssey/gopickle/pickle"
	"github.com/nlpodyssey/gopickle/types"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

var history struct {
	sync.Mutex
	events uint64
	rate   int64 // of the profile, outside a history
}

func init() { history.rate = DefaultProfileRate }

// RecordHistory keeps the last n allocations and frees with their stacks, for [Snapshot]; 0 stops and forgets them. What
// an operator makes and frees on the way has a stack where the goroutine holds its thread, as in every scope.
// Meanwhile every block is sampled, which slows operators down; blocks of a CUDA device are kept without stacks. PyTorch:
// torch.cuda.memory._record_memory_history.
func RecordHistory(n int) error {
	if n < 0 {
		return fmt.Errorf("vram: a history of %d events", n)
	}
	if err := cshim.Load(); err != nil {
		return err
	}
	history.Lock()
	defer history.Unlock()
	if err := cshim.HistorySet(uint64(n)); err != nil {
		return err
	}
	if devices, _ := cshim.CUDA(); devices != 0 {
		if err := cshim.CUDARecordHistory(n != 0, int64(n)); err != nil {
			return err
		}
	}
	if history.events = uint64(n); n == 0 {
		cshim.SamplesSetRate(history.rate)
		sites.AttachEveryCall(false)
		return nil
	}
	sites.AttachEveryCall(true)
	cshim.SamplesSetRate(1)
	return nil
}

// Snapshot writes what is live and the history of [RecordHistory] as PyTorch's own snapshot, which its memory viewer
// (pytorch.org/memory_viz, or the script torch/cuda/_memory_viz.py) opens. A CUDA device has its own number there; the
// CPU has the number after the last CUDA device, and each of its blocks is a segment by itself. PyTorch:
// torch.cuda.memory._dump_snapshot.
func Snapshot(w io.Writer) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	devices, err := deviceSnapshot()
	if err != nil {
		return err
	}
	s := snapshotter{pickler: newPickler(), devices: devices, cpu: max(cshim.DeviceCount(1), devices.traces.Len()), places: map[uint32]*sites.Place{}}
	if err := s.read(); err != nil {
		return err
	}
	s.write()
	_, err = w.Write(s.bytes())
	return err
}

// deviceHistory is what PyTorch's allocator tells of its devices.
type deviceHistory struct {
	segments, traces, annotations *types.List
	settings                      any
}

func deviceSnapshot() (*deviceHistory, error) {
	d := &deviceHistory{&types.List{}, &types.List{}, &types.List{}, nil}
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
		return nil, fmt.Errorf("vram: the devices' snapshot cannot be read: %w", err)
	}
	dict, ok := v.(*types.Dict)
	if !ok {
		return nil, errors.New("vram: the devices' snapshot is no dict")
	}
	for name, list := range map[string]**types.List{"segments": &d.segments, "device_traces": &d.traces, "external_annotations": &d.annotations} {
		if v, ok := dict.Get(name); ok {
			if l, ok := v.(*types.List); ok {
				*list = l
			}
		}
	}
	d.settings, _ = dict.Get("allocator_settings")
	return d, nil
}

type snapshotter struct {
	*pickler
	devices *deviceHistory
	cpu     int // the CPU's number
	places  map[uint32]*sites.Place

	events []cshim.Event // the CPU's
	live   []cshim.Event
	memory cshim.Memory
}

// read takes the CPU's state. What happens meanwhile is set right by the events, which are taken last.
func (s *snapshotter) read() (err error) {
	live := map[uint64]cshim.Event{}
	for _, e := range cshim.HistoryLive() {
		if e.Device == cpuWord {
			live[e.Address] = e
		}
	}
	if s.memory, err = cshim.MemoryStats(cpuWord); err != nil {
		return err
	}
	sites := map[uint64]uint32{} // of what was allocated last at an address
	for _, e := range cshim.HistoryEvents() {
		if e.Device != cpuWord {
			continue
		}
		if e.Kind == 0 {
			live[e.Address], sites[e.Address] = e, e.Site
		} else {
			if site, ok := sites[e.Address]; ok {
				e.Site = site
			}
			delete(live, e.Address)
		}
		s.events = append(s.events, e)
	}
	for _, e := range live {
		s.live = append(s.live, e)
	}
	slices.SortFunc(s.live, func(a, b cshim.Event) int { return cmp.Compare(a.Address, b.Address) })
	return nil
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

// frames are a site's, innermost first, under the name of the operator.
func (s *snapshotter) frames(site uint32) func() {
	return func() {
		p := s.place(site)
		s.share(p, func() {
			extra := 0
			if p.Operator != "" && !p.Foreign {
				extra = 1
			}
			s.list(len(p.Frames)+extra, func(i int) {
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
			n := max(s.cpu, s.devices.traces.Len())
			s.list(n+1, func(i int) {
				switch {
				case i == s.cpu:
					s.trace()
				case i < s.devices.traces.Len():
					s.value((*s.devices.traces)[i])
				default:
					s.list(0, nil)
				}
			})
		},
		"allocator_settings", func() {
			if s.devices.settings != nil {
				s.value(s.devices.settings)
				return
			}
			s.fields("PYTORCH_CUDA_ALLOC_CONF", os.Getenv("PYTORCH_CUDA_ALLOC_CONF"), "max_split_size", -1,
				"garbage_collection_threshold", 0.0, "expandable_segments", false, "roundup_power2_divisions", func() { s.dict(0, nil) })
		},
		"external_annotations", s.devices.annotations,
	)
}

// segments are the CUDA devices', the CPU's blocks, what the CPU had given out before the history, and what its
// allocator keeps.
func (s *snapshotter) segments() {
	var known, asked int64
	for i := range s.live {
		e := &s.live[i]
		e.Asked = min(e.Asked, e.Bytes)
		known, asked = known+e.Bytes, asked+e.Asked
	}
	list := []func(){}
	for _, v := range *s.devices.segments {
		list = append(list, func() { s.value(v) })
	}
	for _, e := range s.live {
		list = append(list, func() { s.segment(e.Address, e.Bytes, e.Asked, true, s.frames(e.Site)) })
	}
	none := func() { s.list(0, nil) }
	at := uint64(1 << 12) // no block is as low
	if rest := s.memory.Allocated - known; rest > 0 {
		start := at
		list = append(list, func() { s.segment(start, rest, max(0, min(rest, s.memory.Requested-asked)), true, none) })
		at += uint64(rest)
	}
	if s.memory.Cached > 0 {
		list = append(list, func() { s.segment(at, s.memory.Cached, 0, false, none) })
	}
	s.list(len(list), func(i int) { list[i]() })
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
		"requested_size", asked, "stream", 0, "segment_type", kind, "segment_pool_id", func() { s.op('K', 0, 'K', 0, 0x86) },
		"is_expandable", false, "frames", frames, "blocks", func() {
			s.list(1, func(int) {
				s.fields("address", int64(address), "size", bytes, "requested_size", asked, "state", state, "frames", frames)
			})
		})
}

// trace writes each event as the viewer expects it: a block of the CPU's is a segment of its own.
func (s *snapshotter) trace() {
	type entry struct {
		action string
		e      *cshim.Event
	}
	entries := make([]entry, 0, 3*len(s.events))
	for i := range s.events {
		e := &s.events[i]
		if e.Kind == 0 {
			entries = append(entries, entry{"segment_alloc", e}, entry{"alloc", e})
		} else {
			entries = append(entries, entry{"free_requested", e}, entry{"free_completed", e}, entry{"segment_free", e})
		}
	}
	s.list(len(entries), func(i int) {
		e := entries[i].e
		s.fields("action", entries[i].action, "addr", int64(e.Address), "size", e.Bytes, "stream", 0, "time_us", e.TimeNS/1000,
			"compile_context", "N/A", "user_metadata", s.place(e.Site).Operator, "frames", s.frames(e.Site))
	})
}
