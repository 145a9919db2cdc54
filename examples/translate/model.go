package main

import (
	"errors"
	"fmt"
	"math"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	digits = 10
	start  = digits // the decoder's first token
	length = 5
)

// GRU is one layer of torch.nn.GRU with batch_first=True, under the same names.
type GRU struct {
	WeightIH *tensor.Tensor `nn:"weight_ih_l0"` // (3*hidden, in)
	WeightHH *tensor.Tensor `nn:"weight_hh_l0"` // (3*hidden, hidden)
	BiasIH   *tensor.Tensor `nn:"bias_ih_l0"`   // (3*hidden)
	BiasHH   *tensor.Tensor `nn:"bias_hh_l0"`   // (3*hidden)
}

func newGRU(in, hidden int) *GRU {
	bound := 1 / math.Sqrt(float64(hidden))
	parameter := func(shape ...int) *tensor.Tensor {
		return nn.NewParameter(tensor.Empty(shape).Uniform_(-bound, bound))
	}
	return &GRU{
		WeightIH: parameter(3*hidden, in),
		WeightHH: parameter(3*hidden, hidden),
		BiasIH:   parameter(3 * hidden),
		BiasHH:   parameter(3 * hidden),
	}
}

// Run maps x (N, T, in) and the state h (1, N, hidden) to the outputs (N, T, hidden) and the last state.
func (g *GRU) Run(x, h *tensor.Tensor) (y, last *tensor.Tensor) {
	return x.GRU(h, []*tensor.Tensor{g.WeightIH, g.WeightHH, g.BiasIH, g.BiasHH}, tensor.HasBiases(true), tensor.BatchFirst(true))
}

// EncoderDecoder maps one sequence of tokens to another.
type EncoderDecoder struct {
	Embedding        *nn.Embedding
	Encoder, Decoder *GRU
	Head             *nn.Linear
}

func newEncoderDecoder() *EncoderDecoder {
	const width, hidden = 16, 64
	return &EncoderDecoder{
		Embedding: nn.NewEmbedding(digits+1, width),
		Encoder:   newGRU(width, hidden),
		Decoder:   newGRU(width, hidden),
		Head:      nn.NewLinear(hidden, digits),
	}
}

// encode reads source (N, T) and returns the final state (1, N, hidden).
func (m *EncoderDecoder) encode(source *tensor.Tensor) *tensor.Tensor {
	zero := tensor.Zeros([]int{1, source.Size(0), m.Head.Weight.Size(1)})
	_, h := m.Encoder.Run(m.Embedding.Forward(source), zero)
	return h
}

// Forward returns the logits (N, T, digits) of the target's tokens, given the source (N, T) and the target shifted by
// one (N, T), which is known in training.
func (m *EncoderDecoder) Forward(source, shifted *tensor.Tensor) *tensor.Tensor {
	y, _ := m.Decoder.Run(m.Embedding.Forward(shifted), m.encode(source))
	return m.Head.Forward(y)
}

// Greedy writes the most probable token at each step: source (N, T) gives (N, T).
func (m *EncoderDecoder) Greedy(source *tensor.Tensor) *tensor.Tensor {
	h := m.encode(source)
	token := tensor.Full([]int{source.Size(0), 1}, start)
	var out []*tensor.Tensor
	for range source.Size(1) {
		var y *tensor.Tensor
		y, h = m.Decoder.Run(m.Embedding.Forward(token), h)
		token = m.Head.Forward(y).ArgMax(tensor.Dim(2))
		out = append(out, token)
	}
	return tensor.Cat(out, tensor.Dim(1))
}

// tokens returns the tokens of a string of digits.
func tokens(text string) ([]int64, error) {
	all := make([]int64, len(text))
	for i, c := range text {
		if all[i] = int64(c - '0'); c < '0' || c > '9' {
			return nil, fmt.Errorf("%q is not a string of digits", text)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("a string has no digits")
	}
	return all, nil
}

// translate maps the tokens of a string of digits to the decoded string.
func translate(m *EncoderDecoder, tokens []int64) (written string, err error) {
	err = autograd.NoGrad(func() error {
		out, err := tensor.Data[int64](m.Greedy(tensor.FromSlice(tokens, []int{1, len(tokens)})))
		for _, d := range out {
			written += string(rune('0' + d))
		}
		return err
	})
	return written, err
}
