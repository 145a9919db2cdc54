package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
)

// start returns a new agent. The end of the test releases it.
func start(t *testing.T, o options) *agent {
	t.Helper()
	a, err := newAgent(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(&a.memory)
		a.opt.Release()
	})
	return a
}

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	o := options{settings: settings{Episodes: 40, Capacity: 500, Batch: 32, Sync: 20, LR: 2e-3, Seed: 1}}
	a := start(t, o)
	var rewards []float64
	if err := a.train(t.Context(), o, func(_ int, r float64) { rewards = append(rewards, r) }); err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, twin.Figures{"losses": a.losses, "rewards": rewards}, 1e-4)
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o) }, map[string]options{
		"got 0, 1 and 1": {settings: settings{Episodes: 9, Batch: 1, Sync: 1, LR: 1e-3}},
		"got 1, 0 and 1": {settings: settings{Episodes: 9, Capacity: 1, Sync: 1, LR: 1e-3}},
		"got 1, 1 and 0": {settings: settings{Episodes: 9, Capacity: 1, Batch: 1, LR: 1e-3}},
	})
}

// TestResumedRunIsIdentical tests that a run that continues after an interrupt ends with the same checkpoint as one without.
func TestResumedRunIsIdentical(t *testing.T) {
	leak.Check(t)
	o := options{settings: settings{Episodes: 30, Capacity: 40, Batch: 8, Sync: 20, LR: 2e-3, Seed: 1}}
	run := func(out string, stop int) *agent {
		t.Helper()
		o := o
		o.out = out
		a := start(t, o)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := a.trainAndSave(ctx, o, func(episode int, _ float64) {
			if episode+1 == stop {
				cancel()
			}
		})
		if want := fmt.Sprintf("interrupted after episode %d of 30", stop); stop < o.Episodes && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		} else if stop == o.Episodes && err != nil {
			t.Error(err)
		}
		return a
	}
	whole := t.TempDir()
	run(whole, o.Episodes)
	want, err := os.ReadFile(filepath.Join(whole, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, stop := range []int{1, 13, 29} {
		out := t.TempDir()
		run(out, stop)
		if a := run(out, o.Episodes); a.episode != o.Episodes {
			t.Errorf("stopped at %d: %d episodes", stop, a.episode)
		}
		if got, err := os.ReadFile(filepath.Join(out, "model.safetensors")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("stopped at %d: the checkpoints differ; %v", stop, err)
		}
	}
	path := filepath.Join(whole, "model.safetensors")
	if got, want := clitest.Printed(t, func() { run(whole, o.Episodes) }), path+" already has 30 episodes; -fresh trains anew\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
