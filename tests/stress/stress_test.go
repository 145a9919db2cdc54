package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/tensor"
)

// broken are scenarios with one fault each, which must be detected.
var broken = []scenario{
	{name: "good", weight: 1, run: garbage},
	{name: "leak", run: func(*round) error { kept = append(kept, tensor.Ones([]int{10}).Keep()); return nil }},
	{name: "goroutine", run: func(*round) error { go func() { select {} }(); return nil }},
	{name: "file", run: func(*round) error { f, err := os.Open(os.DevNull); opened = append(opened, f); return err }},
	{name: "wrong", run: func(*round) error { return errors.New("a wrong value") }},
	{name: "deadlock", run: func(*round) error { fmt.Fprintln(os.Stderr, "waiting"); <-make(chan int); return nil }},
	{name: "crash", run: func(*round) error { return syscall.Kill(os.Getpid(), syscall.SIGABRT) }},
	{name: "results", run: func(r *round) error { r.work.Add(1000); r.notes["results"] += 1000; return nil }},
}

var (
	kept   []*tensor.Tensor
	opened []*os.File
)

func TestMain(m *testing.M) {
	if device, ok := os.LookupEnv(childEnv); ok {
		os.Exit(child(device, append(scenarios, broken...), os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func stress(t *testing.T, from []scenario, args ...string) (code int, out string) {
	t.Helper()
	var o, e bytes.Buffer
	code = command(t.Context(), args, from, &o, &e)
	return code, o.String() + e.String()
}

// TestShortRun runs all scenarios that a normal run draws from.
func TestShortRun(t *testing.T) {
	minutes := "0.1"
	if testing.Short() {
		minutes = "0.03"
	}
	code, out := stress(t, scenarios, "-minutes", minutes, "-goroutines", "8", "-timeout", "60s")
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	t.Log(out)
}

// TestFaultsAreDetected tests that faults are detected and reported with the command that repeats them, that later
// rounds run in a new process, and that no file is left by a process that was killed.
func TestFaultsAreDetected(t *testing.T) {
	files := t.TempDir()
	t.Setenv("TMPDIR", files)
	for name, want := range map[string]string{
		"leak": "native bytes", "goroutine": "goroutines", "file": "file descriptors", "wrong": "a wrong value",
		"deadlock": "a deadlock", "crash": "the process died",
	} {
		timeout := "60s"
		if name == "deadlock" {
			timeout = "5s"
		}
		code, out := stress(t, broken, "-scenario", name, "-seed", "17", "-goroutines", "3", "-timeout", timeout)
		if again := "-device cpu -goroutines 3 -scenario " + name + " -seed 17"; code != 1 || !strings.Contains(out, want) || !strings.Contains(out, again) {
			t.Errorf("%s: exit code %d, want 1, %q and %q in\n%s", name, code, want, again, out)
		}
	}
	code, out := stress(t, []scenario{broken[4], {name: "good", weight: 1, run: garbage}}, "-minutes", "0.02")
	if code != 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if left, err := os.ReadDir(files); err != nil || len(left) != 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
}

func TestCommandLine(t *testing.T) {
	t.Setenv("LINSTOCK_LIB", "")
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"-help", 0, "a minute on the CPU"},
		{"-scenario nothing", 2, "unknown scenario"},
		{"-scenario lost", 2, "needs another -device"},
		{"-device fake", 2, "tests/fakecuda/setup.sh"},
		{"-device nosuch", 2, "unknown device"},
		{"-device meta", 2, "computes values"},
		{"-goroutines 0", 2, "-goroutines must be"},
		{"-minutes 0", 2, "must be positive"},
		{"-check all", 2, "unknown check"},
		{"-check strict-gc", 2, "GOEXPERIMENT=cgocheck2 go run"},
		{"word", 2, "nothing but flags"},
	} {
		if code, out := stress(t, scenarios, strings.Fields(c.args)...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%s: exit code %d, want %d and %q in\n%s", c.args, code, c.code, c.want, out)
		}
	}
}

// TestNotSetUp tests that a missing device or libtorch is one message, not a failed round.
func TestNotSetUp(t *testing.T) {
	run := func(want string, args ...string) {
		t.Helper()
		code, out := stress(t, scenarios, args...)
		if code != 2 || !strings.HasPrefix(out, "stress: ") || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%v: exit code %d, want 2 and a line with %q, got\n%s", args, code, want, out)
		}
	}
	run("cuda:99", "-device", "cuda:99")
	t.Setenv("LINSTOCK_LIB", filepath.Join(t.TempDir(), "liblinstock.so"))
	run("does not exist", "-minutes", "1")
	run("does not exist", "-scenario", "garbage", "-seed", "1")
	run("does not exist", "-check", "release")
}

// trigger is a writer that calls do when what was written contains text.
type trigger struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	text string
	do   func()
}

func (w *trigger) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if strings.Contains(w.buf.String(), w.text) {
		w.do()
	}
	return len(b), nil
}

// TestInterrupt tests that a signal ends the run, also in a round that does not end, and prints the table.
func TestInterrupt(t *testing.T) {
	for _, c := range []struct {
		args, text string // the signal comes when this is written; "": while the child starts
	}{
		{"-minutes 5 -scenario good", "stress: "},
		{"-minutes 5 -scenario deadlock", "waiting"},
		{"-scenario deadlock", "waiting"},
		{"-minutes 5 -scenario good", ""},
		{"-scenario good", ""},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if c.text == "" {
			cancel()
		}
		var signaled atomic.Int64
		errs := &trigger{text: c.text, do: func() { signaled.CompareAndSwap(0, time.Now().UnixNano()); cancel() }}
		var out bytes.Buffer
		code := command(ctx, strings.Fields(c.args), broken, &out, errs)
		cancel()
		late := time.Since(time.Unix(0, signaled.Load()))
		if code != 0 || !strings.Contains(out.String(), "interrupted") || signaled.Load() != 0 && late > time.Minute {
			t.Errorf("%s, signal at %q: exit code %d, %v after it\n%s%s", c.args, c.text, code, late, out.String(), errs.buf.String())
		}
	}
}

// These tests run small shares of the scorecard's checks.
func TestReleaseCheck(t *testing.T) {
	if code, out := stress(t, scenarios, "-check", "release", "-operators", "100000"); code != 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestReleaseCheckNeedsBoth tests that uses before the release alone are not enough.
func TestReleaseCheckNeedsBoth(t *testing.T) {
	defer func(c check) { checks["release"] = c }(checks["release"])
	checks["release"] = check{scenario: "results", count: 1000, what: "pairs"}
	if code, out := stress(t, broken, "-check", "release"); code != 1 {
		t.Errorf("exit code %d, want 1\n%s", code, out)
	}
}

// TestComputedTensorsLast tests that a computed tensor that is released with its input is an error, not ErrReleased.
func TestComputedTensorsLast(t *testing.T) {
	x := tensor.Ones([]int{1})
	x.Release()
	if err := lasts(x, nil); !errors.Is(err, tensor.ErrReleased) {
		t.Errorf("computed from a released tensor: %v, want ErrReleased", err)
	}
	y := tensor.Ones([]int{1})
	err := lasts(y, func() error { y.Release(); return y.Err() })
	if err == nil || errors.Is(err, tensor.ErrReleased) {
		t.Errorf("released after it was computed: %v", err)
	}
}

// TestValuesAreChecked tests that no step drops a wrong value without an error.
func TestValuesAreChecked(t *testing.T) {
	for seed := range uint64(200) {
		if err := tensor.WithScope(func() error {
			c := &calculator{rng: rand.New(rand.NewPCG(seed, 0))}
			for i := range c.slots {
				c.slots[i] = slot{tensor.Ones([]int{2, 3}), make([]float32, 6)}
			}
			return c.step()
		}); err == nil || !strings.Contains(err.Error(), "want") {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
