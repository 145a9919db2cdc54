package main

import (
	"context"
	"errors"
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func newTestModel(t *testing.T) *nn.Sequential {
	t.Helper()
	leak.Check(t)
	twin.OneThread(t)
	if err := tensor.ManualSeed(1); err != nil {
		t.Fatal(err)
	}
	model := newModel()
	t.Cleanup(func() { nn.Release(model) })
	nn.Eval(model)
	return model
}

func TestTwin(t *testing.T) {
	model := newTestModel(t)
	got := twin.Figures{}
	err := run(t.Context(), model, options{records: 50, readers: 3, batch: 8}, func(r result) error {
		if r.record != len(got["classes"]) {
			t.Errorf("record %d came after %d results", r.record, len(got["classes"]))
		}
		got["classes"] = append(got["classes"], float64(r.class))
		got["scores"] = append(got["scores"], r.score)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, got, 1e-5)
}

func TestErrorOrCancellationStopsAllStages(t *testing.T) {
	model := newTestModel(t)
	full := errors.New("disk full")
	o := options{records: 1_000_000, readers: 3, batch: 8}
	if err := run(t.Context(), model, o, func(result) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want the writer's error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := run(ctx, model, o, func(result) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o, 1) }, map[string]options{
		"-batch must be at least 1, got -1": {records: 1, batch: -1},
	})
}
