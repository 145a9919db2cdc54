package dist

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/linstock-ml/linstock/vram"
)

// RankProgress is what a rank has done since the group's last Report, or since the group was made.
type RankProgress struct {
	Rank    int
	Host    string
	Samples int           // that the rank's call of Report gives
	Time    time.Duration // between the two reports
	// Waiting is the part of Time that the rank spent in collectives of its job; of those in backward passes it is what
	// [DDP.Times] has measured to exceed the computation. A rank that is slower than others waits less than they do.
	Waiting time.Duration
	Memory  int64 // bytes of tensors on the CPU now
	Peak    int64 // their maximum since the start, or the last vram.ResetPeak
	Other   int64 // other bytes of the process that are resident
}

// Throughput returns samples per second.
func (p RankProgress) Throughput() float64 { return float64(p.Samples) / max(p.Time.Seconds(), 1e-9) }

// Busy returns the time that was not spent waiting.
func (p RankProgress) Busy() time.Duration { return p.Time - p.Waiting }

// ProgressReport has the progress of all ranks of a group.
type ProgressReport struct {
	Ranks []RankProgress
}

// Report gathers the progress of all ranks on rank 0; on the others the report is nil. All ranks must call it, each with the
// samples that it has processed since the last one. It is a collective of a few hundred bytes, for every hundredth step
// or so. Ranks in Python cannot take part.
//
//	report, err := g.Report(ctx, samples)
//	if report != nil {
//		fmt.Println(report)
//	}
func (g *Group) Report(ctx context.Context, samples int) (*ProgressReport, error) {
	const op = "Report"
	if err := g.check(op); err != nil {
		return nil, err
	}
	memory, err := vram.Stats(vram.CPU)
	if err != nil {
		return nil, err
	}
	p := RankProgress{Rank: g.rank, Samples: samples, Memory: memory.Allocated, Peak: max(memory.Peak, memory.Allocated), Other: memory.Other}
	p.Host, _ = os.Hostname()
	now, waited := time.Now(), g.waited()
	g.state.Lock()
	p.Time, p.Waiting = now.Sub(g.reported.at), waited-g.reported.waited
	g.state.Unlock()
	p.Waiting = min(max(p.Waiting, 0), p.Time)
	all, err := GatherObject(ctx, g, p, 0)
	if err != nil {
		return nil, err
	}
	g.state.Lock()
	g.reported.at, g.reported.waited = now, waited
	g.state.Unlock()
	if g.rank != 0 {
		return nil, nil
	}
	return &ProgressReport{all}, nil
}

// waited returns for how long the job's collectives have made this rank wait.
func (g *Group) waited() time.Duration {
	total := time.Duration(g.job.waited.Load())
	g.state.Lock()
	var ddps []*DDP
	for c := range g.parts {
		if d, ok := c.(*DDP); ok {
			ddps = append(ddps, d)
		}
	}
	g.state.Unlock()
	for _, d := range ddps {
		if t, err := d.Times(); err == nil {
			total += time.Duration(d.passes.Load()) * max(0, t.Communication-t.Overlap)
		}
	}
	return total
}

// Stragglers returns the ranks that were busy for more than 1.2 times the median.
func (r *ProgressReport) Stragglers() (ranks []int) {
	if r == nil || len(r.Ranks) == 0 {
		return nil
	}
	var busy []time.Duration
	for _, p := range r.Ranks {
		busy = append(busy, p.Busy())
	}
	slices.Sort(busy)
	median := busy[(len(busy)-1)/2]
	for _, p := range r.Ranks {
		if p.Busy() > median*6/5 {
			ranks = append(ranks, p.Rank)
		}
	}
	return ranks
}

// String returns the report as a table, in which stragglers are marked.
func (r *ProgressReport) String() string {
	if r == nil {
		return "<nil>"
	}
	t := table.NewWriter()
	style := table.StyleDefault
	style.Format.Header = text.FormatDefault
	style.Format.Footer = text.FormatDefault
	t.SetStyle(style)
	t.AppendHeader(table.Row{"Rank", "Host", "Samples/s", "Time", "Waiting", "", "Tensors", "Peak", "Other", ""})
	var right []table.ColumnConfig
	for _, i := range []int{1, 3, 4, 5, 6, 7, 8, 9} {
		right = append(right, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight, AlignFooter: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	size := func(n int64) string { return humanize.IBytes(uint64(max(0, n))) }
	stragglers := r.Stragglers()
	var total float64
	for _, p := range r.Ranks {
		mark := ""
		if slices.Contains(stragglers, p.Rank) {
			mark = "slow"
		}
		total += p.Throughput()
		t.AppendRow(table.Row{p.Rank, p.Host, fmt.Sprintf("%.1f", p.Throughput()), p.Time.Round(time.Millisecond), p.Waiting.Round(time.Millisecond),
			fmt.Sprintf("%.0f %%", 100*float64(p.Waiting)/float64(max(1, p.Time))), size(p.Memory), size(p.Peak), size(p.Other), mark})
	}
	t.AppendFooter(table.Row{"all", "", fmt.Sprintf("%.1f", total)})
	return t.Render()
}
