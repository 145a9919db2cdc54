package main

import (
	"math"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// numbers is a sequence of pseudo-random numbers that cpp/suite.h and py/numbers_.py make too, bit for bit. Weights and
// data come from it, so that a workload computes the same in each language. The i-th number is a hash of i.
type numbers struct{ i uint32 }

func (n *numbers) next() uint32 {
	n.i++
	z := n.i
	z ^= z >> 16
	z *= 0x7feb352d
	z ^= z >> 15
	z *= 0x2c1b3c6d
	return z ^ z>>16
}

// slice returns n float32 values in [-bound, bound).
func (n *numbers) slice(count int, bound float64) []float32 {
	v := make([]float32, count)
	for i := range v {
		v[i] = (float32(n.next()>>8)/(1<<23) - 1) * float32(bound)
	}
	return v
}

// floats returns a tensor of the given shape with values in [-1, 1).
func (n *numbers) floats(shape ...int) *tensor.Tensor {
	return tensor.FromSlice(n.slice(elements(shape), 1), shape)
}

// ints returns an int64 tensor of the given shape with values in [0, below).
func (n *numbers) ints(below int, shape ...int) *tensor.Tensor {
	v := make([]int64, elements(shape))
	for i := range v {
		v[i] = int64(n.next() % uint32(below))
	}
	return tensor.FromSlice(v, shape)
}

// fill sets m's parameters, in order. Those of two and more dimensions get values of the size that PyTorch gives to the
// weights of linear layers, 1/sqrt(fan in); biases get up to 0.1. Vectors of ones, the weights of norms, stay.
func (n *numbers) fill(m any) error {
	if err := nn.Check(m); err != nil {
		return err
	}
	return autograd.NoGrad(func() error {
		for _, p := range nn.Parameters(m) {
			shape := p.Shape()
			bound := 0.1
			if len(shape) > 1 {
				bound = 1 / math.Sqrt(float64(elements(shape[1:])))
			} else if old, err := tensor.Data[float32](p); err != nil || old[0] == 1 {
				if err != nil {
					return err
				}
				continue
			}
			if err := p.Copy_(tensor.FromSlice(n.slice(elements(shape), bound), shape)).Err(); err != nil {
				return err
			}
		}
		return nil
	})
}

func elements(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}
