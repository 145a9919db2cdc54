package main

import (
	"math"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// LSTM is one layer of torch.nn.LSTM with batch_first=True, under the same names.
type LSTM struct {
	WeightIH *tensor.Tensor `nn:"weight_ih_l0"` // (4*hidden, in)
	WeightHH *tensor.Tensor `nn:"weight_hh_l0"` // (4*hidden, hidden)
	BiasIH   *tensor.Tensor `nn:"bias_ih_l0"`   // (4*hidden)
	BiasHH   *tensor.Tensor `nn:"bias_hh_l0"`   // (4*hidden)
	hidden   int
}

func newLSTM(in, hidden int) *LSTM {
	bound := 1 / math.Sqrt(float64(hidden))
	parameter := func(shape ...int) *tensor.Tensor {
		return nn.NewParameter(tensor.Empty(shape).Uniform_(-bound, bound))
	}
	return &LSTM{
		WeightIH: parameter(4*hidden, in),
		WeightHH: parameter(4*hidden, hidden),
		BiasIH:   parameter(4 * hidden),
		BiasHH:   parameter(4 * hidden),
		hidden:   hidden,
	}
}

// Forward maps x (N, T, in) to the outputs of all steps (N, T, hidden).
func (l *LSTM) Forward(x *tensor.Tensor) *tensor.Tensor {
	start := x.NewZeros([]int{1, x.Size(0), l.hidden})
	y, _, _ := x.LSTM([]*tensor.Tensor{start, start}, []*tensor.Tensor{l.WeightIH, l.WeightHH, l.BiasIH, l.BiasHH},
		tensor.HasBiases(true), tensor.BatchFirst(true))
	return y
}

// Classifier classifies sequences of word ids.
type Classifier struct {
	Embedding *nn.Embedding
	LSTM      *LSTM
	Drop      *nn.Dropout
	Head      *nn.Linear
}

func newClassifier() *Classifier {
	const width, hidden = 16, 32
	return &Classifier{
		Embedding: nn.NewEmbedding(len(words)+1, width, nn.PaddingIdx(0)),
		LSTM:      newLSTM(width, hidden),
		Drop:      nn.NewDropout(0.1),
		Head:      nn.NewLinear(hidden, 2),
	}
}

// Forward maps ids (N, T), padded with zeros, to logits (N, 2).
func (c *Classifier) Forward(ids *tensor.Tensor) *tensor.Tensor {
	y := c.LSTM.Forward(c.Embedding.Forward(ids))
	mask := ids.Ne(0).Unsqueeze(2)
	mean := y.Mul(mask).Sum(tensor.Dim(1)).Div(mask.Sum(tensor.Dim(1)))
	return c.Head.Forward(c.Drop.Forward(mean))
}
