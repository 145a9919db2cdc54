package main

import (
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	o := options{steps: 12, batch: 16, lr: 2e-3, seed: 2}
	g, err := newGAN(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nn.Release(g.generator)
		nn.Release(g.discriminator)
		g.optG.Release()
		g.optD.Release()
	})
	got := twin.Figures{}
	err = g.train(t.Context(), o, func(_ int, d, g float64) {
		got["discriminator"] = append(got["discriminator"], d)
		got["generator"] = append(got["generator"], g)
	})
	if err != nil {
		t.Fatal(err)
	}
	twin.Compare(t, got, 1e-4)
}
