package nn_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

type moduleCase struct {
	Seed  uint64
	Shape []int
	DType string `json:"dtype"`
	IDs   int    `json:"ids"`
	Order []string
	State map[string]struct {
		Shape []int
		Data  []float64
	}
	Output struct {
		Shape, Stride []int
		Data          []float64
	}
	Eval       []float64
	EvalStride []int `json:"eval_stride"`

	GradInput []float64 `json:"grad_input"`
	Grads     map[string][]float64
	After     map[string][]float64
}

type modulesFile struct {
	Modules map[string]moduleCase
	Losses  map[string]struct {
		Value float64
		Grad  []float64
	}
	Init map[string][]float64
	Clip struct {
		Norm          float64
		Grads, Values [][]float64
	}
}

// wrapped gives attention the same name as in modules.py.
type wrapped struct{ MHA *nn.MultiheadAttention }

func (w *wrapped) Forward(x *tensor.Tensor) *tensor.Tensor { return w.MHA.Forward(x) }

func attention(opts ...nn.Option) func() nn.Layer { return attentionHeads(2, opts...) }

func attentionHeads(heads int, opts ...nn.Option) func() nn.Layer {
	return func() nn.Layer {
		return &wrapped{nn.NewMultiheadAttention(8, heads, opts...)}
	}
}

var constructors = map[string]func() nn.Layer{
	"linear":           func() nn.Layer { return nn.NewLinear(5, 3) },
	"linear_no_bias":   func() nn.Layer { return nn.NewLinear(5, 3, nn.NoBias()) },
	"linear_float64":   func() nn.Layer { return nn.NewLinear(5, 3, nn.DType(tensor.Float64)) },
	"embedding":        func() nn.Layer { return nn.NewEmbedding(7, 4) },
	"embedding_pad":    func() nn.Layer { return nn.NewEmbedding(7, 4, nn.PaddingIdx(-5)) },
	"layer_norm":       func() nn.Layer { return nn.NewLayerNorm(6) },
	"layer_norm_shape": func() nn.Layer { return nn.NewLayerNormShape([]int{3, 6}, nn.Eps(1e-3)) },
	"rms_norm":         func() nn.Layer { return nn.NewRMSNorm(6) },
	"rms_norm_eps":     func() nn.Layer { return nn.NewRMSNorm(6, nn.Eps(1e-2)) },
	"conv2d":           func() nn.Layer { return nn.NewConv2d(3, 4, 3, nn.Padding(1)) },
	"conv2d_options": func() nn.Layer {
		return nn.NewConv2d(4, 6, 0, nn.Kernel(3, 2), nn.Stride(2, 1), nn.Padding(1, 2), nn.Dilation(1, 2), nn.Groups(2), nn.NoBias())
	},
	"conv1d":                func() nn.Layer { return nn.NewConv1d(3, 4, 3, nn.Stride(2), nn.Padding(1)) },
	"batch_norm2d":          func() nn.Layer { return nn.NewBatchNorm2d(3) },
	"batch_norm2d_options":  func() nn.Layer { return nn.NewBatchNorm2d(3, nn.Eps(1e-3), nn.CumulativeAverage(), nn.NoAffine()) },
	"batch_norm2d_no_stats": func() nn.Layer { return nn.NewBatchNorm2d(3, nn.NoRunningStats()) },
	"max_pool2d":            func() nn.Layer { return nn.NewMaxPool2d(2) },
	"max_pool2d_options": func() nn.Layer {
		return nn.NewMaxPool2d(0, nn.Kernel(3, 2), nn.Stride(2), nn.Padding(1), nn.Dilation(1), nn.CeilMode())
	},
	"avg_pool2d": func() nn.Layer {
		return nn.NewAvgPool2d(3, nn.Stride(2), nn.Padding(1), nn.NotCountPadding())
	},
	"adaptive_avg_pool2d": func() nn.Layer { return nn.NewAdaptiveAvgPool2d(2, 3) },
	"dropout":             func() nn.Layer { return nn.NewDropout(0.3) },
	"relu":                func() nn.Layer { return &nn.ReLU{} },
	"gelu":                func() nn.Layer { return &nn.GELU{} },
	"gelu_tanh":           func() nn.Layer { return &nn.GELU{Approximate: "tanh"} },
	"silu":                func() nn.Layer { return &nn.SiLU{} },
	"tanh":                func() nn.Layer { return &nn.Tanh{} },
	"sigmoid":             func() nn.Layer { return &nn.Sigmoid{} },
	"softmax":             func() nn.Layer { return &nn.Softmax{Dim: -1} },
	"log_softmax":         func() nn.Layer { return &nn.LogSoftmax{Dim: 1} },
	"flatten":             func() nn.Layer { return &nn.Flatten{} },
	"flatten_01":          func() nn.Layer { return nn.NewFlatten(0, 1) },
	"identity":            func() nn.Layer { return &nn.Identity{} },

	"attention":                       attention(),
	"attention_causal":                attention(nn.Causal(), nn.BatchFirst()),
	"attention_no_bias":               attentionHeads(4, nn.NoBias(), nn.BatchFirst()),
	"attention_batch_first":           attention(nn.BatchFirst()),
	"attention_unbatched":             attention(),
	"attention_unbatched_batch_first": attention(nn.BatchFirst()),
	"causal_self_attention":           func() nn.Layer { return nn.NewCausalSelfAttention(8, 2) },
	"sequential": func() nn.Layer {
		return nn.NewSequential(nn.NewLinear(6, 8), &nn.ReLU{}, nn.NewDropout(0.5), nn.NewLayerNorm(8), nn.NewLinear(8, 2))
	},
	"convnet": func() nn.Layer {
		return nn.NewSequential(nn.NewConv2d(1, 4, 3, nn.Padding(1)), nn.NewBatchNorm2d(4), &nn.ReLU{},
			nn.NewMaxPool2d(2), &nn.Flatten{}, nn.NewLinear(36, 3))
	},
}

// TestModules compares each module with PyTorch: initial state, output, gradients, buffers and evaluation.
func TestModules(t *testing.T) {
	var file modulesFile
	golden.Read(t, "modules.json", &file)
	if len(file.Modules) != len(constructors) {
		t.Errorf("%d modules, PyTorch has %d", len(constructors), len(file.Modules))
	}
	for name, want := range file.Modules {
		t.Run(name, func(t *testing.T) {
			make := constructors[name]
			if make == nil {
				t.Fatal("the module is missing in the test")
			}
			leak.Check(t)
			if err := tensor.WithScope(func() error { return runModule(t, name, make, want) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// runModule makes the module and its input on the CPU, whose random numbers PyTorch's are, and moves them to the device
// that tests run on.
func runModule(t *testing.T, name string, make func() nn.Layer, want moduleCase) error {
	const atol, rtol = 1e-5, 1e-5
	if err := tensor.ManualSeed(want.Seed); err != nil {
		return err
	}
	device := tensor.Zeros([]int{0}).Device()
	random := device != tensor.CPU && (name == "dropout" || name == "sequential")
	var m nn.Layer
	testdevice.OnCPU(func() { m = make() })
	defer nn.Release(m)
	var names []string
	for _, n := range nn.StateDict(m) {
		names = append(names, n.Name)
		w := want.State[n.Name]
		if fmt.Sprint(n.Tensor.Shape()) != fmt.Sprint(w.Shape) {
			t.Errorf("%s has shape %v, PyTorch's %v", n.Name, n.Tensor.Shape(), w.Shape)
		}
		golden.Exact(t, n.Name, n.Tensor, w.Data)
	}
	if len(names) != len(want.Order) || len(names) > 0 && !reflect.DeepEqual(names, want.Order) {
		t.Errorf("the state has %v, PyTorch's %v", names, want.Order)
	}
	var x *tensor.Tensor
	if want.IDs > 0 {
		x = tensor.RandInt(0, want.IDs, want.Shape, tensor.Int64, tensor.CPU).To(device)
	} else {
		dtype, err := tensor.ParseDType(want.DType)
		if err != nil {
			return err
		}
		x = tensor.Randn(want.Shape, dtype, tensor.CPU).To(device).RequiresGrad_()
	}
	if err := nn.To(m, device); err != nil {
		return err
	}
	y := m.Forward(x)
	if err := y.Err(); err != nil {
		return err
	}
	if !reflect.DeepEqual(y.Shape(), want.Output.Shape) {
		t.Errorf("the output has shape %v, PyTorch's %v", y.Shape(), want.Output.Shape)
	}
	if !reflect.DeepEqual(y.Stride(), want.Output.Stride) {
		t.Errorf("the output has strides %v, PyTorch's %v", y.Stride(), want.Output.Stride)
	}
	if random { // the device draws other numbers
		want.Output.Data, want.GradInput, want.Grads = nil, nil, nil
	} else {
		golden.Near(t, "output", y, want.Output.Data, atol, rtol)
	}
	loss := y.Mul(tensor.Linspace(-1, 1, y.Numel(), y.DType()).Reshape(y.Shape()...)).Sum()
	if err := loss.Backward(); err != nil {
		return err
	}
	if want.GradInput != nil {
		golden.Near(t, "the input's gradient", x.Grad(), want.GradInput, atol, rtol)
	}
	params := nn.NamedParameters(m)
	if len(params) != len(want.Grads) && !random {
		t.Errorf("%d parameters, PyTorch has %d", len(params), len(want.Grads))
	}
	for _, p := range params {
		if !random {
			golden.Near(t, "the gradient of "+p.Name, p.Tensor.Grad(), want.Grads[p.Name], atol, rtol)
		}
	}
	for _, n := range nn.StateDict(m) {
		after, ok := want.After[n.Name]
		if !ok {
			after = want.State[n.Name].Data
		}
		golden.Near(t, n.Name+" after", n.Tensor, after, atol, rtol)
	}
	nn.Eval(m)
	if want.Eval == nil {
		want.Eval = want.Output.Data
	}
	return autograd.NoGrad(func() error {
		y := m.Forward(x)
		golden.Near(t, "evaluation", y, want.Eval, atol, rtol)
		if !reflect.DeepEqual(y.Stride(), want.EvalStride) {
			t.Errorf("in evaluation the output has strides %v, PyTorch's %v", y.Stride(), want.EvalStride)
		}
		return nil
	})
}

func TestLosses(t *testing.T) {
	leak.Check(t)
	var file modulesFile
	golden.Read(t, "modules.json", &file)
	err := tensor.WithScope(func() error {
		x := tensor.Linspace(-2, 2, 12).Reshape(4, 3)
		p := x.Sigmoid()
		target := tensor.Linspace(0.9, 0.1, 12).Reshape(4, 3)
		classes := tensor.FromSlice([]int{0, 2, 1, 2}, nil)
		w := tensor.FromSlice([]float32{0.5, 1, 2}, nil)
		cases := map[string]struct {
			x *tensor.Tensor
			f func(x *tensor.Tensor) *tensor.Tensor
		}{
			"cross_entropy": {x, func(x *tensor.Tensor) *tensor.Tensor { return nn.CrossEntropy(x, classes) }},
			"cross_entropy_options": {x, func(x *tensor.Tensor) *tensor.Tensor {
				return nn.CrossEntropy(x, classes, tensor.Weight(w), tensor.IgnoreIndex(1), tensor.ReduceSum, tensor.LabelSmoothing(0.1))
			}},
			"nll_loss":       {x, func(x *tensor.Tensor) *tensor.Tensor { return nn.NLLLoss(x.LogSoftmax(1), classes) }},
			"mse_loss":       {x, func(x *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(x, target) }},
			"l1_loss":        {x, func(x *tensor.Tensor) *tensor.Tensor { return nn.L1Loss(x, target, tensor.ReduceSum) }},
			"smooth_l1_loss": {x, func(x *tensor.Tensor) *tensor.Tensor { return nn.SmoothL1Loss(x, target, tensor.Beta(0.5)) }},
			"bce_loss":       {p, func(p *tensor.Tensor) *tensor.Tensor { return nn.BCELoss(p, target) }},
			"bce_with_logits_loss": {x, func(x *tensor.Tensor) *tensor.Tensor {
				return nn.BCEWithLogitsLoss(x, target, tensor.PosWeight(w))
			}},
			"kl_div_loss": {x, func(x *tensor.Tensor) *tensor.Tensor { return nn.KLDivLoss(x.LogSoftmax(1), target, tensor.ReduceSum) }},
		}
		if len(cases) != len(file.Losses) {
			t.Errorf("%d losses, PyTorch has %d", len(cases), len(file.Losses))
		}
		for name, c := range cases {
			v := c.x.Detach().Clone().RequiresGrad_()
			y := c.f(v)
			golden.Near(t, name, y, []float64{file.Losses[name].Value}, 1e-6, 1e-5)
			if err := y.Backward(); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			golden.Near(t, name+"'s gradient", v.Grad(), file.Losses[name].Grad, 1e-6, 1e-5)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestInit(t *testing.T) {
	leak.Check(t)
	var file modulesFile
	golden.Read(t, "modules.json", &file)
	cases := []struct {
		name string
		f    func(t *tensor.Tensor) *tensor.Tensor
	}{
		{"uniform", func(t *tensor.Tensor) *tensor.Tensor { return nn.Uniform_(t, -2, 3) }},
		{"normal", func(t *tensor.Tensor) *tensor.Tensor { return nn.Normal_(t, 1, 2) }},
		{"constant", func(t *tensor.Tensor) *tensor.Tensor { return nn.Constant_(t, 0.3) }},
		{"kaiming_uniform", func(t *tensor.Tensor) *tensor.Tensor { return nn.KaimingUniform_(t) }},
		{"kaiming_uniform_options", func(t *tensor.Tensor) *tensor.Tensor { return nn.KaimingUniform_(t, nn.Slope(0.2), nn.FanOut()) }},
		{"kaiming_normal", func(t *tensor.Tensor) *tensor.Tensor { return nn.KaimingNormal_(t, nn.Nonlinearity("relu")) }},
		{"xavier_uniform", func(t *tensor.Tensor) *tensor.Tensor { return nn.XavierUniform_(t, 1.5) }},
		{"xavier_normal", func(t *tensor.Tensor) *tensor.Tensor { return nn.XavierNormal_(t, 1) }},
		{"orthogonal", func(t *tensor.Tensor) *tensor.Tensor { return nn.Orthogonal_(t, 2) }},
		{"trunc_normal", func(t *tensor.Tensor) *tensor.Tensor { return nn.TruncNormal_(t, 0, 1, -0.7, 0.9) }},
		{"trunc_normal_tail", func(t *tensor.Tensor) *tensor.Tensor { return nn.TruncNormal_(t, 0, 1, 1.5, 2.5) }},
	}
	err := tensor.WithScope(func() error {
		for i, c := range cases {
			if err := tensor.ManualSeed(uint64(100 + i)); err != nil {
				return err
			}
			// Like a parameter, it records gradients.
			w := tensor.Empty([]int{6, 5, 2}).RequiresGrad_()
			if got := c.f(w); got != w {
				t.Errorf("%s: %v", c.name, got.Err())
				continue
			}
			if c.name == "orthogonal" {
				golden.Near(t, c.name, w, file.Init[c.name], 1e-5, 1e-5)
				continue
			}
			golden.Exact(t, c.name, w, file.Init[c.name])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoFeatures tests layers without inputs or outputs: PyTorch's draw the bias of a Linear without inputs from [0, 0).
func TestNoFeatures(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		if err := tensor.ManualSeed(0); err != nil {
			return err
		}
		noIn := nn.NewLinear(0, 3)
		golden.Near(t, "the next number", tensor.Rand([]int{1}), []float64{0.1320}, 1e-4, 0)
		if err := tensor.ManualSeed(0); err != nil {
			return err
		}
		noOut := nn.NewLinear(3, 0)
		golden.Near(t, "the next number", tensor.Rand([]int{1}), []float64{0.4963}, 1e-4, 0)
		table, narrow := nn.NewEmbedding(0, 3), nn.NewEmbedding(3, 0)
		defer nn.Release([]any{noIn, noOut, table, narrow})
		for _, c := range []struct {
			m                       *nn.Linear
			x, y                    []int
			values, inputs, weights []float64
			bias                    []float64
		}{{noIn, []int{2, 0}, []int{2, 3}, make([]float64, 6), nil, nil, []float64{2, 2, 2}}, {noOut, []int{2, 3}, []int{2, 0}, nil, make([]float64, 6), nil, nil}} {
			x := tensor.Ones(c.x).RequiresGrad_()
			y := c.m.Forward(x)
			if err := errors.Join(c.m.Err(), y.Err()); err != nil {
				return err
			}
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			if !slices.Equal(y.Shape(), c.y) || !slices.Equal(c.m.Weight.Grad().Shape(), c.m.Weight.Shape()) {
				t.Errorf("the output has shape %v, the gradient of the weight %v", y.Shape(), c.m.Weight.Grad().Shape())
			}
			golden.Near(t, "y", y, c.values, 0, 0)
			golden.Near(t, "the gradient of x", x.Grad(), c.inputs, 0, 0)
			golden.Near(t, "the gradient of the bias", c.m.Bias.Grad(), c.bias, 0, 0)
		}
		rows := narrow.Forward(tensor.Zeros([]int{2}, tensor.Int64))
		none := table.Forward(tensor.Zeros([]int{0}, tensor.Int64))
		if !slices.Equal(rows.Shape(), []int{2, 0}) || !slices.Equal(none.Shape(), []int{0, 3}) {
			t.Errorf("embeddings have shapes %v and %v", rows.Shape(), none.Shape())
		}
		for what, err := range map[string]error{"a row": table.Forward(tensor.Zeros([]int{1}, tensor.Int64)).Err(),
			"PaddingIdx": nn.NewEmbedding(0, 3, nn.PaddingIdx(0)).Err(), "a negative size": nn.NewEmbedding(-1, 3).Err()} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestInitOnMeta tests that initializers return a tensor on the meta device, and draw no numbers on the CPU.
func TestInitOnMeta(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		if err := tensor.ManualSeed(0); err != nil {
			return err
		}
		want := tensor.Rand([]int{1})
		if err := tensor.ManualSeed(0); err != nil {
			return err
		}
		w := tensor.Empty([]int{4, 3}, tensor.Meta)
		for name, got := range map[string]*tensor.Tensor{"TruncNormal_": nn.TruncNormal_(w, 0, 1, -2, 2), "TruncNormal_ of a tail": nn.TruncNormal_(w, 0, 1, 2, 3),
			"Orthogonal_": nn.Orthogonal_(w, 1), "Sparse_": nn.Sparse_(w, 0.5, 1)} {
			if got != w {
				t.Errorf("%s: %v", name, got.Err())
			}
		}
		golden.Near(t, "the next number", tensor.Rand([]int{1}), data(t, want), 0, 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestInitOfEmptyTensors tests that initializers accept the same tensors without elements as PyTorch's.
func TestInitOfEmptyTensors(t *testing.T) {
	leak.Check(t)
	all := [][]int{{0, 3}, {3, 0}, {0, 0}, {0}, {0, 2, 3}, {2, 0, 3}, {2, 3, 0}}
	for name, c := range map[string]struct {
		f       func(t *tensor.Tensor) *tensor.Tensor
		rejects string
	}{
		"kaiming_uniform_": {func(t *tensor.Tensor) *tensor.Tensor { return nn.KaimingUniform_(t) }, ""},
		"kaiming_normal_":  {func(t *tensor.Tensor) *tensor.Tensor { return nn.KaimingNormal_(t, nn.FanOut()) }, ""},
		"xavier_uniform_":  {func(t *tensor.Tensor) *tensor.Tensor { return nn.XavierUniform_(t, 1) }, "[0 0] [0] [2 3 0]"},
		"xavier_normal_":   {func(t *tensor.Tensor) *tensor.Tensor { return nn.XavierNormal_(t, 1) }, "[0 0] [0] [2 3 0]"},
		"orthogonal_":      {func(t *tensor.Tensor) *tensor.Tensor { return nn.Orthogonal_(t, 1) }, "[0]"},
		"trunc_normal_":    {func(t *tensor.Tensor) *tensor.Tensor { return nn.TruncNormal_(t, 0, 1, -2, 2) }, ""},
		"sparse_":          {func(t *tensor.Tensor) *tensor.Tensor { return nn.Sparse_(t, 0.1, 0.01) }, "[0] [0 2 3] [2 0 3] [2 3 0]"},
		"dirac_":           {func(t *tensor.Tensor) *tensor.Tensor { return nn.Dirac_(t, 1) }, "[0 3] [3 0] [0 0] [0] [2 3 0]"},
	} {
		var rejected []string
		for _, shape := range all {
			x := tensor.Empty(shape)
			if c.f(x) != x {
				rejected = append(rejected, fmt.Sprint(shape))
			}
			x.Release()
		}
		if got := strings.Join(rejected, " "); got != c.rejects {
			t.Errorf("%s rejects %s, PyTorch's %s", name, got, c.rejects)
		}
	}
}

func TestClip(t *testing.T) {
	leak.Check(t)
	var file modulesFile
	golden.Read(t, "modules.json", &file)
	err := tensor.WithScope(func() error {
		var ps []*tensor.Tensor
		for _, shape := range [][]int{{3, 4}, {2}, {5}} {
			ps = append(ps, tensor.Zeros(shape).RequiresGrad_())
		}
		if err := ps[0].SetGrad(tensor.Linspace(-3, 4, 12).Reshape(3, 4)); err != nil {
			return err
		}
		if err := ps[2].SetGrad(tensor.Linspace(1, 2, 5)); err != nil {
			return err
		}
		golden.Exact(t, "norm", nn.ClipGradNorm_(ps, 2.5), []float64{file.Clip.Norm})
		golden.Exact(t, "clipped", ps[0].Grad(), file.Clip.Grads[0])
		golden.Exact(t, "clipped", ps[2].Grad(), file.Clip.Grads[1])
		if err := nn.ClipGradValue_(ps, 0.4); err != nil {
			return err
		}
		golden.Exact(t, "clamped", ps[0].Grad(), file.Clip.Values[0])
		golden.Exact(t, "clamped", ps[2].Grad(), file.Clip.Values[1])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
