package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/linstock-ml/linstock/tensor"
)

func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

// newTable returns an empty table whose columns from the second on are right-aligned, except those in left.
func newTable(title string, columns int, left ...int) table.Writer {
	t := table.NewWriter()
	t.SetTitle("%s", title)
	style := table.StyleDefault
	style.Format.Header = text.FormatDefault
	style.Size.WidthMin = len("| ") + text.StringWidth(title) + len(" |") // a longer title would be broken within words
	t.SetStyle(style)
	var c []table.ColumnConfig
	for i := 2; i <= columns; i++ {
		if !slices.Contains(left, i) {
			c = append(c, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.SetColumnConfigs(c)
	return t
}

func row(cells ...any) table.Row { return cells }

// String returns the plan as tables: the parts by dtype, the bytes of a rank, the largest blocks and the remedies.
func (p *Plan) String() string {
	if p == nil {
		return "<nil>"
	}
	seen := map[tensor.DType]bool{}
	for _, part := range p.Parts {
		for d := range part.ByDType {
			seen[d] = true
		}
	}
	dtypes := slices.Sorted(maps.Keys(seen))
	title := fmt.Sprintf("batch %d: %s at the peak, %s parameters", p.Batch, size(p.Peak), humanize.Comma(p.Parameters))
	parts := newTable(title, 3+len(dtypes))
	header := row("At the peak", "Bytes", "Share")
	for _, d := range dtypes {
		header = append(header, d.String())
	}
	parts.AppendHeader(header)
	for _, part := range p.Parts {
		r := row(part.Name, size(part.Bytes), fmt.Sprintf("%.1f %%", 100*float64(part.Bytes)/float64(max(1, p.Peak))))
		for _, d := range dtypes {
			if n := part.ByDType[d]; n > 0 {
				r = append(r, size(n))
			} else {
				r = append(r, "")
			}
		}
		parts.AppendRow(r)
	}
	ranks := []int{2, 8, 64}
	zero := newTable("bytes of each rank", 1+len(ranks))
	header = row("Ranks")
	for _, n := range ranks {
		header = append(header, fmt.Sprint(n))
	}
	zero.AppendHeader(header)
	for s := DataParallel; s <= ZeRO3; s++ {
		r := row(s.String())
		for _, n := range ranks {
			r = append(r, size(p.PerRank(s, n)))
		}
		zero.AppendRow(r)
	}
	out := []string{parts.Render(), zero.Render()}
	if len(p.Largest) > 0 {
		t := newTable("largest blocks at the peak", 3, 2)
		t.AppendHeader(row("Allocated by", "Part", "Bytes"))
		for _, b := range p.Largest {
			t.AppendRow(row(strings.TrimPrefix(b.Op, "aten::"), b.Part, size(b.Bytes)))
		}
		out = append(out, t.Render())
	}
	if len(p.Remedies) > 0 {
		t := newTable("remedies, each alone", 4, 4)
		t.AppendHeader(row("Remedy", "Peak", "Saves", "How"))
		for _, r := range p.Remedies {
			t.AppendRow(row(r.Name, size(r.Peak), size(p.Peak-r.Peak), r.How))
		}
		out = append(out, t.Render())
	}
	return strings.Join(out, "\n") + "\n"
}

const (
	barWidth  = 40
	lineWidth = 72
	lineRows  = 8
)

// Picture returns the parts as bars, and the bytes live over the second step, from its first allocation to its last.
func (p *Plan) Picture() string {
	if p == nil || p.Peak <= 0 {
		return ""
	}
	var b strings.Builder
	width := 0
	for _, part := range p.Parts {
		width = max(width, len(part.Name))
	}
	for _, part := range p.Parts {
		n := int(min(1, max(0, float64(part.Bytes)/float64(p.Peak)))*barWidth + 0.5)
		fmt.Fprintf(&b, "%-*s %-*s %s\n", width, part.Name, barWidth, strings.Repeat("█", n), size(part.Bytes))
	}
	columns := make([]int64, min(lineWidth, len(p.line)))
	for i := range columns {
		for _, n := range p.line[i*len(p.line)/len(columns) : (i+1)*len(p.line)/len(columns)] {
			columns[i] = max(columns[i], n)
		}
	}
	b.WriteString("\n")
	eighths := []rune(" ▁▂▃▄▅▆▇█")
	for r := lineRows - 1; r >= 0; r-- {
		for _, n := range columns {
			filled := int(min(1, float64(n)/float64(p.Peak))*lineRows*8 + 0.5)
			b.WriteRune(eighths[min(8, max(0, filled-8*r))])
		}
		switch r {
		case lineRows - 1:
			fmt.Fprintf(&b, " %s", size(p.Peak))
		case 0:
			b.WriteString(" 0")
		}
		b.WriteString("\n")
	}
	return b.String()
}
