package main

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// encoder trains a classifier on two transformer layers of width 128, 16 sequences of 32.
func encoder(n *numbers) (step, error) {
	layer := func() *nn.TransformerEncoderLayer {
		return nn.NewTransformerEncoderLayer(128, 4, nn.FeedForward(512), nn.DropoutP(0), nn.BatchFirst())
	}
	m := struct {
		Layers []*nn.TransformerEncoderLayer
		Head   *nn.Linear
	}{[]*nn.TransformerEncoderLayer{layer(), layer()}, nn.NewLinear(128, 10)}
	x, y := n.floats(16, 32, 128), n.ints(10, 16)
	return training(n, &m, adam, func() *tensor.Tensor {
		h := x
		for _, l := range m.Layers {
			h = l.Forward(h)
		}
		return nn.CrossEntropy(m.Head.Forward(h.Mean(tensor.Dim(1))), y)
	})
}

// embedding trains 20,000 vectors of 64, averaged over texts of 32 tokens, and a head, on 64 texts.
func embedding(n *numbers) (step, error) {
	m := struct {
		Embedding *nn.Embedding
		Head      *nn.Linear
	}{nn.NewEmbedding(20000, 64), nn.NewLinear(64, 10)}
	x, y := n.ints(20000, 64, 32), n.ints(10, 64)
	return training(n, &m, adam, func() *tensor.Tensor {
		return nn.CrossEntropy(m.Head.Forward(m.Embedding.Forward(x).Mean(tensor.Dim(1))), y)
	})
}

// small is the GPT of the three workloads that follow, the size of examples/chargpt.
var small = gpt.Config{Vocab: 97, Width: 128, Layers: 4, Heads: 4, Context: 64}

// gptStep trains the GPT on 16 texts of 64 tokens.
func gptStep(n *numbers) (step, error) {
	m := gpt.New(small)
	x, y := n.ints(small.Vocab, 16, small.Context), n.ints(small.Vocab, 16, small.Context)
	adamW := func(m any) (*optim.Optimizer, error) {
		return optim.NewAdamW(nn.Parameters(m), 1e-3, optim.WeightDecay(0.01))
	}
	return training(n, m, adamW, func() *tensor.Tensor { return m.Loss(x, y) })
}

// gptEvaluation computes the loss of 64 texts of 64 tokens.
func gptEvaluation(n *numbers) (step, error) {
	m := gpt.New(small)
	nn.Eval(m)
	x, y := n.ints(small.Vocab, 64, small.Context), n.ints(small.Vocab, 64, small.Context)
	return func(read bool) (loss float64, err error) {
		err = autograd.NoGrad(func() error {
			loss, err = number(m.Loss(x, y), read)
			return err
		})
		return loss, err
	}, n.fill(m)
}

// gptGeneration generates 64 tokens, the most probable ones, with a cache of keys and values. It returns the largest
// logit of the last.
func gptGeneration(n *numbers) (step, error) {
	m := gpt.New(small)
	nn.Eval(m)
	g := newGenerator(m)
	first := int64(0)
	return func(read bool) (best float64, err error) {
		token := first % int64(small.Vocab)
		first++
		err = autograd.NoGrad(func() error {
			for at := range small.Context {
				if err := tensor.WithScope(func() (err error) {
					logits := g.next(token, at)
					if read && at == small.Context-1 {
						if best, err = logits.Max().Item(); err != nil {
							return err
						}
					}
					token, err = tensor.Item[int64](logits.ArgMax())
					return err
				}); err != nil {
					return err
				}
			}
			return nil
		})
		return best, err
	}, n.fill(m)
}

// generator holds the keys and values (1, heads, context, width of a head) of each block.
type generator struct {
	*gpt.GPT
	keys, values []*tensor.Tensor `nn:"-"`
}

func newGenerator(m *gpt.GPT) *generator {
	g := &generator{GPT: m}
	shape := []int{1, small.Heads, small.Context, small.Width / small.Heads}
	for range m.Blocks {
		g.keys, g.values = append(g.keys, tensor.Zeros(shape)), append(g.values, tensor.Zeros(shape))
	}
	return g
}

// next returns the logits (1, 1, vocabulary) of the token after the one at the given position.
func (g *generator) next(token int64, at int) *tensor.Tensor {
	x := g.Tok.Forward(tensor.FromSlice([]int64{token}, []int{1, 1})).Add(g.Pos.Weight.Narrow(0, at, 1))
	for i, b := range g.Blocks {
		x = x.Add(g.attention(i, b.LN1.Forward(x), at))
		x = nn.Residual(x, b.LN2, b.MLP)
	}
	return nn.Pipe(x, g.LN, g.Head)
}

func (g *generator) attention(i int, x *tensor.Tensor, at int) *tensor.Tensor {
	a := g.Blocks[i].Attn
	qkv := a.QKV.Forward(x).View(1, 1, 3, small.Heads, small.Width/small.Heads).Permute(2, 0, 3, 1, 4)
	g.keys[i].Narrow(2, at, 1).Copy_(qkv.Select(0, 1))
	g.values[i].Narrow(2, at, 1).Copy_(qkv.Select(0, 2))
	y := tensor.ScaledDotProductAttention(qkv.Select(0, 0), g.keys[i].Narrow(2, 0, at+1), g.values[i].Narrow(2, 0, at+1))
	return a.Proj.Forward(y.Transpose(1, 2).Reshape(1, 1, small.Width))
}
