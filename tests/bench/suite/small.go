package main

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// request answers one request with 32→64→64→10: from a Go slice to a Go slice. It returns the sum of the answer.
func request(n *numbers) (step, error) {
	m, x := layers(32, 64, 64, 10), n.slice(32, 1)
	nn.Eval(m)
	return func(bool) (sum float64, err error) {
		var answer []float32
		err = autograd.NoGrad(func() error {
			answer, err = tensor.Data[float32](m.Forward(tensor.FromSlice(x, []int{1, 32})))
			return err
		})
		for _, v := range answer {
			sum += float64(v)
		}
		return sum, err
	}, n.fill(m)
}

// adds is the number of operators in a step of add.
const adds = 64

// add adds two vectors of 16, 64 times in a scope. It returns the last sum's sum.
func add(n *numbers) (step, error) {
	a, b := n.floats(16), n.floats(16)
	return func(read bool) (float64, error) {
		var c *tensor.Tensor
		for range adds {
			c = a.Add(b)
		}
		if read {
			c = c.Sum()
		}
		return number(c, read)
	}, nil
}
