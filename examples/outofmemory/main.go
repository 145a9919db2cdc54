// Outofmemory has no scope, releases nothing, and makes many times the memory that it may use. In a binding that leaves
// native memory to Go's garbage collector it would run out of memory. Here it completes, and then prints what that took
// and which lines hold the memory that is still live. docs/memory.md explains its output.
//
//	go run ./cmd/linstock setup    # once
//	go run ./examples/outofmemory -limit 256MiB -total 16GiB -dir /tmp
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/linstock-ml/linstock/examples/internal/cli"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func main() {
	if err := command(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(args []string, out io.Writer) error {
	f := flag.NewFlagSet("outofmemory", flag.ExitOnError)
	limit := f.String("limit", "256MiB", "memory limit")
	total := f.String("total", "16GiB", "memory to allocate in all")
	device := f.String("device", "cpu", "device: cpu, cuda:0")
	dir := f.String("dir", ".", "directory for the profile and the snapshot")
	cli.ParseArgs(f, args)
	if err := cli.MakeDir(*dir); err != nil {
		return err
	}
	d, err := tensor.ParseDevice(*device)
	if err != nil {
		return err
	}
	amount, err := vram.ParseAmount(*limit)
	if err != nil {
		return err
	}
	bytes, err := humanize.ParseBytes(*total)
	if err != nil {
		return err
	}
	if err := vram.SetLimit(d, amount); err != nil {
		return err
	}
	if err := vram.RecordHistory(20000); err != nil {
		return err
	}
	begun := time.Now()
	kept, steps, err := program(d, int64(bytes))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d steps in %.1f s made %s\n\n", steps, time.Since(begun).Seconds(), *total)
	if err := report(out, d, *dir); err != nil {
		return err
	}
	if err := vram.RecordHistory(0); err != nil {
		return err
	}
	mean, err := tensor.Stack(kept.means).Mean().Item()
	fmt.Fprintf(out, "\nWhat it kept is still there: the mean of %d means is %.4f, and there are %d samples.\n", len(kept.means), mean,
		len(kept.samples))
	return err
}

// results holds the tensors that the program keeps.
type results struct{ means, samples []*tensor.Tensor }

// program is what a user would write: no scope, no Release. It keeps the mean of each step and sometimes a sample of
// four rows. A sample is larger than it looks: it is a view, which holds the whole tensor from which it was cut.
func program(d tensor.Device, total int64) (kept results, steps int, err error) {
	x := tensor.Randn([]int{1024, 1024}, d)
	for made := int64(0); made < total; steps++ {
		y, n := step(x)
		made += n
		mean := y.Mean()
		if err := mean.Err(); err != nil {
			return kept, steps, err
		}
		kept.means = append(kept.means, mean)
		if steps%8 == 0 && len(kept.samples) < 8 {
			kept.samples = append(kept.samples, y.Narrow(0, 0, 4))
		}
	}
	return kept, steps, nil
}

// step makes n bytes of tensors and returns the last one.
func step(x *tensor.Tensor) (y *tensor.Tensor, n int64) {
	centred := x.Sub(x.Mean())
	scaled := centred.Div(centred.Std())
	gate := scaled.Sigmoid()
	y = scaled.Mul(gate)
	return y, 4 * int64(x.StorageBytes())
}

func report(out io.Writer, d tensor.Device, dir string) error {
	stats, err := vram.Stats(d)
	if err != nil {
		return err
	}
	c := vram.ReadCounts()
	fmt.Fprintf(out, "limit %s, peak %s\n", humanize.IBytes(uint64(stats.Limit)), humanize.IBytes(uint64(stats.Peak)))
	fmt.Fprintf(out, "sweeps: %d full, %d deep; %s of the time was theirs\n", c.Full, c.Deep, percent("/sweeps/share:ratio"))
	fmt.Fprintf(out, "allocations that waited: %d, %s in all; none failed: %t\n", c.Waits, c.WaitTime.Round(time.Millisecond), c.OOMs == 0)
	for _, y := range vram.Yields() {
		fmt.Fprintf(out, "  %-20s %4d calls gave %s back\n", y.Name, y.Calls, humanize.IBytes(uint64(y.Bytes)))
	}
	if err := vram.Collect(); err != nil { // so that the report shows only reachable tensors
		return err
	}
	summary, err := vram.Summary(d)
	if err != nil {
		return err
	}
	explanation, err := vram.Explain(d)
	if err != nil {
		return err
	}
	lines, err := vram.Report(5)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\n%s\nlines that allocated the live memory:\n%s\n", summary, explanation, lines)
	for name, write := range map[string]func(io.Writer) error{"native.pb.gz": vram.WriteProfile, "snapshot.pickle": vram.Snapshot} {
		if err := save(filepath.Join(dir, name), write); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "go tool pprof -top %s\npython _memory_viz.py trace_plot %s\n", filepath.Join(dir, "native.pb.gz"),
		filepath.Join(dir, "snapshot.pickle"))
	return err
}

func percent(metric string) string {
	s := []vram.MetricSample{{Name: metric}}
	vram.ReadMetrics(s)
	return fmt.Sprintf("%.1f %%", 100*s[0].Value)
}

func save(path string, write func(io.Writer) error) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return write(f)
}
