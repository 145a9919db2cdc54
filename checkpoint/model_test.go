package checkpoint_test

import (
	"bytes"
	"errors"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// python runs a script of testdata as a subtest, which is skipped where there is no Python, and returns what it prints.
func python(t *testing.T, script string, args ...string) (printed string) {
	t.Helper()
	t.Run("Python", func(t *testing.T) {
		cmd := exec.Command(golden.Python(t), append([]string{filepath.Join("testdata", script)}, args...)...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%v\n%s%s", err, out, errs.String())
		}
		printed = string(out)
	})
	return printed
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
		merged := nn.NewLoRALinear(nn.NewLinear(3, 2), 1)
		defer nn.Release(merged)
		if err := merged.Merge(); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"a merged LoRALinear": checkpoint.SaveModel(path, merged), "its run": checkpoint.SaveTraining(path, merged, nil),
			"a name of torch.save's": checkpoint.SaveModel(path+".pt", r.model)} {
			if !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// A dividing stands for a group of package dist that divides parameters.
type dividing struct{}

func (dividing) AllReduce(*tensor.Tensor, bool) error { return nil }

// TestStatesThatNoReaderUnderstands tests that no function saves the state of a merged LoRALinear, which a reader would
// merge twice, and none a part of a parameter, which a reader would take for the whole. The part alone can be saved.
func TestStatesThatNoReaderUnderstands(t *testing.T) {
	leak.Check(t)
	lora := nn.NewLoRALinear(nn.NewLinear(3, 2), 1)
	defer nn.Release(lora)
	if err := lora.Merge(); err != nil {
		t.Fatal(err)
	}
	divided := nn.NewLinear(3, 2)
	defer nn.Release(divided)
	sharding.Mark(divided.Weight, dividing{})
	save := func(state nn.State) map[string]error {
		dir := t.TempDir()
		file := func(name string) string { return filepath.Join(dir, name) }
		return map[string]error{
			"Save":                 checkpoint.Save(file("a"), state.Map(), nil),
			"SaveSharded":          checkpoint.SaveSharded(file("b"), state.Map(), nil, 100),
			"SavePyTorch":          checkpoint.SavePyTorch(file("c"), state),
			"SavePyTorch of a map": checkpoint.SavePyTorch(file("d"), map[string]any{"model": state.Map(), "epoch": 1}),
			"SaveNPZ":              checkpoint.SaveNPZ(file("e"), state.Map()),
		}
	}
	for model, says := range map[any]string{lora: "Unmerge it first", divided: "dist/dcp"} {
		for what, err := range save(nn.StateDict(model)) {
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s of a %T: %v", what, model, err)
			}
		}
	}
	scoped(t, func() {
		for what, err := range save(nn.State{{Name: "part", Tensor: divided.Weight.Detach()}}) {
			if err != nil {
				t.Errorf("%s of the part alone: %v", what, err)
			}
		}
	})
	if err := lora.Unmerge(); err != nil {
		t.Fatal(err)
	}
	for what, err := range save(nn.StateDict(lora)) {
		if err != nil {
			t.Errorf("%s of an unmerged layer: %v", what, err)
		}
	}
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

// A model on the meta device takes the pages of a file as its weights.
func TestModelsOnMappedFiles(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	build := func(opts ...nn.Option) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(300, 200, opts...), &nn.ReLU{}, nn.NewLinear(200, 10, opts...))
	}
	whole := build()
	defer nn.Release(whole)
	if err := checkpoint.SaveModel(path, whole); err != nil {
		t.Fatal(err)
	}
	before := nn.StateDict(whole)[0].Tensor
	model := build(nn.Device(tensor.Meta))
	if err := checkpoint.LoadModel(path, model, nn.Assign(true)); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" && !mapped(t, path) {
		t.Error("the weights are copies")
	}
	scoped(t, func() {
		loss := model.Forward(tensor.Ones([]int{2, 300})).Sum()
		want, err := whole.Forward(tensor.Ones([]int{2, 300})).Sum().Item()
		if got, err2 := loss.Item(); err != nil || err2 != nil || got != want {
			t.Errorf("%v, want %v, %v, %v", got, want, err, err2)
		}
		opt, err := optim.NewSGD(nn.Parameters(model), 0.1)
		if err != nil {
			t.Fatal(err)
		}
		defer opt.Release()
		if err := errors.Join(loss.Backward(), opt.Step()); err != nil {
			t.Error(err)
		}
		// The step changed the model, not the file.
		if same, err := open(t, path).Tensor("0.weight").Equal(before.Detach()); err != nil || !same {
			t.Errorf("equal %t, %v", same, err)
		}
		if same, err := nn.StateDict(model)[0].Tensor.Detach().Equal(before.Detach()); err != nil || same {
			t.Errorf("the step changed nothing: %v", err)
		}
	})
	nn.Release(model)
}
