package main

import (
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
)

// The sizes of examples/chargpt, as in cpp/arm.cpp and arm.py.
const (
	context = 64
	vocab   = 97
)

func newGPT() (*gpt.GPT, error) {
	return gpt.New(gpt.Config{Vocab: vocab, Width: 128, Layers: 4, Heads: 4, Context: context})
}

// newMLP is 32→64→64→10 with ReLU between.
func newMLP() (*nn.Sequential, error) {
	mlp := nn.NewSequential()
	for i, sizes := range [][2]int{{32, 64}, {64, 64}, {64, 10}} {
		if i > 0 {
			mlp.Layers = append(mlp.Layers, &nn.ReLU{})
		}
		l, err := nn.NewLinear(sizes[0], sizes[1])
		if err != nil {
			return nil, err
		}
		mlp.Layers = append(mlp.Layers, l)
	}
	return mlp, nil
}
