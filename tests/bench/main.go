// Command bench measures Linstock side by side with C++ on the same libtorch and, where make bench-setup put it,
// Python's PyTorch. Each arm is a process of its own, and a round starts them all anew. They take turns of some
// milliseconds in a shuffled order, so that a machine which changes its speed changes it for all; a round's ratio is
// the median over its turns, a figure the median of the rounds' ratios with its quartiles. `make bench` builds and
// runs it; BENCH="-rounds 3 -tasks add,mlp" passes arguments.
package main

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/linstock-ml/linstock/internal/stats"
	"github.com/linstock-ml/linstock/internal/worker"
)

// raised keeps large blocks in the heap instead of giving them back to the kernel at every free, which alone moves
// evaluation by up to 1.5; glibc takes no larger thresholds.
var raised = []string{"MALLOC_MMAP_THRESHOLD_=33554432", "MALLOC_TRIM_THRESHOLD_=268435456"}

// tasks are what can be timed, in the order of the table.
var tasks = []string{
	"add", "add/release", "view", "view/release", "matmul", "matmul/release",
	"add+grad", "add+grad/release", "view+grad", "view+grad/release", "matmul+grad", "matmul+grad/release",
	"mlp", "gpt", "gpteval",
}

func main() {
	rounds := flag.Int("rounds", 7, "rounds, each with new processes")
	turns := flag.Int("turns", 15, "turns that each process of a round gets for a task")
	chosen := flag.String("tasks", strings.Join(tasks, ","), "tasks that are timed")
	threads := flag.Int("threads", 1, "threads an operator may use")
	steps := flag.Int("memory", 2000, "training steps of the memory run, in four quarters; 0: none")
	one := flag.Bool("arm", false, "be the Go arm: run the tasks named on standard input")
	flag.Parse()
	var err error
	switch {
	case *one:
		err = serve(*threads)
	default:
		if err = compare(strings.Split(*chosen, ","), *rounds, *turns, *threads); err == nil && *steps > 0 {
			err = compareMemory(*steps)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// An arm is a program that runs a task when its name comes in as a line, and answers with nanoseconds an iteration,
// or with the figures of the memory run; "-" where it has no such task.
type arm struct {
	name string
	argv []string
	env  []string
}

func arms(threads int) ([]arm, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := strconv.Itoa(threads)
	all := []arm{
		{"go", []string{self, "-threads", n, "-arm"}, nil},
		{"c++", []string{filepath.Join(filepath.Dir(self), "arm"), n}, nil},
	}
	python := "build/pytorch/bin/python"
	if p := os.Getenv("LINSTOCK_BENCH_PYTHON"); p != "" {
		python = p
	}
	if _, err := os.Stat(python); err == nil {
		all = append(all, arm{"python", []string{python, "tests/bench/arm.py", n}, nil})
	} else {
		fmt.Println("Python's PyTorch is not installed (make bench-setup): compared with C++ alone")
	}
	return all, nil
}

// A process is an arm that runs.
type process struct {
	*worker.Process
	arm    arm
	malloc string
}

func (a arm) start(malloc string) (*process, error) {
	cmd := exec.Command(a.argv[0], a.argv[1:]...)
	cmd.Env = append(os.Environ(), a.env...)
	if malloc == "raised" {
		cmd.Env = append(cmd.Env, raised...)
	}
	cmd.Stderr = os.Stderr
	c, err := worker.Start(cmd)
	return &process{c, a, malloc}, err
}

// ask runs a task and returns the words of the answer.
func (p *process) ask(task string) ([]string, error) {
	if _, err := fmt.Fprintln(p.In, task); err != nil {
		return nil, fmt.Errorf("%s %s: %w", p.arm.name, task, err)
	}
	line, err := p.Out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", p.arm.name, task, err)
	}
	return strings.Fields(line), nil
}

// time runs a turn of a task: nanoseconds an iteration, NaN where the arm has no such task.
func (p *process) time(task string) (float64, error) {
	words, err := p.ask(task)
	if err != nil || len(words) == 1 && words[0] == "-" {
		return math.NaN(), err
	}
	return strconv.ParseFloat(strings.Join(words, " "), 64)
}

type key struct{ arm, malloc, task string }

func compare(tasks []string, rounds, turns, threads int) error {
	all, err := arms(threads)
	if err != nil {
		return err
	}
	times := map[key][]float64{}  // the median of each round
	ratios := map[key][]float64{} // of Go's to this arm's, the median of each round's turns
	over := map[key][]float64{}   // what Go's took more, the same
	for round := range rounds {
		if err := oneRound(all, tasks, turns, times, ratios, over, func(task string) {
			fmt.Fprintf(os.Stderr, "\rround %d of %d: %-20s", round+1, rounds, task)
		}); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stderr)
	fmt.Printf("%d threads, %d rounds of %d turns, %s; medians; ratios with quartiles\n", threads, rounds, turns, runtime.GOARCH)
	fmt.Println("malloc: own = each arm's default settings, raised = the same thresholds for all")
	w := table.NewWriter()
	w.AppendHeader(table.Row{"task", "malloc", "go", "c++", "python", "go − c++", "go / c++", "go / python"})
	for _, task := range tasks {
		for _, malloc := range []string{"own", "raised"} {
			of := func(arm string) float64 { return stats.Median(times[key{arm, malloc, task}]) }
			ratio := func(arm string) string { return spread(ratios[key{arm, malloc, task}]) }
			w.AppendRow(table.Row{task, malloc, duration(of("go")), duration(of("c++")), duration(of("python")), duration(stats.Median(over[key{"c++", malloc, task}])), ratio("c++"), ratio("python")})
		}
	}
	fmt.Println(w.Render())
	return nil
}

// oneRound adds a figure a task to times and ratios, from new processes of all arms.
func oneRound(all []arm, tasks []string, turns int, times, ratios, over map[key][]float64, progress func(string)) error {
	var running []*process
	defer func() {
		for _, p := range running {
			p.End()
		}
	}()
	for _, a := range all {
		for _, malloc := range []string{"own", "raised"} {
			p, err := a.start(malloc)
			if err != nil {
				return err
			}
			running = append(running, p)
		}
	}
	for _, i := range rand.Perm(len(tasks)) {
		task := tasks[i]
		progress(task)
		got := map[key][]float64{}
		for turn := range turns + 1 {
			rand.Shuffle(len(running), func(i, k int) { running[i], running[k] = running[k], running[i] })
			for _, p := range running {
				v, err := p.time(task)
				if err != nil {
					return err
				}
				if turn > 0 { // the first is for warming up
					k := key{p.arm.name, p.malloc, task}
					got[k] = append(got[k], v)
				}
			}
		}
		for k, v := range got {
			times[k] = append(times[k], stats.Median(v))
			ours := got[key{"go", k.malloc, task}]
			r, d := make([]float64, len(v)), make([]float64, len(v))
			for turn := range v {
				r[turn], d[turn] = ours[turn]/v[turn], ours[turn]-v[turn]
			}
			ratios[k], over[k] = append(ratios[k], stats.Median(r)), append(over[k], stats.Median(d))
		}
	}
	return nil
}

// compareMemory trains the GPT in each arm by itself, C++ also with the allocator that libtorch has of its own.
func compareMemory(steps int) error {
	steps = (steps + 3) / 4 * 4
	all, err := arms(1)
	if err != nil {
		return err
	}
	all = slices.Insert(all, 2, all[1])
	all[1].name, all[2].name = "c++, the shim's allocator", "c++, libtorch's allocator"
	all[2].env = []string{"BENCH_ALLOCATOR=libtorch"}
	m := table.NewWriter()
	header := table.Row{"GPT training, RSS above the library", "peak"}
	for q := 1; q <= 4; q++ {
		header = append(header, fmt.Sprintf("after %d steps", q*(steps/4)))
	}
	m.AppendHeader(append(header, "native peak"))
	for _, a := range all {
		fmt.Fprintf(os.Stderr, "memory: %s …\n", a.name)
		p, err := a.start("own")
		if err != nil {
			return err
		}
		words, err := p.ask(fmt.Sprint("memory ", steps))
		p.End()
		if err != nil {
			return err
		}
		row := table.Row{a.name}
		for _, word := range words {
			kb, err := strconv.ParseFloat(word, 64)
			if err != nil {
				return err
			}
			row = append(row, mb(kb))
		}
		m.AppendRow(row)
	}
	fmt.Println(m.Render())
	return nil
}

// spread is the median of the rounds' ratios, with the quartiles.
func spread(r []float64) string {
	if math.IsNaN(stats.Median(r)) {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", stats.Median(r), stats.Quantile(r, 0.25), stats.Quantile(r, 0.75))
}

func duration(ns float64) string {
	switch {
	case math.IsNaN(ns):
		return "-"
	case math.Abs(ns) < 10e3:
		return fmt.Sprintf("%.0f ns", ns)
	case math.Abs(ns) < 10e6:
		return fmt.Sprintf("%.1f µs", ns/1e3)
	}
	return fmt.Sprintf("%.2f ms", ns/1e6)
}

func mb(kb float64) string {
	if kb == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MB", kb/1024)
}
