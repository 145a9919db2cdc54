package main

import (
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/vram"
)

func trained(t *testing.T, o options) (losses []float64, peak int64) {
	t.Helper()
	r, err := newRun(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		nn.Release(r.model)
		r.teacher.Release()
		r.opt.Release()
	}()
	if err := vram.ResetPeak(vram.CPU); err != nil {
		t.Fatal(err)
	}
	before, err := vram.Stats(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.train(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	after, err := vram.Stats(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return r.losses, after.Peak - before.Allocated
}

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	o := options{steps: 20, batch: 512, lr: 1e-3, seed: 1, checkpoint: true}
	losses, peak := trained(t, o)
	twin.Compare(t, twin.Figures{"losses": losses}, 1e-4)
	o.checkpoint = false
	plain, whole := trained(t, o)
	if !slices.Equal(losses, plain) {
		t.Errorf("losses %v, without checkpoints %v", losses, plain)
	}
	if peak > whole/2 {
		t.Errorf("the peak is %d bytes, without checkpoints %d", peak, whole)
	}
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o) }, map[string]options{
		"-batch must be at least 1, got 0": {steps: 1, lr: 1e-3},
	})
}
