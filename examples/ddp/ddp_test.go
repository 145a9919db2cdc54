package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

// start runs the command with the given arguments in n processes.
func start(t *testing.T, n int, args ...string) {
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
		all[r].Env = append(launch.Environ(r, n, port), envArgs+"="+strings.Join(args, "\n"))
		if err := all[r].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for r, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
	}
	if t.Failed() {
		t.FailNow()
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
			start(t, 2, "-text", "../..", "-out", out, "-layers", "1", "-width", "32", "-heads", "2", "-context", "16", "-lr", "0.01", "-steps", steps)
		}
		if err := checkpoint.LoadValues(filepath.Join(out, "model.safetensors"), checkpoint.Value("losses", &losses[i])); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(losses[0], losses[1]) {
		t.Errorf("losses %v, and when stopped %v", losses[0], losses[1])
	}
	if first, last := losses[0][0], losses[0][29]; last > 0.8*first {
		t.Errorf("the loss falls only from %v to %v", first, last)
	}
}
