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
	r, err := newRun(options{reviews: 256, epochs: 4, batch: 32, lr: 1e-2})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(r.model)
	defer r.opt.Release()
	for range 4 {
		if err := r.epoch(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	accuracy, err := r.accuracy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, twin.Figures{"losses": r.losses, "accuracy": {accuracy}}, 1e-4)
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o, nil) }, map[string]options{
		"-reviews must be at least 2": {epochs: 1, batch: 1, lr: 1e-3},
	})
	// The batch would fail later.
	clitest.Refused(t, func(text string) error { return command(t.Context(), options{reviews: 2, epochs: 1}, []string{text}) }, map[string]string{
		`unknown word "bore"`:               "the film was bore",
		"a review has 1 to 12 words, got 0": " ",
	})
}
