package profiler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/internal/options"
)

// A GroupOption is an option of KeyAverages.
type GroupOption func(*grouping)

type grouping struct{ shapes, line bool }

// GroupByInputShape makes a row for each combination of sizes of the operands, which RecordShapes has recorded; off by
// default. PyTorch: group_by_input_shape=True.
func GroupByInputShape(on ...bool) GroupOption {
	return func(g *grouping) { g.shapes = options.On(on) }
}

// GroupByLine makes a row for each line of the program; off by default. PyTorch: group_by_stack_n=1.
func GroupByLine(on ...bool) GroupOption { return func(g *grouping) { g.line = options.On(on) } }

// An Average is a row of a table: the events of one name.
type Average struct {
	Name          string
	Shapes        string // with GroupByInputShape
	Line          string // with GroupByLine
	Count         int
	CPUTime       time.Duration // the sum of Event.Time
	SelfCPUTime   time.Duration // the sum of Event.SelfTime
	CPUMemory     int64         // the sums of the fields of Event
	SelfCPUMemory int64

	DeviceMemory, SelfDeviceMemory int64
}

// Averages are the rows of a table, in the order in which the first event of each began.
type Averages []Average

// KeyAverages sums the events by name. Options: GroupByInputShape, GroupByLine; a nil one has no effect. PyTorch:
// torch.profiler.profile.key_averages.
func (t *Trace) KeyAverages(opts ...GroupOption) Averages {
	if t == nil {
		return nil
	}
	var g grouping
	for _, o := range opts {
		if o != nil {
			o(&g)
		}
	}
	type key struct{ name, shapes, line string }
	rows := map[key]int{}
	var all Averages
	for i := range t.Events {
		e := &t.Events[i]
		k := key{name: e.Name}
		if g.shapes {
			k.shapes = e.Shapes
		}
		if g.line {
			k.line = e.Line
		}
		row, ok := rows[k]
		if !ok {
			row = len(all)
			rows[k] = row
			all = append(all, Average{Name: k.name, Shapes: k.shapes, Line: k.line})
		}
		a := &all[row]
		a.Count++
		a.CPUTime += e.Time
		a.SelfCPUTime += e.SelfTime
		a.CPUMemory += e.CPUMemory
		a.SelfCPUMemory += e.SelfCPUMemory
		a.DeviceMemory += e.DeviceMemory
		a.SelfDeviceMemory += e.SelfDeviceMemory
	}
	return all
}

// SortKey is a column by which Table sorts.
type SortKey int

// The columns, largest first. FirstCall is the default.
const (
	FirstCall             SortKey = iota
	CPUTimeTotal                  // "cpu_time_total"
	SelfCPUTimeTotal              // "self_cpu_time_total"
	CPUTimeAvg                    // "cpu_time"
	CPUMemoryUsage                // "cpu_memory_usage"
	SelfCPUMemoryUsage            // "self_cpu_memory_usage"
	DeviceMemoryUsage             // "device_memory_usage"
	SelfDeviceMemoryUsage         // "self_device_memory_usage"
	Calls                         // "count"
)

func (k SortKey) of(a *Average) int64 {
	switch k {
	case CPUTimeTotal:
		return int64(a.CPUTime)
	case SelfCPUTimeTotal:
		return int64(a.SelfCPUTime)
	case CPUTimeAvg:
		return int64(a.CPUTime) / int64(max(1, a.Count))
	case CPUMemoryUsage:
		return a.CPUMemory
	case SelfCPUMemoryUsage:
		return a.SelfCPUMemory
	case DeviceMemoryUsage:
		return a.DeviceMemory
	case SelfDeviceMemoryUsage:
		return a.SelfDeviceMemory
	case Calls:
		return int64(a.Count)
	}
	return 0
}

// A TableOption is an option of Table.
type TableOption func(*table)

type table struct {
	by    SortKey
	limit int
}

// SortBy sorts the rows by a column.
func SortBy(k SortKey) TableOption { return func(t *table) { t.by = k } }

// RowLimit leaves out the rows after the first n; a negative n leaves out none. The default is 100.
func RowLimit(n int) TableOption { return func(t *table) { t.limit = n } }

// column is a column of a table: its title, its least width, and its text for a row.
type column struct {
	title string
	width int
	text  func(a *Average) string
}

// Table returns the rows as PyTorch prints them. Percentages are of the time of all operators, which the last line gives. Columns
// for the memory of devices, shapes and lines are there if there is something in them. Options: SortBy, RowLimit; a nil one has
// no effect. PyTorch: table.
func (as Averages) Table(opts ...TableOption) string {
	t := table{limit: 100}
	for _, o := range opts {
		if o != nil {
			o(&t)
		}
	}
	var total time.Duration
	for i := range as {
		total += as[i].SelfCPUTime
	}
	rows := slices.Clone(as)
	slices.SortStableFunc(rows, func(a, b Average) int { return cmp.Compare(t.by.of(&b), t.by.of(&a)) })
	if t.limit >= 0 {
		rows = rows[:min(t.limit, len(rows))]
	}
	return render(columns(as, total), rows) + "Self CPU time total: " + microseconds(total) + "\n"
}

// String returns the Table without options.
func (as Averages) String() string { return as.Table() }

func columns(as Averages, total time.Duration) []column {
	const width = 12 // as in PyTorch
	has := func(f func(a *Average) bool) bool {
		return slices.ContainsFunc(as, func(a Average) bool { return f(&a) })
	}
	list := []column{
		{"Name", width, func(a *Average) string { return cut(a.Name) }},
		{"Self CPU %", width, func(a *Average) string { return percent(a.SelfCPUTime, total) }},
		{"Self CPU", width, func(a *Average) string { return microseconds(a.SelfCPUTime) }},
		{"CPU total %", width, func(a *Average) string { return percent(a.CPUTime, total) }},
		{"CPU total", width, func(a *Average) string { return microseconds(a.CPUTime) }},
		{"CPU time avg", width, func(a *Average) string { return microseconds(a.CPUTime / time.Duration(max(1, a.Count))) }},
		{"CPU Mem", width, func(a *Average) string { return bytes(a.CPUMemory) }},
		{"Self CPU Mem", width, func(a *Average) string { return bytes(a.SelfCPUMemory) }},
	}
	if has(func(a *Average) bool { return a.DeviceMemory != 0 || a.SelfDeviceMemory != 0 }) {
		list = append(list,
			column{"Device Mem", width, func(a *Average) string { return bytes(a.DeviceMemory) }},
			column{"Self Device Mem", width, func(a *Average) string { return bytes(a.SelfDeviceMemory) }})
	}
	list = append(list, column{"# of Calls", width, func(a *Average) string { return fmt.Sprint(a.Count) }})
	if has(func(a *Average) bool { return a.Shapes != "" }) {
		list = append(list, column{"Input Shapes", width, func(a *Average) string {
			if a.Shapes == "" {
				return "[]"
			}
			return a.Shapes
		}})
	}
	if has(func(a *Average) bool { return a.Line != "" }) {
		list = append(list, column{"Line", width, func(a *Average) string { return a.Line }})
	}
	return list
}

// render aligns the columns to the right, but the last, if it is the line, to the left.
func render(list []column, rows Averages) string {
	var b strings.Builder
	for i := range list {
		c := &list[i]
		c.width = max(c.width, len(c.title))
		for r := range rows {
			c.width = max(c.width, len(c.text(&rows[r])))
		}
	}
	put := func(text func(c *column) string) {
		var line strings.Builder
		for i := range list {
			c := &list[i]
			if c.title == "Line" {
				fmt.Fprintf(&line, "%-*s  ", c.width, text(c))
			} else {
				fmt.Fprintf(&line, "%*s  ", c.width, text(c))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	rule := func(c *column) string { return strings.Repeat("-", c.width) }
	put(rule)
	put(func(c *column) string { return c.title })
	put(rule)
	for i := range rows {
		put(func(c *column) string { return c.text(&rows[i]) })
	}
	put(rule)
	return b.String()
}

// cut shortens a name to the width of PyTorch's column.
func cut(name string) string {
	const most = 55
	if r := []rune(name); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return name
}

func percent(d, total time.Duration) string {
	if total == 0 {
		return "NaN"
	}
	return fmt.Sprintf("%.2f%%", 100*float64(d)/float64(total))
}

func microseconds(d time.Duration) string {
	switch us := float64(d) / 1e3; {
	case us >= 1e6:
		return fmt.Sprintf("%.3fs", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.3fms", us/1e3)
	default:
		return fmt.Sprintf("%.3fus", us)
	}
}

func bytes(n int64) string {
	size := max(n, -n)
	switch {
	case size >= 1<<30:
		return fmt.Sprintf("%.2f GB", float64(n)/(1<<30))
	case size >= 1<<20:
		return fmt.Sprintf("%.2f MB", float64(n)/(1<<20))
	case size >= 1<<10:
		return fmt.Sprintf("%.2f KB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
