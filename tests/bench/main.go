// Command bench measures Linstock side by side with C++ on the same libtorch and, if make bench-setup has
// installed it, Python's PyTorch. Each arm is its own process, and each round starts new ones. The arms take
// turns of some milliseconds in a shuffled order, so that changes in the machine's speed affect all of them. A
// round's ratio is the median over its turns; the table shows the median of the rounds' ratios with its
// quartiles. `make bench` builds and runs it; BENCH="-rounds 3 -tasks add,mlp" passes arguments.
//
// On a device (-device cuda:0) Python also replays the step as a CUDA graph, and compiles it. A turn ends when
// the device has completed its work. Each task runs in its own processes, so that only one model is on the
// device at a time.
package main

import (
	"encoding/json"
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

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/stats"
	"github.com/linstock-ml/linstock/tests/internal/worker"
)

// raised keeps large blocks in the heap. By default glibc returns them to the kernel at every free, which alone
// changes evaluation by a factor of up to 1.5. glibc accepts no larger thresholds.
var raised = []string{"MALLOC_MMAP_THRESHOLD_=33554432", "MALLOC_TRIM_THRESHOLD_=268435456"}

// tasks are the tasks that can be timed, in the order of the table.
var tasks = []string{
	"add", "add/release", "add/shim", "view", "view/release", "matmul", "matmul/release",
	"add+grad", "add+grad/release", "view+grad", "view+grad/release", "matmul+grad", "matmul+grad/release",
	"mlp", "gpt", "gpteval", "amp",
	"step/adadelta", "step/adafactor", "step/adagrad", "step/adam", "step/adamax", "step/adamw", "step/asgd", "step/muon",
	"step/nadam", "step/radam", "step/rmsprop", "step/rprop", "step/sgd", "step/sparseadam",
	"load/pt", "load/safetensors",
	"ddp/mlp", "ddp/gpt", // two ranks, not in C++
}

// filesVar names the directory with the files of the load tasks, model.pt and model.safetensors.
const filesVar = "LINSTOCK_BENCH_FILES"

// deviceTasks are the tasks on a device: operators whose cost is the host's, a network bound by launches, and
// large models.
var deviceTasks = []string{"add", "view", "matmul", "add+grad", "matmul+grad", "mlp", "gpt10m", "gpt350m", "resnet50", "lstm", "attention"}

const operators = 5 // the first of deviceTasks

// options are the command's flags.
type options struct {
	rounds, turns, threads int
	device                 string
	json                   bool // print the table as a JSON object per line
}

func (o options) onDevice() bool { return o.device != "cpu" }

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 7, "rounds, each with new processes")
	flag.IntVar(&o.turns, "turns", 15, "turns that each process of a round gets for a task")
	chosen := flag.String("tasks", "", "tasks that are timed, such as add,step/ for add and all that begin with step/; all by default")
	flag.IntVar(&o.threads, "threads", 1, "threads an operator may use")
	flag.StringVar(&o.device, "device", "cpu", "device of the tasks: cpu, cuda:0")
	flag.BoolVar(&o.json, "json", false, "print the table as JSON objects")
	steps := flag.Int("memory", 2000, "training steps of the memory run, in four quarters; 0: none")
	one := flag.Bool("arm", false, "run as the Go arm: the tasks named on standard input")
	flag.Parse()
	list := tasks
	if o.onDevice() {
		list = deviceTasks
	}
	if *chosen != "" {
		list = choose(list, strings.Split(*chosen, ","))
	}
	var err error
	switch {
	case *one:
		if device, err = tensor.ParseDevice(o.device); err == nil {
			err = serve(o.threads)
		}
	default:
		err = o.run(list, *steps)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// choose returns names, with the tasks of a group in place of a name that ends in a slash.
func choose(tasks, names []string) (chosen []string) {
	for _, name := range names {
		n := len(chosen)
		if strings.HasSuffix(name, "/") {
			for _, task := range tasks {
				if strings.HasPrefix(task, name) {
					chosen = append(chosen, task)
				}
			}
		}
		if n == len(chosen) {
			chosen = append(chosen, name)
		}
	}
	return chosen
}

// run measures the tasks, and memory over the given number of training steps.
func (o options) run(tasks []string, steps int) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	loads := tasksOf(tasks, "load/")
	if len(loads) != 0 {
		dir, err := os.MkdirTemp("", "linstock-bench")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := os.Setenv(filesVar, dir); err != nil {
			return err
		}
		all, err := o.arms()
		if err != nil {
			return err
		}
		// In a process of its own: a process begins with the peak of the resident memory of the one that starts it.
		if _, err := all[0].answer("save " + dir); err != nil {
			return err
		}
	}
	if err := o.compare(tasks); err != nil || o.onDevice() {
		return err
	}
	if peaks := tasksOf(tasks, "load/", "ddp/"); len(peaks) != 0 {
		if err := comparePeaks(peaks); err != nil {
			return err
		}
	}
	if steps > 0 {
		return compareMemory(steps)
	}
	return nil
}

// An arm is a program that reads the name of a task on each line and answers with nanoseconds per iteration, or
// with the figures of the memory run. It answers "-" if it does not have the task.
type arm struct {
	name string
	argv []string
	env  []string
}

func (o options) arms() ([]arm, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := strconv.Itoa(o.threads)
	all := []arm{{"go", []string{self, "-threads", n, "-device", o.device, "-arm"}, nil}}
	native := filepath.Join(filepath.Dir(self), "arm")
	if _, err := os.Stat(native); err == nil || !o.onDevice() {
		all = append(all, arm{"c++", []string{native, n, o.device}, nil})
	}
	python := "build/pytorch/bin/python"
	if p := os.Getenv("LINSTOCK_BENCH_PYTHON"); p != "" {
		python = p
	}
	if _, err := os.Stat(python); err == nil {
		all = append(all, arm{"python", []string{python, "tests/bench/arm.py", n, o.device}, nil})
		if o.onDevice() {
			for _, how := range []string{"graphs", "compile"} {
				all = append(all, arm{how, []string{python, "tests/bench/arm.py", n, o.device, how}, nil})
			}
		}
	} else {
		fmt.Println("Python's PyTorch is not installed (make bench-setup): compared with C++ only")
	}
	return all, nil
}

// A process is a running arm.
type process struct {
	*worker.Process
	arm    arm
	malloc string
	why    string // why it does not have the last task
	ended  bool
}

func (a arm) start(malloc string) (*process, error) {
	cmd := exec.Command(a.argv[0], a.argv[1:]...)
	cmd.Env = append(os.Environ(), a.env...)
	if malloc == "raised" {
		cmd.Env = append(cmd.Env, raised...)
	}
	cmd.Stderr = os.Stderr
	c, err := worker.Start(cmd)
	return &process{Process: c, arm: a, malloc: malloc}, err
}

// answer returns what a process of the arm's own answers to a task.
func (a arm) answer(task string) ([]string, error) {
	p, err := a.start("own")
	if err != nil {
		return nil, err
	}
	defer p.End()
	return p.ask(task)
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

// time runs a turn of a task and returns nanoseconds per iteration, or NaN if the arm does not have the task.
func (p *process) time(task string) (float64, error) {
	if p.ended {
		return math.NaN(), nil
	}
	words, err := p.ask(task)
	if err != nil && (p.arm.name == "graphs" || p.arm.name == "compile") {
		p.ended, p.why = true, "the process ended"
		return math.NaN(), nil
	}
	if err != nil {
		return math.NaN(), err
	}
	if len(words) > 0 && words[0] == "-" {
		p.why = strings.Join(words[1:], " ")
		return math.NaN(), nil
	}
	return strconv.ParseFloat(strings.Join(words, " "), 64)
}

type key struct{ arm, malloc, task string }

// figures are the results of the rounds.
type figures struct {
	times  map[key][]float64 // median time of each round
	ratios map[key][]float64 // Go's time over this arm's: the median of each round's turns
	over   map[key][]float64 // Go's time less this arm's, likewise
	why    map[key]string    // why an arm does not have a task
}

func (o options) compare(tasks []string) error {
	all, err := o.arms()
	if err != nil {
		return err
	}
	f := figures{map[key][]float64{}, map[key][]float64{}, map[key][]float64{}, map[key]string{}}
	var groups [][]string // tasks that are measured in the same processes
	for i, task := range tasks {
		if i > 0 && !o.onDevice() && !isLarge(task) && !isLarge(tasks[i-1]) {
			groups[len(groups)-1] = append(groups[len(groups)-1], task)
		} else {
			groups = append(groups, []string{task})
		}
	}
	for _, group := range groups {
		for round := range o.rounds {
			if err := o.oneRound(all, group, f, func(task string) {
				fmt.Fprintf(os.Stderr, "\rround %d of %d: %-20s", round+1, o.rounds, task)
			}); err != nil {
				return err
			}
		}
		fmt.Fprintln(os.Stderr)
		if o.json {
			for _, task := range group {
				if err := f.row(all, task); err != nil {
					return err
				}
			}
		}
	}
	if o.json {
		return nil
	}
	if o.onDevice() {
		o.deviceTable(all, tasks, f)
		return nil
	}
	times, ratios, over := f.times, f.ratios, f.over
	fmt.Printf("%d threads, %d rounds of %d turns, %s; medians; ratios with quartiles\n", o.threads, o.rounds, o.turns, runtime.GOARCH)
	fmt.Println("OpenMP:", cshim.OpenMPInUse())
	fmt.Println("malloc: own = each arm's default settings, raised = the same thresholds for all")
	w := table.NewWriter()
	w.AppendHeader(table.Row{"task", "malloc", "go", "c++", "python", "go − c++", "go / c++", "go / python"})
	for _, task := range tasks {
		for _, malloc := range []string{"own", "raised"} {
			of := func(arm string) float64 { return stats.Median(times[key{arm, malloc, task}]) }
			ratio := func(arm string) string { return stats.Ratio(ratios[key{arm, malloc, task}]) }
			w.AppendRow(table.Row{task, malloc, stats.Duration(of("go")), stats.Duration(of("c++")), stats.Duration(of("python")), stats.Duration(stats.Median(over[key{"c++", malloc, task}])), ratio("c++"), ratio("python")})
		}
	}
	fmt.Println(w.Render())
	return nil
}

// tasksOf returns the tasks with one of the prefixes.
func tasksOf(tasks []string, prefixes ...string) []string {
	return slices.DeleteFunc(slices.Clone(tasks), func(task string) bool { return !hasPrefix(task, prefixes...) })
}

func hasPrefix(task string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(task, p) })
}

// isLarge reports whether a task on the CPU needs hundreds of megabytes or a second rank, and so has processes of its own.
func isLarge(task string) bool {
	return hasPrefix(task, "step/", "load/", "ddp/")
}

// columns formats a task's times by arm and Go's ratios to the others.
func (f figures) columns(all []arm, task string) (names, values []string, notes []string) {
	put := func(name, value string) { names, values = append(names, name), append(values, value) }
	for _, a := range all {
		k := key{a.name, "own", task}
		put(a.name, stats.Duration(stats.Median(f.times[k])))
		if why := f.why[k]; why != "" {
			notes = append(notes, a.name+": "+why)
		}
	}
	for _, a := range all[1:] {
		put("go / "+a.name, stats.Ratio(f.ratios[key{a.name, "own", task}]))
	}
	return names, values, notes
}

func (f figures) row(all []arm, task string) error {
	names, values, notes := f.columns(all, task)
	row := map[string]string{"row": task}
	for i, name := range names {
		row[name] = values[i]
	}
	if len(notes) != 0 {
		row["note"] = strings.Join(notes, "; ")
	}
	line, err := json.Marshal(row)
	fmt.Printf("%s\n", line)
	return err
}

func (o options) deviceTable(all []arm, tasks []string, f figures) {
	fmt.Printf("%s, %d rounds of %d turns; medians; ratios with quartiles\n", o.device, o.rounds, o.turns)
	w := table.NewWriter()
	for i, task := range tasks {
		names, values, notes := f.columns(all, task)
		if i == 0 {
			header := table.Row{"task"}
			for _, name := range names {
				header = append(header, name)
			}
			w.AppendHeader(header)
		}
		row := table.Row{task}
		for _, value := range values {
			row = append(row, value)
		}
		w.AppendRow(row)
		for _, note := range notes {
			fmt.Printf("%s: %s\n", task, note)
		}
	}
	fmt.Println(w.Render())
}

// oneRound adds a figure for each task, measured with new processes of all arms.
func (o options) oneRound(all []arm, tasks []string, f figures, progress func(string)) error {
	var running []*process
	defer func() {
		for _, p := range running {
			p.End()
		}
	}()
	for _, a := range all {
		if (a.name == "graphs" || a.name == "compile") && slices.Contains(deviceTasks[:operators], tasks[0]) {
			continue // they run training steps
		}
		mallocs := []string{"own", "raised"}
		if o.onDevice() {
			mallocs = mallocs[:1]
		}
		for _, malloc := range mallocs {
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
		for turn := range o.turns + 1 {
			rand.Shuffle(len(running), func(i, k int) { running[i], running[k] = running[k], running[i] })
			for _, p := range running {
				v, err := p.time(task)
				if err != nil {
					return err
				}
				if turn > 0 { // the first turn warms up
					k := key{p.arm.name, p.malloc, task}
					got[k], f.why[k] = append(got[k], v), p.why
				}
			}
		}
		for k, v := range got {
			f.times[k] = append(f.times[k], stats.Median(v))
			ours := got[key{"go", k.malloc, task}]
			r, d := make([]float64, len(v)), make([]float64, len(v))
			for turn := range v {
				r[turn], d[turn] = ours[turn]/v[turn], ours[turn]-v[turn]
			}
			f.ratios[k], f.over[k] = append(f.ratios[k], stats.Median(r)), append(f.over[k], stats.Median(d))
		}
	}
	return nil
}

// comparePeaks runs a turn of each task in each arm by itself.
func comparePeaks(tasks []string) error {
	all, err := options{threads: 1, device: "cpu"}.arms()
	if err != nil {
		return err
	}
	w := table.NewWriter()
	header := table.Row{"peak RSS above the library"}
	for _, task := range tasks {
		header = append(header, task)
	}
	w.AppendHeader(header)
	for _, a := range all {
		row := table.Row{a.name}
		for _, task := range tasks {
			words, err := a.answer("peak " + task)
			if err != nil {
				return err
			}
			kb, err := strconv.ParseFloat(words[0], 64)
			if err != nil { // "-": the arm does not have the task
				kb = 0
			}
			row = append(row, mb(kb))
		}
		w.AppendRow(row)
	}
	fmt.Println(w.Render())
	return nil
}

// compareMemory trains the GPT in each arm by itself, and in C++ also with libtorch's own allocator.
func compareMemory(steps int) error {
	steps = (steps + 3) / 4 * 4
	all, err := options{threads: 1, device: "cpu"}.arms()
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
		words, err := a.answer(fmt.Sprint("memory ", steps))
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

func mb(kb float64) string {
	if kb == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MB", kb/1024)
}
