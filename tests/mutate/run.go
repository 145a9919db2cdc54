package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// reach is how long a test takes and what it reaches.
type reach struct {
	Pkg, Test string
	Several   bool // runs several goroutines
	Seconds   float64
	Mutants   map[int]bool
}

type runner struct {
	controls  sync.Map // tests → whether they pass without a mutant, a func() error
	b         *builder
	binaries  map[string]string // package and variant → binary
	reaches   []reach
	env       []string
	cpp, tsan string // directories of the shim and its tests
	cudaEnv   []string
	most      float64 // seconds of tests for each way of compiling them
	budget    float64 // seconds of tests, at their speed without a mutant, that a mutant gets at a time
}

func (r *runner) command(ctx context.Context, pkg, variant string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.binaries[pkg+variant], args...)
	cmd.Dir = filepath.Join(r.b.root, pkg)
	cmd.Env = append(append(os.Environ(), r.env...), env...)
	cmd.WaitDelay = time.Second
	return cmd
}

// survey runs all tests of a package once, without a mutant, and records what each reaches.
func (r *runner) survey(pkg string) (reaches []reach, err error) {
	hits := filepath.Join(r.b.dir, "hits."+strings.ReplaceAll(pkg, "/", "_"))
	_, _ = os.Remove(hits), os.Remove(hits+".map")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := r.command(ctx, pkg, "", []string{"LINSTOCK_MUTANT_HITS=" + hits}, "-test.short").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("the tests of %s fail without any mutant: %w\n%s", pkg, err, out[max(0, len(out)-4000):])
	}
	f, err := os.Open(hits)
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	byTest := map[string]*reach{}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		words := strings.Fields(s.Text())
		if len(words) < 2 {
			continue
		}
		// A test that runs itself in a child has two lines.
		one := byTest[words[0]]
		if one == nil {
			one = &reach{Pkg: pkg, Test: words[0], Mutants: map[int]bool{}}
			byTest[words[0]] = one
		}
		seconds, _ := strconv.ParseFloat(words[1], 64)
		one.Seconds = max(one.Seconds, seconds)
		for _, w := range words[2:] {
			n, _ := strconv.Atoi(w)
			one.Mutants[n] = true
		}
	}
	for _, one := range byTest {
		one.Several = r.b.several[pkg+" "+one.Test]
		reaches = append(reaches, *one)
	}
	return reaches, s.Err()
}

// rounds returns the tests that reach a mutant in the order in which they are tried: those of its own package first,
// fast ones first.
func (r *runner) rounds(m *mutant) (rounds [][]reach) {
	var all []reach
	for _, one := range r.reaches {
		if one.Mutants[m.n] {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b reach) int {
		// Locks are tested by tests with several goroutines.
		if m.kind == "lock" && a.Several != b.Several {
			if a.Several {
				return -1
			}
			return 1
		}
		if (a.Pkg == m.pkg) != (b.Pkg == m.pkg) {
			if a.Pkg == m.pkg {
				return -1
			}
			return 1
		}
		if a.Pkg != b.Pkg {
			return slices.Index(testPackages, a.Pkg) - slices.Index(testPackages, b.Pkg)
		}
		if a.Seconds != b.Seconds {
			if a.Seconds < b.Seconds {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Test, b.Test)
	})
	// Limit the seconds at a time, because the first few tests detect most mutants.
	budget := r.budget
	for i := 0; i < len(all); {
		j, sum := i, 0.0
		for j < len(all) && all[j].Pkg == all[i].Pkg && (j == i || sum+all[j].Seconds <= budget) {
			sum += all[j].Seconds
			j++
		}
		rounds = append(rounds, all[i:j])
		budget *= 4
		i = j
	}
	return rounds
}

// try runs tests with a mutant and reports whether any of them detects it.
func (r *runner) try(n int, tests []reach, variant string, slower float64) (noticed bool, by string) {
	out, err := r.tests(n, tests, variant, slower)
	if err == nil {
		return false, ""
	}
	// A test that fails even without a mutant, alone or at this speed, detects nothing.
	blamed := tests
	if m := failedTest.FindSubmatch(out); m != nil {
		if i := slices.IndexFunc(tests, func(one reach) bool { return one.Test == string(m[1]) }); i >= 0 {
			blamed = tests[i : i+1]
		}
	}
	key := tests[0].Pkg + variant
	for _, one := range blamed {
		key += " " + one.Test
	}
	control, _ := r.controls.LoadOrStore(key, sync.OnceValue(func() error {
		out, err := r.tests(0, blamed, variant, slower)
		if err != nil {
			return fmt.Errorf("%s: %s", key, why(out, err))
		}
		return nil
	}))
	if err := control.(func() error)(); err != nil {
		progress("without any mutant: %v", err)
		return false, ""
	}
	return true, tests[0].Pkg + variant + ": " + why(out, err)
}

var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

func (r *runner) tests(n int, tests []reach, variant string, slower float64) ([]byte, error) {
	seconds := 0.0
	names := make([]string, len(tests))
	for i, one := range tests {
		names[i] = one.Test
		seconds += one.Seconds
	}
	limit := time.Duration((10 + 4*slower*seconds) * float64(time.Second))
	ctx, cancel := context.WithTimeout(context.Background(), limit+5*time.Second)
	defer cancel()
	env := []string{"LINSTOCK_MUTANT=" + strconv.Itoa(n), "LINSTOCK_GC_READS=20", "GORACE=halt_on_error=1", "LINSTOCK_HOSTILE_CALLS=1000"}
	return r.command(ctx, tests[0].Pkg, variant, env, "-test.short", "-test.failfast", "-test.timeout="+limit.String(),
		"-test.run=^("+strings.Join(names, "|")+")$").CombinedOutput()
}

// why returns the line of the output that states the failure.
func why(out []byte, err error) string {
	lines := strings.Split(string(out), "\n")
	for _, mark := range []string{"WARNING: DATA RACE", "WARNING: ThreadSanitizer", "panic: test timed out", "--- FAIL", "fatal error", "panic:", "SIG", "terminate called", "[  FAILED  ]"} {
		for _, l := range lines {
			if strings.Contains(l, mark) {
				return strings.TrimSpace(l)
			}
		}
	}
	return err.Error()
}

// dynamic runs the tests that may detect a mutant, the most likely ones first, until one does.
func (r *runner) dynamic(m *mutant) (noticed bool, by string) {
	switch m.pkg {
	case "cshim/src":
		return r.dynamicCPP(m)
	case "cshim/cuda":
		return r.dynamicCUDA(m)
	}
	variants := []string{"", "gc"}
	switch m.kind {
	case "lock":
		variants = []string{"race", ""}
	case "atomic", "thread":
		variants = []string{"", "race"}
	}
	rounds := r.rounds(m)
	for _, variant := range variants {
		slower := map[string]float64{"": 1, "gc": 4, "race": 6}[variant]
		left := r.most
		for _, tests := range rounds {
			if r.binaries[tests[0].Pkg+variant] == "" {
				continue
			}
			cost := 0.0
			for _, one := range tests {
				cost += slower * one.Seconds
			}
			if cost > left {
				continue
			}
			left -= cost
			if noticed, by := r.try(m.n, tests, variant, slower); noticed {
				return true, by
			}
		}
	}
	if m.pkg == "vram" {
		return r.dynamicCUDA(m)
	}
	return false, ""
}

// dynamicCPP runs the shim's own tests, under ThreadSanitizer if a lock is missing, and then the Go tests.
func (r *runner) dynamicCPP(m *mutant) (noticed bool, by string) {
	dirs := []string{r.cpp}
	if m.kind == "lock" {
		dirs = []string{r.tsan, r.cpp}
	}
	for _, dir := range dirs {
		out, err := controlled(m.n, func(n int) ([]byte, error) { return r.cshimTest(dir, n) })
		if err != nil {
			return true, filepath.Base(dir) + ": " + why(out, err)
		}
	}
	left := r.most
	for _, tests := range r.rounds(m) {
		for _, one := range tests {
			left -= one.Seconds
		}
		if left < 0 {
			break
		}
		if noticed, by := r.try(m.n, tests, "", 1); noticed {
			return true, by
		}
	}
	return r.dynamicCUDA(m)
}

func (r *runner) cshimTest(dir string, n int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	args := []string{"--gtest_brief=1", "--gtest_fail_fast"}
	if dir == r.tsan {
		args = append(args, "--gtest_filter=Checkpoints*:Concurrent*:*DeathTest*:Guards*:Memory*:Samples*:*Threads*")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "tests/cshim_test"), args...)
	cmd.Env = append(append(os.Environ(), r.env...), "LINSTOCK_MUTANT="+strconv.Itoa(n), "OMP_NUM_THREADS=1",
		"TSAN_OPTIONS=halt_on_error=1 allocator_may_return_null=1 report_signal_unsafe=0 suppressions="+filepath.Join(r.b.root, "tests/cshim/tsan.supp"))
	return output(ctx, cmd)
}

// dynamicCUDA runs the tests over the fake devices.
func (r *runner) dynamicCUDA(m *mutant) (noticed bool, by string) {
	if out, err := controlled(m.n, r.cudaTests); err != nil {
		return true, "fakecuda: " + why(out, err)
	}
	return false, ""
}

var errTooLong = errors.New("the tests took too long")

// controlled runs tests with a mutant. If they take too long, they must be faster without it.
func controlled(n int, tests func(n int) ([]byte, error)) ([]byte, error) {
	out, err := tests(n)
	if errors.Is(err, errTooLong) {
		if _, control := tests(0); control != nil {
			progress("without any mutant: %v", control)
			return nil, nil
		}
	}
	return out, err
}

// output runs a command that belongs to ctx.
func output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = errTooLong
	}
	return out, err
}

func (r *runner) cudaTests(n int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.b.cudaTest(), "-test.failfast")
	cmd.Dir = filepath.Join(r.b.root, "tests/fakecuda")
	cmd.Env = append(append(os.Environ(), r.cudaEnv...), "LINSTOCK_MUTANT="+strconv.Itoa(n))
	return output(ctx, cmd)
}

// baseline checks that the tests pass without a mutant.
func (r *runner) baseline() error {
	for _, dir := range []string{r.cpp, r.tsan} {
		if out, err := r.cshimTest(dir, 0); err != nil {
			return fmt.Errorf("the shim's tests fail without any mutant, in %s: %w\n%s", dir, err, out[:min(len(out), 6000)])
		}
	}
	if out, err := r.cudaTests(0); err != nil {
		return fmt.Errorf("the tests of the fake devices fail without any mutant: %w\n%s", err, out[:min(len(out), 6000)])
	}
	return nil
}
