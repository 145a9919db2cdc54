// Package golden reads what PyTorch computed (tests/golden) and compares with it.
package golden

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/linstock-ml/linstock/tensor"
)

// Path is the path of a file in tests/golden, from any package's tests.
func Path(name string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "tests", "golden", name)
}

// Read reads a JSON file of tests/golden.
func Read(t testing.TB, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(Path(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// Near compares got's elements with want, within atol + rtol*|want|.
func Near(t testing.TB, what string, got *tensor.Tensor, want []float64, atol, rtol float64) {
	t.Helper()
	var data []float64
	err := tensor.WithScope(func() (err error) {
		data, err = tensor.Data[float64](got.Detach().To(tensor.Float64))
		return err
	})
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if len(data) != len(want) {
		t.Errorf("%s: %d elements, PyTorch has %d", what, len(data), len(want))
		return
	}
	for i := range data {
		if d := math.Abs(data[i] - want[i]); !(d <= atol+rtol*math.Abs(want[i])) {
			t.Errorf("%s: element %d is %v, PyTorch's %v", what, i, data[i], want[i])
			return
		}
	}
}

// Exact wants the same float32 or float64 values.
func Exact(t testing.TB, what string, got *tensor.Tensor, want []float64) {
	t.Helper()
	if got.DType() == tensor.Float32 {
		rounded := make([]float64, len(want))
		for i, v := range want {
			rounded[i] = float64(float32(v))
		}
		want = rounded
	}
	Near(t, what, got, want, 0, 0)
}
