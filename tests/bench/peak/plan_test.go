package main

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
	"github.com/linstock-ml/linstock/vram/plan"
)

// Small batches of the models; large enough that the blocks of activations are not lost among the others.
var planned = map[string]int{
	"mlp": 2048, "cnn": 64, "gru": 64, "gpt": 4, "unet": 8, "resnet": 16, "encdec": 16, "gan": 64, "dqn": 2048, "beam": 32,
	"lstm": 64, "transformer": 16,
}

// trainer returns a model's training step on the current device, and a function that frees what stays between steps.
func trainer(t *testing.T, name string) (m model, opt *optim.Optimizer, step func() error, free func()) {
	t.Helper()
	m, err := newModel(name, "plain", false, planned[name], 1)
	if err != nil {
		t.Fatal(err)
	}
	if m.step != nil {
		return m, nil, func() error { return m.step(m.batch()) }, m.zero
	}
	if opt, err = optim.NewAdam(nn.Parameters(m.Layer), 1e-3); err != nil {
		t.Fatal(err)
	}
	return m, opt, func() error {
		x, y := m.batch()
		return m.train(opt, x, y)
	}, opt.ZeroGrad
}

// measured returns the peak of the third step above what is live between steps, with collections before operators.
func measured(t *testing.T, name string) int64 {
	t.Helper()
	m, opt, step, zero := trainer(t, name)
	defer nn.Release(m.Layer)
	defer opt.Release()
	for range 2 {
		if err := tensor.WithScope(step); err != nil {
			t.Fatal(err)
		}
	}
	zero()
	if err := vram.Collect(); err != nil {
		t.Fatal(err)
	}
	before, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	if err := vram.ResetPeak(tensor.CPU); err != nil {
		t.Fatal(err)
	}
	var ops []recordedOp
	defer vram.SetPolicy(vram.SetPolicy(observer{true, &ops}))
	for range 2 { // gradients live when the second begins
		if _, _, err := observe(func() error { return tensor.WithScope(step) }, true); err != nil {
			t.Fatal(err)
		}
	}
	after, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return after.Peak - before.Allocated
}

// A plan's peak is within a tenth of the measured one, above what is live between steps.
func TestPlan(t *testing.T) {
	leak.Check(t)
	for name := range planned {
		t.Run(name, func(t *testing.T) {
			defer func() { device = tensor.CPU }()
			device = tensor.Meta
			m, opt, step, _ := trainer(t, name)
			defer nn.Release(m.Layer)
			defer opt.Release()
			p, err := plan.New(m.Layer, opt, planned[name], func(int) error { return step() })
			if err != nil {
				t.Fatal(err)
			}
			above := p.Peak
			for _, part := range []string{vram.Weights, vram.Buffers, plan.Masters, vram.OptimizerState} {
				above -= p.Part(part).Bytes
			}
			device = tensor.CPU
			peak := measured(t, name)
			ratio := float64(above) / float64(peak)
			t.Logf("%.3f of the measured peak: %d of %d bytes", ratio, above, peak)
			if ratio < 0.9 || ratio > 1.1 {
				t.Errorf("the plan has %.3f of the measured peak\n%s", ratio, p)
			}
		})
	}
}
