package main

import (
	"math"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// rnn holds the parameters of a layer of torch.nn.GRU (three gates) or torch.nn.LSTM (four), under the same names.
type rnn struct {
	WeightIH *tensor.Tensor `nn:"weight_ih"` // (gates*hidden, in)
	WeightHH *tensor.Tensor `nn:"weight_hh"` // (gates*hidden, hidden)
	BiasIH   *tensor.Tensor `nn:"bias_ih"`   // (gates*hidden)
	BiasHH   *tensor.Tensor `nn:"bias_hh"`   // (gates*hidden)
}

func newRNN(gates, in, hidden int) *rnn {
	parameter := func(shape ...int) *tensor.Tensor { return nn.NewParameter(tensor.Zeros(shape)) }
	return &rnn{parameter(gates*hidden, in), parameter(gates*hidden, hidden), parameter(gates * hidden), parameter(gates * hidden)}
}

func (r *rnn) list() []*tensor.Tensor {
	return []*tensor.Tensor{r.WeightIH, r.WeightHH, r.BiasIH, r.BiasHH}
}

// The sequences of gru and lstm.
const (
	length, rows = 50, 32
	in, hidden   = 64, 128
)

// gru trains a GRU and a head on the last output.
func gru(n *numbers) (step, error) {
	m := struct {
		GRU  *rnn
		Head *nn.Linear
	}{newRNN(3, in, hidden), nn.NewLinear(hidden, 10)}
	x, y := n.floats(length, rows, in), n.ints(10, rows)
	return training(n, &m, adam, func() *tensor.Tensor {
		h := tensor.Zeros([]int{1, rows, hidden})
		out, _ := x.GRU(h, m.GRU.list(), tensor.HasBiases(true), tensor.NumLayers(1), tensor.Train(true))
		return nn.CrossEntropy(m.Head.Forward(out.Select(0, -1)), y)
	})
}

// lstm trains two layers of LSTM and a head on the last output.
func lstm(n *numbers) (step, error) {
	m := struct {
		LSTM []*rnn
		Head *nn.Linear
	}{[]*rnn{newRNN(4, in, hidden), newRNN(4, hidden, hidden)}, nn.NewLinear(hidden, 10)}
	x, y := n.floats(length, rows, in), n.ints(10, rows)
	return training(n, &m, adam, func() *tensor.Tensor {
		state := []*tensor.Tensor{tensor.Zeros([]int{2, rows, hidden}), tensor.Zeros([]int{2, rows, hidden})}
		params := append(m.LSTM[0].list(), m.LSTM[1].list()...)
		out, _, _ := x.LSTM(state, params, tensor.HasBiases(true), tensor.NumLayers(2), tensor.Train(true))
		return nn.CrossEntropy(m.Head.Forward(out.Select(0, -1)), y)
	})
}

// recurrentAttention trains a GRU cell that looks at an image eight times: each time it attends to the features of a
// CNN and names the class; at the end a decoder draws the image. Nine losses are added.
func recurrentAttention(n *numbers) (step, error) {
	const rows, looks, width, hidden = 16, 8, 32, 128
	type up struct{ Weight *tensor.Tensor }
	m := struct {
		Encoder *nn.Sequential
		Query   *nn.Linear
		Cell    *rnn
		Head    *nn.Linear
		Expand  *nn.Linear
		Up      []up
	}{
		Encoder: nn.NewSequential(
			nn.NewConv2d(1, 16, 3, nn.Stride(2), nn.Padding(1)), &nn.ReLU{},
			nn.NewConv2d(16, width, 3, nn.Stride(2), nn.Padding(1)), &nn.ReLU{}),
		Query:  nn.NewLinear(hidden, width),
		Cell:   newRNN(3, width, hidden),
		Head:   nn.NewLinear(hidden, 10),
		Expand: nn.NewLinear(hidden, width*8*8),
		Up: []up{{nn.NewParameter(tensor.Zeros([]int{width, 16, 4, 4}))},
			{nn.NewParameter(tensor.Zeros([]int{16, 1, 4, 4}))}},
	}
	x, y := n.floats(rows, 1, 32, 32), n.ints(10, rows)
	return training(n, &m, adam, func() *tensor.Tensor {
		features := m.Encoder.Forward(x).Flatten(tensor.StartDim(2)) // (N, width, places)
		h := tensor.Zeros([]int{rows, hidden})
		loss := tensor.Zeros([]int{})
		for range looks {
			score := m.Query.Forward(h).Unsqueeze(1).BMM(features).Mul(1 / math.Sqrt(width))
			seen := score.Softmax(-1).BMM(features.Transpose(1, 2)).SqueezeDim(1)
			h = seen.GRUCell(h, m.Cell.WeightIH, m.Cell.WeightHH, tensor.BIh(m.Cell.BiasIH), tensor.BHh(m.Cell.BiasHH))
			loss = loss.Add(nn.CrossEntropy(m.Head.Forward(h), y))
		}
		d := m.Expand.Forward(h).View(-1, width, 8, 8)
		d = d.ConvTranspose2d(m.Up[0].Weight, nil, tensor.Stride(2), tensor.Padding(1)).ReLU()
		d = d.ConvTranspose2d(m.Up[1].Weight, nil, tensor.Stride(2), tensor.Padding(1)).Tanh()
		return loss.Add(nn.MSELoss(d, x))
	})
}
