package nn_test

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// torchCase is a case of tests/golden/torch_nn.py.
type torchCase struct {
	Seed  uint64
	In    []string
	State []struct {
		Name  string
		Shape []int
		Data  []float64
	}
	Out []struct {
		Shape, Stride []int
		Data          []float64
	}
	InGrads    [][]float64 `json:"in_grads"`
	Grads      map[string][]float64
	After      map[string][]float64
	Eval       [][]float64
	EvalStride [][]int `json:"eval_stride"`
	Str        string
}

// torchModule makes a module and calls it as torch_nn.py does; without call, Forward is called.
type torchModule struct {
	make func() any
	call func(m any, x []*tensor.Tensor) []*tensor.Tensor
}

func (c torchModule) run(m any, x []*tensor.Tensor) []*tensor.Tensor {
	if c.call != nil {
		return c.call(m, x)
	}
	switch m := m.(type) {
	case *nn.Loss:
		return []*tensor.Tensor{m.Forward(x[0], x[1:]...)}
	case nn.Layer:
		return []*tensor.Tensor{m.Forward(x[0])}
	}
	return nil
}

// draw makes an input as torch_nn.py does.
func draw(t *testing.T, spec string) *tensor.Tensor {
	t.Helper()
	kind, rest, _ := strings.Cut(spec, ":")
	high := 0
	if kind == "i" {
		var text string
		text, rest, _ = strings.Cut(rest, ":")
		high, _ = strconv.Atoi(text)
	}
	shape := []int{}
	for _, n := range strings.Split(rest, ",") {
		if k, err := strconv.Atoi(n); err == nil {
			shape = append(shape, k)
		}
	}
	device := tensor.Zeros([]int{0}).Device()
	switch kind {
	case "n":
		return tensor.Randn(shape, tensor.CPU).To(device).RequiresGrad_()
	case "u":
		return tensor.Rand(shape, tensor.CPU).To(device).RequiresGrad_()
	case "i":
		return tensor.RandInt(0, high, shape, tensor.Int64, tensor.CPU).To(device)
	}
	positive := tensor.Randn(shape, tensor.CPU).To(device).Gt(0).To(tensor.Float32)
	if kind == "s" {
		return positive.Mul(2).Sub(1)
	}
	return positive
}

// TestTorchModules compares each module with PyTorch: the state under a seed and its names, the outputs and their strides,
// the gradients, what changes in the state, and evaluation.
func TestTorchModules(t *testing.T) {
	var file map[string]torchCase
	golden.Read(t, "torch_nn.json", &file)
	for name := range torchModules {
		if _, ok := file[name]; !ok {
			t.Errorf("%s is not in torch_nn.json", name)
		}
	}
	for name, want := range file {
		t.Run(name, func(t *testing.T) {
			c, ok := torchModules[name]
			if !ok {
				t.Fatal("the module is missing in the test")
			}
			leak.Check(t)
			if err := tensor.WithScope(func() error { return runTorch(t, c, want) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func runTorch(t *testing.T, c torchModule, want torchCase) error {
	const atol, rtol = 1e-6, 1e-5
	if err := tensor.ManualSeed(want.Seed); err != nil {
		return err
	}
	device := tensor.Zeros([]int{0}).Device()
	var m any
	testdevice.OnCPU(func() { m = c.make() })
	defer nn.Release(m)
	if err := nn.Check(m); err != nil {
		return err
	}
	state := nn.StateDict(m)
	if len(state) != len(want.State) {
		t.Errorf("the state has %d tensors, PyTorch's %d", len(state), len(want.State))
	}
	before := map[string][]float64{}
	for i, w := range want.State[:min(len(state), len(want.State))] {
		if state[i].Name != w.Name || !reflect.DeepEqual(append([]int{}, state[i].Tensor.Shape()...), w.Shape) {
			t.Errorf("tensor %d of the state is %s %v, PyTorch's %s %v", i, state[i].Name, state[i].Tensor.Shape(), w.Name, w.Shape)
		}
		golden.Same(t, w.Name, state[i].Tensor, w.Data)
		before[w.Name] = w.Data
	}
	var xs []*tensor.Tensor
	for _, spec := range want.In {
		xs = append(xs, draw(t, spec))
	}
	if len(state) > 0 {
		if err := nn.To(m, device); err != nil {
			return err
		}
	}
	random := device != tensor.CPU && want.Eval != nil // the device draws other numbers
	ys := c.run(m, xs)
	if len(ys) != len(want.Out) {
		return fmt.Errorf("%d outputs, PyTorch has %d", len(ys), len(want.Out))
	}
	for i, y := range ys {
		w := want.Out[i]
		if err := y.Err(); err != nil {
			return err
		}
		if fmt.Sprint(y.Shape()) != fmt.Sprint(w.Shape) || fmt.Sprint(y.Stride()) != fmt.Sprint(w.Stride) {
			t.Errorf("output %d has shape %v and strides %v, PyTorch's %v and %v", i, y.Shape(), y.Stride(), w.Shape, w.Stride)
		}
		if !random {
			golden.Near(t, fmt.Sprintf("output %d", i), y, w.Data, atol, rtol)
		}
	}
	if loss := lossOf(ys); loss.RequiresGrad() {
		if err := loss.Backward(); err != nil {
			return err
		}
	}
	for i, g := range want.InGrads {
		if got := xs[i].Grad(); (got == nil) != (g == nil) {
			t.Errorf("input %d has the gradient %v, PyTorch's %v", i, got, g)
		} else if g != nil && !random {
			golden.Near(t, fmt.Sprintf("the gradient of input %d", i), got, g, atol, rtol)
		}
	}
	for _, p := range nn.NamedParameters(m) {
		g, ok := want.Grads[p.Name]
		if got := p.Tensor.Grad(); (got == nil) == ok {
			t.Errorf("%s has the gradient %v, PyTorch's %v", p.Name, got, g)
		} else if ok && !random {
			golden.Near(t, "the gradient of "+p.Name, dense(got), g, atol, rtol)
		}
	}
	for _, n := range nn.StateDict(m) {
		after, ok := want.After[n.Name]
		if !ok {
			after = before[n.Name]
		}
		golden.Near(t, n.Name+" after", n.Tensor, after, atol, rtol)
	}
	nn.Eval(m)
	return autograd.NoGrad(func() error {
		for i, y := range c.run(m, xs) {
			data, stride := want.Out[i].Data, want.Out[i].Stride
			if want.Eval != nil {
				data = want.Eval[i]
			}
			if want.EvalStride != nil {
				stride = want.EvalStride[i]
			}
			golden.Near(t, fmt.Sprintf("output %d in evaluation", i), y, data, atol, rtol)
			if fmt.Sprint(y.Stride()) != fmt.Sprint(stride) {
				t.Errorf("in evaluation output %d has strides %v, PyTorch's %v", i, y.Stride(), stride)
			}
		}
		return nil
	})
}

// lossOf returns a weighted sum of the outputs, as torch_nn.py does.
func lossOf(ys []*tensor.Tensor) *tensor.Tensor {
	loss := tensor.Zeros([]int{})
	for _, y := range ys {
		if y.DType().IsFloat() {
			loss = loss.Add(y.Mul(tensor.Linspace(-1, 1, y.Numel()).Reshape(y.Shape()...)).Sum())
		}
	}
	return loss
}

// dense returns a gradient that may be sparse as a dense tensor.
func dense(g *tensor.Tensor) *tensor.Tensor {
	if out, err := tensor.Call("aten::to_dense", g); err == nil {
		return out[0].(*tensor.Tensor)
	}
	return g
}

func tensors(ts ...*tensor.Tensor) []*tensor.Tensor { return ts }

// behind calls a layer that overwrites its input with a tensor that is no leaf.
func behind(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return tensors(m.(nn.Layer).Forward(x[0].Mul(2)))
}

// withIndices calls a pool for its indices too.
func withIndices(m any, x []*tensor.Tensor) []*tensor.Tensor {
	y, indices := m.(interface {
		ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor)
	}).ForwardIndices(x[0])
	return tensors(y, indices)
}

// unpooled calls a pool and an unpool.
func unpooled(size ...int) func(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		list := m.([]any)
		y := withIndices(list[0], x)
		return tensors(list[1].(interface {
			Forward(x, indices *tensor.Tensor, size ...int) *tensor.Tensor
		}).Forward(y[0], y[1], size...))
	}
}

// recurrentOf calls RNN, GRU or LSTM with states.
func recurrentOf(m any, x []*tensor.Tensor) []*tensor.Tensor {
	x = append(x[:len(x):len(x)], nil, nil)
	switch m := m.(type) {
	case *nn.RNN:
		y, h := m.ForwardState(x[0], x[1])
		return tensors(y, h)
	case *nn.GRU:
		y, h := m.ForwardState(x[0], x[1])
		return tensors(y, h)
	case *nn.LSTM:
		y, h, c := m.ForwardState(x[0], x[1], x[2])
		return tensors(y, h, c)
	}
	return nil
}

// packedOf packs x, calls RNN, GRU or LSTM, and pads the result.
func packedOf(lengths []int, opts ...nn.Option) func(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		x = append(x[:len(x):len(x)], nil, nil)
		p := nn.PackPaddedSequence(x[0], lengths, opts...)
		var states []*tensor.Tensor
		switch m := m.(type) {
		case *nn.RNN:
			y, h := m.ForwardPacked(p, x[1])
			p, states = y, tensors(h)
		case *nn.GRU:
			y, h := m.ForwardPacked(p, x[1])
			p, states = y, tensors(h)
		case *nn.LSTM:
			y, h, c := m.ForwardPacked(p, x[1], x[2])
			p, states = y, tensors(h, c)
		}
		y, got := nn.PadPackedSequence(p, append(opts, nn.PaddingValue(0.5), nn.TotalLength(5))...)
		return append(tensors(y, tensor.FromSlice(got, nil)), states...)
	}
}

// cellOf calls RNNCell, GRUCell or LSTMCell.
func cellOf(m any, x []*tensor.Tensor) []*tensor.Tensor {
	x = append(x[:len(x):len(x)], nil, nil)
	switch m := m.(type) {
	case *nn.RNNCell:
		return tensors(m.Forward(x[0], x[1]))
	case *nn.GRUCell:
		return tensors(m.Forward(x[0], x[1]))
	case *nn.LSTMCell:
		h, c := m.Forward(x[0], x[1], x[2])
		return tensors(h, c)
	}
	return nil
}

// pairOf calls a module of two tensors.
func pairOf(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return tensors(m.(interface {
		Forward(x1, x2 *tensor.Tensor) *tensor.Tensor
	}).Forward(x[0], x[1]))
}

// leftOut makes a mask of zeros and ones bool and false at the first position.
func leftOut(m *tensor.Tensor) *tensor.Tensor {
	return m.Mul(tensor.FromSlice([]float32{0, 1, 1, 1}, nil)).Gt(0)
}

func attendOf(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return tensors(m.(*nn.MultiheadAttention).Attend(x[0], x[1], x[2], nn.Masks{}))
}

func attendWeights(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return tensors(m.(*nn.MultiheadAttention).AttendWeights(x[0], x[1], x[2], nn.Masks{}, false))
}

func attendMasked(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return tensors(m.(*nn.MultiheadAttention).AttendWeights(x[0], x[1], x[2], nn.Masks{Attn: leftOut(x[3]), KeyPadding: leftOut(x[4])}, true))
}

func attendFloat(m any, x []*tensor.Tensor) []*tensor.Tensor {
	return tensors(m.(*nn.MultiheadAttention).Attend(x[0], x[1], x[2], nn.Masks{Attn: x[3]}))
}

func transformerOf(m any, x []*tensor.Tensor) []*tensor.Tensor {
	if l, ok := m.(nn.Layer); ok {
		return tensors(l.Forward(x[0]))
	}
	return pairOf(m, x)
}

func transformerMasked(m any, x []*tensor.Tensor) []*tensor.Tensor {
	far := func(m *tensor.Tensor) *tensor.Tensor {
		v := []float32{0, -1e9, -1e9, -1e9}
		return m.Mul(tensor.FromSlice(v[:m.Size(1)], nil))
	}
	switch m := m.(type) {
	case *nn.TransformerEncoderLayer:
		return tensors(m.ForwardMasked(x[0], nn.Masks{Attn: nn.GenerateSquareSubsequentMask(3), KeyPadding: far(x[1])}))
	case *nn.TransformerDecoderLayer:
		return tensors(m.ForwardMasked(x[0], x[1], nn.Masks{Attn: nn.GenerateSquareSubsequentMask(3), KeyPadding: far(x[2])}, nn.Masks{KeyPadding: far(x[3])}))
	}
	return nil
}

func stackedEncoder(l *nn.TransformerEncoderLayer) *nn.TransformerEncoder {
	defer nn.Release(l)
	return nn.NewTransformerEncoder(l, 2, nn.NewLayerNorm(8))
}

func stackedDecoder(l *nn.TransformerDecoderLayer) *nn.TransformerDecoder {
	defer nn.Release(l)
	return nn.NewTransformerDecoder(l, 2, nil)
}

// lossWeight is the weight of the losses in torch_nn.py.
func lossWeight() *tensor.Tensor { return tensor.FromSlice([]float32{0.5, 1, 2}, nil) }

var torchModules = map[string]torchModule{
	"ReLU":              {make: func() any { return &nn.ReLU{} }},
	"ReLU6":             {make: func() any { return &nn.ReLU6{} }},
	"SELU":              {make: func() any { return &nn.SELU{} }},
	"SiLU":              {make: func() any { return &nn.SiLU{} }},
	"Mish":              {make: func() any { return &nn.Mish{} }},
	"Hardsigmoid":       {make: func() any { return &nn.Hardsigmoid{} }},
	"Hardswish":         {make: func() any { return &nn.Hardswish{} }},
	"Tanh":              {make: func() any { return &nn.Tanh{} }},
	"Sigmoid":           {make: func() any { return &nn.Sigmoid{} }},
	"LogSigmoid":        {make: func() any { return &nn.LogSigmoid{} }},
	"Softsign":          {make: func() any { return &nn.Softsign{} }},
	"Tanhshrink":        {make: func() any { return &nn.Tanhshrink{} }},
	"GELU":              {make: func() any { return &nn.GELU{} }},
	"Softmax2d":         {make: func() any { return &nn.Softmax2d{} }},
	"GELU_tanh":         {make: func() any { return &nn.GELU{Approximate: "tanh"} }},
	"LeakyReLU":         {make: func() any { return nn.NewLeakyReLU(0.2) }},
	"ELU":               {make: func() any { return nn.NewELU(0.7) }},
	"CELU":              {make: func() any { return nn.NewCELU(1.3) }},
	"Hardtanh":          {make: func() any { return nn.NewHardtanh(-0.5, 0.7) }},
	"Softplus":          {make: func() any { return nn.NewSoftplus(2, 1.5) }},
	"Hardshrink":        {make: func() any { return nn.NewHardshrink(0.5) }},
	"Softshrink":        {make: func() any { return nn.NewSoftshrink(0.3) }},
	"Threshold":         {make: func() any { return nn.NewThreshold(0.1, -2) }},
	"RReLU":             {make: func() any { return nn.NewRReLU(0.1, 0.3) }},
	"PReLU":             {make: func() any { return nn.NewPReLU(1, 0.25) }},
	"GLU":               {make: func() any { return nn.NewGLU(-1) }},
	"PReLU_channels":    {make: func() any { return nn.NewPReLU(4, 0.1) }},
	"Softmax":           {make: func() any { return &nn.Softmax{Dim: 1} }},
	"LogSoftmax":        {make: func() any { return &nn.LogSoftmax{Dim: -1} }},
	"Softmin":           {make: func() any { return &nn.Softmin{Dim: 0} }},
	"ReLU_inplace":      {func() any { return nn.NewSequential(&nn.Identity{}, &nn.ReLU{InPlace: true}) }, behind},
	"ELU_inplace":       {func() any { return nn.NewSequential(&nn.Identity{}, &nn.ELU{Alpha: 1, InPlace: true}) }, behind},
	"Hardswish_inplace": {func() any { return nn.NewSequential(&nn.Identity{}, &nn.Hardswish{InPlace: true}) }, behind},
	"LeakyReLU_inplace": {func() any { return nn.NewSequential(&nn.Identity{}, &nn.LeakyReLU{NegativeSlope: 0.2, InPlace: true}) }, behind},
	"CELU_inplace":      {func() any { return nn.NewSequential(&nn.Identity{}, &nn.CELU{Alpha: 1, InPlace: true}) }, behind},
	"Threshold_inplace": {func() any {
		return nn.NewSequential(&nn.Identity{}, &nn.Threshold{Limit: 0.1, Value: -2, InPlace: true})
	}, behind},
	"Conv1d": {make: func() any { return nn.NewConv1d(2, 4, 3, nn.Padding(1)) }},
	"Conv1d_options": {make: func() any {
		return nn.NewConv1d(2, 4, 2, nn.Stride(2), nn.Padding(1), nn.Dilation(2), nn.Groups(2), nn.NoBias())
	}},
	"Conv1d_unbatched":    {make: func() any { return nn.NewConv1d(2, 2, 2) }},
	"Conv1d_same":         {make: func() any { return nn.NewConv1d(2, 2, 2, nn.PaddingSame(), nn.Dilation(1)) }},
	"Conv1d_reflect":      {make: func() any { return nn.NewConv1d(2, 2, 3, nn.Padding(1), nn.PaddingMode("reflect")) }},
	"Conv1d_replicate":    {make: func() any { return nn.NewConv1d(2, 2, 3, nn.Padding(1), nn.PaddingMode("replicate")) }},
	"Conv1d_circular":     {make: func() any { return nn.NewConv1d(2, 2, 3, nn.Padding(1), nn.PaddingMode("circular")) }},
	"Conv1d_same_reflect": {make: func() any { return nn.NewConv1d(2, 2, 2, nn.PaddingSame(), nn.PaddingMode("reflect")) }},
	"ConvTranspose1d":     {make: func() any { return nn.NewConvTranspose1d(2, 3, 2) }},
	"ConvTranspose1d_options": {make: func() any {
		return nn.NewConvTranspose1d(2, 4, 3, nn.Stride(2), nn.Padding(1), nn.OutputPadding(1), nn.Groups(2), nn.NoBias())
	}},
	"ConvTranspose1d_size": {func() any { return nn.NewConvTranspose1d(2, 2, 3, nn.Stride(2), nn.Padding(1)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.ConvTranspose1d).ForwardSize(x[0], 14))
	}},
	"Conv2d": {make: func() any { return nn.NewConv2d(2, 4, 3, nn.Padding(1)) }},
	"Conv2d_options": {make: func() any {
		return nn.NewConv2d(2, 4, 2, nn.Stride(2), nn.Padding(1), nn.Dilation(2), nn.Groups(2), nn.NoBias())
	}},
	"Conv2d_unbatched":    {make: func() any { return nn.NewConv2d(2, 2, 2) }},
	"Conv2d_same":         {make: func() any { return nn.NewConv2d(2, 2, 2, nn.PaddingSame(), nn.Dilation(1)) }},
	"Conv2d_reflect":      {make: func() any { return nn.NewConv2d(2, 2, 3, nn.Padding(1), nn.PaddingMode("reflect")) }},
	"Conv2d_replicate":    {make: func() any { return nn.NewConv2d(2, 2, 3, nn.Padding(1), nn.PaddingMode("replicate")) }},
	"Conv2d_circular":     {make: func() any { return nn.NewConv2d(2, 2, 3, nn.Padding(1), nn.PaddingMode("circular")) }},
	"Conv2d_same_reflect": {make: func() any { return nn.NewConv2d(2, 2, 2, nn.PaddingSame(), nn.PaddingMode("reflect")) }},
	"ConvTranspose2d":     {make: func() any { return nn.NewConvTranspose2d(2, 3, 2) }},
	"ConvTranspose2d_options": {make: func() any {
		return nn.NewConvTranspose2d(2, 4, 3, nn.Stride(2), nn.Padding(1), nn.OutputPadding(1), nn.Groups(2), nn.NoBias())
	}},
	"ConvTranspose2d_size": {func() any { return nn.NewConvTranspose2d(2, 2, 3, nn.Stride(2), nn.Padding(1)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.ConvTranspose2d).ForwardSize(x[0], 10, 12))
	}},
	"Conv3d": {make: func() any { return nn.NewConv3d(2, 4, 3, nn.Padding(1)) }},
	"Conv3d_options": {make: func() any {
		return nn.NewConv3d(2, 4, 2, nn.Stride(2), nn.Padding(1), nn.Dilation(2), nn.Groups(2), nn.NoBias())
	}},
	"Conv3d_unbatched":    {make: func() any { return nn.NewConv3d(2, 2, 2) }},
	"Conv3d_same":         {make: func() any { return nn.NewConv3d(2, 2, 2, nn.PaddingSame(), nn.Dilation(1)) }},
	"Conv3d_reflect":      {make: func() any { return nn.NewConv3d(2, 2, 3, nn.Padding(1), nn.PaddingMode("reflect")) }},
	"Conv3d_replicate":    {make: func() any { return nn.NewConv3d(2, 2, 3, nn.Padding(1), nn.PaddingMode("replicate")) }},
	"Conv3d_circular":     {make: func() any { return nn.NewConv3d(2, 2, 3, nn.Padding(1), nn.PaddingMode("circular")) }},
	"Conv3d_same_reflect": {make: func() any { return nn.NewConv3d(2, 2, 2, nn.PaddingSame(), nn.PaddingMode("reflect")) }},
	"ConvTranspose3d":     {make: func() any { return nn.NewConvTranspose3d(2, 3, 2) }},
	"ConvTranspose3d_options": {make: func() any {
		return nn.NewConvTranspose3d(2, 4, 3, nn.Stride(2), nn.Padding(1), nn.OutputPadding(1), nn.Groups(2), nn.NoBias())
	}},
	"ConvTranspose3d_size": {func() any { return nn.NewConvTranspose3d(2, 2, 3, nn.Stride(2), nn.Padding(1)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.ConvTranspose3d).ForwardSize(x[0], 6, 8, 6))
	}},
	"Conv2d_window":     {make: func() any { return nn.NewConv2d(2, 2, 0, nn.Kernel(3, 2), nn.Stride(2, 1), nn.Padding(1, 2)) }},
	"MaxPool1d":         {make: func() any { return nn.NewMaxPool1d(2) }},
	"MaxPool1d_options": {make: func() any { return nn.NewMaxPool1d(3, nn.Stride(2), nn.Padding(1), nn.Dilation(1), nn.CeilMode()) }},
	"MaxPool1d_indices": {func() any { return nn.NewMaxPool1d(2) }, withIndices},
	"MaxUnpool1d":       {func() any { return []any{nn.NewMaxPool1d(2), nn.NewMaxUnpool1d(2)} }, unpooled()},
	"MaxUnpool1d_size":  {func() any { return []any{nn.NewMaxPool1d(2), nn.NewMaxUnpool1d(2)} }, unpooled(8)},
	"AvgPool1d":         {make: func() any { return nn.NewAvgPool1d(2) }},
	"AvgPool1d_options": {make: func() any {
		return nn.NewAvgPool1d(3, nn.Stride(2), nn.Padding(1), nn.CeilMode(), nn.NotCountPadding())
	}},
	"LPPool1d":                  {make: func() any { return nn.NewLPPool1d(2, 2) }},
	"LPPool1d_inf":              {make: func() any { return nn.NewLPPool1d(math.Inf(1), 3, nn.Stride(1), nn.CeilMode()) }},
	"AdaptiveAvgPool1d":         {make: func() any { return nn.NewAdaptiveAvgPool1d(3) }},
	"AdaptiveMaxPool1d":         {make: func() any { return nn.NewAdaptiveMaxPool1d(3) }},
	"AdaptiveMaxPool1d_indices": {func() any { return nn.NewAdaptiveMaxPool1d(2) }, withIndices},
	"MaxPool2d":                 {make: func() any { return nn.NewMaxPool2d(2) }},
	"MaxPool2d_options":         {make: func() any { return nn.NewMaxPool2d(3, nn.Stride(2), nn.Padding(1), nn.Dilation(1), nn.CeilMode()) }},
	"MaxPool2d_indices":         {func() any { return nn.NewMaxPool2d(2) }, withIndices},
	"MaxUnpool2d":               {func() any { return []any{nn.NewMaxPool2d(2), nn.NewMaxUnpool2d(2)} }, unpooled()},
	"MaxUnpool2d_size":          {func() any { return []any{nn.NewMaxPool2d(2), nn.NewMaxUnpool2d(2)} }, unpooled(6, 5)},
	"AvgPool2d":                 {make: func() any { return nn.NewAvgPool2d(2) }},
	"AvgPool2d_options": {make: func() any {
		return nn.NewAvgPool2d(3, nn.Stride(2), nn.Padding(1), nn.CeilMode(), nn.NotCountPadding())
	}},
	"AvgPool2d_divisor":         {make: func() any { return nn.NewAvgPool2d(2, nn.DivisorOverride(3)) }},
	"LPPool2d":                  {make: func() any { return nn.NewLPPool2d(2, 2) }},
	"LPPool2d_inf":              {make: func() any { return nn.NewLPPool2d(math.Inf(1), 3, nn.Stride(1), nn.CeilMode()) }},
	"AdaptiveAvgPool2d":         {make: func() any { return nn.NewAdaptiveAvgPool2d(3) }},
	"AdaptiveMaxPool2d":         {make: func() any { return nn.NewAdaptiveMaxPool2d(3) }},
	"AdaptiveMaxPool2d_indices": {func() any { return nn.NewAdaptiveMaxPool2d(2) }, withIndices},
	"AdaptiveAvgPool2d_keep":    {make: func() any { return nn.NewAdaptiveAvgPool2d(2, nn.Keep) }},
	"FractionalMaxPool2d":       {make: func() any { return nn.NewFractionalMaxPool2d(2, nn.OutputSize(2)) }},
	"FractionalMaxPool2d_ratio": {func() any { return nn.NewFractionalMaxPool2d(2, nn.OutputRatio(0.6)) }, withIndices},
	"MaxPool3d":                 {make: func() any { return nn.NewMaxPool3d(2) }},
	"MaxPool3d_options":         {make: func() any { return nn.NewMaxPool3d(3, nn.Stride(2), nn.Padding(1), nn.Dilation(1), nn.CeilMode()) }},
	"MaxPool3d_indices":         {func() any { return nn.NewMaxPool3d(2) }, withIndices},
	"MaxUnpool3d":               {func() any { return []any{nn.NewMaxPool3d(2), nn.NewMaxUnpool3d(2)} }, unpooled()},
	"MaxUnpool3d_size":          {func() any { return []any{nn.NewMaxPool3d(2), nn.NewMaxUnpool3d(2)} }, unpooled(4, 5, 4)},
	"AvgPool3d":                 {make: func() any { return nn.NewAvgPool3d(2) }},
	"AvgPool3d_options": {make: func() any {
		return nn.NewAvgPool3d(3, nn.Stride(2), nn.Padding(1), nn.CeilMode(), nn.NotCountPadding())
	}},
	"AvgPool3d_divisor":         {make: func() any { return nn.NewAvgPool3d(2, nn.DivisorOverride(3)) }},
	"LPPool3d":                  {make: func() any { return nn.NewLPPool3d(2, 2) }},
	"LPPool3d_inf":              {make: func() any { return nn.NewLPPool3d(math.Inf(1), 3, nn.Stride(1), nn.CeilMode()) }},
	"AdaptiveAvgPool3d":         {make: func() any { return nn.NewAdaptiveAvgPool3d(3) }},
	"AdaptiveMaxPool3d":         {make: func() any { return nn.NewAdaptiveMaxPool3d(3) }},
	"AdaptiveMaxPool3d_indices": {func() any { return nn.NewAdaptiveMaxPool3d(2) }, withIndices},
	"AdaptiveAvgPool3d_keep":    {make: func() any { return nn.NewAdaptiveAvgPool3d(2, nn.Keep, 3) }},
	"FractionalMaxPool3d":       {make: func() any { return nn.NewFractionalMaxPool3d(2, nn.OutputSize(2)) }},
	"FractionalMaxPool3d_ratio": {func() any { return nn.NewFractionalMaxPool3d(2, nn.OutputRatio(0.6)) }, withIndices},
	"ReflectionPad1d":           {make: func() any { return nn.NewReflectionPad1d(1) }},
	"ReflectionPad1d_sides":     {make: func() any { return nn.NewReflectionPad1d(2, 1) }},
	"ReplicationPad1d":          {make: func() any { return nn.NewReplicationPad1d(1) }},
	"ReplicationPad1d_sides":    {make: func() any { return nn.NewReplicationPad1d(2, 1) }},
	"ZeroPad1d":                 {make: func() any { return nn.NewZeroPad1d(1) }},
	"ZeroPad1d_sides":           {make: func() any { return nn.NewZeroPad1d(2, 1) }},
	"CircularPad1d":             {make: func() any { return nn.NewCircularPad1d(1) }},
	"CircularPad1d_sides":       {make: func() any { return nn.NewCircularPad1d(2, 1) }},
	"ConstantPad1d":             {make: func() any { return nn.NewConstantPad1d(2.5, 1) }},
	"ConstantPad1d_sides":       {make: func() any { return nn.NewConstantPad1d(2.5, 2, 1) }},
	"ReflectionPad2d":           {make: func() any { return nn.NewReflectionPad2d(1) }},
	"ReflectionPad2d_sides":     {make: func() any { return nn.NewReflectionPad2d(1, 2, 1, 0) }},
	"ReplicationPad2d":          {make: func() any { return nn.NewReplicationPad2d(1) }},
	"ReplicationPad2d_sides":    {make: func() any { return nn.NewReplicationPad2d(1, 2, 1, 0) }},
	"ZeroPad2d":                 {make: func() any { return nn.NewZeroPad2d(1) }},
	"ZeroPad2d_sides":           {make: func() any { return nn.NewZeroPad2d(1, 2, 1, 0) }},
	"CircularPad2d":             {make: func() any { return nn.NewCircularPad2d(1) }},
	"CircularPad2d_sides":       {make: func() any { return nn.NewCircularPad2d(1, 2, 1, 0) }},
	"ConstantPad2d":             {make: func() any { return nn.NewConstantPad2d(2.5, 1) }},
	"ConstantPad2d_sides":       {make: func() any { return nn.NewConstantPad2d(2.5, 1, 2, 1, 0) }},
	"ReflectionPad3d":           {make: func() any { return nn.NewReflectionPad3d(1) }},
	"ReflectionPad3d_sides":     {make: func() any { return nn.NewReflectionPad3d(1, 0, 1, 2, 0, 1) }},
	"ReplicationPad3d":          {make: func() any { return nn.NewReplicationPad3d(1) }},
	"ReplicationPad3d_sides":    {make: func() any { return nn.NewReplicationPad3d(1, 0, 1, 2, 0, 1) }},
	"ZeroPad3d":                 {make: func() any { return nn.NewZeroPad3d(1) }},
	"ZeroPad3d_sides":           {make: func() any { return nn.NewZeroPad3d(1, 0, 1, 2, 0, 1) }},
	"CircularPad3d":             {make: func() any { return nn.NewCircularPad3d(1) }},
	"CircularPad3d_sides":       {make: func() any { return nn.NewCircularPad3d(1, 0, 1, 2, 0, 1) }},
	"ConstantPad3d":             {make: func() any { return nn.NewConstantPad3d(2.5, 1) }},
	"ConstantPad3d_sides":       {make: func() any { return nn.NewConstantPad3d(2.5, 1, 0, 1, 2, 0, 1) }},
	"BatchNorm1d":               {make: func() any { return nn.NewBatchNorm1d(3) }},
	"BatchNorm1d_options":       {make: func() any { return nn.NewBatchNorm1d(3, nn.Eps(1e-3), nn.CumulativeAverage(), nn.NoBias()) }},
	"BatchNorm1d_plain":         {make: func() any { return nn.NewBatchNorm1d(3, nn.NoAffine(), nn.NoRunningStats()) }},
	"InstanceNorm1d":            {make: func() any { return nn.NewInstanceNorm1d(3) }},
	"InstanceNorm1d_options":    {make: func() any { return nn.NewInstanceNorm1d(3, nn.Affine(), nn.RunningStats(), nn.Momentum(0.3)) }},
	"InstanceNorm1d_unbatched":  {make: func() any { return nn.NewInstanceNorm1d(3) }},
	"BatchNorm2d":               {make: func() any { return nn.NewBatchNorm2d(3) }},
	"BatchNorm2d_options":       {make: func() any { return nn.NewBatchNorm2d(3, nn.Eps(1e-3), nn.CumulativeAverage(), nn.NoBias()) }},
	"BatchNorm2d_plain":         {make: func() any { return nn.NewBatchNorm2d(3, nn.NoAffine(), nn.NoRunningStats()) }},
	"InstanceNorm2d":            {make: func() any { return nn.NewInstanceNorm2d(3) }},
	"InstanceNorm2d_options":    {make: func() any { return nn.NewInstanceNorm2d(3, nn.Affine(), nn.RunningStats(), nn.Momentum(0.3)) }},
	"InstanceNorm2d_unbatched":  {make: func() any { return nn.NewInstanceNorm2d(3) }},
	"BatchNorm3d":               {make: func() any { return nn.NewBatchNorm3d(3) }},
	"BatchNorm3d_options":       {make: func() any { return nn.NewBatchNorm3d(3, nn.Eps(1e-3), nn.CumulativeAverage(), nn.NoBias()) }},
	"BatchNorm3d_plain":         {make: func() any { return nn.NewBatchNorm3d(3, nn.NoAffine(), nn.NoRunningStats()) }},
	"InstanceNorm3d":            {make: func() any { return nn.NewInstanceNorm3d(3) }},
	"InstanceNorm3d_options":    {make: func() any { return nn.NewInstanceNorm3d(3, nn.Affine(), nn.RunningStats(), nn.Momentum(0.3)) }},
	"InstanceNorm3d_unbatched":  {make: func() any { return nn.NewInstanceNorm3d(3) }},
	"BatchNorm1d_features":      {make: func() any { return nn.NewBatchNorm1d(3) }},
	"GroupNorm":                 {make: func() any { return nn.NewGroupNorm(2, 4) }},
	"GroupNorm_plain":           {make: func() any { return nn.NewGroupNorm(2, 4, nn.Eps(1e-3), nn.NoAffine()) }},
	"LayerNorm":                 {make: func() any { return nn.NewLayerNormShape([]int{3, 4}, nn.NoBias()) }},
	"RMSNorm":                   {make: func() any { return nn.NewRMSNormShape([]int{3, 4}) }},
	"LocalResponseNorm":         {make: func() any { return nn.NewLocalResponseNorm(2) }},
	"LocalResponseNorm_2d":      {make: func() any { return &nn.LocalResponseNorm{Size: 3, Alpha: 1e-2, Beta: 0.5, K: 2} }},
	"Dropout":                   {make: func() any { return nn.NewDropout(0.4) }},
	"Dropout1d":                 {make: func() any { return nn.NewDropout1d(0.4) }},
	"Dropout2d":                 {make: func() any { return nn.NewDropout2d(0.4) }},
	"Dropout3d":                 {make: func() any { return nn.NewDropout3d(0.4) }},
	"AlphaDropout":              {make: func() any { return nn.NewAlphaDropout(0.4) }},
	"FeatureAlphaDropout":       {make: func() any { return nn.NewFeatureAlphaDropout(0.4) }},
	"Dropout1d_unbatched":       {make: func() any { return nn.NewDropout1d(0.4) }},
	"Dropout3d_unbatched":       {make: func() any { return nn.NewDropout3d(0.4) }},
	"Dropout_inplace":           {func() any { return &nn.Dropout{P: 0.4, InPlace: true} }, behind},
	"Dropout1d_inplace":         {func() any { return &nn.Dropout1d{P: 0.4, InPlace: true} }, behind},
	"RNN":                       {func() any { return nn.NewRNN(3, 4) }, recurrentOf},
	"RNN_deep": {func() any {
		return nn.NewRNN(3, 2, nn.NumLayers(2), nn.Bidirectional(), nn.BatchFirst(), nn.DropoutP(0.4))
	}, recurrentOf},
	"RNN_states":        {func() any { return nn.NewRNN(3, 2, nn.NumLayers(2), nn.NoBias()) }, recurrentOf},
	"RNN_unbatched":     {func() any { return nn.NewRNN(3, 2, nn.Bidirectional()) }, recurrentOf},
	"RNN_packed":        {func() any { return nn.NewRNN(3, 2, nn.NumLayers(2), nn.Bidirectional()) }, packedOf([]int{2, 4, 1})},
	"RNN_packed_states": {func() any { return nn.NewRNN(3, 2, nn.BatchFirst()) }, packedOf([]int{1, 4, 4}, nn.BatchFirst())},
	"GRU":               {func() any { return nn.NewGRU(3, 4) }, recurrentOf},
	"GRU_deep": {func() any {
		return nn.NewGRU(3, 2, nn.NumLayers(2), nn.Bidirectional(), nn.BatchFirst(), nn.DropoutP(0.4))
	}, recurrentOf},
	"GRU_states":        {func() any { return nn.NewGRU(3, 2, nn.NumLayers(2), nn.NoBias()) }, recurrentOf},
	"GRU_unbatched":     {func() any { return nn.NewGRU(3, 2, nn.Bidirectional()) }, recurrentOf},
	"GRU_packed":        {func() any { return nn.NewGRU(3, 2, nn.NumLayers(2), nn.Bidirectional()) }, packedOf([]int{2, 4, 1})},
	"GRU_packed_states": {func() any { return nn.NewGRU(3, 2, nn.BatchFirst()) }, packedOf([]int{1, 4, 4}, nn.BatchFirst())},
	"LSTM":              {func() any { return nn.NewLSTM(3, 4) }, recurrentOf},
	"LSTM_deep": {func() any {
		return nn.NewLSTM(3, 2, nn.NumLayers(2), nn.Bidirectional(), nn.BatchFirst(), nn.DropoutP(0.4))
	}, recurrentOf},
	"LSTM_states":            {func() any { return nn.NewLSTM(3, 2, nn.NumLayers(2), nn.NoBias()) }, recurrentOf},
	"LSTM_unbatched":         {func() any { return nn.NewLSTM(3, 2, nn.Bidirectional()) }, recurrentOf},
	"LSTM_packed":            {func() any { return nn.NewLSTM(3, 2, nn.NumLayers(2), nn.Bidirectional()) }, packedOf([]int{2, 4, 1})},
	"LSTM_packed_states":     {func() any { return nn.NewLSTM(3, 2, nn.BatchFirst()) }, packedOf([]int{1, 4, 4}, nn.BatchFirst())},
	"RNN_relu":               {func() any { return nn.NewRNN(3, 4, nn.Activation("relu")) }, recurrentOf},
	"LSTM_projection":        {func() any { return nn.NewLSTM(3, 4, nn.NumLayers(2), nn.ProjSize(2), nn.Bidirectional()) }, recurrentOf},
	"LSTM_projection_states": {func() any { return nn.NewLSTM(3, 4, nn.ProjSize(2)) }, recurrentOf},
	"LSTM_projection_packed": {func() any { return nn.NewLSTM(3, 4, nn.ProjSize(2)) }, packedOf([]int{4, 2, 3})},
	"RNNCell":                {func() any { return nn.NewRNNCell(3, 4) }, cellOf},
	"RNNCell_states":         {func() any { return nn.NewRNNCell(3, 4, nn.NoBias()) }, cellOf},
	"RNNCell_unbatched":      {func() any { return nn.NewRNNCell(3, 4) }, cellOf},
	"RNNCell_relu":           {func() any { return nn.NewRNNCell(3, 4, nn.Activation("relu")) }, cellOf},
	"RNNCell_relu_states":    {func() any { return nn.NewRNNCell(3, 4, nn.Activation("relu"), nn.NoBias()) }, cellOf},
	"RNNCell_relu_unbatched": {func() any { return nn.NewRNNCell(3, 4, nn.Activation("relu")) }, cellOf},
	"GRUCell":                {func() any { return nn.NewGRUCell(3, 4) }, cellOf},
	"GRUCell_states":         {func() any { return nn.NewGRUCell(3, 4, nn.NoBias()) }, cellOf},
	"GRUCell_unbatched":      {func() any { return nn.NewGRUCell(3, 4) }, cellOf},
	"LSTMCell":               {func() any { return nn.NewLSTMCell(3, 4) }, cellOf},
	"LSTMCell_states":        {func() any { return nn.NewLSTMCell(3, 4, nn.NoBias()) }, cellOf},
	"LSTMCell_unbatched":     {func() any { return nn.NewLSTMCell(3, 4) }, cellOf},
	"L1Loss":                 {make: func() any { return nn.NewL1Loss() }},
	"MSELoss":                {make: func() any { return nn.NewMSELoss(tensor.ReduceSum) }},
	"CrossEntropyLoss": {make: func() any {
		return nn.NewCrossEntropyLoss(tensor.Weight(lossWeight()), tensor.IgnoreIndex(1), tensor.LabelSmoothing(0.1))
	}},
	"CrossEntropyLoss_probabilities": {make: func() any { return nn.NewCrossEntropyLoss(tensor.ReduceNone) }},
	"NLLLoss":                        {make: func() any { return nn.NewNLLLoss(tensor.Weight(lossWeight())) }},
	"PoissonNLLLoss_plain":           {make: func() any { return nn.NewPoissonNLLLoss(tensor.LogInput(false), tensor.Eps(1e-3), tensor.ReduceNone) }},
	"GaussianNLLLoss":                {make: func() any { return nn.NewGaussianNLLLoss(tensor.FullTerm(true)) }},
	"GaussianNLLLoss_row":            {make: func() any { return nn.NewGaussianNLLLoss(tensor.Eps(0.3), tensor.ReduceSum) }},
	"BCELoss":                        {make: func() any { return nn.NewBCELoss(tensor.Weight(lossWeight())) }},
	"BCEWithLogitsLoss":              {make: func() any { return nn.NewBCEWithLogitsLoss(tensor.PosWeight(lossWeight())) }},
	"MarginRankingLoss":              {make: func() any { return nn.NewMarginRankingLoss(tensor.Margin(0.3)) }},
	"HingeEmbeddingLoss":             {make: func() any { return nn.NewHingeEmbeddingLoss(tensor.Margin(0.8)) }},
	"HuberLoss":                      {make: func() any { return nn.NewHuberLoss(tensor.Delta(0.7)) }},
	"SmoothL1Loss":                   {make: func() any { return nn.NewSmoothL1Loss(tensor.Beta(0.5)) }},
	"SoftMarginLoss":                 {make: func() any { return nn.NewSoftMarginLoss() }},
	"MultiLabelSoftMarginLoss":       {make: func() any { return nn.NewMultiLabelSoftMarginLoss(tensor.Weight(lossWeight())) }},
	"MultiLabelSoftMarginLoss_none":  {make: func() any { return nn.NewMultiLabelSoftMarginLoss(tensor.ReduceNone) }},
	"CosineEmbeddingLoss":            {make: func() any { return nn.NewCosineEmbeddingLoss(tensor.Margin(0.2)) }},
	"MultiMarginLoss":                {make: func() any { return nn.NewMultiMarginLoss(tensor.P(2), tensor.Margin(0.7), tensor.Weight(lossWeight())) }},
	"TripletMarginLoss":              {make: func() any { return nn.NewTripletMarginLoss(tensor.Margin(0.7), tensor.Swap(true)) }},
	"CTCLoss": {func() any { return nn.NewCTCLoss(tensor.ZeroInfinity(true)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.Loss).Forward(x[0].LogSoftmax(2), tensor.FromSlice([]int{1, 2, 1, 3, 1, 0}, []int{2, 3}), tensor.FromSlice([]int{6, 5}, nil), tensor.FromSlice([]int{3, 2}, nil)))
	}},
	"PoissonNLLLoss": {func() any { return nn.NewPoissonNLLLoss(tensor.FullTerm(true)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.Loss).Forward(x[0], x[1].Mul(5)))
	}},
	"KLDivLoss": {func() any { return nn.NewKLDivLoss(tensor.LogTarget(true), tensor.ReduceSum) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.Loss).Forward(x[0].LogSoftmax(1), x[1].LogSoftmax(1)))
	}},
	"MultiLabelMarginLoss": {func() any { return nn.NewMultiLabelMarginLoss() }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.Loss).Forward(x[0], tensor.FromSlice([]int{3, 0, -1, 1, 1, -1, 2, 3}, []int{2, 4})))
	}},
	"TripletMarginWithDistanceLoss": {make: func() any { return nn.NewTripletMarginWithDistanceLoss(nil) }},
	"TripletMarginWithDistanceLoss_own": {make: func() any {
		return nn.NewTripletMarginWithDistanceLoss(func(a, b *tensor.Tensor) *tensor.Tensor { return a.Sub(b).Abs().Sum(tensor.Dim(-1)) }, tensor.Margin(2), tensor.Swap(true), tensor.ReduceSum)
	}},
	"Unflatten":                       {make: func() any { return nn.NewUnflatten(1, 2, 3) }},
	"Flatten":                         {make: func() any { return nn.NewFlatten(0, 1) }},
	"PixelShuffle":                    {make: func() any { return nn.NewPixelShuffle(2) }},
	"PixelUnshuffle":                  {make: func() any { return nn.NewPixelUnshuffle(2) }},
	"ChannelShuffle":                  {make: func() any { return nn.NewChannelShuffle(2) }},
	"CosineSimilarity":                {func() any { return nn.NewCosineSimilarity(1) }, pairOf},
	"PairwiseDistance":                {func() any { return &nn.PairwiseDistance{P: 1.5, Eps: 1e-6, KeepDim: true} }, pairOf},
	"Bilinear":                        {func() any { return nn.NewBilinear(3, 2, 4) }, pairOf},
	"Bilinear_plain":                  {func() any { return nn.NewBilinear(3, 2, 4, nn.NoBias()) }, pairOf},
	"Unfold":                          {make: func() any { return nn.NewUnfold(0, nn.Kernel(2, 3), nn.Dilation(1), nn.Padding(1), nn.Stride(2, 1)) }},
	"Fold":                            {make: func() any { return nn.NewFold([]int{4, 5}, 2, nn.Stride(2), nn.Padding(1)) }},
	"Identity":                        {make: func() any { return &nn.Identity{} }},
	"Upsample_nearest_1d_scale":       {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("nearest")) }},
	"Upsample_nearest_1d_size":        {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("nearest")) }},
	"Upsample_nearest_2d_scale":       {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("nearest")) }},
	"Upsample_nearest_2d_size":        {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("nearest")) }},
	"Upsample_nearest_3d_scale":       {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("nearest")) }},
	"Upsample_nearest_3d_size":        {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("nearest")) }},
	"Upsample_nearest-exact_2d_scale": {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("nearest-exact")) }},
	"Upsample_nearest-exact_2d_size":  {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("nearest-exact")) }},
	"Upsample_linear_1d_scale":        {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("linear")) }},
	"Upsample_linear_1d_size":         {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("linear")) }},
	"Upsample_bilinear_2d_scale":      {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("bilinear")) }},
	"Upsample_bilinear_2d_size":       {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("bilinear")) }},
	"Upsample_bicubic_2d_scale":       {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("bicubic")) }},
	"Upsample_bicubic_2d_size":        {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("bicubic")) }},
	"Upsample_trilinear_3d_scale":     {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("trilinear")) }},
	"Upsample_trilinear_3d_size":      {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("trilinear")) }},
	"Upsample_area_2d_scale":          {make: func() any { return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("area")) }},
	"Upsample_area_2d_size":           {make: func() any { return nn.NewUpsample(nn.OutputSize(4), nn.Algorithm("area")) }},
	"Upsample_linear_corners": {make: func() any {
		return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("linear"), nn.AlignCorners(), nn.RecomputeScale())
	}},
	"Upsample_bilinear_corners": {make: func() any {
		return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("bilinear"), nn.AlignCorners(), nn.RecomputeScale())
	}},
	"Upsample_bicubic_corners": {make: func() any {
		return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("bicubic"), nn.AlignCorners(), nn.RecomputeScale())
	}},
	"Upsample_trilinear_corners": {make: func() any {
		return nn.NewUpsample(nn.ScaleFactor(1.7), nn.Algorithm("trilinear"), nn.AlignCorners(), nn.RecomputeScale())
	}},
	"UpsamplingNearest2d":  {make: func() any { return nn.NewUpsamplingNearest2d(nn.ScaleFactor(2)) }},
	"UpsamplingBilinear2d": {make: func() any { return nn.NewUpsamplingBilinear2d(nn.OutputSize(5, 4)) }},
	"interpolate_bilinear_antialias": {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(nn.Interpolate(x[0], nn.OutputSize(3, 4), nn.Algorithm("bilinear"), nn.AntiAlias()))
	}},
	"interpolate_bicubic_antialias": {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(nn.Interpolate(x[0], nn.OutputSize(3, 4), nn.Algorithm("bicubic"), nn.AntiAlias()))
	}},
	"Embedding":        {make: func() any { return nn.NewEmbedding(5, 3, nn.PaddingIdx(1), nn.MaxNorm(1.5), nn.ScaleGradByFreq()) }},
	"Embedding_norm":   {make: func() any { return nn.NewEmbedding(5, 3, nn.MaxNorm(1), nn.NormType(1)) }},
	"Embedding_sparse": {make: func() any { return nn.NewEmbedding(5, 3, nn.SparseGrad()) }},
	"Embedding_pretrained": {make: func() any {
		return nn.NewEmbeddingFromPretrained(tensor.Arange(0.0, 6.0, tensor.Float32).Reshape(3, 2), false, nn.PaddingIdx(2))
	}},
	"EmbeddingBag_mean": {make: func() any { return nn.NewEmbeddingBag(5, 3, nn.BagMode("mean"), nn.PaddingIdx(1)) }},
	"EmbeddingBag_mean_offsets": {func() any { return nn.NewEmbeddingBag(5, 3, nn.BagMode("mean"), nn.IncludeLastOffset()) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.EmbeddingBag).ForwardBags(x[0], tensor.FromSlice([]int{0, 3, 3, 7}, nil), nil))
	}},
	"EmbeddingBag_sum": {make: func() any { return nn.NewEmbeddingBag(5, 3, nn.BagMode("sum"), nn.PaddingIdx(1)) }},
	"EmbeddingBag_sum_offsets": {func() any { return nn.NewEmbeddingBag(5, 3, nn.BagMode("sum"), nn.IncludeLastOffset()) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.EmbeddingBag).ForwardBags(x[0], tensor.FromSlice([]int{0, 3, 3, 7}, nil), nil))
	}},
	"EmbeddingBag_max": {make: func() any { return nn.NewEmbeddingBag(5, 3, nn.BagMode("max"), nn.PaddingIdx(1)) }},
	"EmbeddingBag_max_offsets": {func() any { return nn.NewEmbeddingBag(5, 3, nn.BagMode("max"), nn.IncludeLastOffset()) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.EmbeddingBag).ForwardBags(x[0], tensor.FromSlice([]int{0, 3, 3, 7}, nil), nil))
	}},
	"EmbeddingBag_weights": {func() any { return nn.NewEmbeddingBag(5, 3, nn.BagMode("sum"), nn.MaxNorm(1)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.EmbeddingBag).ForwardBags(x[0], nil, x[1]))
	}},
	"EmbeddingBag_sparse":                       {make: func() any { return nn.NewEmbeddingBag(5, 3, nn.SparseGrad()) }},
	"MultiheadAttention":                        {func() any { return nn.NewMultiheadAttention(8, 2) }, attendOf},
	"MultiheadAttention_weights":                {func() any { return nn.NewMultiheadAttention(8, 2) }, attendWeights},
	"MultiheadAttention_masks":                  {func() any { return nn.NewMultiheadAttention(8, 2) }, attendMasked},
	"MultiheadAttention_float_mask":             {func() any { return nn.NewMultiheadAttention(8, 2) }, attendFloat},
	"MultiheadAttention_batch_first":            {func() any { return nn.NewMultiheadAttention(8, 2, nn.BatchFirst()) }, attendOf},
	"MultiheadAttention_batch_first_weights":    {func() any { return nn.NewMultiheadAttention(8, 2, nn.BatchFirst()) }, attendWeights},
	"MultiheadAttention_batch_first_masks":      {func() any { return nn.NewMultiheadAttention(8, 2, nn.BatchFirst()) }, attendMasked},
	"MultiheadAttention_batch_first_float_mask": {func() any { return nn.NewMultiheadAttention(8, 2, nn.BatchFirst()) }, attendFloat},
	"MultiheadAttention_plain":                  {func() any { return nn.NewMultiheadAttention(8, 2, nn.NoBias()) }, attendOf},
	"MultiheadAttention_plain_weights":          {func() any { return nn.NewMultiheadAttention(8, 2, nn.NoBias()) }, attendWeights},
	"MultiheadAttention_plain_masks":            {func() any { return nn.NewMultiheadAttention(8, 2, nn.NoBias()) }, attendMasked},
	"MultiheadAttention_plain_float_mask":       {func() any { return nn.NewMultiheadAttention(8, 2, nn.NoBias()) }, attendFloat},
	"MultiheadAttention_widths":                 {func() any { return nn.NewMultiheadAttention(8, 2, nn.KDim(3), nn.VDim(5)) }, attendOf},
	"MultiheadAttention_widths_weights":         {func() any { return nn.NewMultiheadAttention(8, 2, nn.KDim(3), nn.VDim(5)) }, attendWeights},
	"MultiheadAttention_widths_masks":           {func() any { return nn.NewMultiheadAttention(8, 2, nn.KDim(3), nn.VDim(5)) }, attendMasked},
	"MultiheadAttention_widths_float_mask":      {func() any { return nn.NewMultiheadAttention(8, 2, nn.KDim(3), nn.VDim(5)) }, attendFloat},
	"MultiheadAttention_bias_kv":                {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddBiasKV()) }, attendOf},
	"MultiheadAttention_bias_kv_weights":        {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddBiasKV()) }, attendWeights},
	"MultiheadAttention_bias_kv_masks":          {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddBiasKV()) }, attendMasked},
	"MultiheadAttention_bias_kv_float_mask":     {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddBiasKV()) }, attendFloat},
	"MultiheadAttention_zero":                   {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddZeroAttn(), nn.BatchFirst()) }, attendOf},
	"MultiheadAttention_zero_weights":           {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddZeroAttn(), nn.BatchFirst()) }, attendWeights},
	"MultiheadAttention_zero_masks":             {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddZeroAttn(), nn.BatchFirst()) }, attendMasked},
	"MultiheadAttention_zero_float_mask":        {func() any { return nn.NewMultiheadAttention(8, 2, nn.AddZeroAttn(), nn.BatchFirst()) }, attendFloat},
	"MultiheadAttention_dropout":                {func() any { return nn.NewMultiheadAttention(8, 2, nn.DropoutP(0.3)) }, attendOf},
	"MultiheadAttention_dropout_weights":        {func() any { return nn.NewMultiheadAttention(8, 2, nn.DropoutP(0.3)) }, attendWeights},
	"MultiheadAttention_dropout_masks":          {func() any { return nn.NewMultiheadAttention(8, 2, nn.DropoutP(0.3)) }, attendMasked},
	"MultiheadAttention_dropout_float_mask":     {func() any { return nn.NewMultiheadAttention(8, 2, nn.DropoutP(0.3)) }, attendFloat},
	"MultiheadAttention_unbatched": {func() any { return nn.NewMultiheadAttention(8, 2) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.MultiheadAttention).AttendWeights(x[0], x[1], x[2], nn.Masks{KeyPadding: leftOut(x[3])}, false))
	}},
	"TransformerEncoderLayer":       {func() any { return nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2)) }, transformerOf},
	"TransformerEncoderLayer_masks": {func() any { return nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2)) }, transformerMasked},
	"TransformerDecoderLayer":       {func() any { return nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2)) }, transformerOf},
	"TransformerDecoderLayer_masks": {func() any { return nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2)) }, transformerMasked},
	"TransformerEncoder": {func() any {
		return stackedEncoder(nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2)))
	}, transformerOf},
	"TransformerDecoder": {func() any {
		return stackedDecoder(nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2)))
	}, transformerOf},
	"Transformer": {func() any {
		return nn.NewTransformer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.EncoderLayers(2), nn.DecoderLayers(1))
	}, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.Transformer).ForwardMasked(x[0], x[1], nn.TransformerMasks{Target: nn.Masks{Attn: nn.GenerateSquareSubsequentMask(3)}}))
	}},
	"TransformerEncoderLayer_batch_first": {func() any {
		return nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.BatchFirst(), nn.Activation("gelu"))
	}, transformerOf},
	"TransformerEncoderLayer_batch_first_masks": {func() any {
		return nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.BatchFirst(), nn.Activation("gelu"))
	}, transformerMasked},
	"TransformerDecoderLayer_batch_first": {func() any {
		return nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.BatchFirst(), nn.Activation("gelu"))
	}, transformerOf},
	"TransformerDecoderLayer_batch_first_masks": {func() any {
		return nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.BatchFirst(), nn.Activation("gelu"))
	}, transformerMasked},
	"TransformerEncoder_batch_first": {func() any {
		return stackedEncoder(nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.BatchFirst(), nn.Activation("gelu")))
	}, transformerOf},
	"TransformerDecoder_batch_first": {func() any {
		return stackedDecoder(nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.BatchFirst(), nn.Activation("gelu")))
	}, transformerOf},
	"Transformer_batch_first": {func() any {
		return nn.NewTransformer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.BatchFirst(), nn.Activation("gelu"), nn.EncoderLayers(2), nn.DecoderLayers(1))
	}, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.Transformer).ForwardMasked(x[0], x[1], nn.TransformerMasks{Target: nn.Masks{Attn: nn.GenerateSquareSubsequentMask(3)}}))
	}},
	"TransformerEncoderLayer_norm_first": {func() any {
		return nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.NormFirst(), nn.NoBias(), nn.Eps(1e-3))
	}, transformerOf},
	"TransformerEncoderLayer_norm_first_masks": {func() any {
		return nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.NormFirst(), nn.NoBias(), nn.Eps(1e-3))
	}, transformerMasked},
	"TransformerDecoderLayer_norm_first": {func() any {
		return nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.NormFirst(), nn.NoBias(), nn.Eps(1e-3))
	}, transformerOf},
	"TransformerDecoderLayer_norm_first_masks": {func() any {
		return nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.NormFirst(), nn.NoBias(), nn.Eps(1e-3))
	}, transformerMasked},
	"TransformerEncoder_norm_first": {func() any {
		return stackedEncoder(nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.NormFirst(), nn.NoBias(), nn.Eps(1e-3)))
	}, transformerOf},
	"TransformerDecoder_norm_first": {func() any {
		return stackedDecoder(nn.NewTransformerDecoderLayer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.NormFirst(), nn.NoBias(), nn.Eps(1e-3)))
	}, transformerOf},
	"Transformer_norm_first": {func() any {
		return nn.NewTransformer(8, 2, nn.FeedForward(12), nn.DropoutP(0.2), nn.NormFirst(), nn.NoBias(), nn.Eps(1e-3), nn.EncoderLayers(2), nn.DecoderLayers(1))
	}, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(m.(*nn.Transformer).ForwardMasked(x[0], x[1], nn.TransformerMasks{Target: nn.Masks{Attn: nn.GenerateSquareSubsequentMask(3)}}))
	}},
	"TransformerEncoderLayer_unbatched": {func() any { return nn.NewTransformerEncoderLayer(8, 2, nn.FeedForward(12)) }, transformerOf},
	"normalize":                         {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.Normalize(x[0], 2, 1, 1e-12)) }},
	"normalize_1":                       {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.Normalize(x[0], 1, 0, 3)) }},
	"gumbel_softmax": {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(nn.GumbelSoftmax(x[0], 0.7, false, -1))
	}},
	"gumbel_softmax_hard": {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.GumbelSoftmax(x[0], 1, true, 0)) }},
	"ones_":               {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.Ones_(x[0].Detach().Clone())) }},
	"zeros_":              {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.Zeros_(x[0].Detach().Clone())) }},
	"eye_":                {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.Eye_(x[0].Detach().Clone())) }},
	"sparse_": {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(nn.Sparse_(x[0].Detach().Clone(), 0.3, 0.5))
	}},
	"dirac_":       {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.Dirac_(x[0].Detach().Clone(), 1)) }},
	"dirac_groups": {func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor { return tensors(nn.Dirac_(x[0].Detach().Clone(), 2)) }},
}
