package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

// A cell is a measurement that is made and kept as a whole.
type cell struct {
	name string
	run  func(context.Context) (record, error)
}

// measure makes the measurements that results lack.
func (o options) measure(ctx context.Context, list []workload, a arms, results *results) error {
	var cells []cell
	for _, part := range strings.Split(o.parts, ",") {
		switch part {
		case "losses":
			for _, w := range list {
				for _, c := range a.of(w) {
					cells = append(cells, cell{once(w, c), func(ctx context.Context) (record, error) {
						return o.once(ctx, w, c, a[c.program])
					}})
				}
			}
		case "speed":
			for round := range o.rounds {
				for _, threads := range o.threads {
					for _, w := range list {
						cells = append(cells, cell{fmt.Sprintf("round %d, %d threads, %s", round+1, threads, w.name), func(ctx context.Context) (record, error) {
							return o.round(ctx, w, threads, a)
						}})
					}
				}
			}
		case "build":
			cells = append(cells, cell{"build, Go", buildGo}, cell{"build, C++", buildCpp})
		default:
			return fmt.Errorf("no part %q", part)
		}
	}
	done, now := 0, ""
	start := time.Now()
	stop := scorecard.Progress(func() string {
		return fmt.Sprintf("%d of %d, %v: %s", done+1, len(cells), time.Since(start).Round(time.Second), now)
	})
	defer stop()
	for i, c := range cells {
		done, now = i, c.name
		if results.has(c.name) {
			continue
		}
		r, err := c.run(ctx)
		if err != nil {
			return err
		}
		if err := results.add(c.name, r); err != nil {
			return err
		}
	}
	return nil
}

// once runs some steps in a new process: their losses, how long the first took from the start of the process, and the
// memory.
func (o options) once(ctx context.Context, w workload, c arm, p program) (r record, err error) {
	start := time.Now()
	running, err := p.start(ctx, w, 1)
	if err != nil {
		return r, err
	}
	defer running.End()
	if r.Losses, err = running.ask("steps", 1, c.optimizer); err != nil {
		return r, err
	}
	r.Start = time.Since(start).Seconds()
	rest, err := running.ask("steps", o.steps-1, c.optimizer)
	if err != nil {
		return r, err
	}
	r.Losses = append(r.Losses, rest...)
	if len(r.Losses) != o.steps {
		return r, fmt.Errorf("%s, %s: %d losses, want %d", w.name, c.name, len(r.Losses), o.steps)
	}
	memory, err := running.ask("memory", 0, "")
	if err != nil {
		return r, err
	}
	if len(memory) != 2 {
		return r, fmt.Errorf("%s, %s: memory: want two numbers, got %v", w.name, c.name, memory)
	}
	r.Library, r.Peak = memory[0], memory[1]
	return r, nil
}

// spin is the longest time that OpenMP's threads spin after the last operator: libgomp's, up to 300,000 pauses.
const spin = 20 * time.Millisecond

// round times a workload in new processes of all arms, which take turns in a shuffled order.
func (o options) round(ctx context.Context, w workload, threads int, a arms) (r record, err error) {
	running := map[string]process{}
	defer func() {
		for _, p := range running {
			_ = p.End()
		}
	}()
	list := a.of(w)
	for _, c := range list {
		if _, ok := running[c.program]; !ok {
			p, err := a[c.program].start(ctx, w, threads)
			if err != nil {
				return r, err
			}
			running[c.program] = p
		}
	}
	r.Times = map[string][]float64{}
	// The first turn warms up: half as long.
	for turn := range o.turns + 1 {
		rand.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
		for _, c := range list {
			count := w.turn
			if turn == 0 {
				count = (count + 1) / 2
			}
			ns, err := running[c.program].ask("time", count, c.optimizer)
			if err != nil {
				return r, err
			}
			if threads > 1 {
				time.Sleep(spin)
			}
			if turn > 0 {
				r.Times[c.name] = append(r.Times[c.name], ns[0]/float64(max(1, w.per)))
			}
		}
	}
	return r, nil
}

// builds is how often a build after an edit is timed.
const builds = 3

// buildGo times the build of this program after an edit of one of its files, which an overlay makes.
func buildGo(ctx context.Context) (r record, err error) {
	dir, err := os.MkdirTemp("", "suite")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return r, err
	}
	source := filepath.Join(root, "tests", "bench", "suite", "dense.go")
	old, err := os.ReadFile(source)
	if err != nil {
		return r, err
	}
	edited, overlay := filepath.Join(dir, "dense.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{source: edited}})
	if err != nil {
		return r, err
	}
	if err := os.WriteFile(overlay, replace, 0o644); err != nil {
		return r, err
	}
	out := filepath.Join(dir, "suite")
	return timed(out, func() error {
		text := fmt.Sprintf("%s\nfunc edit() int { return %d }\nvar _ = edit\n", old, time.Now().UnixNano())
		return os.WriteFile(edited, []byte(text), 0o644)
	}, func() *exec.Cmd {
		return exec.CommandContext(ctx, "go", "build", "-C", root, "-overlay", overlay, "-o", out, "./tests/bench/suite")
	})
}

// buildCpp times the build of the C++ arm after an edit of one of its files: a new time of change.
func buildCpp(ctx context.Context) (r record, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	dir := filepath.Join(filepath.Dir(self), "cpp")
	return timed(filepath.Join(dir, "suite"), func() error {
		return os.Chtimes("tests/bench/suite/cpp/dense.cpp", time.Time{}, time.Now())
	}, func() *exec.Cmd {
		return exec.CommandContext(ctx, "cmake", "--build", dir, "--target", "suite")
	})
}

// timed edits and builds several times, and measures the program.
func timed(program string, edit func() error, build func() *exec.Cmd) (r record, err error) {
	for range builds {
		if err := edit(); err != nil {
			return r, err
		}
		start := time.Now()
		if out, err := build().CombinedOutput(); err != nil {
			return r, fmt.Errorf("%w: %s", err, out)
		}
		r.Builds = append(r.Builds, time.Since(start).Seconds())
	}
	info, err := os.Stat(program)
	if err != nil {
		return r, err
	}
	r.Bytes = info.Size()
	return r, nil
}

// writeGolden writes the losses of C++ for losses_test.go.
func (o options) writeGolden(ctx context.Context, list []workload, a arms) error {
	o.steps = 3
	golden := map[string][]float64{}
	for _, w := range list {
		r, err := o.once(ctx, w, columns[1], a["c++ here"])
		if err != nil {
			return err
		}
		golden[w.name] = r.Losses
	}
	text, err := json.MarshalIndent(golden, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile("tests/bench/suite/losses.json", append(text, '\n'), 0o644)
}
