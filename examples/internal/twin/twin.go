// Package twin compares an example with the same program in PyTorch.
package twin

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/tensor"
)

// Figures holds the numbers of a run by name: losses, accuracies, outputs.
type Figures map[string][]float64

// Compare fails the test unless got has the names of twin.json in the test's directory, which twin.py wrote, and each
// number is within rtol of PyTorch's, relative to the larger of the number and 1.
func Compare(t *testing.T, got Figures, rtol float64) {
	t.Helper()
	text, err := os.ReadFile("twin.json")
	if err != nil {
		t.Fatal(err)
	}
	var want Figures
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Fatalf("figures %v, PyTorch's are %v", g, w)
	}
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) {
			t.Errorf("%s: %d numbers, PyTorch has %d", name, len(g), len(w))
			continue
		}
		for i := range w {
			if d := math.Abs(g[i] - w[i]); !(d <= rtol*max(1, math.Abs(w[i]))) {
				t.Errorf("%s: number %d is %v, PyTorch's is %v", name, i, g[i], w[i])
				break
			}
		}
	}
}

// OneThread makes operators use one thread until the test ends, as twin.py does, because the order of sums, and
// therefore their last bits, depends on the number of threads.
func OneThread(t *testing.T) {
	t.Helper()
	before := tensor.NumThreads()
	if err := tensor.SetNumThreads(1); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tensor.SetNumThreads(before) })
}
