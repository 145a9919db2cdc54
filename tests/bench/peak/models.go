package main

import (
	"fmt"

	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// The sizes, as in arm.py.
const (
	mlpWidth, mlpLayers    = 256, 12
	gruWidth, gruSteps     = 256, 24
	gptVocab, gptContext   = 97, 128
	gptWidth, gptLayers    = 256, 4
	gptHeads               = 8
	smallWidth, smallHeads = 128, 4 // examples/chargpt
	smallContext           = 64
)

// A model is a network with its input and target.
type model struct {
	nn.Layer
	batch  func() (x, y *tensor.Tensor)
	logits func(*tensor.Tensor) *tensor.Tensor // converts outputs for the loss; nil: unchanged
	step   func(x, y *tensor.Tensor) error     // training step; nil: cross-entropy and Adam
	zero   func()                              // set with step: sets all gradients to nil
	eval   func(x *tensor.Tensor) error        // nil: Forward
}

// device is the device of models and batches.
var device = tensor.CPU

// newModel makes a model in a style: "layers", modules in Sequential and Pipe, or "plain", a forward pass
// written by hand without any lifetime code. rows is the batch size, 0 for the model's own; scale multiplies
// it.
func newModel(name, style string, eval bool, rows, scale int) (model, error) {
	plain := style != "layers"
	size := func(train, evaluation int) int {
		switch {
		case rows > 0:
			return rows
		case eval:
			return scale * evaluation
		}
		return scale * train
	}
	classes := func(n int, shape ...int) func() (x, y *tensor.Tensor) {
		return func() (x, y *tensor.Tensor) {
			return tensor.Randn(shape, device), tensor.RandInt(0, 10, []int{n}, device)
		}
	}
	m, ok, err := zooModel(name, eval, size)
	if err != nil {
		return m, err
	}
	switch name {
	case "mlp":
		n := size(24576, 98304)
		m.batch = classes(n, n, mlpWidth)
		m.Layer = newMLP(plain)
	case "cnn":
		n := size(2048, 4096)
		m.batch = classes(n, n, 1, 28, 28)
		m.Layer = newCNN(plain)
	case "gru":
		n := size(1024, 3072)
		m.batch = classes(n, gruSteps, n, gruWidth)
		m.Layer = newGRU(plain)
	case "gpt", "gpt64":
		c := gpt.Config{Vocab: gptVocab, Width: gptWidth, Layers: gptLayers, Heads: gptHeads, Context: gptContext}
		n := size(32, 128)
		if name == "gpt64" {
			c.Width, c.Heads, c.Context, n = smallWidth, smallHeads, smallContext, size(64, 64)
		}
		ids := func() *tensor.Tensor { return tensor.RandInt(0, c.Vocab, []int{n, c.Context}, device) }
		m.batch = func() (x, y *tensor.Tensor) { return ids(), ids().View(-1) }
		m.logits = func(y *tensor.Tensor) *tensor.Tensor { return y.View(-1, c.Vocab) }
		m.Layer = newGPT(c, plain)
	default:
		if !ok {
			return m, fmt.Errorf("no model %q", name)
		}
	}
	return m, nn.Check(m.Layer)
}

type mlp struct{ Layers []*nn.Linear }

func (m *mlp) Forward(x *tensor.Tensor) *tensor.Tensor {
	for i, l := range m.Layers {
		x = l.Forward(x)
		if i < len(m.Layers)-1 {
			x = x.ReLU()
		}
	}
	return x
}

func newMLP(plain bool) nn.Layer {
	m, s := &mlp{}, nn.NewSequential()
	for i := range mlpLayers {
		out := mlpWidth
		if i == mlpLayers-1 {
			out = 10
		}
		l := nn.NewLinear(mlpWidth, out, nn.Device(device))
		m.Layers = append(m.Layers, l)
		if i > 0 {
			s.Layers = append(s.Layers, &nn.ReLU{})
		}
		s.Layers = append(s.Layers, l)
	}
	if plain {
		return m
	}
	return s
}

type cnn struct {
	Conv1, Conv2 *nn.Conv2d
	BN1, BN2     *nn.BatchNorm2d
	Head         *nn.Linear
}

func (m *cnn) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = m.Conv1.Forward(x)
	x = m.BN1.Forward(x)
	x = x.ReLU()
	x = x.MaxPool2d([]int{2})
	x = m.Conv2.Forward(x)
	x = m.BN2.Forward(x)
	x = x.ReLU()
	x = x.MaxPool2d([]int{2})
	return m.Head.Forward(x.Flatten(tensor.StartDim(1)))
}

func newCNN(plain bool) nn.Layer {
	m := &cnn{
		Conv1: nn.NewConv2d(1, 32, 3, nn.Padding(1), nn.Device(device)),
		BN1:   nn.NewBatchNorm2d(32, nn.Device(device)),
		Conv2: nn.NewConv2d(32, 64, 3, nn.Padding(1), nn.Device(device)),
		BN2:   nn.NewBatchNorm2d(64, nn.Device(device)),
		Head:  nn.NewLinear(64*7*7, 10, nn.Device(device)),
	}
	if plain {
		return m
	}
	pool := nn.NewMaxPool2d(2)
	return nn.NewSequential(m.Conv1, m.BN1, &nn.ReLU{}, pool, m.Conv2, m.BN2, &nn.ReLU{}, pool, nn.NewFlatten(1, -1), m.Head)
}

// gru is a recurrent layer written out, (T, N, C) to the same shape.
type gru struct{ In, Hidden *nn.Linear }

func newGRULayer() *gru {
	return &gru{In: nn.NewLinear(gruWidth, 3*gruWidth, nn.Device(device)), Hidden: nn.NewLinear(gruWidth, 3*gruWidth, nn.Device(device))}
}

func (g *gru) Forward(x *tensor.Tensor) *tensor.Tensor {
	h := tensor.Zeros([]int{x.Size(1), gruWidth}, x.Device())
	var all []*tensor.Tensor
	for t := range x.Size(0) {
		var err error
		if h, err = g.step(x.Select(0, t), h); err != nil {
			return tensor.Failed(err)
		}
		all = append(all, h)
	}
	return tensor.Stack(all)
}

func (g *gru) step(x, h *tensor.Tensor) (*tensor.Tensor, error) {
	in, err := g.In.Forward(x).Chunk(3, tensor.Dim(1))
	if err != nil {
		return nil, err
	}
	hidden, err := g.Hidden.Forward(h).Chunk(3, tensor.Dim(1))
	if err != nil {
		return nil, err
	}
	r := in[0].Add(hidden[0]).Sigmoid()
	z := in[1].Add(hidden[1]).Sigmoid()
	n := in[2].Add(r.Mul(hidden[2])).Tanh()
	return n.Add(z.Mul(h.Sub(n))), nil
}

type rnn struct {
	Layers []*gru
	Head   *nn.Linear
}

func last(x *tensor.Tensor) *tensor.Tensor { return x.Select(0, -1) }

func (m *rnn) Forward(x *tensor.Tensor) *tensor.Tensor {
	for _, l := range m.Layers {
		x = l.Forward(x)
	}
	return m.Head.Forward(last(x))
}

func newGRU(plain bool) nn.Layer {
	m, s := &rnn{}, nn.NewSequential()
	for range 2 {
		g := newGRULayer()
		m.Layers, s.Layers = append(m.Layers, g), append(s.Layers, g)
	}
	m.Head = nn.NewLinear(gruWidth, 10, nn.Device(device))
	s.Layers = append(s.Layers, nn.Func(last), m.Head)
	if plain {
		return m
	}
	return s
}

// plainGPT is examples/chargpt's model with a forward pass without any lifetime code.
type plainGPT struct{ *gpt.GPT }

func newGPT(c gpt.Config, plain bool) nn.Layer {
	g := gpt.New(c, nn.Device(device))
	if !plain {
		return g
	}
	return plainGPT{g}
}

func (m plainGPT) Forward(ids *tensor.Tensor) *tensor.Tensor {
	positions := tensor.Arange(0, ids.Size(1), tensor.Int64, ids.Device())
	x := m.Tok.Forward(ids).Add(m.Pos.Forward(positions))
	for _, b := range m.Blocks {
		x = x.Add(attention(b.Attn, b.LN1.Forward(x)))
		y := b.MLP.Layers[0].Forward(b.LN2.Forward(x))
		y = y.GELU()
		x = x.Add(b.MLP.Layers[2].Forward(y))
	}
	return m.Head.Forward(m.LN.Forward(x))
}

func attention(a *nn.CausalSelfAttention, x *tensor.Tensor) *tensor.Tensor {
	shape := x.Shape()
	n, t, c := shape[0], shape[1], shape[2]
	qkv, err := a.QKV.Forward(x).Split(c, tensor.Dim(2))
	if err != nil {
		return tensor.Failed(err)
	}
	for i := range qkv {
		qkv[i] = qkv[i].View(n, t, a.Heads, c/a.Heads).Transpose(1, 2)
	}
	y := tensor.ScaledDotProductAttention(qkv[0], qkv[1], qkv[2], tensor.IsCausal(true))
	return a.Proj.Forward(y.Transpose(1, 2).Reshape(n, t, c))
}
