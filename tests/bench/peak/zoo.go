package main

import (
	"math"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// zoo names the models of this file, which exist in style "plain" only.
const zoo = "unet,resnet,encdec,gan,dqn,beam,lstm,transformer"

// The sizes, as in arm.py.
const (
	attentionWidth, attentionVocab = 128, 97
	noise                          = 64
	states, actions, hidden        = 128, 16, 512
	capacity                       = 32768
	beams, beamSteps               = 8, 16
	beamWidth, beamVocab           = 256, 4096
)

func conv(in, out, kernel, stride int) *nn.Conv2d {
	return nn.NewConv2d(in, out, kernel, nn.Stride(stride), nn.Padding(kernel/2), nn.Device(device))
}

func linear(in, out int) *nn.Linear { return nn.NewLinear(in, out, nn.Device(device)) }

// up is a transposed convolution that doubles height and width.
type up struct{ Weight *tensor.Tensor }

func newUp(in, out int) *up {
	bound := 1 / math.Sqrt(float64(4*in))
	return &up{nn.NewParameter(tensor.Empty([]int{in, out, 2, 2}, device).Uniform_(-bound, bound))}
}

func (u *up) Forward(x *tensor.Tensor) *tensor.Tensor {
	return x.ConvTranspose2d(u.Weight, nil, tensor.Stride(2))
}

// double is the pair of convolutions of U-Net.
type double struct{ A, B *nn.Conv2d }

func newDouble(in, out int) *double { return &double{conv(in, out, 3, 1), conv(out, out, 3, 1)} }

func (d *double) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = d.A.Forward(x).ReLU()
	return d.B.Forward(x).ReLU()
}

// unet keeps the result of each level for the decoder: (N, 1, H, W) to (N, 2, H, W).
type unet struct {
	Down []*double
	Mid  *double
	Ups  []*up
	Up   []*double
	Head *nn.Conv2d
}

func newUNet() *unet {
	return &unet{
		Down: []*double{newDouble(1, 16), newDouble(16, 32)},
		Mid:  newDouble(32, 64),
		Ups:  []*up{newUp(64, 32), newUp(32, 16)},
		Up:   []*double{newDouble(64, 32), newDouble(32, 16)},
		Head: conv(16, 2, 1, 1),
	}
}

func (m *unet) Forward(x *tensor.Tensor) *tensor.Tensor {
	var skips []*tensor.Tensor
	for _, d := range m.Down {
		x = d.Forward(x)
		skips = append(skips, x)
		x = x.MaxPool2d([]int{2})
	}
	x = m.Mid.Forward(x)
	for i, u := range m.Ups {
		x = u.Forward(x)
		x = tensor.Cat([]*tensor.Tensor{x, skips[len(skips)-1-i]}, tensor.Dim(1))
		x = m.Up[i].Forward(x)
	}
	return m.Head.Forward(x)
}

type residual struct {
	Conv1, Conv2, Down *nn.Conv2d
	BN1, BN2           *nn.BatchNorm2d
}

func newResidual(in, out, stride int) *residual {
	return &residual{
		Conv1: conv(in, out, 3, stride), Conv2: conv(out, out, 3, 1), Down: conv(in, out, 1, stride),
		BN1: nn.NewBatchNorm2d(out, nn.Device(device)), BN2: nn.NewBatchNorm2d(out, nn.Device(device)),
	}
}

func (r *residual) Forward(x *tensor.Tensor) *tensor.Tensor {
	y := r.BN1.Forward(r.Conv1.Forward(x)).ReLU()
	y = r.BN2.Forward(r.Conv2.Forward(y))
	return y.Add(r.Down.Forward(x)).ReLU()
}

type resnet struct {
	Stem   *nn.Conv2d
	Blocks []*residual
	Head   *nn.Linear
}

func newResNet() *resnet {
	return &resnet{conv(3, 32, 3, 1), []*residual{newResidual(32, 32, 1), newResidual(32, 64, 2), newResidual(64, 64, 1)}, linear(64, 10)}
}

func (m *resnet) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = m.Stem.Forward(x).ReLU()
	for _, b := range m.Blocks {
		x = b.Forward(x)
	}
	return m.Head.Forward(x.AdaptiveAvgPool2d(1, 1).Flatten(tensor.StartDim(1)))
}

// attend computes attention over memory: (N, T, C) and (N, S, C) to (N, T, C).
type attend struct {
	Norm       *nn.LayerNorm
	Q, K, V, O *nn.Linear
}

func newAttend() *attend {
	const w = attentionWidth
	return &attend{nn.NewLayerNorm(w, nn.Device(device)), linear(w, w), linear(w, w), linear(w, w), linear(w, w)}
}

func heads(x *tensor.Tensor) *tensor.Tensor {
	s := x.Shape()
	return x.View(s[0], s[1], 4, s[2]/4).Transpose(1, 2)
}

func (a *attend) apply(x, memory *tensor.Tensor, causal bool) *tensor.Tensor {
	y := a.Norm.Forward(x)
	if memory == nil {
		memory = y
	}
	q, k, v := heads(a.Q.Forward(y)), heads(a.K.Forward(memory)), heads(a.V.Forward(memory))
	y = tensor.ScaledDotProductAttention(q, k, v, tensor.IsCausal(causal))
	return x.Add(a.O.Forward(y.Transpose(1, 2).Reshape(x.Shape()...)))
}

type feed struct {
	Norm *nn.LayerNorm
	A, B *nn.Linear
}

func newFeed() *feed {
	const w = attentionWidth
	return &feed{nn.NewLayerNorm(w, nn.Device(device)), linear(w, 4*w), linear(4*w, w)}
}

func (f *feed) Forward(x *tensor.Tensor) *tensor.Tensor {
	y := f.A.Forward(f.Norm.Forward(x)).GELU()
	return x.Add(f.B.Forward(y))
}

// encoderDecoder maps (N, 2T) tokens, the source and the shifted target, to logits (N*T, vocabulary).
type encoderDecoder struct {
	Embedding           *nn.Embedding
	Encode, Self, Cross []*attend
	EncodeFeed, Feed    []*feed
	Head                *nn.Linear
}

func newEncoderDecoder() *encoderDecoder {
	m := &encoderDecoder{Embedding: nn.NewEmbedding(attentionVocab, attentionWidth, nn.Device(device)), Head: linear(attentionWidth, attentionVocab)}
	for range 2 {
		m.Encode, m.Self, m.Cross = append(m.Encode, newAttend()), append(m.Self, newAttend()), append(m.Cross, newAttend())
		m.EncodeFeed, m.Feed = append(m.EncodeFeed, newFeed()), append(m.Feed, newFeed())
	}
	return m
}

func (m *encoderDecoder) Forward(ids *tensor.Tensor) *tensor.Tensor {
	t := ids.Size(1) / 2
	memory := m.Embedding.Forward(ids.Narrow(1, 0, t))
	for i, a := range m.Encode {
		memory = a.apply(memory, nil, false)
		memory = m.EncodeFeed[i].Forward(memory)
	}
	x := m.Embedding.Forward(ids.Narrow(1, t, t))
	for i, a := range m.Self {
		x = a.apply(x, nil, true)
		x = m.Cross[i].apply(x, memory, false)
		x = m.Feed[i].Forward(x)
	}
	return m.Head.Forward(x).View(-1, attentionVocab)
}

type generator struct {
	In       *nn.Linear
	BN       *nn.BatchNorm2d
	Up1, Up2 *up
}

func (g *generator) Forward(z *tensor.Tensor) *tensor.Tensor {
	x := g.In.Forward(z).View(-1, 64, 7, 7)
	x = g.BN.Forward(x).ReLU()
	x = g.Up1.Forward(x).ReLU()
	return g.Up2.Forward(x).Tanh()
}

type discriminator struct {
	Conv1, Conv2 *nn.Conv2d
	Head         *nn.Linear
}

func (d *discriminator) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = d.Conv1.Forward(x).LeakyReLU(tensor.NegativeSlope(0.2))
	x = d.Conv2.Forward(x).LeakyReLU(tensor.NegativeSlope(0.2))
	return d.Head.Forward(x.Flatten(tensor.StartDim(1))).View(-1)
}

// gan trains both networks in a step.
type gan struct {
	Generator     *generator
	Discriminator *discriminator
	optG, optD    *optim.Optimizer
}

func newGAN() (*gan, error) {
	g := &gan{
		Generator:     &generator{linear(noise, 64*7*7), nn.NewBatchNorm2d(64, nn.Device(device)), newUp(64, 32), newUp(32, 1)},
		Discriminator: &discriminator{conv(1, 32, 3, 2), conv(32, 64, 3, 2), linear(64*7*7, 1)},
	}
	var err error
	if g.optG, err = optim.NewAdam(nn.Parameters(g.Generator), 1e-3); err != nil {
		return nil, err
	}
	g.optD, err = optim.NewAdam(nn.Parameters(g.Discriminator), 1e-3)
	return g, err
}

func (g *gan) Forward(z *tensor.Tensor) *tensor.Tensor { return g.Generator.Forward(z) }

func (g *gan) train(real *tensor.Tensor) error {
	n := real.Size(0)
	drawn := g.Generator.Forward(tensor.Randn([]int{n, noise}, device))
	ones, zeros := tensor.Ones([]int{n}, device), tensor.Zeros([]int{n}, device)
	lossReal := nn.BCEWithLogitsLoss(g.Discriminator.Forward(real), ones)
	lossFake := nn.BCEWithLogitsLoss(g.Discriminator.Forward(drawn.Detach()), zeros)
	if err := learn(g.optD, lossReal.Add(lossFake)); err != nil {
		return err
	}
	return learn(g.optG, nn.BCEWithLogitsLoss(g.Discriminator.Forward(drawn), ones))
}

func (g *gan) zero() {
	g.optG.ZeroGrad()
	g.optD.ZeroGrad()
}

func learn(opt *optim.Optimizer, loss *tensor.Tensor) error {
	opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	return opt.Step()
}

type qNet struct{ A, B, C *nn.Linear }

func newQNet() *qNet {
	return &qNet{linear(states, hidden), linear(hidden, hidden), linear(hidden, actions)}
}

func (q *qNet) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = q.A.Forward(x).ReLU()
	x = q.B.Forward(x).ReLU()
	return q.C.Forward(x)
}

// dqn fills a replay buffer and trains on moves drawn from it.
type dqn struct {
	Q       *qNet
	target  *qNet          `nn:"-"`
	states  *tensor.Tensor `nn:"-"`
	nexts   *tensor.Tensor `nn:"-"`
	actions *tensor.Tensor `nn:"-"`
	rewards *tensor.Tensor `nn:"-"`
	opt     *optim.Optimizer
	at      int
}

// moves are n moves of a game.
type moves struct{ states, actions, rewards, nexts *tensor.Tensor }

func newDQN() (*dqn, error) {
	d := &dqn{
		Q: newQNet(), target: newQNet(),
		states: tensor.Randn([]int{capacity, states}, device).Keep(), nexts: tensor.Randn([]int{capacity, states}, device).Keep(),
		actions: tensor.RandInt(0, actions, []int{capacity}, device).Keep(), rewards: tensor.Randn([]int{capacity}, device).Keep(),
	}
	var err error
	d.opt, err = optim.NewAdam(nn.Parameters(d.Q), 1e-3)
	return d, err
}

func (d *dqn) sample(n int) moves {
	i := tensor.RandInt(0, capacity, []int{n}, device)
	return moves{d.states.IndexSelect(0, i), d.actions.IndexSelect(0, i), d.rewards.IndexSelect(0, i), d.nexts.IndexSelect(0, i)}
}

// play makes n moves and stores them in the buffer in place of the oldest.
func (d *dqn) play(n int) error {
	return autograd.NoGrad(func() error {
		s := d.nexts.Narrow(0, d.at, n)
		a := d.Q.Forward(s).ArgMax(tensor.Dim(1))
		next := s.Add(tensor.Randn([]int{n, states}, device))
		reward := next.Mean(tensor.Dim(1))
		d.states.Narrow(0, d.at, n).Copy_(s)
		d.actions.Narrow(0, d.at, n).Copy_(a)
		d.rewards.Narrow(0, d.at, n).Copy_(reward)
		d.nexts.Narrow(0, d.at, n).Copy_(next)
		d.at = (d.at + n) % capacity
		return next.Err()
	})
}

func (d *dqn) train(n int) error {
	if err := d.play(1024); err != nil {
		return err
	}
	m := d.sample(n)
	var want *tensor.Tensor
	if err := autograd.NoGrad(func() error {
		best := d.target.Forward(m.nexts).AMax(tensor.Dim(1))
		want = m.rewards.Add(best.Mul(0.9))
		return want.Err()
	}); err != nil {
		return err
	}
	values := d.Q.Forward(m.states).Gather(1, m.actions.Unsqueeze(1)).SqueezeDim(1)
	return learn(d.opt, nn.SmoothL1Loss(values, want))
}

func (d *dqn) Forward(x *tensor.Tensor) *tensor.Tensor { return d.Q.Forward(x).ArgMax(tensor.Dim(1)) }

// beam is a recurrent decoder with beam search.
type beam struct {
	Embedding *nn.Embedding
	In, State *nn.Linear
	Head      *nn.Linear
}

func newBeam() *beam {
	return &beam{nn.NewEmbedding(beamVocab, beamWidth, nn.Device(device)), linear(beamWidth, beamWidth), linear(beamWidth, beamWidth), linear(beamWidth, beamVocab)}
}

func (b *beam) step(token, h *tensor.Tensor) (logits, next *tensor.Tensor) {
	x := b.In.Forward(b.Embedding.Forward(token))
	next = x.Add(b.State.Forward(h)).Tanh()
	return b.Head.Forward(next), next
}

// Forward maps (N, T) tokens to logits (N*T, vocabulary).
func (b *beam) Forward(ids *tensor.Tensor) *tensor.Tensor {
	h := tensor.Zeros([]int{ids.Size(0), beamWidth}, device)
	var all []*tensor.Tensor
	for t := range ids.Size(1) {
		var logits *tensor.Tensor
		logits, h = b.step(ids.Select(1, t), h)
		all = append(all, logits)
	}
	return tensor.Stack(all, tensor.Dim(1)).View(-1, beamVocab)
}

// search returns the best continuations of n first tokens: (N, beams, steps).
func (b *beam) search(first *tensor.Tensor) *tensor.Tensor {
	n := first.Size(0)
	h := tensor.Zeros([]int{n * beams, beamWidth}, device)
	token := first.Unsqueeze(1).Expand(n, beams).Reshape(-1)
	score := tensor.Zeros([]int{n, beams}, device)
	offset := tensor.Arange(0, n, tensor.Int64, device).Mul(beams).Unsqueeze(1)
	history := tensor.Zeros([]int{n * beams, 0}, tensor.Int64, device)
	for range beamSteps {
		var logits *tensor.Tensor
		logits, h = b.step(token, h)
		total := logits.LogSoftmax(-1).View(n, beams, beamVocab).Add(score.Unsqueeze(2))
		var index *tensor.Tensor
		score, index = total.View(n, -1).TopK(beams)
		rows := index.FloorDivide(beamVocab).Add(offset).View(-1)
		token = index.Remainder(beamVocab).View(-1)
		h = h.IndexSelect(0, rows)
		history = tensor.Cat([]*tensor.Tensor{history.IndexSelect(0, rows), token.Unsqueeze(1)}, tensor.Dim(1))
	}
	return history.View(n, beams, beamSteps)
}

// lstm classifies sequences (T, N, 256) with an LSTM and a GRU, by the last state.
type lstm struct {
	LSTM *nn.LSTM
	GRU  *nn.GRU
	Head *nn.Linear
}

func newLSTM() *lstm {
	return &lstm{nn.NewLSTM(256, 256, nn.Device(device)), nn.NewGRU(256, 256, nn.Device(device)), linear(256, 10)}
}

func (m *lstm) Forward(x *tensor.Tensor) *tensor.Tensor {
	x, _, _ = m.LSTM.ForwardState(x, nil, nil)
	_, h := m.GRU.ForwardState(x, nil)
	return m.Head.Forward(h.Select(0, -1))
}

// classifier classifies (N, T) tokens with a transformer encoder and a decoder of one position.
type classifier struct {
	Embedding *nn.Embedding
	Encoder   *nn.TransformerEncoder
	Decoder   *nn.TransformerDecoderLayer
	Head      *nn.Linear
}

func newClassifier() *classifier {
	const w = attentionWidth
	opts := []nn.Option{nn.FeedForward(4 * w), nn.BatchFirst(), nn.Device(device)}
	layer := nn.NewTransformerEncoderLayer(w, 4, opts...)
	defer nn.Release(layer)
	return &classifier{nn.NewEmbedding(attentionVocab, w, nn.Device(device)), nn.NewTransformerEncoder(layer, 3, nil),
		nn.NewTransformerDecoderLayer(w, 4, opts...), linear(w, 10)}
}

func (m *classifier) Forward(ids *tensor.Tensor) *tensor.Tensor {
	x := m.Embedding.Forward(ids)
	x = m.Encoder.Forward(x)
	query := x.Mean(tensor.Dim(1), tensor.KeepDim(true))
	x = m.Decoder.Forward(query, x)
	return m.Head.Forward(x.SqueezeDim(1))
}

// zooModel makes a model of this file; ok is false for another name.
func zooModel(name string, eval bool, size func(train, evaluation int) int) (m model, ok bool, err error) {
	classes := func(most int, shape, of []int) func() (x, y *tensor.Tensor) {
		return func() (x, y *tensor.Tensor) {
			return tensor.Randn(shape, device), tensor.RandInt(0, most, of, device)
		}
	}
	switch name {
	case "unet":
		n := size(32, 96)
		m.Layer, m.batch = newUNet(), classes(2, []int{n, 1, 64, 64}, []int{n, 64, 64})
	case "resnet":
		n := size(128, 384)
		m.Layer, m.batch = newResNet(), classes(10, []int{n, 3, 32, 32}, []int{n})
	case "encdec":
		n := size(128, 512)
		m.Layer = newEncoderDecoder()
		m.batch = func() (x, y *tensor.Tensor) {
			return tensor.RandInt(0, attentionVocab, []int{n, 128}, device), tensor.RandInt(0, attentionVocab, []int{n * 64}, device)
		}
	case "gan":
		n := size(512, 1024)
		g, err := newGAN()
		if err != nil {
			return m, true, err
		}
		m.Layer = g
		m.batch = classes(2, []int{n, 1, 28, 28}, []int{1})
		if eval {
			m.batch = classes(2, []int{n, noise}, []int{1})
		}
		m.step, m.zero = func(x, _ *tensor.Tensor) error { return g.train(x) }, g.zero
	case "dqn":
		n := size(16384, 65536)
		d, err := newDQN()
		if err != nil {
			return m, true, err
		}
		m.Layer, m.batch = d, classes(2, []int{n, states}, []int{1})
		m.step, m.zero = func(*tensor.Tensor, *tensor.Tensor) error { return d.train(n) }, d.opt.ZeroGrad
	case "beam":
		n := size(256, 256)
		b := newBeam()
		m.Layer = b
		m.batch = func() (x, y *tensor.Tensor) {
			return tensor.RandInt(0, beamVocab, []int{n, beamSteps}, device), tensor.RandInt(0, beamVocab, []int{n * beamSteps}, device)
		}
		m.eval = func(x *tensor.Tensor) error { return b.search(x.Select(1, 0)).Err() }
	case "lstm":
		n := size(512, 2048)
		m.Layer, m.batch = newLSTM(), classes(10, []int{24, n, 256}, []int{n})
	case "transformer":
		n := size(128, 512)
		m.Layer = newClassifier()
		m.batch = func() (x, y *tensor.Tensor) {
			return tensor.RandInt(0, attentionVocab, []int{n, 64}, device), tensor.RandInt(0, 10, []int{n}, device)
		}
	default:
		return m, false, nil
	}
	return m, true, nil
}
