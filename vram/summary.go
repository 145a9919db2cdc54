package vram

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/linstock-ml/linstock/cshim"
)

// Summary returns the counters of a device as a table, followed by those of sweeps and waits. A dash marks what the allocator
// does not count. PyTorch: torch.cuda.memory_summary.
func Summary(d Device) (string, error) {
	m, err := Stats(d)
	if err != nil {
		return "", err
	}
	c := ReadCounts()
	w, _ := word(d)
	t := table.NewWriter()
	t.SetTitle("Linstock memory summary, device %s\nall devices: %d OOMs | %d retries after a wait", nameOf(w), c.OOMs, c.Retries)
	style := table.StyleDefault
	style.Title.Align = text.AlignCenter
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.AppendHeader(table.Row{"Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed"})
	right := []table.ColumnConfig{}
	for i := 2; i <= 5; i++ {
		right = append(right, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	const none = "-"
	total, err := cshim.MemoryStats(w)
	if err != nil {
		return "", err
	}
	var given, freed any = size(total.Total), size(max(0, total.Total-m.Allocated))
	if w != cpuWord {
		given, freed = none, none
	}
	t.AppendRow(table.Row{"Allocated memory", size(m.Allocated), size(max(m.Peak, m.Allocated)), given, freed})
	t.AppendRow(table.Row{"Active memory", size(m.Active), none, none, none})
	t.AppendRow(table.Row{"Requested memory", size(m.Requested), none, none, none})
	t.AppendRow(table.Row{"Reserved memory", size(m.Reserved), none, none, none})
	t.AppendRow(table.Row{"Cached memory", size(m.Cached), none, none, none})
	t.AppendRow(table.Row{"Everything else", size(m.Other), size(m.PeakOther), none, none})
	t.AppendRow(table.Row{"Reachable at last sweep", size(m.Reachable), none, none, none})
	t.AppendSeparator()
	t.AppendRow(table.Row{"Allocations", m.Allocations - m.Frees, none, m.Allocations, m.Frees})
	t.AppendRow(table.Row{"Tensors (all devices)", total.Handles, total.MostHandles, total.Created, total.Created - total.Handles})
	t.AppendSeparator()
	bound := func(n int64) string {
		if n == 0 {
			return "none"
		}
		return size(n)
	}
	t.AppendRow(table.Row{"Limit", bound(m.Limit), none, none, none})
	t.AppendRow(table.Row{"Soft limit", bound(m.SoftLimit), none, none, none})
	var b strings.Builder
	b.WriteString(t.Render())
	fmt.Fprintf(&b, "\nsweeps: %d light, %d full, %d deep, freed %s in %s (%.1f %% of the time)\n",
		c.Light, c.Full, c.Deep, size(c.Freed), round(c.Sweeping), 100*sweepShare(c))
	fmt.Fprintf(&b, "waits for memory: %d, %s, %d out of time\n", c.Waits, round(c.WaitTime), c.Timeouts)
	for _, y := range Yields() {
		fmt.Fprintf(&b, "reclaimed: %s from %s in %d calls, %s\n", size(y.Bytes), y.Name, y.Calls, round(y.Time))
	}
	return b.String(), nil
}
