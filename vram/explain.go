package vram

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// Storage is a block of memory that tensors are views of.
type Storage struct {
	Device  Name
	Address uint64
	Bytes   int64
}

// Category claims live storages for [Explain]. Package tensor registers those of tensors; a program uses tensor.Track.
type Category struct {
	Name string
	// Rank decides where two claim one storage: the lower has it. Linstock's own are negative, and those of tensors in
	// scopes 100 and more.
	Rank int
	// Each gives every storage that the category has now, on all devices; it may give one more than once.
	Each func(yield func(Storage))
}

// The names of Linstock's own parts.
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

var categories struct {
	sync.Mutex
	list []*Category
}

// RegisterCategory adds a category and returns what takes it away again. Those of one name count as one.
func RegisterCategory(c Category) (unregister func()) {
	categories.Lock()
	defer categories.Unlock()
	reg := &c
	categories.list = append(slices.Clone(categories.list), reg)
	slices.SortStableFunc(categories.list, func(a, b *Category) int { return cmp.Compare(a.Rank, b.Rank) })
	return func() {
		categories.Lock()
		defer categories.Unlock()
		categories.list = slices.DeleteFunc(slices.Clone(categories.list), func(c *Category) bool { return c == reg })
	}
}

// Part is what one category has of a device's memory.
type Part struct {
	Name     string
	Bytes    int64
	Storages int64 // 0 where they are not counted
}

// Explanation says what a device's memory is used for. Its parts make up Reserved, as long as no other goroutine
// computes meanwhile.
type Explanation struct {
	Device              Name
	Allocated, Reserved int64
	// Parts have at least weights, gradients, optimizer state, loader, buffers, activations, temporaries,
	// fragmentation and cache. Activations are what operators in open scopes have made with a gradient to
	// come, and what is live without being in any other part: what graphs have saved, and tensors outside scopes.
	// Temporaries are the other tensors in open scopes. Fragmentation is what the allocator has added to blocks.
	Parts []Part
	// Unscoped is about how many tensors outside scopes there are among the activations; 0: graphs alone hold them.
	Unscoped int64
}

// Explain attributes what is live on a device to what it is for. It looks at every tensor in a scope or a category and
// is for reports, not for each step. Programs that do not call it pay nothing for it.
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
	categories.Lock()
	list := categories.list
	categories.Unlock()
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
	for _, c := range list {
		p := part(c.Name)
		c.Each(func(s Storage) {
			if s.Device == e.Device && !seen[s.Address] {
				seen[s.Address] = true
				p.Bytes += s.Bytes
				p.Storages++
				claimed += s.Bytes
			}
		})
	}
	part(Activations).Bytes += max(0, m.Requested-claimed)
	part(Fragmentation).Bytes += max(0, m.Allocated-m.Requested)
	part(Cache).Bytes += max(0, m.Reserved-m.Allocated)
	if m.Requested > claimed {
		e.Unscoped = reclaim.Unscoped()
	}
	return e, nil
}

// Part is the part of a name; one without bytes where there is none.
func (e Explanation) Part(name string) Part {
	for _, p := range e.Parts {
		if p.Name == name {
			return p
		}
	}
	return Part{Name: name}
}

// String is the explanation as a table.
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
		fmt.Fprintf(&b, "About %d tensors are outside every scope: what they hold stands under activations.\n", e.Unscoped)
	}
	return b.String()
}
