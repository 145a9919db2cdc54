package nn_test

import (
	"errors"
	"regexp"
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
	plain := strings.NewReplacer(".0,", ",", ".0)", ")", "NonDynamicallyQuantizableLinear", "Linear", "UpsamplingNearest2d", "Upsample", "UpsamplingBilinear2d", "Upsample", "Symmetric", "symmetric", "Scaled", "scaled")
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

// TestStringOfOwnModules tests the texts of the modules that PyTorch does not have.
func TestStringOfOwnModules(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(4, 3, nn.NoBias())
	biased := nn.NewLinear(4, 3)
	defer nn.Release(l)
	defer nn.Release(biased)
	for _, c := range []struct {
		m    any
		want string
	}{
		{nn.NewInt8Linear(l), "Int8Linear(in_features=4, out_features=3, bias=False)"},
		{nn.NewInt8Linear(biased, nn.Dynamic()), "Int8Linear(in_features=4, out_features=3, bias=True, dynamic=True)"},
		{nn.NewFloat8Linear(l), "Float8Linear(in_features=4, out_features=3, bias=False)"},
		{nn.NewFloat8Linear(biased, nn.PerRow()), "Float8Linear(in_features=4, out_features=3, bias=True, per_row=True)"},
		{nn.NewRotaryEmbedding(4), "RotaryEmbedding(4, base=10000.0, interleaved=False)"},
		{nn.NewRotaryEmbedding(6, nn.Base(500), nn.Interleaved()), "RotaryEmbedding(6, base=500.0, interleaved=True)"},
		{nn.NewDropPath(0.3), "DropPath(p=0.3)"},
		{nn.NewKVCache(1, 2, 16, 4), "KVCache(batch=1, heads=2, length=16, width=4)"},
		{nn.NewKVCache(-1, 2, 16, 4), "KVCache(batch=0, heads=0, length=0, width=0)"},
		{nn.NewLoRALinear(nn.NewInt8Linear(l), 2), "LoRALinear(\n  (base_layer): Int8Linear(in_features=4, out_features=3, bias=False)\n" +
			"  (lora_A): Linear(in_features=4, out_features=2, bias=False)\n  (lora_B): Linear(in_features=2, out_features=3, bias=False)\n)"},
		{nn.NewSwiGLU(4, 8, nn.NoBias()), "SwiGLU(\n  (gate_proj): Linear(in_features=4, out_features=8, bias=False)\n" +
			"  (up_proj): Linear(in_features=4, out_features=8, bias=False)\n  (down_proj): Linear(in_features=8, out_features=4, bias=False)\n)"},
		{nn.NewCausalSelfAttention(4, 2), "CausalSelfAttention(\n  (qkv): Linear(in_features=4, out_features=12, bias=True)\n" +
			"  (proj): Linear(in_features=4, out_features=4, bias=True)\n)"},
	} {
		if got := nn.String(c.m); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
		nn.Release(c.m)
	}
}

// TestNamedChildren compares the children of each module of torch_nn.json with PyTorch's, which are the parts at the first
// level of its text. A list of modules is a child there; here its elements are.
func TestNamedChildren(t *testing.T) {
	leak.Check(t)
	var file map[string]torchCase
	golden.Read(t, "torch_nn.json", &file)
	part := regexp.MustCompile(`(?m)^  \((\w+)\): `)
	compared := 0
	for name, c := range torchModules {
		if name == "TripletMarginWithDistanceLoss" {
			continue // PyTorch has its distance as a submodule
		}
		var want, got []string
		for _, m := range part.FindAllStringSubmatch(file[name].Str, -1) {
			want = append(want, m[1])
		}
		m := c.make()
		for _, n := range nn.NamedChildren(m) {
			if n.Name == "" {
				continue // LinearCrossEntropyLoss has its loss without a prefix
			}
			child, _, _ := strings.Cut(n.Name, ".")
			got = append(got, child)
			if sub, err := nn.GetSubmodule(m, n.Name); err != nil || sub != n.Module {
				t.Errorf("%s: %q is %v, %v", name, n.Name, sub, err)
			}
		}
		if got := slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("%s: the children are %q, PyTorch's %q", name, got, want)
		}
		compared += len(want)
		nn.Release(m)
	}
	if compared == 0 {
		t.Error("no module has children")
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
	for _, n := range nn.NamedModules(m) {
		if sub, err := nn.GetSubmodule(m, n.Name); err != nil || sub != n.Module {
			t.Errorf("%q is %v, %v", n.Name, sub, err)
		}
	}
	if sub, err := nn.GetSubmodule(m, "more.a"); err != nil || sub != any(shared) {
		t.Errorf("the second place of body.0 has %v, %v", sub, err)
	}
	for _, name := range []string{"nowhere", "bod", "body.", "body.2", "body.0.weight", "more", "body.0.0"} {
		if sub, err := nn.GetSubmodule(m, name); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("%q is %v, %v", name, sub, err)
		}
	}
	if got, want := applied(t, m), "body.0,body.1,body,head,more.z,last.0,"; got != want {
		t.Errorf("Apply visits %s, want %s", got, want)
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

// TestNamedChildrenOnce tests that a child in several places is listed in its first, also if another child has it, and that
// the parts of a child are not listed. The order is that of PyTorch's.
func TestNamedChildrenOnce(t *testing.T) {
	leak.Check(t)
	names := func(m any) string {
		var out []string
		for _, n := range nn.NamedChildren(m) {
			out = append(out, n.Name)
		}
		return strings.Join(out, ",")
	}
	type model struct {
		Body  *nn.Sequential
		Head  nn.Linear
		Tied  *nn.Linear
		Again *nn.Linear
		None  *nn.Linear
		More  nn.ModuleDict
		Last  []nn.Layer
		Act   *nn.Tanh
	}
	shared, head := nn.NewLinear(2, 2), nn.NewLinear(2, 3)
	m := &model{Body: nn.NewSequential(shared, &nn.ReLU{}, nn.NewSequential(&nn.ReLU{})), Head: nn.Linear{Weight: head.Weight, Bias: head.Bias},
		Tied: shared, Again: shared, More: nn.ModuleDict{{"z", nn.NewDropout(0.5)}, {"a", shared}}, Last: []nn.Layer{nn.NewLayerNorm(2)}, Act: &nn.Tanh{}}
	defer nn.Release(m)
	if got, want := names(m), "body,head,tied,more.z,last.0,act"; got != want {
		t.Errorf("the children are %s, want %s", got, want)
	}
	if c := nn.NamedChildren(m); c[0].Module != any(m.Body) || c[1].Module != any(&m.Head) || c[2].Module != any(shared) {
		t.Errorf("the children are %v", c)
	}
	type wrapper struct {
		Inner *nn.Sequential `nn:"."`
	}
	normed := nn.WeightNorm(nn.NewLinear(2, 2), "weight")
	defer nn.Release(normed)
	for _, c := range []struct {
		m    any
		want string
	}{
		{nil, ""}, {(*model)(nil), ""}, {shared, ""}, {m.Last, "0"}, {m.More, "z,a"}, {m.Body, "0,1,2"},
		{nn.NewHooked(m.Body), "0,1,2"}, {nn.NewSequential(nn.NewHooked(m.Body)), "0"}, {&wrapper{m.Body}, ""}, {normed, "parametrizations.weight.0"},
	} {
		if got := names(c.m); got != c.want {
			t.Errorf("%T: the children are %s, want %s", c.m, got, c.want)
		}
	}
	w := &wrapper{m.Body}
	if c := nn.NamedChildren(w); len(c) != 1 || c[0].Module != any(m.Body) {
		t.Errorf("the children are %v", c)
	}
}

// TestStringOfLazyLayers compares the texts of lazy layers that are not made yet with PyTorch's.
func TestStringOfLazyLayers(t *testing.T) {
	leak.Check(t)
	for want, m := range map[string]any{
		"LazyConv2d(0, 4, kernel_size=(3, 3), stride=(1, 1))": nn.NewLazyConv2d(4, 3),
		"LazyConv2d(0, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(2, 2), groups=2, bias=False)": nn.NewLazyConv2d(4, 3,
			nn.NoBias(), nn.Groups(2), nn.Padding(1), nn.Dilation(2)),
		"LazyConvTranspose2d(0, 4, kernel_size=(3, 3), stride=(2, 2), output_padding=(1, 1), groups=2)": nn.NewLazyConvTranspose2d(4, 3,
			nn.OutputPadding(1), nn.Stride(2), nn.Groups(2)),
		"LazyBatchNorm2d(0, eps=1e-05, momentum=0.1, affine=False, bias=False, track_running_stats=True)":  nn.NewLazyBatchNorm2d(nn.NoAffine()),
		"LazyInstanceNorm1d(0, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)": nn.NewLazyInstanceNorm1d(),
		"Sequential(\n  (0): LazyLinear(in_features=0, out_features=4, bias=False)\n)":                     nn.NewSequential(nn.NewLazyLinear(4, nn.NoBias())),
		"LPPool2d(norm_type=2.0, kernel_size=3, stride=2, ceil_mode=False)":                                nn.NewLPPool2d(2, 3, nn.Stride(2)),
		"LPPool1d(norm_type=2.0, kernel_size=3, stride=None, ceil_mode=False)":                             nn.NewLPPool1d(2, 3),
		"LPPool1d(norm_type=2.0, kernel_size=3, stride=3, ceil_mode=False)":                                nn.NewLPPool1d(2, 3, nn.Stride(3)),
	} {
		if got := nn.String(m); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestStringOfParameters compares the texts of lists and dicts of parameters with PyTorch's.
func TestStringOfParameters(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		a, b := tensor.Ones([]int{2, 3}), tensor.Ones([]int{3}, tensor.Float64)
		type model struct {
			One    []*tensor.Tensor
			Two    []*tensor.Tensor
			Dict   nn.ParameterDict
			Nobody []*tensor.Tensor
			Inner  nn.ParameterDict `nn:"."`
			Kept   []*tensor.Tensor `nn:",buffer"`
			Head   *nn.Identity
		}
		m := &model{One: tensors(a), Two: tensors(a, b), Dict: nn.ParameterDict{{Name: "a", Tensor: a}, {Name: "b", Tensor: b}},
			Inner: nn.ParameterDict{{Name: "x", Tensor: a}}, Kept: tensors(b), Head: &nn.Identity{}}
		want := `model(
  (one): ParameterList(  (0): Parameter containing: [torch.float32 of size 2x3])
  (two): ParameterList(
      (0): Parameter containing: [torch.float32 of size 2x3]
      (1): Parameter containing: [torch.float64 of size 3]
  )
  (dict): ParameterDict(
      (a): Parameter containing: [torch.FloatTensor of size 2x3]
      (b): Parameter containing: [torch.DoubleTensor of size 3]
  )
  (nobody): ParameterList()
  (head): Identity()
)`
		if got := nn.String(m); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
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

// applied returns the names of m's modules in the order of Apply.
func applied(t *testing.T, m any) string {
	t.Helper()
	names := map[any]string{}
	for _, n := range nn.NamedModules(m) {
		names[n.Module] = n.Name
	}
	var order []string
	if err := nn.Apply(m, func(m any) error { order = append(order, names[m]); return nil }); err != nil {
		t.Error(err)
	}
	return strings.Join(order, ",")
}

// TestApplyInOrder tests that Apply visits the parts of a module directly before it, also a part without a prefix. The order
// is that of PyTorch's.
func TestApplyInOrder(t *testing.T) {
	leak.Check(t)
	m := nn.NewSequential(nn.NewSequential(nn.NewDropout(0.1)), nn.NewDropout(0.2), nn.NewSequential(nn.NewSequential(nn.NewDropout(0.3)), nn.NewDropout(0.4)))
	if got, want := applied(t, m), "0.0,0,1,2.0.0,2.0,2.1,2,"; got != want {
		t.Errorf("Apply visits %s, want %s", got, want)
	}
	type wrapper struct {
		Inner *nn.Dropout `nn:"."`
	}
	w := &wrapper{nn.NewDropout(0.5)}
	var order []any
	if err := nn.Apply(w, func(m any) error { order = append(order, m); return nil }); err != nil || !slices.Equal(order, []any{w.Inner, w}) {
		t.Errorf("Apply visits %v, %v", order, err)
	}
}

// TestModulesWithoutFields tests that modules that have one address, because their type has no fields, are each listed.
func TestModulesWithoutFields(t *testing.T) {
	leak.Check(t)
	m := nn.NewSequential(&nn.Tanh{}, &nn.Tanh{}, &nn.Sigmoid{}, &nn.Tanh{})
	var names []string
	for _, n := range nn.NamedModules(m) {
		names = append(names, n.Name)
	}
	if got, want := strings.Join(names, ","), ",0,1,2,3"; got != want {
		t.Errorf("the modules are %s, want %s", got, want)
	}
	visits := 0
	if err := nn.Apply(m, func(any) error { visits++; return nil }); err != nil || visits != 5 {
		t.Errorf("Apply makes %d visits, %v", visits, err)
	}
}
