// Command bench measures Linstock side by side with C++ on the same libtorch and, where make bench-setup put it,
// Python's PyTorch. Each arm is a process of its own; the arms of a round run in a shuffled order, and a figure is
// the median of the rounds' ratios with its quartiles. `make bench` builds and runs it; BENCH="-rounds 3 -tasks
// ops" passes arguments.
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
)

// raised keeps large blocks in the heap instead of giving them back to the kernel at every free, which alone moves
// evaluation by up to 1.5; glibc takes no larger thresholds.
var raised = []string{"MALLOC_MMAP_THRESHOLD_=33554432", "MALLOC_TRIM_THRESHOLD_=268435456"}

type arm struct {
	name string
	argv []string
}

type key struct{ arm, malloc, task string }

func main() {
	rounds := flag.Int("rounds", 7, "shuffled rounds")
	tasks := flag.String("tasks", "ops,mlp,gpt,gpteval", "tasks that are timed")
	threads := flag.Int("threads", 1, "threads an operator may use")
	steps := flag.Int("memory", 2000, "training steps of the memory run; 0: none")
	one := flag.String("arm", "", "run one task of the Go arm in this process")
	flag.Parse()
	var err error
	if *one != "" {
		err = runArm(*one, *threads, *steps)
	} else {
		err = compare(strings.Split(*tasks, ","), *rounds, *threads, *steps)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func arms(threads int) ([]arm, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := strconv.Itoa(threads)
	all := []arm{
		{"go", []string{self, "-threads", n, "-arm"}},
		{"c++", []string{filepath.Join(filepath.Dir(self), "arm")}},
	}
	python := "build/pytorch/bin/python"
	if p := os.Getenv("LINSTOCK_BENCH_PYTHON"); p != "" {
		python = p
	}
	if _, err := os.Stat(python); err == nil {
		all = append(all, arm{"python", []string{python, "tests/bench/arm.py"}})
	} else {
		fmt.Println("Python's PyTorch is not installed (make bench-setup): compared with C++ alone")
	}
	return all, nil
}

// run runs one arm's task and returns its figures by name.
func (a arm) run(task string, threads, steps int, env []string) (map[string]float64, error) {
	argv := slices.Clone(a.argv)
	if a.name == "go" {
		argv = append(argv[:1], append([]string{"-memory", strconv.Itoa(steps)}, append(argv[1:], task)...)...)
	} else {
		argv = append(argv, task, strconv.Itoa(threads), strconv.Itoa(steps))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", a.name, task, err)
	}
	figures := map[string]float64{}
	for _, line := range strings.Split(string(out), "\n") {
		name, value, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		if figures[name], err = strconv.ParseFloat(value, 64); err != nil {
			return nil, fmt.Errorf("%s %s: %w", a.name, task, err)
		}
	}
	return figures, nil
}

func compare(tasks []string, rounds, threads, steps int) error {
	all, err := arms(threads)
	if err != nil {
		return err
	}
	mallocs := map[string][]string{"own": nil, "raised": raised}
	got := map[key][]float64{} // a figure a round
	var order []string
	for round := range rounds {
		type job struct {
			arm          arm
			malloc, task string
		}
		var jobs []job
		for _, task := range tasks {
			for _, a := range all {
				jobs = append(jobs, job{a, "own", task}, job{a, "raised", task})
			}
		}
		rand.Shuffle(len(jobs), func(i, k int) { jobs[i], jobs[k] = jobs[k], jobs[i] })
		for i, j := range jobs {
			fmt.Fprintf(os.Stderr, "\rround %d of %d: %d of %d  (%s %s)          ", round+1, rounds, i+1, len(jobs), j.arm.name, j.task)
			figures, err := j.arm.run(j.task, threads, steps, mallocs[j.malloc])
			if err != nil {
				return err
			}
			for name, v := range figures {
				got[key{j.arm.name, j.malloc, name}] = append(got[key{j.arm.name, j.malloc, name}], v)
				if !slices.Contains(order, name) {
					order = append(order, name)
				}
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	slices.Sort(order)
	fmt.Printf("%d threads, %d rounds, %s; medians; ratios with quartiles\n", threads, rounds, runtime.GOARCH)
	fmt.Println("malloc: own = each arm's default settings, raised = the same thresholds for all")
	w := table.NewWriter()
	w.AppendHeader(table.Row{"task", "malloc", "go", "c++", "python", "go − c++", "go / c++", "go / python"})
	for _, name := range order {
		base := strings.TrimSuffix(name, "/release") // the peers have but one way to free
		for _, malloc := range []string{"own", "raised"} {
			goV, cpp, py := got[key{"go", malloc, name}], got[key{"c++", malloc, base}], got[key{"python", malloc, base}]
			if len(goV) == 0 {
				continue
			}
			w.AppendRow(table.Row{name, malloc, duration(mid(goV)), duration(mid(cpp)), duration(mid(py)), duration(mid(goV) - mid(cpp)), ratio(goV, cpp), ratio(goV, py)})
		}
	}
	fmt.Println(w.Render())
	if steps == 0 {
		return nil
	}
	m := table.NewWriter()
	m.AppendHeader(table.Row{fmt.Sprintf("GPT, %d training steps", steps), "peak RSS above the library", "growth after the first quarter", "native peak"})
	for _, a := range all {
		figures, err := a.run("memory", threads, steps, nil)
		if err != nil {
			return err
		}
		m.AppendRow(table.Row{a.name, mb(figures["rss_peak_kb"]), mb(figures["rss_growth_kb"]), mb(figures["native_peak_kb"])})
	}
	fmt.Println(m.Render())
	return nil
}

func sorted(v []float64) []float64 { s := slices.Clone(v); slices.Sort(s); return s }

func mid(v []float64) float64 { return quantile(v, 0.5) }

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := sorted(v)
	at := q * float64(len(s)-1)
	lo := int(at)
	hi := min(lo+1, len(s)-1)
	return s[lo] + (s[hi]-s[lo])*(at-float64(lo))
}

// ratio is the median of the rounds' ratios, with the quartiles.
func ratio(a, b []float64) string {
	n := min(len(a), len(b))
	if n == 0 {
		return "-"
	}
	r := make([]float64, n)
	for i := range n {
		r[i] = a[i] / b[i]
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", mid(r), quantile(r, 0.25), quantile(r, 0.75))
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
