// Package gpt is a small GPT over characters: the model, the text that it learns, and sampling. It is meant to be read
// and copied.
package gpt

import (
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// Config holds the sizes of a model.
type Config struct {
	Vocab   int     `json:"vocab"`
	Width   int     `json:"width"`
	Layers  int     `json:"layers"`
	Heads   int     `json:"heads"`
	Context int     `json:"context"`
	Dropout float64 `json:"dropout"`
}

// GPT is a pre-norm transformer: token and position embeddings, blocks, a final layer norm, and a head.
type GPT struct {
	Tok, Pos *nn.Embedding
	Blocks   []*Block
	LN       *nn.LayerNorm
	Head     *nn.Linear

	Config Config
}

// Block is attention and a multilayer perceptron, each with a residual connection.
type Block struct {
	LN1  *nn.LayerNorm
	Attn *nn.CausalSelfAttention
	LN2  *nn.LayerNorm
	MLP  *nn.Sequential `nn:"mlp"`
}

// Forward maps x (N, T, Width) to the same shape.
func (b *Block) Forward(x *tensor.Tensor) *tensor.Tensor {
	x = nn.Residual(x, b.LN1, b.Attn)
	return nn.Residual(x, b.LN2, b.MLP)
}

// Forward maps token ids (N, T), int64, to logits (N, T, Vocab).
func (g *GPT) Forward(ids *tensor.Tensor) *tensor.Tensor {
	x := g.Tok.Forward(ids).Add(g.Pos.Weight.Narrow(0, 0, ids.Size(1)))
	for _, b := range g.Blocks {
		x = b.Forward(x)
	}
	return nn.Pipe(x, g.LN, g.Head)
}

// Loss returns the mean cross entropy, in nats per character, of predicting targets (N, T) from inputs (N, T).
func (g *GPT) Loss(inputs, targets *tensor.Tensor) *tensor.Tensor {
	logits := g.Forward(inputs)
	return nn.CrossEntropy(logits.View(-1, g.Config.Vocab), targets.View(-1))
}

// New returns a model with PyTorch's initial weights, which learn faster in such a short run than GPT-2's smaller ones.
// An invalid Config is reported by nn.Check, the optimizer and Forward.
func New(c Config, opts ...nn.Option) *GPT {
	g := &GPT{
		Tok:    nn.NewEmbedding(c.Vocab, c.Width, opts...),
		Pos:    nn.NewEmbedding(c.Context, c.Width, opts...),
		LN:     nn.NewLayerNorm(c.Width, opts...),
		Config: c,
	}
	for range c.Layers {
		g.Blocks = append(g.Blocks, newBlock(c, opts))
	}
	g.Head = nn.NewLinear(c.Width, c.Vocab, append([]nn.Option{nn.NoBias()}, opts...)...)
	return g
}

func newBlock(c Config, opts []nn.Option) *Block {
	return &Block{
		LN1:  nn.NewLayerNorm(c.Width, opts...),
		Attn: nn.NewCausalSelfAttention(c.Width, c.Heads, append([]nn.Option{nn.DropoutP(c.Dropout)}, opts...)...),
		LN2:  nn.NewLayerNorm(c.Width, opts...),
		MLP: nn.NewSequential(
			nn.NewLinear(c.Width, 4*c.Width, opts...),
			&nn.GELU{},
			nn.NewLinear(4*c.Width, c.Width, opts...),
			nn.NewDropout(c.Dropout),
		),
	}
}
