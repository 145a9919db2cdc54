package main

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	width  = 64
	layers = 8
	out    = 4
)

// Model is a chain of gated residual blocks and a head.
type Model struct {
	Value, Gate []*nn.Linear
	Head        *nn.Linear
}

func newModel() *Model {
	m := &Model{}
	for range layers {
		m.Value = append(m.Value, nn.NewLinear(width, width))
		m.Gate = append(m.Gate, nn.NewLinear(width, width))
	}
	m.Head = nn.NewLinear(width, out)
	return m
}

// state is what a block passes to the next one.
type state struct {
	x   *tensor.Tensor // (N, width)
	sum *tensor.Tensor // (N, width), of all blocks' results
}

func (m *Model) block(i int, s state) state {
	value := m.Value[i].Forward(s.x)
	gate := m.Gate[i].Forward(s.x).Sigmoid()
	y := value.Tanh().Mul(gate)
	return state{x: s.x.Add(y), sum: s.sum.Add(y)}
}

// Forward maps x (N, width) to (N, out).
func (m *Model) Forward(x *tensor.Tensor) *tensor.Tensor {
	s := state{x: x.Mul(0.5), sum: x.Mul(2)}
	for i := range m.Value {
		s = m.block(i, s)
	}
	return m.Head.Forward(s.sum)
}

// evaluate returns the mean of each output over a random batch.
func evaluate(rows int, seed uint64) (means []float32, err error) {
	if err := tensor.ManualSeed(seed); err != nil {
		return nil, err
	}
	model := newModel()
	defer nn.Release(model)
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			y := model.Forward(tensor.Randn([]int{rows, width}))
			means, err = tensor.Data[float32](y.Mean(tensor.Dim(0)))
			return err
		})
	})
	return means, err
}
