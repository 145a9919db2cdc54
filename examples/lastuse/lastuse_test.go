package main

import (
	"testing"

	"github.com/linstock-ml/linstock/examples/internal/twin"
	"github.com/linstock-ml/linstock/internal/leak"
)

func TestTwin(t *testing.T) {
	leak.Check(t)
	twin.OneThread(t)
	means, err := evaluate(512, 1)
	if err != nil {
		t.Fatal(err)
	}
	figures := twin.Figures{}
	for _, v := range means {
		figures["means"] = append(figures["means"], float64(v))
	}
	twin.Compare(t, figures, 1e-5)
}
