package main

import (
	"testing"

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
