package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/launch"
	"github.com/linstock-ml/linstock/internal/leak"
)

const envArgs = "LINSTOCK_TEST_ARGS"

// TestMain runs the command in the processes that the test starts.
func TestMain(m *testing.M) {
	if args := os.Getenv(envArgs); args != "" {
		if err := command(strings.Split(args, "\n")); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// start runs the command with the given arguments in n processes. It returns what rank 0 printed.
func start(t *testing.T, n int, args ...string) string {
	t.Helper()
	all, outs := begin(t, n, args...)
	for r, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return outs[0].String()
}

// begin starts the command with the given arguments in n processes. In an argument, RANK is the number of the process.
func begin(t *testing.T, n int, args ...string) ([]*exec.Cmd, []strings.Builder) {
	t.Helper()
	port, err := launch.Port()
	if err != nil {
		t.Fatal(err)
	}
	outs := make([]strings.Builder, n)
	all := make([]*exec.Cmd, n)
	for r := range all {
		all[r] = exec.CommandContext(t.Context(), os.Args[0])
		all[r].Stdout, all[r].Stderr = &outs[r], &outs[r]
		all[r].Env = append(launch.Environ(r, n, port), envArgs+"="+strings.ReplaceAll(strings.Join(args, "\n"), "RANK", strconv.Itoa(r)))
		if err := all[r].Start(); err != nil {
			t.Fatal(err)
		}
	}
	return all, outs
}

// TestSignal tests that SIGTERM of one process makes all end with an error, and continue from a checkpoint of that step.
func TestSignal(t *testing.T) {
	leak.Check(t)
	out := t.TempDir()
	path := filepath.Join(out, "model.safetensors")
	args := []string{"-text", "../../tensor", "-out", out, "-layers", "1", "-width", "32", "-heads", "2", "-context", "16"}
	all, outs := begin(t, 2, append(args, "-steps", "1000000", "-save-every", "2")...)
	for _, err := os.Stat(path); err != nil && t.Context().Err() == nil; _, err = os.Stat(path) {
		time.Sleep(10 * time.Millisecond)
	}
	if err := all[1].Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for r, cmd := range all {
		if err := cmd.Wait(); err == nil || !strings.Contains(outs[r].String(), errInterrupted.Error()) {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
	}
	step := 0
	if err := checkpoint.LoadValues(path, checkpoint.Value("step", &step)); err != nil {
		t.Fatal(err)
	}
	if saved := fmt.Sprintf("saved %s after step %d\n", path, step); !strings.Contains(outs[0].String(), saved) {
		t.Errorf("no %q in\n%s", saved, outs[0].String())
	}
	for _, want := range []string{fmt.Sprintf("continuing after step %d of %s\n", step, path), fmt.Sprintf("%s already has %d steps; ", path, step+1)} {
		if got := start(t, 2, append(args, "-steps", strconv.Itoa(step+1))...); !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

// TestContinues tests that two processes that continue from a checkpoint have the losses of two that were not stopped, and
// that they learn.
func TestContinues(t *testing.T) {
	leak.Check(t)
	var losses [2][]float64
	for i, stops := range [][]string{{"30"}, {"12", "30"}} {
		out := t.TempDir()
		for _, steps := range stops {
			start(t, 2, "-text", "../../tensor", "-out", out, "-layers", "1", "-width", "32", "-heads", "2", "-context", "16", "-lr", "0.01", "-steps", steps)
		}
		if err := checkpoint.LoadValues(filepath.Join(out, "model.safetensors"), checkpoint.Value("losses", &losses[i])); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(losses[0], losses[1]) {
		t.Errorf("losses %v, and when stopped %v", losses[0], losses[1])
	}
	if first, last := losses[0][0], losses[0][29]; !(last <= 0.8*first) {
		t.Errorf("the loss falls only from %v to %v", first, last)
	}
}

// TestRefused tests that a process ends with an error for what it cannot train with, before it trains.
func TestRefused(t *testing.T) {
	leak.Check(t)
	write := func(chars string) (dir string) {
		t.Helper()
		dir = t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "text.go"), []byte(strings.Repeat(chars, 100)), 0o666); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	first, second, out, empty := write("abcdefgh"), write("hgfedcba"), t.TempDir(), t.TempDir()
	start(t, 1, "-text", first, "-out", out, "-layers", "1", "-width", "8", "-heads", "2", "-context", "8", "-steps", "1")
	for want, changed := range map[string][]string{
		"fewer than one batch of all processes: 1 × 1000": {"-batch", "1000"},
		"was trained on another text":                     {"-text", second},
		"LR:0.001 Seed:1}, now":                           {"-lr", "0.01"},
		"LR:0.001 Seed:2}":                                {"-seed", "2"},
		"Heads:1":                                         {"-heads", "1"},
		empty + " has no .go files":                       {"-text", empty},
		"-save-every must be at least 1":                  {"-save-every", "0"},
		"unexpected arguments":                            {"extra", "-steps", "3"},
		"not a directory":                                 {"-out", filepath.Join(first, "text.go")},
	} {
		args := []string{"-text", first, "-out", out, "-layers", "1", "-width", "8", "-heads", "2", "-context", "8", "-steps", "2"}
		all, outs := begin(t, 1, append(args, changed...)...)
		timer := time.AfterFunc(time.Minute, func() { _ = all[0].Process.Kill() })
		err := all[0].Wait()
		timer.Stop()
		if got := outs[0].String(); err == nil || !strings.Contains(got, want) || strings.Contains(got, "step ") {
			t.Errorf("%v: %v, want %q in\n%s", changed, err, want, got)
		}
	}
}

// TestEnvironment tests that a process whose launcher's variables are wrong does not train alone.
func TestEnvironment(t *testing.T) {
	leak.Check(t)
	for want, wrong := range map[string][]string{
		"RANK=1, but WORLD_SIZE=1":                     {"RANK=1", "WORLD_SIZE=1"},
		"only one of RANK and WORLD_SIZE is set":       {"RANK=0", "WORLD_SIZE="},
		"neither RANK and WORLD_SIZE nor the variable": {"RANK=", "WORLD_SIZE=", "PMI_RANK=1", "PMI_SIZE="},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		args := []string{"-text", ".", "-out", t.TempDir(), "-layers", "1", "-width", "8", "-heads", "2", "-context", "8", "-steps", "1"}
		cmd.Env = append(append(os.Environ(), wrong...), envArgs+"="+strings.Join(args, "\n"))
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %v, want %q in\n%s", wrong, err, want, out)
		}
	}
}

// TestOneCheckpoint tests that ranks that do not all find the checkpoint do not train.
func TestOneCheckpoint(t *testing.T) {
	leak.Check(t)
	args := []string{"-text", ".", "-out", filepath.Join(t.TempDir(), "RANK"), "-layers", "1", "-width", "8", "-heads", "2", "-context", "8", "-steps"}
	start(t, 1, append(args, "1")...)
	all, outs := begin(t, 2, append(args, "2")...)
	for r, cmd := range all {
		if err := cmd.Wait(); err == nil || !strings.Contains(outs[r].String(), "different steps, [1 0]") {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
	}
}
