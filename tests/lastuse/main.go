// Command lastuse generates Go programs over tensors, builds them unchanged and rewritten by package lastuse,
// runs both and compares them: they must have the same output, no ErrReleased, and the rewritten program must
// never have more native bytes.
//
//	go run ./tests/lastuse [-share F] [-seed N] [-fault NAME] [-repository]
//
// In full (-share 1) it then gives the rewrite each of its known faults, and fails unless the comparison
// detects it; runs a module's tests under the race detector and with vendored packages; and runs the tests of
// the repository both ways, which must give the same results. With -fault the rewrite has only that fault. With
// -repository only the last two parts run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/internal/lastuse"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

const (
	whole = 20000
	batch = 500 // number of programs in a package
)

func main() {
	share := flag.Float64("share", 1, "share of 20,000 programs")
	seed := flag.Uint64("seed", 1, "seed of the generator")
	fault := flag.String("fault", "", "fault of the rewrite to detect: "+strings.Join(lastuse.Faults(), ", ")+"; all for each")
	alone := flag.Bool("repository", false, "only run the tests of the module and of the repository")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	n := max(int(*share*whole), 1)
	if *fault != "" {
		faults := []string{*fault}
		if *fault == "all" {
			faults = lastuse.Faults()
		}
		if noticed(ctx, *seed, min(n, batch), faults) < len(faults) {
			os.Exit(1)
		}
		return
	}
	start := time.Now()
	if *alone {
		figures, ok := goCommand(ctx)
		fmt.Println(figures)
		if !ok {
			os.Exit(1)
		}
		return
	}
	var all result
	for from := 0; from < n && ctx.Err() == nil; from += batch {
		res, err := compare(ctx, *seed+uint64(from), min(batch, n-from), "")
		if err != nil {
			fmt.Fprintln(os.Stderr, "lastuse:", err)
			os.Exit(1)
		}
		all.add(res)
	}
	good := all.wrong == 0 && all.programs >= n
	faults := ""
	if known := lastuse.Faults(); *share == 1 && good {
		found := noticed(ctx, *seed, batch, known)
		faults = fmt.Sprintf("; %d of %d faults noticed", found, len(known))
		figures, ok := goCommand(ctx)
		faults += "; " + figures
		good = found == len(known) && ok
	}
	fmt.Fprintln(os.Stderr, time.Since(start).Round(time.Second))
	scorecard.Line("last-use", fmt.Sprintf("%d programs both ways; %d differ; %d releases early; bytes at the probes %.0f %% of those without%s",
		all.programs, all.wrong, all.releases, 100*float64(all.after)/float64(max(all.before, 1)), faults), good)
	if !good {
		os.Exit(1)
	}
}

// goCommand runs the checks of the go command that take minutes: the race detector, vendored packages, and the
// tests of the repository both ways.
func goCommand(ctx context.Context) (figures string, ok bool) {
	dir, err := os.MkdirTemp("", "linstock")
	if err != nil {
		return err.Error(), false
	}
	defer os.RemoveAll(dir)
	linstock, err := buildLinstock(dir)
	if err == nil {
		err = slow(ctx, linstock)
	}
	if err != nil {
		return err.Error(), false
	}
	tests, differ, err := repository(ctx, linstock)
	if err != nil {
		return err.Error(), false
	}
	return fmt.Sprintf("%d tests of the repository both ways, %d with other results", tests, differ), differ == 0 && tests > 0
}

// noticed returns how many of the faults make at least one of n programs differ.
func noticed(ctx context.Context, seed uint64, n int, faults []string) int {
	found := 0
	for _, f := range faults {
		res, err := compare(ctx, seed, n, f)
		if err != nil {
			fmt.Fprintln(os.Stderr, "lastuse:", err)
			os.Exit(1)
		}
		fmt.Fprintf(os.Stderr, "%s: %d of %d programs differ\n", f, res.wrong, res.programs)
		if res.wrong > 0 {
			found++
		}
	}
	return found
}

type result struct {
	programs, wrong, releases int
	before, after             int64 // live bytes at the probes
}

func (r *result) add(s result) {
	r.programs += s.programs
	r.wrong += s.wrong
	r.releases += s.releases
	r.before += s.before
	r.after += s.after
}

// compare generates n programs and runs them both ways.
func compare(ctx context.Context, seed uint64, n int, fault string) (res result, err error) {
	root, err := scorecard.ModuleRoot()
	if err != nil {
		return res, err
	}
	// The folder is named testdata, so that ./... does not include the packages.
	parent := filepath.Join(root, "build", "testdata")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return res, err
	}
	dir, err := os.MkdirTemp(parent, "lastuse")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(dir)
	source := program("a", seed, 0, n)
	rewritten, releases, err := lastuse.RewriteFile("gen/b.go", []byte(source), fault)
	if err != nil {
		return res, fmt.Errorf("seed %d: %w", seed, err)
	}
	files := map[string]string{
		"a/a.go":  source,
		"b/b.go":  strings.Replace(string(rewritten), "package a", "package b", 1),
		"main.go": fmt.Sprintf(runner, filepath.Base(dir), filepath.Base(dir)),
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			return res, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return res, err
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-gcflags=-N -l", "-o", filepath.Join(dir, "run"), "./"+filepath.Join("build", "testdata", filepath.Base(dir)))
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return res, fmt.Errorf("seed %d: %w\n%.4000s", seed, err, out)
	}
	run := exec.CommandContext(ctx, filepath.Join(dir, "run"))
	run.Env = append(os.Environ(), "LINSTOCK_POLICY=off")
	run.Stderr = os.Stderr
	out, err := run.Output()
	if err != nil {
		return res, fmt.Errorf("seed %d: %w\n%.2000s", seed, err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if _, err := fmt.Sscan(lines[len(lines)-1], &res.programs, &res.wrong, &res.before, &res.after); err != nil {
		return res, err
	}
	res.releases = releases
	if res.wrong != 0 && fault == "" {
		fmt.Fprintf(os.Stderr, "seed %d:\n%.4000s\n", seed, strings.Join(lines, "\n"))
		keep := filepath.Join(root, "build", fmt.Sprintf("lastuse-seed-%d.go.txt", seed)) // not part of ./...
		return res, errors.Join(os.WriteFile(keep, []byte(files["a/a.go"]), 0o644), os.WriteFile(keep+".rewritten", rewritten, 0o644))
	}
	return res, nil
}

const runner = `package main

import (
	"fmt"

	a "github.com/linstock-ml/linstock/build/testdata/%s/a"
	b "github.com/linstock-ml/linstock/build/testdata/%s/b"
)

func main() {
	wrong := 0
	var before, after int64
	for i := range a.All {
		said, anyway, bytes := a.Run(i) // the plain program may also use a tensor that its scope has freed
		now, released, fewer := b.Run(i)
		bad := ""
		switch {
		case released != "" && anyway == "":
			bad = released
		case said != now:
			bad = "other output"
		case len(bytes) != len(fewer):
			bad = "other probes"
		}
		for k := range min(len(bytes), len(fewer)) {
			before += bytes[k]
			after += fewer[k]
			if fewer[k] > bytes[k] && bad == "" {
				bad = "more bytes"
			}
		}
		if bad != "" {
			wrong++
			if wrong < 4 {
				same := 0
				for same < min(len(said), len(now)) && said[same] == now[same] {
					same++
				}
				from := max(same-200, 0)
				fmt.Printf("f%%d: %%s\n  ...%%.400s\n  ...%%.400s\n  %%v\n  %%v\n", i, bad, said[from:], now[from:], bytes, fewer)
			}
		}
	}
	fmt.Println(len(a.All), wrong, before, after)
}
`
