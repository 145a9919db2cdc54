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
	o := options{steps: 30, batch: 64, lr: 3e-3, seed: 1}
	r, err := newRun(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(r.model)
		r.teacher.Release()
		r.opt.Release()
	})
	if err := r.train(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, twin.Figures{"losses": r.losses}, 1e-3)
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o) }, map[string]options{
		"-batch must be at least 1, got 0": {steps: 1, lr: 1e-3},
	})
}
