// Command suite compares 21 workloads in Go, C++ and Python on the same libtorch, with the same weights and data:
// their losses, speed on one thread and on all cores, memory, start, build time and size. The table of workloads is in
// workloads.go; each workload is a function in the file of its group, here, in cpp/ and in py/.
//
// Each arm is a process of its own, and each round restarts them all. Within a round the arms take turns of about 30 to
// 280 milliseconds in a shuffled order, so that changes in the machine's speed affect all of them. The first 20 ms of a
// turn are not timed: threads wake and caches fill, which is not part of steps that follow each other. A round's ratio
// is the median over its turns; a figure is the median over the rounds with its quartiles.
//
// Results are kept in build/bench/suite/results.jsonl as they come. An interrupted run continues where it stopped; with
// other programs or settings it starts over. `make bench-suite` builds and runs it; BENCH="-rounds 1 -only gpt" passes
// arguments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// options are the runner's flags.
type options struct {
	rounds, turns, steps int
	only                 string
	parts                string
	threads              []int
	write, golden, fresh bool
}

// full are the settings of the tables in docs/speed.md.
var full = options{rounds: 3, turns: 5, steps: 10, parts: "losses,speed,build", threads: slices.Compact([]int{1, runtime.NumCPU()})}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", full.rounds, "rounds of turns, each with new processes")
	flag.IntVar(&o.turns, "turns", full.turns, "turns of each arm in a round, after one that warms up")
	flag.IntVar(&o.steps, "steps", full.steps, "steps whose losses are compared")
	flag.StringVar(&o.only, "only", "", "only workloads whose name contains one of these, separated by commas")
	flag.StringVar(&o.parts, "parts", full.parts, "what to measure; losses includes memory and start")
	flag.BoolVar(&o.write, "write", false, "put the tables into docs/speed.md")
	flag.BoolVar(&o.golden, "golden", false, "write the losses of C++ into losses.json, which the Go test reads, and exit")
	flag.BoolVar(&o.fresh, "fresh", false, "discard the results of an interrupted run")
	threads := flag.Int("threads", 0, "threads an operator may use; 0: one, and all cores")
	name := flag.String("arm", "", "run as the Go arm for this workload")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), `Compares 21 workloads in Go, C++ and Python: losses, speed, memory, start, build time, size.
  make bench-suite [BENCH="FLAGS"]
An interrupted run goes on where it was.`)
		flag.PrintDefaults()
	}
	flag.Parse()
	o.threads = []int{*threads}
	if *threads == 0 {
		o.threads = full.threads
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *name != "" {
		err = runArm(*name, o.threads[0])
	} else {
		err = o.run(ctx)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted; the same command goes on from here")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

// chosen returns the workloads that -only names.
func (o options) chosen() ([]workload, error) {
	if o.only == "" {
		return workloads, nil
	}
	var list []workload
	for _, w := range workloads {
		if slices.ContainsFunc(strings.Split(o.only, ","), func(s string) bool { return s != "" && strings.Contains(w.name, s) }) {
			list = append(list, w)
		}
	}
	if list == nil {
		return nil, fmt.Errorf("no workload's name contains %q", o.only)
	}
	return list, nil
}

// run measures what is missing and prints the tables, also of a run that is interrupted.
func (o options) run(ctx context.Context) error {
	list, err := o.chosen()
	if err != nil {
		return err
	}
	if o.rounds < 1 || o.turns < 1 || o.steps < 2 {
		return errors.New("want at least one round, one turn and two steps")
	}
	arms, err := findArms()
	if err != nil {
		return err
	}
	if err := o.fits(list, arms); err != nil {
		return err
	}
	if o.golden {
		return o.writeGolden(ctx, list, arms)
	}
	key, err := o.key()
	if err != nil {
		return err
	}
	const path = "build/bench/suite/results.jsonl"
	if o.fresh {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	results, err := openResults(path, key)
	if err != nil {
		return err
	}
	defer results.close()
	if n := len(results.records); n > 0 {
		fmt.Printf("going on after %d measurements of an earlier run (-fresh forgets them)\n", n)
	}
	measured := o.measure(ctx, list, arms, results)
	tables := o.tables(list, arms, results)
	for _, t := range tables {
		fmt.Printf("%s\n%s\n", t.title, t.Render())
	}
	if measured != nil {
		return measured
	}
	return o.finish(list, arms, results, tables)
}

// fits returns an error if -write would put a part of the measurements into tables of all.
func (o options) fits(list []workload, a arms) error {
	_, python := a["python"]
	switch {
	case !o.write:
		return nil
	case len(list) != len(workloads):
		return errors.New("-write needs all workloads")
	case o.parts != full.parts || !slices.Equal(o.threads, full.threads) || o.steps != full.steps || o.rounds < full.rounds || o.turns < full.turns:
		return fmt.Errorf("-write needs the default -parts, -threads and -steps, at least %d -rounds and %d -turns", full.rounds, full.turns)
	case !python:
		return errors.New("-write needs Python's PyTorch (make bench-setup)")
	}
	return nil
}

// finish returns an error for losses that differ. Without one, -write puts the tables into docs/speed.md.
func (o options) finish(list []workload, a arms, r *results, tables []titled) error {
	if err := disagreements(list, a, r); err != nil || !o.write {
		return err
	}
	return writeTables(tables, r.days())
}
