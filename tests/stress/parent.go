package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
	"github.com/linstock-ml/linstock/tests/internal/worker"
)

// parent draws the rounds and lets a child run them.
type parent struct {
	options
	from      []scenario
	out, errs io.Writer
	child     *worker.Process
	env       []string // for the child
	dir       string   // holds the files of the children, of which one that is killed leaves some

	rows     map[string]*row
	rounds   atomic.Int64
	work     atomic.Int64
	failures []failure
	stopped  bool // by a signal
}

// row is the line of a scenario in the table.
type row struct {
	rounds, failed int
	work           int64
	took, longest  time.Duration
	threads        int
}

type failure struct {
	scenario string
	seed     uint64
	why      string
}

// task and report are sent between the two processes as lines of JSON.
type task struct {
	Scenario   string
	Seed       uint64
	Goroutines int
}

type report struct {
	Error   string
	Work    int64 // operators, requests or other events that the scenario counts
	Threads int
	Notes   map[string]int64 // further figures for a check of the scorecard
}

const mostFailures = 10

// run draws rounds until the time is over.
func (p *parent) run(ctx context.Context) int {
	fmt.Fprintf(p.errs, "stress: %s, %g minutes\n", p.title(), p.minutes)
	end := time.Now().Add(time.Duration(p.minutes * float64(time.Minute)))
	r := rand.New(rand.NewPCG(p.seed, 0))
	stop := scorecard.Progress(func() string {
		return fmt.Sprintf("stress: %v left, %d rounds", time.Until(end).Round(time.Second), p.rounds.Load())
	})
	for time.Now().Before(end) && len(p.failures) < mostFailures && ctx.Err() == nil {
		p.round(ctx, p.draw(r), r.Uint64())
	}
	p.stopped = ctx.Err() != nil
	stop()
	p.end()
	return p.summary()
}

// once runs a single round with the seed of the command line.
func (p *parent) once(ctx context.Context) int {
	p.round(ctx, p.scenario, p.seed)
	p.stopped = ctx.Err() != nil
	p.end()
	return p.summary()
}

func (p *parent) draw(r *rand.Rand) string {
	if p.scenario != "" {
		return p.scenario
	}
	total := 0
	for _, s := range p.from {
		if s.on(p.device) {
			total += s.weight
		}
	}
	n := r.IntN(total)
	for _, s := range p.from {
		if s.on(p.device) {
			if n -= s.weight; n < 0 {
				return s.name
			}
		}
	}
	return ""
}

// round lets the child run a round, and records the result, but not of a round that ctx ends.
func (p *parent) round(ctx context.Context, name string, seed uint64) report {
	start := time.Now()
	rep, err := p.ask(ctx, task{name, seed, p.goroutines})
	if errors.Is(err, errInterrupted) {
		p.end()
		return rep
	}
	if err == nil && rep.Error != "" {
		err = errors.New(rep.Error)
	}
	took := time.Since(start)
	if p.rows == nil {
		p.rows = map[string]*row{}
	}
	r := p.rows[name]
	if r == nil {
		r = &row{}
		p.rows[name] = r
	}
	r.rounds++
	r.work += rep.Work
	r.took += took
	r.longest = max(r.longest, took)
	r.threads = max(r.threads, rep.Threads)
	p.rounds.Add(1)
	p.work.Add(rep.Work)
	if err != nil {
		r.failed++
		p.failures = append(p.failures, failure{name, seed, err.Error()})
		fmt.Fprintf(p.errs, "\nFAILED: %s, seed %d: %v\n  again: %s\n", name, seed, err, p.repeat(name, seed))
	}
	if s, _ := find(p.from, name); err != nil || s.spoils {
		p.end() // the next round starts in a new process
	}
	return rep
}

// ask sends a task to the child, which it starts if necessary, and waits for its report.
func (p *parent) ask(ctx context.Context, t task) (rep report, err error) {
	if p.child == nil {
		if err := p.begin(ctx); err != nil {
			return rep, err
		}
	}
	line, err := json.Marshal(t)
	if err != nil {
		return rep, err
	}
	if _, err := p.child.In.Write(append(line, '\n')); err != nil {
		return rep, fmt.Errorf("the child process is gone: %w", errors.Join(err, p.child.End()))
	}
	return p.answer(ctx)
}

// begin starts the child and waits until it has set up the device.
func (p *parent) begin(ctx context.Context) error {
	c, err := startChild(p.device, append([]string{"TMPDIR=" + p.dir}, p.env...), p.errs)
	if err != nil {
		return err
	}
	p.child = c
	rep, err := p.answer(ctx)
	if err == nil && rep.Error != "" {
		err = errors.New(rep.Error)
	}
	if err != nil {
		p.end()
	}
	return err
}

// answer waits for the child's next report. It kills the child when ctx ends.
func (p *parent) answer(ctx context.Context) (rep report, err error) {
	c := p.child
	var hung atomic.Bool
	timer := time.AfterFunc(p.timeout, func() {
		hung.Store(true)
		_ = c.Cmd.Process.Signal(syscall.SIGQUIT) // the Go runtime prints all goroutines and ends
		time.AfterFunc(10*time.Second, func() { _ = c.Cmd.Process.Kill() })
	})
	defer timer.Stop()
	defer context.AfterFunc(ctx, func() { _ = c.Cmd.Process.Kill() })()
	answer, err := c.Out.ReadString('\n')
	switch {
	case hung.Load():
		_ = c.End()
		return rep, fmt.Errorf("no end after %v: a deadlock; the goroutines are above", p.timeout)
	case err != nil && ctx.Err() != nil:
		return rep, errInterrupted
	case err != nil:
		return rep, fmt.Errorf("the process died: %w", errors.Join(c.End(), errNoReport))
	}
	return rep, json.Unmarshal([]byte(answer), &rep)
}

var (
	errNoReport    = errors.New("without a report")
	errInterrupted = errors.New("interrupted")
)

// end ends the child; an idle child ends by itself.
func (p *parent) end() {
	if p.child == nil {
		return
	}
	timer := time.AfterFunc(10*time.Second, func() { _ = p.child.Cmd.Process.Kill() })
	_ = p.child.End()
	timer.Stop()
	p.child = nil
}

func startChild(device string, env []string, errs io.Writer) (*worker.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childEnv+"="+device), env...)
	if device != "cpu" {
		// The libraries keep a workspace for each thread that ever used them, which would look like a leak.
		cmd.Env = append(cmd.Env, "CUBLAS_WORKSPACE_CONFIG=:0:0", "CUBLASLT_WORKSPACE_SIZE=0")
	}
	if device == "fake" {
		cmd.Env = append(cmd.Env, "LINSTOCK_CUDNN=0") // convolutions and GRUs run libtorch's own kernels
	}
	cmd.Stderr = errs
	return worker.Start(cmd)
}

// summary prints the table and returns the exit code.
func (p *parent) summary() int {
	w := table.NewWriter()
	w.Style().Format = table.FormatOptions{} // as written in this file
	w.AppendHeader(table.Row{"scenario", "rounds", "failed", "work", "average", "longest", "threads"})
	var all row
	for _, s := range p.from {
		r := p.rows[s.name]
		if r == nil {
			continue
		}
		w.AppendRow(r.cells(s.name))
		all.rounds, all.failed, all.work, all.took = all.rounds+r.rounds, all.failed+r.failed, all.work+r.work, all.took+r.took
		all.longest, all.threads = max(all.longest, r.longest), max(all.threads, r.threads)
	}
	w.AppendFooter(all.cells("all"))
	fmt.Fprintln(p.out, w.Render())
	fmt.Fprintln(p.out, p.title())
	for _, f := range p.failures {
		fmt.Fprintf(p.out, "FAILED: %s, seed %d: %s\n  again: %s\n", f.scenario, f.seed, strings.SplitN(f.why, "\n", 2)[0], p.repeat(f.scenario, f.seed))
	}
	switch {
	case len(p.failures) != 0:
		return 1
	case p.stopped:
		fmt.Fprintln(p.out, "interrupted; all rounds until then were clean")
	}
	return 0
}

func (r *row) cells(name string) table.Row {
	average := time.Duration(0)
	if r.rounds > 0 {
		average = r.took / time.Duration(r.rounds)
	}
	return table.Row{name, r.rounds, r.failed, r.work, average.Round(time.Millisecond), r.longest.Round(time.Millisecond), r.threads}
}

// A check is a line of the scorecard: rounds of one scenario until a count is reached.
type check struct {
	scenario string
	count    int64
	what     string
	env      []string
	built    string // the build settings must contain this
}

var checks = map[string]check{
	"strict-gc": {"operators", 10_000_000, "operators", []string{"GOGC=1", "GODEBUG=clobberfree=1,cgocheck=1"}, "cgocheck2"},
	"release":   {"pairs", 100_000_000, "pairs", nil, ""},
}

func (p *parent) check(ctx context.Context) int {
	c := checks[p.options.check]
	p.goroutines = 64
	want := scorecard.Share(c.count, p.share)
	if p.operators > 0 {
		want = p.operators
	}
	stop := scorecard.Progress(func() string {
		return fmt.Sprintf("%s: %d of %d %s", p.options.check, p.work.Load(), want, c.what)
	})
	notes := map[string]int64{}
	r := rand.New(rand.NewPCG(p.seed, 1))
	start := time.Now()
	for p.work.Load() < want && len(p.failures) == 0 && ctx.Err() == nil {
		for k, v := range p.round(ctx, c.scenario, r.Uint64()).Notes {
			notes[k] += v
		}
	}
	stop()
	p.end()
	figures := fmt.Sprintf("%d %s of 64 goroutines, %d faults", p.work.Load(), c.what, len(p.failures))
	ok := len(p.failures) == 0 && p.work.Load() >= want
	if n := notes["results"] + notes["released"]; n > 0 {
		figures += fmt.Sprintf("; %.0f %% gave results, %.0f %% ErrReleased", 100*float64(notes["results"])/float64(n), 100*float64(notes["released"])/float64(n))
		ok = ok && 20*min(notes["results"], notes["released"]) >= n // neither is rare: at least 5 %
	}
	figures += fmt.Sprintf(", %.0f a second", float64(p.work.Load())/time.Since(start).Seconds())
	scorecard.Line(p.options.check, figures, ok)
	if !ok {
		return 1
	}
	return 0
}

func builtWith(experiment string) bool {
	info, ok := debug.ReadBuildInfo()
	if experiment == "" || !ok {
		return experiment == ""
	}
	for _, s := range info.Settings {
		if s.Key == "GOEXPERIMENT" && strings.Contains(s.Value, experiment) {
			return true
		}
	}
	return false
}
