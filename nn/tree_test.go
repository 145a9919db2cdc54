package nn_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestString compares the text of each module of torch_nn.json with PyTorch's. PyTorch prints a number as the program
// wrote it, 2 or 2.0, and shows the class of a subclass.
func TestString(t *testing.T) {
	leak.Check(t)
	var file map[string]torchCase
	golden.Read(t, "torch_nn.json", &file)
	plain := strings.NewReplacer(".0,", ",", ".0)", ")", "NonDynamicallyQuantizableLinear", "Linear", "UpsamplingNearest2d", "Upsample", "UpsamplingBilinear2d", "Upsample", "stride=None", "stride=2", "Symmetric", "symmetric", "Scaled", "scaled")
	for name, c := range torchModules {
		want := file[name].Str
		if strings.Contains(name, "Distance") && strings.Contains(name, "Loss") {
			continue // PyTorch shows its distance as a submodule
		}
		if slices.ContainsFunc([]string{"RotaryEmbedding", "LoRALinear", "Int8Linear", "DropPath", "LinearCrossEntropyLoss", "AdaptiveLogSoftmaxWithLoss"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue // PyTorch has none, or prints the options of a loss
		}
		m := c.make()
		if got := nn.String(m); plain.Replace(got) != plain.Replace(want) {
			t.Errorf("%s: got\n%s\nPyTorch's is\n%s", name, got, want)
		}
		nn.Release(m)
	}
	if got := nn.String(nil); got != "None" {
		t.Errorf("String(nil) is %q", got)
	}
}

type twoParts struct {
	Body *nn.Sequential
	Head nn.Linear
	More nn.ModuleDict
	Last []nn.Layer
}

// TestTree tests NamedModules, Apply, GetSubmodule and Clone on a model with shared parts.
func TestTree(t *testing.T) {
	leak.Check(t)
	shared := nn.NewLinear(2, 2)
	head := nn.NewLinear(2, 3)
	m := &twoParts{Body: nn.NewSequential(shared, &nn.ReLU{}), Head: nn.Linear{Weight: head.Weight, Bias: head.Bias},
		More: nn.ModuleDict{{"z", nn.NewDropout(0.5)}, {"a", shared}}, Last: []nn.Layer{nn.NewLayerNorm(2)}}
	defer nn.Release(m)
	list := func(m any) (out []string) {
		for _, n := range nn.NamedModules(m) {
			out = append(out, n.Name)
		}
		return out
	}
	want := ",body,body.0,body.1,head,more.z,last.0"
	if got := strings.Join(list(m), ","); got != want {
		t.Errorf("the modules are %s, want %s", got, want)
	}
	if sub, err := nn.GetSubmodule(m, "body.0"); err != nil || sub != any(shared) {
		t.Errorf("body.0 is %v, %v", sub, err)
	}
	if _, err := nn.GetSubmodule(m, "nowhere"); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("a missing submodule: %v", err)
	}
	var order []any
	if err := nn.Apply(m, func(m any) error { order = append(order, m); return nil }); err != nil || order[len(order)-1] != any(m) {
		t.Errorf("Apply ends with %v, %v", order, err)
	}
	stop := errors.New("stop")
	if err := nn.Apply(m, func(any) error { return stop }); err != stop || nn.Apply(m, nil) == nil {
		t.Errorf("Apply returns %v", err)
	}
	c := nn.Clone(m)
	defer nn.Release(c)
	if got := strings.Join(list(c), ","); got != want || c.Body.Layers[0] != c.More.Get("a") || c.Body.Layers[0] == m.Body.Layers[0] {
		t.Errorf("the copy has %s, or does not share its parts", got)
	}
	if err := nn.Check(c); err != nil {
		t.Error(err)
	}
	from, to := nn.StateDict(m), nn.StateDict(c)
	for i := range from {
		a, err1 := tensor.Data[float32](from[i].Tensor)
		b, err2 := tensor.Data[float32](to[i].Tensor)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if from[i].Name != to[i].Name || len(a) != len(b) || a[0] != b[0] || from[i].Tensor == to[i].Tensor || !to[i].Tensor.RequiresGrad() {
			t.Errorf("%s was not copied", from[i].Name)
		}
	}
	if s := nn.String(m); !strings.Contains(s, "(more): ModuleDict(\n    (z): Dropout(p=0.5, inplace=False)") {
		t.Error(s)
	}
	if g, err := nn.CalculateGain("leaky_relu", 1); g != 1 || err != nil {
		t.Errorf("the gain is %v, %v", g, err)
	}
	if _, err := nn.CalculateGain("x", 0); err == nil {
		t.Error("CalculateGain accepts x")
	}
}

// TestStringOfNegativeNumbers tests texts with -1, which is Python's None only as an output size.
func TestStringOfNegativeNumbers(t *testing.T) {
	leak.Check(t)
	for want, m := range map[string]any{
		"ZeroPad2d((-1, 2, 0, 0))": nn.NewZeroPad2d(-1, 2, 0, 0), "Unflatten(dim=1, unflattened_size=(2, -1))": nn.NewUnflatten(1, 2, -1),
		"AdaptiveAvgPool2d(output_size=(None, 3))": nn.NewAdaptiveAvgPool2d(nn.Keep, 3), "AdaptiveMaxPool2d(output_size=(None, None))": nn.NewAdaptiveMaxPool2d(nn.Keep, nn.Keep),
	} {
		if got := nn.String(m); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
