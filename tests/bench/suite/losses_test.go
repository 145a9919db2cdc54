package main

import (
	_ "embed"
	"encoding/json"
	"math"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// losses.json holds the losses of C++, a few steps of each workload on one thread. `make bench-suite BENCH=-golden`
// writes it.
//
//go:embed losses.json
var golden []byte

// TestLosses compares each workload with the same one in C++. Other processors have other kernels, whose differences a
// step of Adam enlarges.
func TestLosses(t *testing.T) {
	leak.Check(t)
	before := tensor.NumThreads()
	if err := tensor.SetNumThreads(1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tensor.SetNumThreads(before); err != nil {
			t.Error(err)
		}
	}()
	var want map[string][]float64
	if err := json.Unmarshal(golden, &want); err != nil {
		t.Fatal(err)
	}
	if len(want) != len(workloads) {
		t.Errorf("losses.json has %d workloads, want %d", len(want), len(workloads))
	}
	for _, w := range workloads {
		t.Run(w.name, func(t *testing.T) {
			leak.Check(t)
			f, err := w.make(new(numbers))
			if err != nil {
				t.Fatal(err)
			}
			if len(want[w.name]) < 2 {
				t.Fatalf("losses.json has %d losses", len(want[w.name]))
			}
			for i, want := range want[w.name] {
				got, err := f.loss()
				if err != nil {
					t.Fatal(err)
				}
				if !(math.Abs(got-want) <= 1e-4*math.Abs(want)) {
					t.Errorf("step %d: %.9g, in C++ %.9g", i, got, want)
				}
			}
		})
	}
}
