package main

import (
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	if err := tensor.ManualSeed(1); err != nil {
		t.Fatal(err)
	}
	r, err := newRun(options{images: 160, epochs: 2, batch: 32, lr: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(r.model)
	defer r.opt.Release()
	for range 2 {
		if err := r.epoch(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	accuracy, err := r.accuracy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if accuracy < 0.95 {
		t.Errorf("accuracy %.3f after two epochs, want 0.95", accuracy)
	}
	twin.Compare(t, twin.Figures{"losses": r.losses, "rates": r.rates, "accuracy": {accuracy}}, 1e-5)
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o) }, map[string]options{
		"-images must be at least 2": {epochs: 1, batch: 1, lr: 1e-3},
	})
}

// TestShortRun tests that a run of one or two steps has a schedule.
func TestShortRun(t *testing.T) {
	leak.Check(t)
	for _, images := range []int{16, 64} {
		if err := command(t.Context(), options{images: images, epochs: 1, batch: 32, lr: 0.1}); err != nil {
			t.Errorf("%d images: %v", images, err)
		}
	}
}
