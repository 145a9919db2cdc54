package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// adapted returns a run that has trained its adapters. The end of the test releases it.
func adapted(t *testing.T, o options) *run {
	t.Helper()
	r, err := newRun(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(r.model)
		r.first.Release()
		r.second.Release()
	})
	if err := r.adapt(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	o := options{rank: 4, alpha: 8, batch: 64, steps: 40, lr: 1e-2, seed: 1}
	r := adapted(t, o)
	got := twin.Figures{"pretraining": r.pretraining, "finetuning": r.finetuning}
	err := tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			x := tensor.Randn([]int{o.batch, in})
			for _, name := range []string{"before", "after"} {
				y, err := tensor.Data[float64](r.model.Forward(x).Flatten().To(tensor.Float64))
				if err != nil {
					return err
				}
				got[name] = y
				if err := r.merge(); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, got, 1e-4)
}

func TestOnlyAdaptersAreSaved(t *testing.T) {
	leak.Check(t)
	o := options{rank: 2, alpha: 4, batch: 8, steps: 2, lr: 1e-2, seed: 1}
	r := adapted(t, o)
	path := filepath.Join(t.TempDir(), "adapter.safetensors")
	if err := r.save(path); err != nil {
		t.Fatal(err)
	}
	file, err := checkpoint.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	names := map[string]bool{}
	for _, n := range file.Names() {
		names[n] = true
	}
	if len(names) != 4 || !names["0.lora_A.weight"] || !names["0.lora_B.weight"] || !names["2.lora_A.weight"] || !names["2.lora_B.weight"] {
		t.Errorf("the file holds %v", names)
	}
}

// TestCheck tests that the adapters are merged, which changes the results by rounding alone.
func TestCheck(t *testing.T) {
	leak.Check(t)
	o := options{rank: 2, alpha: 4, batch: 8, steps: 20, lr: 1e-2, seed: 1}
	r := adapted(t, o)
	difference, err := r.check(o)
	if err != nil || difference > 1e-5 {
		t.Errorf("a difference of %v, %v", difference, err)
	}
	for i, l := range r.model.Layers {
		if l, ok := l.(*nn.LoRALinear); ok && !l.Merged() {
			t.Errorf("layer %d is not merged", i)
		}
	}
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	// The rank would fail later.
	if err := command(t.Context(), options{steps: 1, batch: 1}, filepath.Join(file, "adapter.safetensors")); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a directory that cannot be made: %v", err)
	}
	clitest.Refused(t, func(o options) error { return command(t.Context(), o, "") }, map[string]options{
		"-steps must be at least 1, got 1 and 0": {rank: 2, alpha: 2, batch: 1, lr: 1e-3},
		"-steps must be at least 1, got 0 and 1": {rank: 2, alpha: 2, steps: 1, lr: 1e-3},
	})
}
