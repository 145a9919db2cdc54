// Balance runs the tests of every package that can reach native memory. Each ends with exactly the native bytes,
// handles, goroutines and file descriptors that it began with, or fails (internal/leak, which also sees to it that every
// test is held to that):
//
//	go run ./tests/balance [-share F]
//
// With a share below 1 the tests run with -short.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/scorecard"
)

func main() {
	share := flag.Float64("share", 1, "1: all tests in full; less: with -short")
	flag.Parse()
	var passed, failed atomic.Int64
	stop := scorecard.Progress(func() string { return fmt.Sprintf("balance: %d tests passed, %d failed", passed.Load(), failed.Load()) })
	packages, err := run(*share < 1, &passed, &failed)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "balance:", err)
	}
	figures := fmt.Sprintf("%d tests of %d packages, all exact", passed.Load(), packages)
	if failed.Load() != 0 {
		figures = fmt.Sprintf("%d tests of %d packages, %d failed", passed.Load()+failed.Load(), packages, failed.Load())
	}
	ok := err == nil && failed.Load() == 0 && passed.Load() > 0
	scorecard.Line("balance", figures, ok)
	if !ok {
		os.Exit(1)
	}
}

// run runs the tests and counts those at the top level; it returns of how many packages.
func run(short bool, passed, failed *atomic.Int64) (int, error) {
	packages, err := leak.Packages()
	if err != nil {
		return 0, err
	}
	// One package at a time: they share the cores, and some hold to times.
	args := []string{"test", "-json", "-count=1", "-p=1", "-timeout=20m"}
	if short {
		args = append(args, "-short")
	}
	for _, p := range packages {
		args = append(args, p.ImportPath)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	said := map[string]*strings.Builder{} // what each test that has not ended has printed
	for d := json.NewDecoder(out); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, errors.Join(err, cmd.Wait())
		}
		top, _, sub := strings.Cut(e.Test, "/")
		key := e.Package + "." + top
		if said[key] == nil {
			said[key] = &strings.Builder{}
		}
		said[key].WriteString(e.Output)
		if sub || !strings.HasPrefix(top, "Test") && e.Test != "" {
			continue // examples are no tests
		}
		switch e.Action {
		case "pass":
			if e.Test != "" {
				passed.Add(1)
			}
			delete(said, key)
		case "fail":
			if e.Test != "" {
				failed.Add(1)
			}
			fmt.Fprint(os.Stderr, said[key].String())
			delete(said, key)
		}
	}
	return len(packages), cmd.Wait()
}
