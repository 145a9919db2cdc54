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
