// Command peak compares peak memory and step time with Python's PyTorch, on the same libtorch and through the
// same counting allocator, at sizes that matter: steps of half a second and more, hundreds of megabytes. Each
// run is its own process; the runs of a round are in shuffled order. `make bench-peak` builds and runs it;
// BENCH="-rounds 1 -models cnn" passes arguments. -arm MODEL,MODE,STYLE -record FILE writes the trace of a step
// for the simulator of internal/pacer.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/stats"
)

type options struct {
	rounds, threads, steps int
	models, modes, styles  []string
	lines                  []string
	python, library        string
	free                   bool // without the runs that compare times
	verbose                bool
	device                 string
	scale                  int
	json                   bool
	lastUse                string // the Go arm built by linstock go
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "shuffled rounds")
	flag.IntVar(&o.threads, "threads", 2, "threads an operator may use")
	flag.IntVar(&o.steps, "steps", 6, "measured steps per run")
	flag.BoolVar(&o.free, "peaks", false, "only peaks: no runs with the policy off or Python's own allocator")
	flag.BoolVar(&o.verbose, "v", false, "print the figures of every run on standard error")
	models := flag.String("models", "mlp,cnn,gru,gpt,"+zoo, "models")
	modes := flag.String("modes", "train,eval", "modes")
	styles := flag.String("styles", "layers,plain,unscoped", "styles of the Go program")
	lines := flag.String("lines", "table,limit,speed,reserved,cost,toy", "what to measure")
	flag.StringVar(&o.device, "device", "cpu", "device: cpu, cuda:0")
	flag.IntVar(&o.scale, "scale", 1, "factor for the models' own batches")
	flag.BoolVar(&o.json, "json", false, "print the table as JSON, one object per line")
	flag.StringVar(&o.lastUse, "lastuse", "", "this program, built by linstock go: the style lastuse is its style plain")
	arm := flag.String("arm", "", "run one task of the Go arm in this process: MODEL,MODE,STYLE")
	rows := flag.Int("rows", 0, "rows of a batch; 0: the model's own")
	above := flag.Int64("limit", 0, "set a limit this many bytes above what is live between steps")
	trace := flag.String("record", "", "write the trace of the -arm's step to this file, for internal/pacer")
	flag.Parse()
	o.models, o.modes, o.styles, o.lines = split(*models), split(*modes), split(*styles), split(*lines)
	var err error
	if *arm != "" {
		p := append(split(*arm), "", "")
		t := task{p[0], p[1], p[2], *rows, o.steps, *above, o.scale, o.free}
		if device, err = tensor.ParseDevice(o.device); err == nil {
			if *trace != "" {
				err = record(t, o.threads, *trace)
			} else {
				err = runArm(t, o.threads)
			}
		}
	} else {
		err = o.compare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peak:", err)
		os.Exit(1)
	}
}

func split(s string) []string { return strings.FieldsFunc(s, func(r rune) bool { return r == ',' }) }

// A job is one process of a round.
type job struct {
	arm  string // "go", "go off", "go limit", "python", "python stock"
	task task
}

func (j job) key() string {
	return fmt.Sprintf("%s %s %s %s %d", j.arm, j.task.model, j.task.mode, j.task.style, j.task.rows)
}

type results map[string]map[string][]float64 // a job's figures, one per round

func (r results) of(arm string, t task, figure string) []float64 {
	return r[job{arm, t}.key()][figure]
}

func (o *options) run(j job) (map[string]float64, error) {
	var argv []string
	env := os.Environ()
	t := j.task
	switch {
	case strings.HasPrefix(j.arm, "python"):
		argv = []string{o.python, "tests/bench/peak/arm.py", t.model, t.mode, strconv.Itoa(o.threads), strconv.Itoa(t.steps), strconv.Itoa(t.rows),
			o.device, strconv.Itoa(o.scale)}
		if j.arm == "python" && o.device == "cpu" {
			argv = append(argv, o.library)
		}
	default:
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		if t.style == lastUse {
			self, t.style = o.lastUse, "plain"
		}
		argv = []string{self, "-device", o.device, "-scale", strconv.Itoa(o.scale), "-threads", strconv.Itoa(o.threads), "-steps", strconv.Itoa(t.steps), "-rows", strconv.Itoa(t.rows),
			"-peaks=" + strconv.FormatBool(o.free), "-limit", strconv.FormatInt(t.above, 10), "-arm", strings.Join([]string{t.model, t.mode, t.style}, ",")}
		if j.arm == "go off" {
			env = append(env, "LINSTOCK_POLICY=off")
		}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stderr = env, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", j.key(), err)
	}
	figures := map[string]float64{}
	for _, line := range strings.Split(string(out), "\n") {
		if name, value, ok := strings.Cut(line, " "); ok {
			if figures[name], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", j.key(), err)
			}
		}
	}
	return figures, nil
}

// runs runs the jobs, shuffled in each round.
func (o *options) runs(jobs []job, into results) error {
	for round := range o.rounds {
		rand.Shuffle(len(jobs), func(i, k int) { jobs[i], jobs[k] = jobs[k], jobs[i] })
		for i, j := range jobs {
			fmt.Fprintf(os.Stderr, "\rround %d of %d: %d of %d  (%s)                    ", round+1, o.rounds, i+1, len(jobs), j.key())
			figures, err := o.run(j)
			if err != nil {
				return err
			}
			if o.verbose {
				fmt.Fprintf(os.Stderr, "\r%s %v\n", j.key(), figures)
			}
			for name, v := range figures {
				if into[j.key()] == nil {
					into[j.key()] = map[string][]float64{}
				}
				into[j.key()][name] = append(into[j.key()][name], v)
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	return nil
}

func (o *options) compare() error {
	if err := cshim.Load(); err != nil {
		return err
	}
	o.library = cshim.Path()
	o.python = "build/pytorch/bin/python"
	if p := os.Getenv("LINSTOCK_BENCH_PYTHON"); p != "" {
		o.python = p
	}
	if _, err := os.Stat(o.python); err != nil {
		return errors.New("no PyTorch for Python is installed: make bench-setup")
	}
	if o.lastUse != "" {
		if _, err := os.Stat(o.lastUse); err != nil {
			return err
		}
		o.styles = append(o.styles, lastUse)
	}
	fmt.Printf("%s, %d threads, %d rounds of %d steps; medians; ratios with quartiles\n", o.device, o.threads, o.rounds, o.steps)
	got := results{}
	for _, line := range o.lines {
		var err error
		switch line {
		case "table":
			err = o.table(got)
		case "limit":
			err = o.limits(got)
		case "speed":
			err = o.speed()
		case "reserved":
			err = o.reserved()
		case "cost":
			err = o.cost()
		case "toy":
			err = o.toy()
		default:
			err = fmt.Errorf("no line %q", line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lastUse is the style of the program built by linstock go.
const lastUse = "lastuse"

func (o *options) each(f func(t task)) {
	for _, model := range o.models {
		for _, mode := range o.modes {
			f(task{model: model, mode: mode, steps: o.steps})
		}
	}
}

// stylesOf returns those of the chosen styles that a model has.
func (o *options) stylesOf(model string) (list []string) {
	for _, style := range o.styles {
		if style == "plain" || style == lastUse || !slices.Contains(split(zoo), model) {
			list = append(list, style)
		}
	}
	return list
}

// table compares peaks, in bytes above those live between steps, once weights, optimizer and batch exist.
func (o *options) table(got results) error {
	var jobs []job
	o.each(func(t task) {
		jobs = append(jobs, job{"python", t})
		if !o.free && o.device == "cpu" { // on a device Python's allocator is the same
			jobs = append(jobs, job{"python stock", t})
		}
		for _, t.style = range o.stylesOf(t.model) {
			jobs = append(jobs, job{"go", t})
			if !o.free {
				jobs = append(jobs, job{"go off", t})
			}
		}
	})
	if err := o.runs(jobs, got); err != nil {
		return err
	}
	if o.json {
		return o.rows(got)
	}
	w := table.NewWriter()
	w.AppendHeader(table.Row{"model", "mode", "style", "peak", "python", "ratio", "target", "off", "RSS", "python", "step", "/ off", "/ python", "/ stock python", "sweeps a step", "collecting"})
	byStyle := map[string][]float64{}
	o.each(func(t task) {
		py := t
		for _, t.style = range o.stylesOf(t.model) {
			byStyle[t.style] = append(byStyle[t.style], stats.Median(ratios(got.of("go", t, "peak"), got.of("python", py, "peak"))))
			target := map[string]string{"layers": "1.00", lastUse: "1.02"}[t.style]
			if target == "" {
				target = "1.05"
			}
			step := got.of("go", t, "step")
			w.AppendRow(table.Row{t.model, t.mode, t.style, mb(got.of("go", t, "peak")), mb(got.of("python", py, "peak")),
				ratio(got.of("go", t, "peak"), got.of("python", py, "peak"), 3), target, ratio(got.of("go off", t, "peak"), got.of("python", py, "peak"), 3),
				mb(got.of("go", t, "rss")), mb(got.of("python", py, "rss")),
				ms(step), spread(got.of("go", t, "against"), 2), ratio(step, got.of("python", py, "step"), 2), ratio(step, got.of("python stock", py, "step"), 2),
				fmt.Sprintf("%.1f", stats.Median(got.of("go", t, "sweeps"))/float64(t.steps)),
				fmt.Sprintf("%.1f%%", 100*stats.Median(got.of("go", t, "collecting"))/float64(t.steps)/stats.Median(step))})
		}
		w.AppendSeparator()
	})
	fmt.Println("peak: bytes live above the base (weights, optimizer, batch); off: LINSTOCK_POLICY=off; / off: steps of one process in turns")
	fmt.Println(w.Render())
	w = table.NewWriter()
	w.AppendHeader(table.Row{"ratio of all rows", "median", "worst"})
	for _, style := range o.styles {
		if r := byStyle[style]; len(r) != 0 {
			w.AppendRow(table.Row{style, fmt.Sprintf("%.2f", stats.Median(r)), fmt.Sprintf("%.2f", slices.Max(r))})
		}
	}
	fmt.Println(w.Render())
	return nil
}

// rows prints the table as JSON.
func (o *options) rows(got results) (err error) {
	put := func(row map[string]any) {
		line, e := json.Marshal(row)
		err = errors.Join(err, e)
		fmt.Printf("%s\n", line)
	}
	o.each(func(t task) {
		py := t
		for _, t.style = range o.stylesOf(t.model) {
			put(map[string]any{"row": fmt.Sprintf("%s, %s, %s", t.model, t.mode, t.style),
				"peak": mb(got.of("go", t, "peak")), "python": mb(got.of("python", py, "peak")), "peak / python": ratio(got.of("go", t, "peak"), got.of("python", py, "peak"), 3),
				"step": ms(got.of("go", t, "step")), "step / python": ratio(got.of("go", t, "step"), got.of("python", py, "step"), 2),
				"step / unswept": spread(got.of("go", t, "against"), 2), "sweeps a step": fmt.Sprintf("%.1f", stats.Median(got.of("go", t, "sweeps"))/float64(t.steps))})
		}
	})
	return err
}

// limits runs every Go program with a limit of 1.05 times Python's peak.
func (o *options) limits(got results) error {
	var jobs []job
	o.each(func(t task) {
		if len(got.of("python", t, "peak")) == 0 {
			jobs = append(jobs, job{"python", t})
		}
	})
	once := *o
	once.rounds = 1
	if err := once.runs(jobs, got); err != nil {
		return err
	}
	jobs = nil
	limited := results{}
	o.each(func(t task) {
		above := int64(1.05 * stats.Median(got.of("python", t, "peak")))
		for _, t.style = range o.stylesOf(t.model) {
			t.above = above
			jobs = append(jobs, job{"go limit", t})
		}
	})
	if err := o.runs(jobs, limited); err != nil {
		return err
	}
	w := table.NewWriter()
	w.AppendHeader(table.Row{"limit 1.05 × python's peak", "mode", "style", "peak", "limit", "time / unlimited", "target", "sweeps a step", "waits a step"})
	o.each(func(t task) {
		above := 1.05 * stats.Median(got.of("python", t, "peak"))
		for _, t.style = range o.stylesOf(t.model) {
			each := func(figure string) string {
				return fmt.Sprintf("%.1f", stats.Median(limited.of("go limit", t, figure))/float64(t.steps))
			}
			w.AppendRow(table.Row{t.model, t.mode, t.style, mb(limited.of("go limit", t, "peak")), mb([]float64{above}),
				spread(limited.of("go limit", t, "against"), 2), "1.10", each("sweeps"), each("waits")})
		}
	})
	fmt.Println(w.Render())
	return nil
}

// speed compares with Python on its own allocator, which shows the effect of the block cache.
func (o *options) speed() error {
	cnn, gpt := task{model: "cnn", mode: "train", rows: 1024, steps: o.steps}, task{model: "gpt64", mode: "eval", rows: 64, steps: 4 * o.steps}
	var jobs []job
	for _, t := range []task{cnn, gpt} {
		jobs = append(jobs, job{"python stock", t})
		t.style = "layers"
		jobs = append(jobs, job{"go", t})
	}
	got := results{}
	if err := o.runs(jobs, got); err != nil {
		return err
	}
	for _, l := range []struct {
		name, target string
		task         task
	}{{"CNN, training step at batch 1024", "0.50", cnn}, {"GPT, no-grad evaluation at batch 64", "0.85", gpt}} {
		py := l.task
		l.task.style = "layers"
		fmt.Printf("%s, go / python, each with its own defaults: %s, target %s (%s and %s)\n", l.name,
			ratio(got.of("go", l.task, "step"), got.of("python stock", py, "step"), 2), l.target,
			ms(got.of("go", l.task, "step")), ms(got.of("python stock", py, "step")))
	}
	return nil
}

func (o *options) reserved() error {
	f, err := o.run(job{"go", task{model: "reserved", steps: 1000}})
	if err != nil {
		return err
	}
	fmt.Printf("CNN, 1,000 steps of 8 to 127 rows: reserved / peak allocated %.2f, at most %.2f on the way, target 1.25\n", f["reserved"]/f["peak"], f["most"]/f["peak"])
	return nil
}

func (o *options) cost() error {
	one := *o
	one.threads = 1
	got := results{}
	if err := one.runs([]job{{"go", task{model: "cost", steps: 1}}}, got); err != nil {
		return err
	}
	t := task{model: "cost"}
	on, unprofiled, off := got.of("go", t, "on"), got.of("go", t, "unprofiled"), got.of("go", t, "off")
	fmt.Printf("add of 16 floats in a scope: %.0f ns with everything on, %.0f with the policy off and no profile; %+.1f ns, target 25; the profile alone %s, target 1.01\n",
		stats.Median(on), stats.Median(off), stats.Median(on)-stats.Median(off), ratio(on, unprofiled, 3))
	return nil
}

// toy runs models whose steps take milliseconds. Only tensors outside scopes are left for sweeps, and a sweep
// finds some 250 MiB of them now and then.
func (o *options) toy() error {
	for _, t := range []task{
		{model: "mlp", mode: "train", rows: 32, steps: 1000}, {model: "cnn", mode: "train", rows: 16, steps: 300},
		{model: "gru", mode: "train", rows: 16, steps: 200}, {model: "gpt64", mode: "train", rows: 4, steps: 200},
	} {
		for _, t.style = range o.styles {
			f, err := o.run(job{"go", t})
			if err != nil {
				return err
			}
			target := "0"
			if t.style == "unscoped" {
				target = "none, its peak is to stay below 256 MiB"
			}
			fmt.Printf("toy size, %s, %s: %.1f ms a step, peak %s, %.0f sweeps in %d steps, target %s\n", t.model, t.style, f["step"]/1e6, mb([]float64{f["peak"]}), f["sweeps"], t.steps, target)
		}
	}
	return nil
}

// ratio is the median of the rounds' ratios a/b, with the quartiles where there are several.
func ratio(a, b []float64, digits int) string { return spread(ratios(a, b), digits) }

// ratios returns the ratio of each round.
func ratios(a, b []float64) []float64 {
	r := make([]float64, min(len(a), len(b)))
	for i := range r {
		r[i] = a[i] / b[i]
	}
	return r
}

func spread(r []float64, digits int) string {
	n := len(r)
	if n == 0 {
		return "-"
	}
	text := fmt.Sprintf("%.*f", digits, stats.Median(r))
	if n > 1 {
		text += fmt.Sprintf(" (%.*f–%.*f)", digits, stats.Quantile(r, 0.25), digits, stats.Quantile(r, 0.75))
	}
	return text
}

func mb(bytes []float64) string {
	if len(bytes) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MB", stats.Median(bytes)/(1<<20))
}

func ms(ns []float64) string {
	if len(ns) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", stats.Median(ns)/1e6)
}
