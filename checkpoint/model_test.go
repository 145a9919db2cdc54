package checkpoint_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// python runs a script of testdata, with Python's PyTorch of the benchmarks or that of the environment, and returns what it
// prints. It returns "" where there is neither.
func python(t *testing.T, script string, args ...string) string {
	t.Helper()
	python := os.Getenv("LINSTOCK_PYTHON")
	if python == "" {
		python = "../build/pytorch/bin/python"
		if _, err := os.Stat(python); err != nil {
			t.Log("no Python with torch, numpy and safetensors (make bench-setup, or LINSTOCK_PYTHON): not read back by it")
			return ""
		}
	}
	cmd := exec.Command(python, append([]string{filepath.Join("testdata", script)}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v\n%s%s", err, out, errs.String())
	}
	return string(out)
}

// numbered returns the values that testdata/make.py gives to a model.
func numbered(model any) map[string]*tensor.Tensor {
	state := nn.StateDict(model).Map()
	names := make([]string, 0, len(state))
	for name := range state {
		names = append(names, name)
	}
	slices.Sort(names)
	for k, name := range names {
		t := state[name]
		state[name] = tensor.Arange(0, float64(t.Numel())).View(t.Shape()...).Add(1000 * k).To(t.DType())
	}
	return state
}

func TestModelsRoundTripThroughPython(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		r := newRun(t, 1, 0)
		want := numbered(r.model)
		holds := func(path string) {
			t.Helper()
			if err := checkpoint.LoadModel(path, r.model); err != nil {
				t.Fatal(err)
			}
			for _, n := range nn.StateDict(r.model) {
				if same, err := n.Tensor.Equal(want[n.Name]); err != nil || !same {
					t.Errorf("%s: %s: equal %t, %v", path, n.Name, same, err)
				}
			}
		}
		holds("testdata/model.safetensors") // written by Python
		path := filepath.Join(t.TempDir(), "model")
		if err := checkpoint.SaveModel(path, r.model); err != nil {
			t.Fatal(err)
		}
		python(t, "make.py", "--model", path)
		if err := nn.LoadStateDict(r.model, map[string]*tensor.Tensor{"5.bias": tensor.Zeros([]int{3})}, nn.Strict(false)); err != nil {
			t.Fatal(err)
		}
		holds(path)
		ours, theirs := open(t, path), open(t, "testdata/model.safetensors")
		if !slices.Equal(ours.Names(), theirs.Names()) {
			t.Errorf("SaveModel wrote %q, Python %q", ours.Names(), theirs.Names())
		}
		all, err := theirs.Tensors()
		if err != nil {
			t.Fatal(err)
		}
		equal(t, ours, all)
		// A save that fails does not change the old file.
		for _, bad := range []any{nil, 3, &nn.Sequential{}} {
			if err := checkpoint.SaveModel(path, bad); !errors.Is(err, tensor.ErrArgument) && !errors.Is(err, tensor.ErrNil) {
				t.Errorf("%T: %v", bad, err)
			}
		}
		equal(t, open(t, path), all)
	})
}

func TestPythonReadsValues(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x")
	losses, done, step := []float64{2.5, 1.25, math.NaN()}, []bool{true, false}, 3
	if err := checkpoint.SaveTraining(path, &nn.Sequential{}, nil, checkpoint.Value("losses", &losses), checkpoint.Value("done", &done), checkpoint.Value("step", &step)); err != nil {
		t.Fatal(err)
	}
	python(t, "make.py", "--training", path)
}
