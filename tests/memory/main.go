// Memory measures the figures that Linstock documents about memory and prints them with their targets:
//
//	go run ./tests/memory [-device cpu|cuda:0|fakecuda] [-quick] [figure…]
//
// The device fakecuda is one of tests/fakecuda: its kernels do nothing, one after another. Without names the
// command measures all figures, in half an hour. The exit code is 1 if a figure misses its target. Figures of
// time are printed but do not count, since machines are noisy.
//
//	go run ./tests/memory -share F storm|garbage
//
// measures a share of one of the two for the scorecard of docs/reliability.md, where the times of the whole
// figure count.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/fakecuda"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

type figure struct {
	name, what string
	run        func(settings) ([]line, error)
}

// line is a row of the table: what was measured, the target, and whether it was reached.
type line struct {
	what, got, target string
	ok, timed         bool
}

// json returns the line for the kit of docs/gpu-kit.md, whose step fails if "ok" is false: a line of time has "slow" instead.
func (l line) json() ([]byte, error) {
	row := map[string]any{"row": l.what, "got": l.got, "target": l.target}
	if l.timed {
		row["slow"] = !l.ok
	} else {
		row["ok"] = l.ok
	}
	return json.Marshal(row)
}

func pick[T any](quick bool, a, b T) T {
	if quick {
		return a
	}
	return b
}

var figures = []figure{
	{"loop", "80 GB of unreleased 4 MiB temporaries through a limit of 512 MiB", func(s settings) (lines []line, err error) {
		for _, g := range []int{1, 16, 64} {
			s.goroutines = g
			f, err := loop(s, pick[int64](s.quick, 2<<30, 80<<30), pick(s.quick, 1, 16))
			if err != nil {
				return lines, err
			}
			lines = append(lines,
				line{fmt.Sprintf("loop, %d goroutines: peak", g), fmt.Sprintf("%d MiB", f.peak>>20), "≤ 512 MiB", f.peak <= f.limit, false},
				line{fmt.Sprintf("loop, %d goroutines: time", g), fmt.Sprintf("%.3f (%.3f–%.3f) of released; %v an operator, %d sweeps", f.ratio, f.low, f.high,
					f.operator.Round(time.Microsecond), f.sweeps), "≤ 1.10", f.ratio <= 1.10, true})
		}
		return lines, nil
	}},
	{"programs", "random programs with a limit 5 % above what they can reach, and below it", func(s settings) ([]line, error) {
		n := s.programs
		if n == 0 {
			n = pick(s.quick, 300, 10000)
		}
		f, err := programs(s, n)
		if err != nil {
			return nil, err
		}
		if f.first != nil {
			fmt.Fprintln(os.Stderr, "the first thing that was wrong:", f.first)
		}
		return []line{
			{"programs: false out-of-memory errors", fmt.Sprintf("%d of %d", f.falseOOM, f.programs), "0", f.falseOOM == 0, false},
			{"programs: peaks beyond the limit", fmt.Sprint(f.beyond), "0", f.beyond == 0, false},
			{"programs: wrong values, leaks", fmt.Sprintf("%s, %d", pick(s.values, fmt.Sprint(f.wrong), "not compared"), f.leaked), "0", f.wrong+f.leaked == 0, false},
			{"below the limit: no error, or another", fmt.Sprintf("%d of %d", f.missed, f.below), "0", f.missed == 0 && f.below > 0, false},
			{"below the limit: next smaller step fails, leaks", fmt.Sprintf("%d, %d", f.unwell, f.leaked2), "0", f.unwell+f.leaked2 == 0, false},
			{"below the limit: slowest error", fmt.Sprintf("%v, %d late", f.slowest.Round(time.Millisecond), f.late), "≤ 100 ms", f.late == 0, true},
		}, nil
	}},
	{"workingset", "97 % of the limit live, above the soft limit, for 100,000 operators", func(s settings) ([]line, error) {
		return share("working set", s, 0)
	}},
	{"bigheap", "the same with 2 GiB of Go pointers", func(s settings) ([]line, error) {
		return share("big Go heap", s, pick(s.quick, 256<<20, 2<<30))
	}},
	{"garbage", "a loop that releases nothing, with 1 GiB of Go pointers", func(s settings) ([]line, error) {
		took := time.Duration(float64(pick(s.quick, 6*time.Second, time.Minute)) * s.share)
		f, err := garbage(s, took, pick(s.quick, 256<<20, 1<<30))
		ok := err == nil && f.holds(!s.quick && s.share == 1)
		got := fmt.Sprintf("%.4f of %v in %d sweeps, the longest %v; peak %d of %d MiB", f.sweeping.Seconds()/f.took.Seconds(), f.took.Round(time.Second),
			f.sweeps, f.longest.Round(time.Millisecond), f.peak>>20, f.allocated>>20)
		*s.row = func() { scorecard.Line("garbage", got, ok) }
		return []line{{"garbage: share of time in sweeps", got, "≤ 0.05 + 100 ms", ok, false}}, err
	}},
	{"storm", "64 goroutines always at the limit, with a Go heap of 100 MB", func(s settings) ([]line, error) {
		s.goroutines = 64
		n := scorecard.Share(200000, pick(s.quick, 0.1, s.share))
		f, err := storm(s, n, 100<<20)
		// The times of a partial run are not judged: other programs run on the machine.
		ok := err == nil && f.holds(n) && (s.share < 1 || f.p99 <= 20*time.Millisecond)
		times := fmt.Sprintf("median %v, p99 %v, longest %v", f.median.Round(10*time.Microsecond), f.p99.Round(10*time.Microsecond), f.slowest.Round(time.Millisecond))
		*s.row = func() {
			scorecard.Line("storm", fmt.Sprintf("%d allocations of 64 goroutines waited, %d failed, %d hangs; %s; %d waits for a sweep", f.events, f.failed, f.hangs,
				times, f.rounds), ok)
		}
		if err != nil {
			return nil, err
		}
		if f.first != nil {
			fmt.Fprintln(os.Stderr, "the first allocation that failed:", f.first)
		}
		return []line{
			{"storm: allocations that waited", fmt.Sprintf("%d in %v, %d failed, %d of memory", f.events, f.took.Round(time.Second), f.failed, f.ooms), fmt.Sprintf("%d, 0 failed, 0 hangs", n),
				f.holds(n), false},
			{"storm: waits for a sweep", fmt.Sprintf("%d, %d out of time, p99 %v; %d sweeps of %v", f.rounds, f.timeouts, f.roundP99.Round(10*time.Microsecond), f.sweeps, f.sweep.Round(time.Microsecond)), "", true, false},
			{"storm: median, p99, longest", times, "≤ 5 ms, ≤ 20 ms", f.median <= 5*time.Millisecond && f.p99 <= 20*time.Millisecond, ok || !s.scored},
		}, nil
	}},
}

// holds reports whether the sweeps took no more than their share of the time. In a whole minute there must also be
// sweeps, and they must have freed enough: at its peak the memory is at most three quarters of all that was allocated.
// In less time none may be due.
func (f garbageFigures) holds(whole bool) bool {
	// The time budget holds up to 100 ms, and a sweep may take longer than the one before.
	if f.sweeping.Seconds() > 0.05*f.took.Seconds()+0.1+f.longest.Seconds()/2 {
		return false
	}
	return !whole || f.sweeps > 0 && f.peak <= f.allocated/4*3
}

// holds reports whether n allocations waited, none failed and none hung.
func (f waitFigures) holds(n int64) bool { return f.events >= n && f.failed == 0 && f.hangs == 0 }

func share(name string, s settings, heap int) ([]line, error) {
	f, err := workingSet(s, pick(s.quick, 6400, 100000), pick(s.quick, 1, 5), heap)
	if err != nil {
		return nil, err
	}
	return []line{
		{name + ": live of the limit", fmt.Sprintf("%.3f, Go heap %d MiB", float64(f.live)/float64(f.limit), f.heap>>20), "0.97", f.live > f.limit*96/100, false},
		{name + ": share of time in sweeps", fmt.Sprintf("%.4f, %d sweeps", f.share, f.sweeps), "≤ 0.05", f.share <= 0.05, true},
		{name + ": throughput of Off's", fmt.Sprintf("%.3f (%.3f–%.3f)", f.ratio, f.low, f.high), "≥ 0.95", f.ratio >= 0.95, true},
	}, nil
}

func main() {
	s := settings{seed: 1, row: new(func())}
	device := flag.String("device", "cpu", "whose memory: cpu, cuda:0, or fakecuda, which runs on the fake devices of tests/fakecuda")
	flag.BoolVar(&s.quick, "quick", false, "a hundredth of the work")
	flag.IntVar(&s.programs, "programs", 0, "how many random programs; 0: 10,000, or 300 with -quick")
	flag.BoolVar(&s.json, "json", false, "print each figure as a JSON object, as the kit of docs/gpu-kit.md reads them")
	flag.BoolVar(&s.values, "values", true, "compare values; false over fakes that the environment sets up, whose kernels do nothing")
	flag.Float64Var(&s.share, "share", 1, "of the storm's events or the garbage's time, for the scorecard")
	flag.Uint64Var(&s.seed, "seed", 1, "of the random programs")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "memory [options] [figure…] measures the figures that Linstock documents about memory:")
		for _, f := range figures {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-12s %s\n", f.name, f.what)
		}
		flag.PrintDefaults()
	}
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { s.scored = s.scored || f.Name == "share" })
	if err := run(s, *device, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

func run(s settings, device string, names []string) error {
	var err error
	if device == "fakecuda" {
		device = "cuda:0"
		// Nothing is ever written to this memory, so it may exceed the machine's.
		if s.fake, err = fakecuda.Rerun(400 << 30); err != nil {
			return err
		}
		defer s.fake.Close()
		s.values = false
	}
	if s.device, err = tensor.ParseDevice(device); err != nil {
		return err
	}
	if err := cshim.Load(); err != nil {
		return err
	}
	if s.scored && !slices.Equal(names, []string{"storm"}) && !slices.Equal(names, []string{"garbage"}) {
		return errors.New("-share applies only to storm and garbage")
	}
	s.say = func(format string, args ...any) { fmt.Fprintf(os.Stderr, "  "+format+"\n", args...) }
	err = take(s, names)
	if s.scored {
		(*s.row)()
	}
	return err
}

func take(s settings, names []string) error {
	var all []line
	for _, f := range figures {
		if len(names) != 0 && !slices.Contains(names, f.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, f.name+": "+f.what)
		lines, err := f.run(s)
		all = append(all, lines...)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("no figure is named so; see -help")
	}
	missed := 0
	for _, l := range all {
		state := "ok"
		switch {
		case !l.ok && l.timed:
			state = "slow"
		case !l.ok:
			state = "MISSED"
			missed++
		}
		if !s.json {
			fmt.Printf("%-50s %-60s %-18s %s\n", l.what, l.got, l.target, state)
			continue
		}
		row, err := l.json()
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", row)
	}
	if missed != 0 {
		return fmt.Errorf("%d targets were missed", missed)
	}
	return nil
}
