package main

import (
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	o := options{episodes: 40, capacity: 500, batch: 32, sync: 20, lr: 2e-3, seed: 1}
	a, err := newAgent(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(a.q)
		nn.Release(a.target)
		a.opt.Release()
		for _, x := range a.replay.tensors() {
			x.Release()
		}
	})
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
		"got 0, 1 and 1": {episodes: 9, batch: 1, sync: 1, lr: 1e-3},
		"got 1, 0 and 1": {episodes: 9, capacity: 1, sync: 1, lr: 1e-3},
		"got 1, 1 and 0": {episodes: 9, capacity: 1, batch: 1, lr: 1e-3},
	})
}
