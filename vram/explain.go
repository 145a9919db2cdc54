package vram

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// The categories of Linstock, for [Explanation.Part] and tensor.Track.
const (
	Weights        = "weights"
	Buffers        = "buffers"
	Gradients      = "gradients"
	OptimizerState = "optimizer state"
	Loader         = "loader"
	Activations    = "activations"
	Temporaries    = "temporaries"
	Fragmentation  = "fragmentation"
	Cache          = "cache"
)

// Part is the memory of one category on a device.
type Part struct {
	Name     string
	Bytes    int64
	Storages int64 // 0 if they are not counted
}

// Explanation is the memory of a device by category. The sum of the parts is Reserved, unless another goroutine allocates
// meanwhile.
type Explanation struct {
	Device              Name
	Allocated, Reserved int64
	// Parts has at least weights, gradients, optimizer state, loader, buffers, activations, temporaries, fragmentation and
	// cache. Activations are the tensors in open scopes that have a grad_fn, and everything that is in no other part:
	// tensors that graphs have saved, tensors outside scopes, and on a CUDA device blocks that were freed but that a stream
	// still uses. Temporaries are the other tensors in open scopes, also leaves that require a gradient. Fragmentation is
	// what the allocator adds to round sizes up. Memory that is not the allocator's is in no part: that of
	// tensor.FromMapped, such as the pages of a file, and page-locked memory.
	Parts []Part
	// Unscoped is the approximate number of tensors outside scopes, on all devices. Those on Device may be among the
	// activations.
	Unscoped int64
}

// Explain returns the memory of a device by category. It visits every tensor in a scope or a category, so it is for reports,
// not for each step. It costs nothing unless it is called. It waits while the Go collector runs in a sweep. A gradient that
// another goroutine reads or writes at that moment is among the activations.
func Explain(d Device) (Explanation, error) {
	w, err := loaded(d)
	if err != nil {
		return Explanation{}, err
	}
	m, err := cshim.MemoryStats(w)
	if err != nil {
		return Explanation{}, err
	}
	e := Explanation{Device: nameOf(w), Allocated: m.Allocated, Reserved: m.Reserved}
	at := map[string]int{}
	part := func(name string) *Part {
		i, ok := at[name]
		if !ok {
			i = len(e.Parts)
			at[name] = i
			e.Parts = append(e.Parts, Part{Name: name})
		}
		return &e.Parts[i]
	}
	for _, name := range []string{Weights, Gradients, OptimizerState, Loader, Buffers} {
		part(name)
	}
	seen := map[uint64]bool{}
	var claimed int64
	for _, c := range reclaim.Categories() {
		p := part(c.Name)
		c.Each(func(s reclaim.Storage) {
			if s.Device == w && !seen[s.Address] {
				seen[s.Address] = true
				p.Bytes += s.Bytes
				p.Storages++
				claimed += s.Bytes
			}
		})
	}
	part(Activations).Bytes += max(0, m.Requested-claimed)
	part(Fragmentation).Bytes += max(0, m.Active-m.Requested)
	part(Cache).Bytes += max(0, m.Reserved-m.Active)
	if m.Requested > claimed {
		e.Unscoped = reclaim.Unscoped()
	}
	return e, nil
}

// Part returns the part with a name, or an empty one with that name.
func (e Explanation) Part(name string) Part {
	for _, p := range e.Parts {
		if p.Name == name {
			return p
		}
	}
	return Part{Name: name}
}

// String returns the explanation as a table.
func (e Explanation) String() string {
	t := table.NewWriter()
	t.SetTitle("%s: %s live, %s reserved", e.Device, size(e.Allocated), size(e.Reserved))
	style := table.StyleDefault
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.AppendHeader(table.Row{"For", "Bytes", "Share", "Storages"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, Align: text.AlignRight}, {Number: 3, Align: text.AlignRight}, {Number: 4, Align: text.AlignRight}})
	for _, p := range e.Parts {
		storages := ""
		if p.Storages != 0 {
			storages = fmt.Sprint(p.Storages)
		}
		t.AppendRow(table.Row{p.Name, size(p.Bytes), fmt.Sprintf("%.1f %%", 100*float64(p.Bytes)/float64(max(1, e.Reserved))), storages})
	}
	var b strings.Builder
	b.WriteString(t.Render())
	b.WriteString("\n")
	if e.Unscoped > 0 {
		fmt.Fprintf(&b, "About %d tensors, on all devices, are outside every scope; they count as activations.\n", e.Unscoped)
	}
	return b.String()
}
