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

func newGPT() *gpt.GPT {
	return gpt.New(gpt.Config{Vocab: vocab, Width: 128, Layers: 4, Heads: 4, Context: context})
}

// newMLP returns 32→64→64→10 with ReLU between.
func newMLP() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(32, 64), &nn.ReLU{}, nn.NewLinear(64, 64), &nn.ReLU{}, nn.NewLinear(64, 10))
}
