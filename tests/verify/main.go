// Verify runs every line of the scorecard of docs/reliability.md, in full or a share of it, and prints the
// table:
//
//	go run ./tests/verify [-share F] [-rows oom-device,storm,…] [-write]
//
// `make verify` runs all of it, which takes nearly three hours on two cores; `make test` runs a fiftieth. A line is a
// program under tests, whose last line of output contains the figures, or a way to run the Go tests
// (gotest.go). With -write, which needs the full counts, the results go into docs/reliability.md; lines that were not
// run are not changed.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// A row is a line of the scorecard: what is tested, the required result, and the test itself, either a command
// in which SHARE stands for the share, or a function.
type row struct {
	name, test, target, command string
	call                        func(ctx context.Context, share float64) (figures string, err error)
	env                         []string
	tiers                       bool // tiers of tests/run.sh, which take no share
}

var rows = []row{
	{name: "oom-device", test: "every k-th allocation of device memory fails, once and from then on, in training steps",
		target:  "≥ 100,000 faults; 0 crashes, 0 leaked bytes, every failure ErrOutOfMemory",
		command: "go run ./tests/faults -rows oom-device -share SHARE"},
	{name: "oom-host", test: "the same for CPU memory and the shim's own",
		target: "≥ 50,000 faults; the same", command: "go run ./tests/faults -rows oom-host -share SHARE"},
	{name: "device-errors", test: "errors 700, 719, 999, 46 at each runtime call of a step",
		target:  "≥ 20,000; 0 aborts, each error is ErrDeviceLost, the other device continues to work",
		command: "go run ./tests/faults -rows device-errors -share SHARE"},
	{name: "exceptions", test: "each exported function × each type of exception",
		target: "0 terminations", command: "go run ./tests/faults -rows exceptions -share SHARE"},
	{name: "storm", test: "pressure storm, 64 goroutines",
		target: "200,000 allocations that waited, 0 failed, 0 hangs, p99 ≤ 20 ms", command: "go run ./tests/memory -share SHARE storm"},
	{name: "garbage", test: "a loop that releases nothing, with 1 GiB of Go pointers, for a minute",
		target: "≤ 5 % of the time in sweeps; a time budget of 100 ms and half of the longest sweep may come on top; at its peak at most 3/4 of what was allocated", command: "go run ./tests/memory -share SHARE garbage"},
	{name: "shapes", test: "resident memory while the shapes of inputs vary",
		target: "50,000 steps; ± 2 % from step 2,000 on", command: "go run ./tests/resident -share SHARE"},
	{name: "forced-gc", test: "a collection inside reads of handles, the tests of seven packages",
		target: "passes", call: forcedGC},
	{name: "strict-gc", test: "GOGC=1, clobberfree, cgocheck2",
		target: "10,000,000 operators, 0 faults", command: "go run ./tests/stress -check strict-gc -share SHARE", env: []string{"GOEXPERIMENT=cgocheck2"}},
	{name: "release", test: "release against operators, scope close against operators, 64 goroutines",
		target: "100,000,000 pairs, only results or ErrReleased", command: "go run ./tests/stress -check release -share SHARE"},
	{name: "bounds", test: "the tests of seven packages with an inaccessible page next to the end, and next to the start, of each CPU tensor",
		target: "passes", call: bounds},
	{name: "balance", test: "native bytes, handles, goroutines, descriptors at the end of each test",
		target: "exactly as at its start", call: balance},
	{name: "mutation", test: "each line that keeps the library safe is removed",
		target: "≥ 95 % noticed by tests, 100 % with the analyzer", command: "go run ./tests/mutate -share SHARE"},
	{name: "sanitizers", test: "short tests with -race and with cgocheck2; AddressSanitizer, UBSan, ThreadSanitizer",
		target: "clean", command: "tests/run.sh race layers cgocheck sanitize thread", tiers: true},
	{name: "install", test: "a user's module on a machine without libtorch: setup, damaged files and their repair, a bundle",
		target: "passes", command: "tests/run.sh setup", tiers: true},
	{name: "go-command", test: "linstock go with flags, workspaces, aliases and loops, and faults of the rewrite",
		target: "passes", command: "tests/run.sh lastuse", tiers: true},
	{name: "last-use", test: "generated programs and the repository's tests, unchanged and rewritten by linstock go",
		target: "20,000 programs; the same output, 0 ErrReleased, never more bytes; the same tests pass", command: "go run ./tests/lastuse -share SHARE"},
	{name: "kill", test: "kill -9 during a checkpoint",
		target: "1,000 times the old or the new file, whole", command: "go run ./tests/kill -share SHARE"},
	{name: "ranks", test: "a rank of four is killed, stopped, cut off, slow or cannot save, at each phase of a step",
		target: "1,000 faults; every survivor names it within 2 s, the job goes on to the same weights", command: "go run ./tests/ranks -share SHARE"},
	{name: "hostile", test: "hostile safetensors and checkpoint files",
		target: "10,000,000 mutants, 0 crashes, peak allocation ≤ file size + 16 MiB", command: "go run ./tests/hostile -share SHARE"},
	{name: "hostile-pytorch", test: "hostile files of torch.save and NumPy",
		target: "10,000,000 mutants, 0 crashes, peak allocation ≤ file size + 16 MiB", command: "go run ./tests/hostile -format pytorch -share SHARE"},
	{name: "crashhunt", test: "every operator that tensor.Call accepts, with arguments meant to end the process, and backward; guard pages next to each tensor",
		target: "200,000 calls, 0 deaths", command: "go run ./tests/crashhunt -share SHARE"},
	{name: "gpu-kit", test: "the kit for a machine with a GPU, over the fake CUDA runtime in a bare environment",
		target: "every step ok", command: "tests/gpu/dry.sh -share SHARE build/gpu-dry"},
	{name: "cfuzz", test: "C API fuzz",
		target: "10,000,000 calls, 0 crashes", command: "tests/cshim/fuzz.sh -share SHARE"},
}

type result struct {
	row
	figures string
	ok      bool
	took    time.Duration
}

func main() {
	share := flag.Float64("share", 1, "share of every full count")
	names := flag.String("rows", "", "run only these, separated by commas; all by default")
	write := flag.Bool("write", false, "put the figures into docs/reliability.md")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, err := choose(*names)
	if err == nil {
		err = fits(*share, *write)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
		os.Exit(2)
	}
	start, bad := time.Now(), 0
	var results []result
	for i, r := range chosen {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(os.Stderr, "== %d of %d: %s: %s\n", i+1, len(chosen), r.name, r.test)
		res := r.run(ctx, *share)
		if !res.ok {
			bad++
		}
		fmt.Fprintf(os.Stderr, "   %s\n", res.figures)
		results = append(results, res)
	}
	fmt.Println(render(results, true).Render())
	fmt.Printf("%d of %d lines hold; share %v; %v\n", len(results)-bad, len(chosen), *share, time.Since(start).Round(time.Second))
	if *write {
		if err := update("docs/reliability.md", results); err != nil {
			fmt.Fprintln(os.Stderr, "verify:", err)
			bad++
		}
	}
	if bad != 0 || len(results) != len(chosen) {
		os.Exit(1)
	}
}

// fits returns an error if the share is none, or if -write would put a part of the counts into a table of full ones.
func fits(share float64, write bool) error {
	switch {
	case !(share > 0 && share <= 1):
		return fmt.Errorf("-share is above 0 and at most 1, not %v", share)
	case write && share != 1:
		return fmt.Errorf("-write needs the full counts, not -share %v", share)
	}
	return nil
}

func choose(names string) ([]row, error) {
	if names == "" {
		return rows, nil
	}
	var chosen []row
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown row %q", name)
		}
		chosen = append(chosen, rows[i])
	}
	return chosen, nil
}

var summary = regexp.MustCompile(`(?m)^(\d+ passed, \d+ failed)$`)

func (r row) run(ctx context.Context, share float64) result {
	start := time.Now()
	if r.call != nil {
		figures, err := r.call(ctx, share)
		if err != nil {
			figures = fmt.Sprintf("%s (%v)", figures, err)
		}
		return result{row: r, figures: figures, ok: err == nil, took: time.Since(start).Round(time.Second)}
	}
	words := strings.Fields(strings.ReplaceAll(r.command, "SHARE", strconv.FormatFloat(share, 'g', -1, 64)))
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), r.env...)
	// An interrupt also reaches the program, which then cleans up.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	err := cmd.Run()
	res := result{row: r, ok: err == nil, took: time.Since(start).Round(time.Second)}
	said := strings.TrimSpace(out.String())
	last := strings.Split(said[strings.LastIndexByte(said, '\n')+1:], "|")
	switch found := summary.FindString(said); {
	case r.tiers && found != "":
		res.figures = found
	case !r.tiers && len(last) == 4 && last[0] == "scorecard" && last[1] == r.name:
		res.figures = last[2]
		res.ok = res.ok && last[3] == "ok"
	default:
		res.figures, res.ok = fmt.Sprintf("no result (%v)", err), false
	}
	if !res.ok {
		fmt.Fprintln(os.Stderr, said)
	}
	return res
}

func render(results []result, wrap bool) table.Writer {
	w := table.NewWriter()
	w.AppendHeader(table.Row{"test", "target", "figures", "seconds", "command"})
	var columns []table.ColumnConfig
	for i, width := range []int{36, 36, 48, 8, 40} {
		columns = append(columns, table.ColumnConfig{Number: i + 1, WidthMax: width, WidthMaxEnforcer: text.WrapSoft})
	}
	if wrap {
		w.SetColumnConfigs(columns)
	}
	for _, r := range results {
		figures := r.figures
		if !r.ok {
			figures = "FAILED: " + figures
		}
		if r.call != nil {
			r.command = "go run ./tests/verify -rows " + r.name
		}
		command := strings.ReplaceAll(r.command, " -share SHARE", "")
		w.AppendRow(table.Row{r.test, r.target, figures, int(r.took.Seconds()), strings.Join(append(slices.Clone(r.env), command), " ")})
	}
	return w
}

var scoreTable = regexp.MustCompile(`(?s)<!-- scorecard -->\n.*<!-- end -->`)

// update puts results into the table in file: the whole table, or only the lines that were run.
func update(file string, results []result) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	found := scoreTable.Find(old)
	if found == nil {
		return fmt.Errorf("%s has no scorecard", file)
	}
	markdown := render(results, false).RenderMarkdown()
	text := fmt.Sprintf("<!-- scorecard -->\nLast whole run: %s; lines run individually since then are newer.\n\n%s\n<!-- end -->", time.Now().Format(time.DateOnly), markdown)
	if len(results) < len(rows) {
		lines := strings.Split(string(found), "\n")
		for i, line := range strings.Split(markdown, "\n")[2:] {
			at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "| "+results[i].test+" |") })
			if at < 0 {
				return fmt.Errorf("%s has no line %q", file, results[i].test)
			}
			lines[at] = line
		}
		text = strings.Join(lines, "\n")
	}
	return os.WriteFile(file, bytes.Replace(old, found, []byte(text), 1), 0o644)
}
