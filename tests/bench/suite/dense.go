package main

import (
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// layers returns linear layers of the given sizes with ReLU between them.
func layers(sizes ...int) *nn.Sequential {
	m := nn.NewSequential()
	for i := range len(sizes) - 1 {
		if i > 0 {
			m.Layers = append(m.Layers, &nn.ReLU{})
		}
		m.Layers = append(m.Layers, nn.NewLinear(sizes[i], sizes[i+1]))
	}
	return m
}

// tinyMLP trains 32→64→64→10 on 32 rows.
func tinyMLP(n *numbers) (step, error) {
	m, x, y := layers(32, 64, 64, 10), n.floats(32, 32), n.ints(10, 32)
	return training(n, m, adam, func() *tensor.Tensor { return nn.CrossEntropy(m.Forward(x), y) })
}

// deepMLP trains 24 layers of 64 on 64 rows.
func deepMLP(n *numbers) (step, error) {
	sizes := make([]int, 24)
	for i := range sizes {
		sizes[i] = 64
	}
	m, x, y := layers(append(sizes, 10)...), n.floats(64, 64), n.ints(10, 64)
	return training(n, m, adam, func() *tensor.Tensor { return nn.CrossEntropy(m.Forward(x), y) })
}

// mlp trains 784→256→128→64→10 on 128 rows.
func mlp(n *numbers) (step, error) {
	m, x, y := layers(784, 256, 128, 64, 10), n.floats(128, 784), n.ints(10, 128)
	return training(n, m, adam, func() *tensor.Tensor { return nn.CrossEntropy(m.Forward(x), y) })
}

// residualTower trains eight residual blocks of width 256, each a layer norm and two linear layers, on 64 rows.
func residualTower(n *numbers) (step, error) {
	type block struct {
		Norm *nn.LayerNorm
		MLP  *nn.Sequential
	}
	m := make([]block, 8)
	for i := range m {
		m[i] = block{nn.NewLayerNorm(256), layers(256, 256, 256)}
	}
	x, y := n.floats(64, 256), n.floats(64, 256)
	return training(n, m, adam, func() *tensor.Tensor {
		h := x
		for _, b := range m {
			h = nn.Residual(h, b.Norm, b.MLP)
		}
		return nn.MSELoss(h, y)
	})
}

// refinement trains a state of width 128 that the same residual network refines five times, on 128 rows.
func refinement(n *numbers) (step, error) {
	m := struct {
		In     *nn.Linear
		Norm   *nn.LayerNorm
		Refine *nn.Sequential
		Out    *nn.Linear
	}{
		nn.NewLinear(64, 128), nn.NewLayerNorm(128),
		nn.NewSequential(nn.NewLinear(128, 128), &nn.GELU{}, nn.NewLinear(128, 128)),
		nn.NewLinear(128, 64),
	}
	x, y := n.floats(128, 64), n.floats(128, 64)
	return training(n, &m, adam, func() *tensor.Tensor {
		h := m.In.Forward(x)
		for range 5 {
			h = nn.Residual(h, m.Norm, m.Refine)
		}
		return nn.MSELoss(m.Out.Forward(h), y)
	})
}

// feedback trains a layer whose output is ten times part of its own input, on 128 rows.
func feedback(n *numbers) (step, error) {
	m := struct{ Body, Out *nn.Linear }{nn.NewLinear(64+128, 128), nn.NewLinear(128, 64)}
	x, y := n.floats(128, 64), n.floats(128, 64)
	return training(n, &m, adam, func() *tensor.Tensor {
		h := tensor.Zeros([]int{128, 128})
		for range 10 {
			h = m.Body.Forward(tensor.Cat([]*tensor.Tensor{x, h}, tensor.Dim(1))).Tanh()
		}
		return nn.MSELoss(m.Out.Forward(h), y)
	})
}

// gated trains three experts, whose outputs a gate weighs, on 512 rows.
func gated(n *numbers) (step, error) {
	m := struct {
		Gate    *nn.Linear
		Experts []*nn.Sequential
	}{nn.NewLinear(128, 3), []*nn.Sequential{layers(128, 512, 128), layers(128, 512, 128), layers(128, 512, 128)}}
	x, y := n.floats(512, 128), n.floats(512, 128)
	return training(n, &m, adam, func() *tensor.Tensor {
		gate := m.Gate.Forward(x).Softmax(1)
		sum := tensor.Zeros([]int{512, 128})
		for i, expert := range m.Experts {
			sum = sum.Add(expert.Forward(x).Mul(gate.Narrow(1, i, 1)))
		}
		return nn.MSELoss(sum, y)
	})
}
