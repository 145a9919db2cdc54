package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

// forcedGC runs the library's tests with the build tag linstock_gc: a sweep, which includes a garbage
// collection, runs whenever a handle is passed to C (see tensor/collect_gc.go). If a pin is missing, a tensor
// that only the operator keeps alive is freed during the call. In full, every call site sweeps at its first 200
// reads, then at one in 1,000, except in tests that leak.Counted excludes. With a share it sweeps at fewer reads, in
// the short tests, and not in those of vram.
func forcedGC(ctx context.Context, share float64) (string, error) {
	counts, err := os.MkdirTemp("", "forced-gc")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(counts)
	args := []string{"-tags=linstock_gc", "-timeout=15m", "./tensor", "./autograd", "./data", "./checkpoint"}
	if share < 1 {
		args = append([]string{"-short"}, args...)
	} else {
		args = append(args, "./nn", "./optim", "./vram")
	}
	env := []string{"LINSTOCK_GC_READS=" + strconv.Itoa(int(math.Ceil(200*share*share))), "LINSTOCK_GC_COUNT=" + counts}
	passed, failed, err := goTest(ctx, "forced-gc", env, args...)
	sweeps := 0
	files, _ := filepath.Glob(filepath.Join(counts, "*"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		n, _ := strconv.Atoi(string(text))
		sweeps += n
	}
	if err == nil && sweeps == 0 {
		err = errors.New("no collection was forced")
	}
	return fmt.Sprintf("%d tests pass, %d fail with %d collections forced inside reads of handles", passed, failed, sweeps), err
}

// bounds runs the library's tests while each CPU tensor ends next to an inaccessible page, and again while it begins
// next to one. An access beyond a tensor ends the process. With a share it runs the short tests, and the first half.
func bounds(ctx context.Context, share float64) (string, error) {
	args := []string{"-timeout=15m", "./tensor", "./autograd", "./nn", "./optim", "./distributions", "./data", "./checkpoint"}
	places := []string{"end", "start"}
	if share < 1 {
		args, places = append([]string{"-short"}, args...), places[:1]
	}
	var passed, failed int64
	for _, place := range places {
		p, f, err := goTest(ctx, "bounds", []string{"LINSTOCK_GUARD_PAGES=" + place}, args...)
		if passed, failed = passed+p, failed+f; err != nil {
			return fmt.Sprintf("%d tests pass, %d fail with guard pages at the %s", passed, failed, place), err
		}
	}
	return fmt.Sprintf("%d tests pass, %d fail", passed, failed), nil
}

// balance runs the tests of every package that can reach native memory. Each test fails unless it ends with
// exactly the native bytes, handles, goroutines and file descriptors that it began with. internal/leak checks
// that, and also that every test does the check. With a share below 1 the tests run with -short.
func balance(ctx context.Context, share float64) (string, error) {
	packages, err := leak.Packages()
	if err != nil {
		return "", err
	}
	args := []string{"-p=1", "-timeout=20m"} // one package at a time: some tests have time limits
	if share < 1 {
		args = append(args, "-short")
	}
	for _, p := range packages {
		args = append(args, p.ImportPath)
	}
	passed, failed, err := goTest(ctx, "balance", nil, args...)
	figures := fmt.Sprintf("%d tests of %d packages, all exact", passed, len(packages))
	if failed != 0 {
		figures = fmt.Sprintf("%d tests of %d packages, %d failed", passed+failed, len(packages), failed)
	}
	return figures, err
}

// goTest runs go test and counts the top-level tests, without examples. The output of failed tests and packages
// goes to stderr.
func goTest(ctx context.Context, row string, env []string, args ...string) (passed, failed int64, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	var good, bad atomic.Int64
	stop := scorecard.Progress(func() string { return fmt.Sprintf("%s: %d tests passed, %d failed", row, good.Load(), bad.Load()) })
	defer stop()
	output := map[string]*strings.Builder{} // output of the tests that have not ended
	for d := json.NewDecoder(out); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return good.Load(), bad.Load(), errors.Join(err, cmd.Wait())
		}
		top, _, sub := strings.Cut(e.Test, "/")
		key := e.Package + " " + top
		if output[key] == nil {
			output[key] = &strings.Builder{}
		}
		output[key].WriteString(e.Output)
		if sub || e.Test != "" && !strings.HasPrefix(top, "Test") {
			continue
		}
		switch e.Action {
		case "pass":
			if e.Test != "" {
				good.Add(1)
			}
			delete(output, key)
		case "fail":
			if e.Test != "" {
				bad.Add(1)
			}
			fmt.Fprint(os.Stderr, output[key].String())
			delete(output, key)
		}
	}
	if err = cmd.Wait(); err == nil && good.Load() == 0 {
		err = errors.New("no test ran")
	}
	return good.Load(), bad.Load(), err
}
