package main

import (
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/clitest"
	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	if err := tensor.ManualSeed(1); err != nil {
		t.Fatal(err)
	}
	model := newVAE()
	defer nn.Release(model)
	opt, err := optim.NewAdam(nn.Parameters(model), 3e-3)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	var losses, drawn []float64
	err = train(t.Context(), model, opt, options{steps: 60, batch: 64}, func(_ int, loss float64) { losses = append(losses, loss) })
	if err != nil {
		t.Fatal(err)
	}
	pixels, err := sample(model, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pixels {
		drawn = append(drawn, float64(p))
	}
	twin.Compare(t, twin.Figures{"losses": losses, "sample": drawn}, 1e-4)
}

// TestFlags tests that values with which the command cannot run are errors that name the flag.
func TestFlags(t *testing.T) {
	leak.Check(t)
	clitest.Refused(t, func(o options) error { return command(t.Context(), o) }, map[string]options{
		"-batch must be at least 1, got 0": {steps: 1, lr: 1e-3},
		"-lr 1e+30":                        {steps: 5, batch: 4, lr: 1e30},
	})
}
