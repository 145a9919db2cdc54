// Stress runs random scenarios against Linstock on your machine: training, serving, pipelines of goroutines, misuse of
// scopes, releases that race with operators, limits that change, full memory, failing devices.
//
//	go run github.com/linstock-ml/linstock/tests/stress [-device cpu|cuda:0|fake] [-minutes N] [-goroutines G] [-seed S]
//
// A round is one scenario with one seed. After each round native bytes, handles, goroutines and file descriptors must
// be exactly as before, threads within a bound, and every computed value correct. Rounds run in a child process, so
// that one that crashes or hangs is also reported in the table, with the command that repeats it.
//
//	-scenario NAME -seed S      runs one round, as the report of a failure says
//	-check strict-gc|release    runs a check of the scorecard in docs/reliability.md instead
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/tensor"
)

// options holds the command line.
type options struct {
	device     string
	minutes    float64
	goroutines int
	seed       uint64
	scenario   string
	check      string
	share      float64
	operators  int64
	timeout    time.Duration
}

const childEnv = "LINSTOCK_STRESS_CHILD" // holds the device

func main() {
	if device, ok := os.LookupEnv(childEnv); ok {
		os.Exit(child(device, scenarios, os.Stdin, os.Stdout))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], scenarios, os.Stdout, os.Stderr))
}

// command runs the program. It returns the exit code: 0, 1 if a round failed, 2 for an invalid command line or a device or
// libtorch that is not set up.
func command(ctx context.Context, args []string, from []scenario, out, errs io.Writer) int {
	var o options
	f := flag.NewFlagSet("stress", flag.ContinueOnError)
	f.SetOutput(errs)
	f.StringVar(&o.device, "device", "cpu", "device: `cpu`, cuda:0, or fake (CUDA without a GPU, see tests/fakecuda)")
	f.Float64Var(&o.minutes, "minutes", 1, "how long")
	f.IntVar(&o.goroutines, "goroutines", 16, "number of goroutines of a scenario")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "seed of all random choices")
	f.StringVar(&o.scenario, "scenario", "", "run only this scenario: one round with -seed, or for -minutes if that is given")
	f.StringVar(&o.check, "check", "", "run this check of the scorecard: strict-gc or release")
	f.Float64Var(&o.share, "share", 1, "with -check: share of its full count")
	f.Int64Var(&o.operators, "operators", 0, "with -check: number of operators or pairs instead of its full count")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "time after which a round counts as a deadlock")
	f.Usage = func() { usage(f, from) }
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	err := o.fits(f, from)
	if err == nil && o.device == "fake" {
		err = fakeIsThere()
	}
	if err != nil {
		fmt.Fprintln(errs, "stress:", err)
		return 2
	}
	p := &parent{options: o, from: from, out: out, errs: errs, env: checks[o.check].env}
	if p.dir, err = os.MkdirTemp("", "linstock-stress"); err != nil {
		fmt.Fprintln(errs, "stress:", err)
		return 1
	}
	defer os.RemoveAll(p.dir)
	// A signal while the child starts ends the run like one in a round.
	if err := p.begin(ctx); err != nil && !errors.Is(err, errInterrupted) {
		fmt.Fprintln(errs, "stress:", err)
		return 2
	}
	switch {
	case o.check != "":
		return p.check(ctx)
	case o.scenario != "" && !given["minutes"]:
		return p.once(ctx)
	}
	return p.run(ctx)
}

func (o *options) fits(f *flag.FlagSet, from []scenario) error {
	switch {
	case f.NArg() != 0:
		return fmt.Errorf("nothing but flags is understood, got %q; see -help", f.Args())
	case o.goroutines < 1 || o.goroutines > 900:
		return fmt.Errorf("-goroutines must be from 1 to 900, for each may hold a thread; got %d", o.goroutines)
	case o.minutes <= 0 || o.share <= 0 || o.operators < 0 || o.timeout <= 0:
		return errors.New("-minutes, -share, -operators and -timeout must be positive")
	case o.check != "" && checks[o.check].scenario == "":
		return fmt.Errorf("unknown check %q: want strict-gc or release", o.check)
	case !builtWith(checks[o.check].built):
		return fmt.Errorf("-check %s needs a stricter build: GOEXPERIMENT=%s go run %s -check %s", o.check, checks[o.check].built, path, o.check)
	}
	if o.device != "fake" {
		d, err := tensor.ParseDevice(o.device)
		if err != nil {
			return fmt.Errorf("-device: %w", err)
		}
		if d.Type == tensor.MetaType {
			return errors.New("-device must be one that computes values, got meta")
		}
	}
	if o.scenario != "" {
		s, ok := find(from, o.scenario)
		if !ok {
			return fmt.Errorf("unknown scenario %q; see -help", o.scenario)
		}
		if !s.on(o.device) {
			return fmt.Errorf("the scenario %s needs another -device than %s", o.scenario, o.device)
		}
	}
	return nil
}

func usage(f *flag.FlagSet, from []scenario) {
	w := f.Output()
	fmt.Fprint(w, `Stress runs random scenarios against Linstock and checks after each round that nothing is lost: native bytes, handles,
goroutines, file descriptors and threads as before, every computed value right. It needs libtorch (cmd/linstock setup).

  stress                                   a minute on the CPU, a seed from the clock
  stress -device cuda:0 -minutes 60        an hour on a GPU
  stress -scenario release -seed 17        that round again
  stress -check release -share 0.1         a tenth of a line of the scorecard

The exit code is 0 when all rounds were clean, 1 when one failed, 2 when the command line is wrong or the device or libtorch
is not set up. Ctrl-C ends it after the round, with the table.

Flags:
`)
	f.PrintDefaults()
	fmt.Fprint(w, "\nScenarios, and how often each is drawn:\n")
	total := 0
	for _, s := range from {
		total += s.weight
	}
	for _, s := range from {
		often := "only by name"
		if s.weight > 0 {
			often = fmt.Sprintf("%2d %%", (s.weight*100+total/2)/total)
		}
		where := ""
		if s.where != "" {
			where = " (on " + s.where + ")"
		}
		fmt.Fprintf(w, "  %-11s %s: %s%s\n", s.name, often, s.what, where)
	}
	fmt.Fprintf(w, "\nFor -check strict-gc build with GOEXPERIMENT=cgocheck2:\n  GOEXPERIMENT=cgocheck2 go run %s -check strict-gc\n", path)
}

const path = "github.com/linstock-ml/linstock/tests/stress"

// fakeIsThere returns an error that says what to set if the fake CUDA runtime is not set up.
func fakeIsThere() error {
	if strings.Contains(os.Getenv("LD_LIBRARY_PATH"), "fakecuda") && os.Getenv("LINSTOCK_LIB") != "" {
		return nil
	}
	return errors.New(`the fake CUDA runtime is not set up in this shell; in Linstock's repository:
  eval "$(tests/fakecuda/setup.sh)" && go run ./tests/stress -device fake`)
}

// repeat returns the command that runs a round again.
func (o *options) repeat(scenario string, seed uint64) string {
	return fmt.Sprintf("go run %s -device %s -goroutines %d -scenario %s -seed %d", path, o.device, o.goroutines, scenario, seed)
}

func (o *options) title() string {
	return fmt.Sprintf("device %s, %d goroutines, GOMAXPROCS %d, seed %d", o.device, o.goroutines, runtime.GOMAXPROCS(0), o.seed)
}
