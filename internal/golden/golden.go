// Package golden reads PyTorch's results (tests/golden) and compares with them.
package golden

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/tensor"
)

// Path returns the path of a file in tests/golden for the tests of any package. A test runs in its package's
// directory; tests/golden is in an enclosing directory, both in the repository and in the kit of `make
// gpu-kit`.
func Path(name string) string {
	dir, err := os.Getwd()
	for err == nil {
		path := filepath.Join(dir, "tests", "golden", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		up := filepath.Dir(dir)
		if up == dir {
			break
		}
		dir = up
	}
	return filepath.Join("tests", "golden", name) // which is not there
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

// Python returns a Python with torch, numpy and safetensors, and skips the test where there is none. A test that
// needs it for a part runs that part as a subtest.
func Python(t testing.TB) string {
	t.Helper()
	python := FindPython()
	if python == "" {
		t.Skip("no Python with torch, numpy and safetensors: make bench-setup, or set LINSTOCK_PYTHON")
	}
	return python
}

// FindPython returns the Python that LINSTOCK_PYTHON names, otherwise that of `make bench-setup`, or "" where there
// is neither.
func FindPython() string {
	if python := os.Getenv("LINSTOCK_PYTHON"); python != "" {
		return python
	}
	python := filepath.Join(Path(""), "../../build/pytorch/bin/python")
	if _, err := os.Stat(python); err != nil {
		return ""
	}
	return python
}

// Viewer returns the script of a Python's torch that shows snapshots of memory.
func Viewer(python string) (string, error) {
	cmd := exec.Command(python, "-c", `import importlib.util; print(*importlib.util.find_spec("torch").submodule_search_locations)`)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH=")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s has no torch: %w", python, err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "cuda/_memory_viz.py"), nil
}

// Near compares got's elements with want, within atol + rtol*|want|. On a device other than the CPU (package
// testdevice) the tolerances are at least deviceTolerance.
func Near(t testing.TB, what string, got *tensor.Tensor, want []float64, atol, rtol float64) {
	t.Helper()
	if testdevice.On && got.Device() != tensor.CPU {
		least := deviceTolerance(got.DType())
		atol, rtol = max(atol, least[0]), max(rtol, least[1])
	}
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

// deviceTolerance returns atol and rtol for results of a dtype whose sums a GPU computes in another order than
// the CPU.
func deviceTolerance(d tensor.DType) [2]float64 {
	switch d {
	case tensor.Float64, tensor.Complex128:
		return [2]float64{1e-9, 1e-7}
	case tensor.Float16:
		return [2]float64{2e-3, 4e-3}
	case tensor.BFloat16:
		return [2]float64{2e-2, 4e-2}
	}
	return [2]float64{2e-5, 2e-4}
}

// Same requires PyTorch's values, bit by bit where [SameCPU] holds and within 1e-6 + 1e-5*|want| elsewhere.
func Same(t testing.TB, what string, got *tensor.Tensor, want []float64) {
	t.Helper()
	if SameCPU(t) {
		Exact(t, what, got, want)
	} else {
		Near(t, what, got, want, 1e-6, 1e-5)
	}
}

// SameCPU reports whether PyTorch's results were computed on a CPU of this model (tests/golden/cpu.json). The last bits of a root,
// a product or a decomposition depend on it, with Linstock and with Python's PyTorch: libtorch and MKL have kernels for each
// model and instruction set.
func SameCPU(t testing.TB) bool {
	t.Helper()
	var golden struct{ CPU string }
	Read(t, "cpu.json", &golden)
	return thisCPU() == golden.CPU
}

// thisCPU returns the model of this machine's CPU, or "" where /proc does not tell it. Tests ask for each value.
var thisCPU = sync.OnceValue(func() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	return cpuModel(string(info))
})

// cpuModel returns the model of the first CPU in /proc/cpuinfo and its vector instructions, as tests/golden/cpu.py does.
func cpuModel(info string) string {
	var model, vectors []string
	first, _, _ := strings.Cut(info, "\n\n")
	for line := range strings.Lines(first) {
		name, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(name) {
		case "vendor_id", "cpu family", "model":
			model = append(model, strings.TrimSpace(value))
		case "flags":
			for flag := range strings.FieldsSeq(value) {
				if strings.HasPrefix(flag, "avx") || strings.HasPrefix(flag, "amx") || flag == "fma" {
					vectors = append(vectors, flag)
				}
			}
		}
	}
	slices.Sort(vectors)
	return strings.Join(append(model, vectors...), " ")
}

// Exact requires equal float32 or float64 values.
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
