package main

import (
	"math"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// The sequences of gru and lstm.
const (
	length, rows = 50, 32
	in, hidden   = 64, 128
)

// gru trains a GRU and a head on the last output.
func gru(n *numbers) (step, error) { return recurrent(n, nn.NewGRU(in, hidden)) }

// lstm trains two layers of LSTM and a head on the last output.
func lstm(n *numbers) (step, error) { return recurrent(n, nn.NewLSTM(in, hidden, nn.NumLayers(2))) }

func recurrent(n *numbers, rnn nn.Layer) (step, error) {
	m := struct {
		RNN  nn.Layer
		Head *nn.Linear
	}{rnn, nn.NewLinear(hidden, 10)}
	x, y := n.floats(length, rows, in), n.ints(10, rows)
	return training(n, &m, adam, func() *tensor.Tensor {
		return nn.CrossEntropy(m.Head.Forward(m.RNN.Forward(x).Select(0, -1)), y)
	})
}

// recurrentAttention trains a GRU cell that looks at an image eight times: each time it attends to the features of a
// CNN and names the class; at the end a decoder draws the image. Nine losses are added.
func recurrentAttention(n *numbers) (step, error) {
	const rows, looks, width, hidden = 16, 8, 32, 128
	m := struct {
		Encoder *nn.Sequential
		Query   *nn.Linear
		Cell    *nn.GRUCell
		Head    *nn.Linear
		Expand  *nn.Linear
		Decoder *nn.Sequential
	}{
		Encoder: nn.NewSequential(
			nn.NewConv2d(1, 16, 3, nn.Stride(2), nn.Padding(1)), &nn.ReLU{},
			nn.NewConv2d(16, width, 3, nn.Stride(2), nn.Padding(1)), &nn.ReLU{}),
		Query:   nn.NewLinear(hidden, width),
		Cell:    nn.NewGRUCell(width, hidden),
		Head:    nn.NewLinear(hidden, 10),
		Expand:  nn.NewLinear(hidden, width*8*8),
		Decoder: nn.NewSequential(upsample(width, 16, nn.NoBias()), &nn.ReLU{}, upsample(16, 1, nn.NoBias()), &nn.Tanh{}),
	}
	x, y := n.floats(rows, 1, 32, 32), n.ints(10, rows)
	return training(n, &m, adam, func() *tensor.Tensor {
		features := m.Encoder.Forward(x).Flatten(tensor.StartDim(2)) // (N, width, places)
		h := tensor.Zeros([]int{rows, hidden})
		loss := tensor.Zeros([]int{})
		for range looks {
			score := m.Query.Forward(h).Unsqueeze(1).BMM(features).Mul(1 / math.Sqrt(width))
			seen := score.Softmax(-1).BMM(features.Transpose(1, 2)).SqueezeDim(1)
			h = m.Cell.Forward(seen, h)
			loss = loss.Add(nn.CrossEntropy(m.Head.Forward(h), y))
		}
		return loss.Add(nn.MSELoss(m.Decoder.Forward(m.Expand.Forward(h).View(-1, width, 8, 8)), x))
	})
}
