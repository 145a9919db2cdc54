// Gpu runs the kit's parts on a machine with a GPU and writes the results to results.json, results.md and
// log.txt in OUT. run.sh, beside it in the kit, starts it; docs/gpu-kit.md describes both.
//
//	run.sh [--for 9m] [--share F] [--again] [--failed] [--dry] OUT [PART | PART/STEP …]
//	run.sh --list
//
// A step whose result is in OUT is not run again. A part takes at most 8 minutes; remaining steps are left for
// the next call. The exit code is 1 if a step failed, and 3 if none failed but steps are left.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// partTime is the time limit of a part within one call.
const partTime = 8 * time.Minute

// The exit codes.
const (
	failedCode = 1
	usageCode  = 2
	leftCode   = 3
)

// A runner runs steps.
type runner struct {
	out, kit, work, python string
	dry                    bool
	share                  float64
	results                *results
}

func main() {
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		if err := programs[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	r := &runner{kit: os.Getenv("LINSTOCK_GPU_KIT"), work: os.Getenv("LINSTOCK_GPU_WORK"), python: os.Getenv("PYTHON")}
	list := flag.Bool("list", false, "print the parts and their steps")
	total := flag.Duration("for", 0, "start no step that may end after this time; 0: no limit")
	again := flag.Bool("again", false, "rerun steps that have results")
	failed := flag.Bool("failed", false, "rerun steps that failed")
	flag.BoolVar(&r.dry, "dry", os.Getenv("LINSTOCK_GPU_DRY") == "1", "over the fake CUDA runtime: values are not compared")
	flag.Float64Var(&r.share, "share", 1, "share of every count")
	flag.Parse()
	if *list {
		for _, p := range parts {
			fmt.Printf("%-8s %s\n", p.name, p.shows)
			for _, s := range p.steps {
				fmt.Printf("  %-14s %4.0f s  %s\n", s.name, s.limit.Seconds(), s.shows)
			}
		}
		return
	}
	code, err := r.run(flag.Args(), *total, *again, *failed)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
	}
	os.Exit(code)
}

func (r *runner) run(args []string, total time.Duration, again, failed bool) (code int, err error) {
	if len(args) == 0 || r.kit == "" || r.work == "" || r.python == "" || r.share <= 0 || r.share > 1 {
		return usageCode, errors.New("usage: run.sh [--for 9m] [--share F] [--again] [--failed] [--dry] OUT [PART | PART/STEP …]; run.sh --list")
	}
	if r.out, err = filepath.Abs(args[0]); err != nil {
		return usageCode, err
	}
	chosen, err := choose(args[1:])
	if err != nil {
		return usageCode, err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return usageCode, err
	}
	if r.results, err = load(r.out); err != nil {
		return usageCode, err
	}
	if err := r.results.describe(r); err != nil {
		return usageCode, err
	}
	// A step stopped by a signal is not recorded and runs at the next call.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	start, left := time.Now(), 0
	for _, p := range chosen {
		began := time.Now()
		for _, s := range p.steps {
			if s.large && r.share < 1 {
				continue
			}
			if old := r.results.find(p.name, s.name); old != nil && !again && !(failed && old.State != stateOK) {
				continue
			}
			room := partTime - time.Since(began)
			if total > 0 {
				room = min(room, total-time.Since(start))
			}
			if ctx.Err() != nil || room < s.limit {
				left++
				continue
			}
			fmt.Fprintf(os.Stderr, "== %s/%s: %s\n", p.name, s.name, s.shows)
			res, finished := r.step(ctx, p, s)
			if !finished {
				left++
				continue
			}
			fmt.Fprintf(os.Stderr, "   %s in %.1f s%s\n", res.State, res.Seconds, prefixed("; ", res.Note))
			if err := r.results.put(r.out, res); err != nil {
				return usageCode, err
			}
		}
	}
	bad := 0
	for _, s := range r.results.Steps {
		if s.State != stateOK {
			bad++
		}
	}
	fmt.Fprintf(os.Stderr, "%d steps in %s, %d failed, %d left for the next call\n", len(r.results.Steps), filepath.Join(r.out, "results.md"), bad, left)
	switch {
	case ctx.Err() != nil:
		return 130, nil
	case bad > 0:
		return failedCode, nil
	case left > 0:
		return leftCode, nil
	}
	return 0, nil
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// choose returns the named parts with all or only their named steps; without names, all parts.
func choose(names []string) ([]part, error) {
	if len(names) == 0 {
		return parts, nil
	}
	var chosen []part
	for _, name := range names {
		of, only, one := strings.Cut(name, "/")
		found := false
		for _, p := range parts {
			if p.name != of {
				continue
			}
			if one {
				var steps []step
				for _, s := range p.steps {
					if s.name == only {
						steps = append(steps, s)
					}
				}
				p.steps = steps
			}
			found = len(p.steps) > 0
			chosen = append(chosen, p)
		}
		if !found {
			return nil, fmt.Errorf("unknown part or step %q (see --list)", name)
		}
	}
	return chosen, nil
}
