package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// loops is a program with loops over modules of package nn, all in one scope. It prints the bytes by which the live tensors
// grow from the third step of each loop to the last.
var loops = map[string]string{
	"go.mod": module["go.mod"],
	"main.go": `package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func live() int64 { s, _ := vram.Stats(tensor.CPU); return s.Allocated }

func learn(opt *optim.Optimizer, loss *tensor.Tensor) error {
	opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	return opt.Step()
}

func batch() (x, y *tensor.Tensor) {
	return tensor.Randn([]int{6, 4, 16}), tensor.RandInt(0, 10, []int{4})
}

// module has the parameters of all parts, and a loss of a classifier.
type module struct {
	RNN         *nn.RNN
	GRU         *nn.GRU
	LSTM        *nn.LSTM
	RNNCell     *nn.RNNCell
	GRUCell     *nn.GRUCell
	LSTMCell    *nn.LSTMCell
	Encoder     *nn.TransformerEncoder
	Decoder     *nn.TransformerDecoderLayer
	Transformer *nn.Transformer
	Head        *nn.Linear
	Loss        *nn.Loss
}

func (m *module) recurrent() error {
	x, y := batch()
	x = m.RNN.Forward(x)
	x, _ = m.GRU.ForwardState(x, nil)
	_, h, _ := m.LSTM.ForwardState(x, nil, nil)
	return learn(opt, m.Loss.Forward(m.Head.Forward(h.Select(0, -1)), y))
}

func (m *module) carried() error {
	h := tensor.Zeros([]int{1, 4, 16})
	for range 3 {
		x, y := batch()
		var out *tensor.Tensor
		out, h = m.GRU.ForwardState(x, h)
		if err := learn(opt, nn.CrossEntropy(m.Head.Forward(out.Select(0, -1)), y)); err != nil {
			return err
		}
		h = h.Detach()
	}
	return h.Err()
}

func (m *module) cells() error {
	x, y := batch()
	var a, b, h, c *tensor.Tensor
	for t := range x.Size(0) {
		a = m.RNNCell.Forward(x.Select(0, t), a)
		b = m.GRUCell.Forward(a, b)
		h, c = m.LSTMCell.Forward(b, h, c)
	}
	return learn(opt, m.Loss.Forward(m.Head.Forward(h.Add(c)), y))
}

func (m *module) packed() error {
	x, y := batch()
	p := nn.PackPaddedSequence(x, []int{3, 6, 5, 1})
	out, h, _ := m.LSTM.ForwardPacked(p, nil, nil)
	padded, _ := nn.PadPackedSequence(out)
	loss := m.Loss.Forward(m.Head.Forward(h.Select(0, 0).Add(padded.Mean(tensor.Dim(0)))), y)
	p.Data.Release()
	out.Data.Release()
	return learn(opt, loss)
}

func (m *module) sequences() error {
	x, _ := batch()
	list, err := nn.UnpadSequence(x, []int{3, 6, 5, 1})
	if err != nil {
		return err
	}
	padded := nn.PadSequence(list)
	p := nn.PackSequence(list)
	parts, err := nn.UnpackSequence(p)
	if err != nil {
		return err
	}
	sum := padded.Sum()
	for _, s := range parts {
		sum = sum.Add(s.Sum())
	}
	p.Data.Release()
	return sum.Err()
}

func (m *module) transformer() error {
	x, y := batch()
	mask := nn.GenerateSquareSubsequentMask(6)
	x = m.Encoder.ForwardMasked(x, nn.Masks{Attn: mask})
	q := x.Mean(tensor.Dim(0), tensor.KeepDim(true))
	q = m.Decoder.Forward(q, x)
	return learn(opt, m.Loss.Forward(m.Head.Forward(q.SqueezeDim(0)), y))
}

func (m *module) translate() error {
	x, y := batch()
	target := x.Narrow(0, 0, 2)
	out := m.Transformer.ForwardMasked(x, target, nn.TransformerMasks{Target: nn.Masks{Attn: nn.GenerateSquareSubsequentMask(2)}})
	return learn(opt, nn.CrossEntropy(m.Head.Forward(out.Select(0, 1)), y))
}

func (m *module) evaluate() error {
	return autograd.NoGrad(func() error {
		x, _ := batch()
		x = m.Encoder.Forward(x)
		return m.Transformer.Forward(x, m.LSTM.Forward(x)).Err()
	})
}

var triplet = nn.NewTripletMarginWithDistanceLoss(func(a, b *tensor.Tensor) *tensor.Tensor { return a.Sub(b).Square().Sum(tensor.Dim(1)) })

func (m *module) losses() error {
	x, _ := batch()
	out := m.Head.Forward(x.Select(0, 0))
	target := tensor.RandInt(0, 2, []int{4, 10}).To(tensor.Float32)
	loss := nn.GaussianNLLLoss(out, target, out.Exp())
	loss = loss.Add(nn.MultiLabelSoftMarginLoss(out, target, tensor.Weight(tensor.Ones([]int{10}))))
	return learn(opt, loss)
}

// triplet leaves the results of the distance, two blocks of 64 bytes, which the program could hold.
func (m *module) triplet() error {
	x, _ := batch()
	out := m.Head.Forward(x.Select(0, 0))
	return learn(opt, triplet.Forward(out, out.Exp(), out.Neg()))
}

var opt *optim.Optimizer

func run() error {
	layer := nn.NewTransformerEncoderLayer(16, 2, nn.FeedForward(32))
	m := &module{
		RNN: nn.NewRNN(16, 16), GRU: nn.NewGRU(16, 16), LSTM: nn.NewLSTM(16, 16),
		RNNCell: nn.NewRNNCell(16, 16), GRUCell: nn.NewGRUCell(16, 16), LSTMCell: nn.NewLSTMCell(16, 16),
		Encoder: nn.NewTransformerEncoder(layer, 2, nil), Decoder: nn.NewTransformerDecoderLayer(16, 2, nn.FeedForward(32)),
		Transformer: nn.NewTransformer(16, 2, nn.FeedForward(32), nn.EncoderLayers(1), nn.DecoderLayers(1)),
		Head:        nn.NewLinear(16, 10), Loss: nn.NewCrossEntropyLoss(),
	}
	var err error
	if opt, err = optim.NewSGD(nn.Parameters(m), 1e-3); err != nil {
		return err
	}
	for _, loop := range []struct {
		name string
		step func() error
	}{
		{"recurrent", m.recurrent}, {"carried", m.carried}, {"cells", m.cells}, {"packed", m.packed}, {"sequences", m.sequences},
		{"transformer", m.transformer}, {"translate", m.translate}, {"evaluate", m.evaluate}, {"losses", m.losses}, {"triplet", m.triplet},
	} {
		var before int64
		for i := range 6 {
			if i == 3 {
				before = live()
			}
			if err := loop.step(); err != nil {
				return err
			}
		}
		fmt.Println(loop.name, live()-before)
	}
	runtime.KeepAlive(layer) // the stack has copies of it; a garbage collection could free it within a loop
	return nil
}

func main() {
	if err := tensor.WithScope(run); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
`,
}

// Loops with recurrent modules, transformers and losses, in one scope and without sweeps, keep no tensor of a step if the
// program is rewritten. Otherwise they keep some.
func TestLoops(t *testing.T) {
	dir, linstock := command(t)
	if err := writeModule(dir, loops); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"go", linstock} {
		args := []string{"go", "run", "."}
		if command == "go" {
			args = args[1:]
		}
		out, err := runIn(dir, command, args...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", filepath.Base(command), err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(lines) != 10 {
			t.Fatalf("%s", out)
		}
		for _, line := range lines {
			want := " 0"
			if strings.HasPrefix(line, "triplet ") {
				want = " 384"
			}
			if clean := strings.HasSuffix(line, want); clean != (command == linstock) {
				t.Errorf("%s: three steps leave bytes: %s", filepath.Base(command), line)
			}
		}
	}
}
