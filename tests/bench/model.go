package main

import (
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	layers  = 4
	width   = 128
	heads   = 4
	context = 64
	vocab   = 97
)

type block struct {
	LN1  *nn.LayerNorm
	Attn *nn.CausalSelfAttention
	LN2  *nn.LayerNorm
	MLP  *nn.Sequential
}

func (b *block) Forward(x *tensor.Tensor) *tensor.Tensor {
	return nn.Pipe(x,
		nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, b.LN1, b.Attn) }),
		nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, b.LN2, b.MLP) }))
}

type gpt struct {
	Tok    *nn.Embedding
	Pos    *nn.Embedding
	Blocks []*block
	LN     *nn.LayerNorm
	Head   *nn.Linear

	body []nn.Layer
}

// builder collects the first error of many constructors.
type builder struct{ err error }

func build[T any](b *builder, v T, err error) T {
	if b.err == nil {
		b.err = err
	}
	return v
}

func linear(b *builder, in, out int, opts ...nn.Option) *nn.Linear {
	l, err := nn.NewLinear(in, out, opts...)
	return build(b, l, err)
}

func norm(b *builder) *nn.LayerNorm {
	l, err := nn.NewLayerNorm(width)
	return build(b, l, err)
}

func newGPT() (*gpt, error) {
	b := &builder{}
	g := &gpt{LN: norm(b), Head: linear(b, width, vocab, nn.NoBias())}
	tok, err := nn.NewEmbedding(vocab, width)
	g.Tok = build(b, tok, err)
	pos, err := nn.NewEmbedding(context, width)
	g.Pos = build(b, pos, err)
	for range layers {
		attn, err := nn.NewCausalSelfAttention(width, heads)
		blk := &block{LN1: norm(b), Attn: build(b, attn, err), LN2: norm(b),
			MLP: nn.NewSequential(linear(b, width, 4*width), &nn.GELU{}, linear(b, 4*width, width))}
		g.Blocks = append(g.Blocks, blk)
		g.body = append(g.body, blk)
	}
	g.body = append(g.body, g.LN, g.Head)
	return g, b.err
}

func (g *gpt) Forward(ids *tensor.Tensor) *tensor.Tensor {
	embed := nn.Func(func(ids *tensor.Tensor) *tensor.Tensor {
		return g.Tok.Forward(ids).Add(g.Pos.Weight.Narrow(0, 0, ids.Size(1)))
	})
	return nn.Pipe(ids, append([]nn.Layer{embed}, g.body...)...)
}

func newMLP() (*nn.Sequential, error) {
	b := &builder{}
	m := nn.NewSequential(linear(b, 32, 64), &nn.ReLU{}, linear(b, 64, 64), &nn.ReLU{}, linear(b, 64, 10))
	return m, b.err
}
