package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/linstock-ml/linstock/tests/internal/stats"
)

// A titled table.
type titled struct {
	table.Writer
	title string
}

// tables returns the tables of what has been measured.
func (o options) tables(list []workload, a arms, r *results) (all []titled) {
	for _, threads := range o.threads {
		if t, ok := o.speed(list, a, r, threads); ok {
			all = append(all, t)
		}
	}
	for _, f := range []func([]workload, arms, *results) (titled, bool){memory, losses, starts} {
		if t, ok := f(list, a, r); ok {
			all = append(all, t)
		}
	}
	return all
}

// present returns the columns whose programs are there, without Go's.
func present(a arms) (list []arm) {
	for _, c := range columns[1:] {
		if _, ok := a[c.program]; ok {
			list = append(list, c)
		}
	}
	return list
}

// speed is the table of times: Go's, and its ratios to the others'.
func (o options) speed(list []workload, a arms, r *results, threads int) (titled, bool) {
	w := table.NewWriter()
	header := table.Row{"workload", "Go"}
	for _, c := range present(a) {
		header = append(header, "to "+c.name)
	}
	w.AppendHeader(append(header, "between processes"))
	medians := map[string][]float64{} // of the ratios, by column
	rounds := 0
	for _, l := range list {
		times, ratios := []float64{}, map[string][]float64{}
		for round := range o.rounds {
			rec, ok := r.records[fmt.Sprintf("round %d, %d threads, %s", round+1, threads, l.name)]
			if !ok {
				continue
			}
			ours := rec.Times[columns[0].name]
			times = append(times, stats.Median(ours))
			for _, c := range present(a) {
				if theirs := rec.Times[c.name]; len(theirs) == len(ours) {
					turns := make([]float64, len(ours))
					for i := range turns {
						turns[i] = ours[i] / theirs[i]
					}
					ratios[c.name] = append(ratios[c.name], stats.Median(turns))
				}
			}
		}
		if len(times) == 0 {
			continue
		}
		rounds = max(rounds, len(times))
		row := table.Row{l.name, stats.Duration(stats.Median(times))}
		for _, c := range present(a) {
			row = append(row, stats.Ratio(ratios[c.name]))
			if m := stats.Median(ratios[c.name]); !math.IsNaN(m) {
				medians[c.name] = append(medians[c.name], m)
			}
		}
		// Relative to C++ in the same round, so that the machine's own changes cancel.
		here := ratios[columns[1].name]
		w.AppendRow(append(row, fmt.Sprintf("%.2f", slices.Max(here)/slices.Min(here))))
	}
	row := table.Row{"geometric mean", ""}
	for _, c := range present(a) {
		text := fmt.Sprintf("%.2f", geometricMean(medians[c.name]))
		switch n := len(medians[c.name]); {
		case n == 0:
			text = "-"
		case n < len(list):
			text += fmt.Sprintf(" (of %d)", n)
		}
		row = append(row, text)
	}
	w.AppendRow(append(row, ""))
	noun := "threads"
	if threads == 1 {
		noun = "thread"
	}
	title := fmt.Sprintf("Time of a step with %d %s, %d rounds of %d turns: Go's, and its ratio to the others'; medians with quartiles.\n"+
		"The last column is the largest ratio to C++ here of a round to the smallest.", threads, noun, rounds, o.turns)
	return titled{w, title}, rounds > 0
}

func geometricMean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += math.Log(x)
	}
	return math.Exp(sum / float64(len(v)))
}

// once names the cell of a run for losses.
func once(w workload, c arm) string { return "losses of " + w.name + ", " + c.name }

// memory is the table of peak resident memory.
func memory(list []workload, a arms, r *results) (titled, bool) {
	w := table.NewWriter()
	shown := append([]arm{columns[0]}, present(a)...)
	header := table.Row{"workload"}
	for _, c := range shown {
		header = append(header, c.name)
	}
	w.AppendHeader(header)
	found := false
	libraries := map[string][]float64{}
	for _, l := range list {
		row := table.Row{l.name}
		for _, c := range shown {
			rec, ok := r.records[once(l, c)]
			if !ok {
				row = append(row, "-")
				continue
			}
			found = true
			row = append(row, fmt.Sprintf("%.1f", (rec.Peak-rec.Library)/1024))
			libraries[c.name] = append(libraries[c.name], rec.Library/1024)
		}
		w.AppendRow(row)
	}
	row := table.Row{"the library itself"}
	for _, c := range shown {
		row = append(row, fmt.Sprintf("%.1f", stats.Median(libraries[c.name])))
	}
	w.AppendRow(row)
	return titled{w, "Peak resident memory above the library, MiB, after the steps whose losses are compared."}, found
}

// apart is the largest relative difference of two lists of losses.
func apart(x, y []float64) float64 {
	if len(x) != len(y) || len(x) == 0 {
		return math.NaN()
	}
	most := 0.0
	for i := range x {
		d := math.Abs(x[i]-y[i]) / math.Abs(y[i])
		if !(d <= most) {
			most = d
		}
	}
	return most
}

// losses is the table of losses: the first and the last, and how far Go's are from the others'.
func losses(list []workload, a arms, r *results) (titled, bool) {
	w := table.NewWriter()
	header := table.Row{"workload", "first", "last"}
	for _, c := range present(a) {
		header = append(header, "from "+c.name)
	}
	w.AppendHeader(header)
	found := false
	for _, l := range list {
		ours := r.records[once(l, columns[0])].Losses
		if len(ours) == 0 {
			continue
		}
		found = true
		row := table.Row{l.name, fmt.Sprintf("%.7g", ours[0]), fmt.Sprintf("%.7g", ours[len(ours)-1])}
		for _, c := range present(a) {
			switch d := apart(ours, r.records[once(l, c)].Losses); {
			case math.IsNaN(d):
				row = append(row, "-")
			case d == 0:
				row = append(row, "0")
			default:
				row = append(row, fmt.Sprintf("%.0e", d))
			}
		}
		w.AppendRow(row)
	}
	return titled{w, "Losses of the first and the last step, and the largest relative difference of Go's from the others'."}, found
}

// How far Go's losses may be from the others': to seven digits from C++, and from Python as far as the order of sums in
// its optimizers takes them in ten steps.
const fromCpp, fromPython = 5e-7, 1e-4

// disagreements returns an error that names the workloads whose losses differ.
func disagreements(list []workload, a arms, r *results) error {
	var errs []error
	for _, l := range list {
		for _, c := range present(a) {
			theirs, ok := r.records[once(l, c)]
			ours, both := r.records[once(l, columns[0])]
			limit := fromPython
			if c.optimizer == "" {
				limit = fromCpp
			}
			if d := apart(ours.Losses, theirs.Losses); ok && both && !(d <= limit) {
				errs = append(errs, fmt.Errorf("%s: the losses of Go and %s differ by %.1e, want at most %.0e:\n  %v\n  %v",
					l.name, c.name, d, limit, ours.Losses, theirs.Losses))
			}
		}
	}
	return errors.Join(errs...)
}

// starts is the table of what is measured once for a language: start, build and size.
func starts(list []workload, a arms, r *results) (titled, bool) {
	w := table.NewWriter()
	w.AppendHeader(table.Row{"", "first step after, s", "build after an edit, s", "program, MiB"})
	found := false
	for _, c := range append([]arm{columns[0]}, present(a)...) {
		if c.optimizer != "" && c.optimizer != "default" {
			continue
		}
		var seconds []float64
		for _, l := range list {
			if rec, ok := r.records[once(l, c)]; ok {
				seconds = append(seconds, rec.Start)
			}
		}
		build, built := r.records["build, "+c.name]
		row := table.Row{c.name, "-", "-", "-"}
		if len(seconds) > 0 {
			row[1] = stats.Ratio(seconds)
		}
		if built {
			row[2] = fmt.Sprintf("%.1f", stats.Median(build.Builds))
			row[3] = fmt.Sprintf("%.1f", float64(build.Bytes)/(1<<20))
		}
		found = found || built || len(seconds) > 0
		w.AppendRow(row)
	}
	return titled{w, "Time from the start of the process to the end of the first step, over the workloads; of the build after\n" +
		"an edit of one file; and the size of the program, without libtorch and the shim."}, found
}

var marked = regexp.MustCompile(`(?s)<!-- suite -->\n.*<!-- end suite -->`)

// processor returns " of " and the name of the processor, or "" if the system does not tell it.
func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	name := regexp.MustCompile(`(?m)^model name\s*:\s*(.+?)\s*$`).FindSubmatch(info)
	if name == nil {
		return ""
	}
	return " of " + string(name[1])
}

// writeTables puts the tables into docs/speed.md, with the days on which their cells were measured.
func writeTables(tables []titled, days string) error {
	const path = "docs/speed.md"
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !marked.Match(old) {
		return fmt.Errorf("%s has no table of the suite", path)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<!-- suite -->\nMeasured on %s, %d cores%s, libtorch %s.\n", days, runtime.NumCPU(), processor(), os.Getenv("LINSTOCK_TORCH"))
	for _, t := range tables {
		fmt.Fprintf(&b, "\n%s\n\n%s\n", strings.ReplaceAll(t.title, "\n", " "), t.RenderMarkdown())
	}
	b.WriteString("<!-- end suite -->")
	return os.WriteFile(path, bytes.Replace(old, marked.Find(old), []byte(b.String()), 1), 0o644)
}
