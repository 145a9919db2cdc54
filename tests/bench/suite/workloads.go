package main

import (
	"fmt"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// A step is what a workload repeats: a training step, an evaluation, a request. It runs in a scope. If read is true it
// returns its loss, or for a workload without a loss a number that depends on all it computed.
type step func(read bool) (float64, error)

// A workload is made with the same weights and data in each language: here, in cpp/ and in py/, in the file named for
// its group.
type workload struct {
	name  string
	make  func(*numbers) (step, error)
	turn  int  // steps that a turn times
	train bool // whether it has an optimizer
	per   int  // operations in a step, if the time of one is reported
}

// workloads are in the order of the table.
var workloads = []workload{
	// dense
	{name: "tinymlp", make: tinyMLP, turn: 400, train: true},
	{name: "deepmlp", make: deepMLP, turn: 40, train: true},
	{name: "mlp", make: mlp, turn: 30, train: true},
	{name: "residual tower", make: residualTower, turn: 10, train: true},
	{name: "iterative refinement", make: refinement, turn: 20, train: true},
	{name: "feedback loop", make: feedback, turn: 20, train: true},
	{name: "gated routing", make: gated, turn: 6, train: true},
	// recurrent
	{name: "gru", make: gru, turn: 4, train: true},
	{name: "lstm", make: lstm, turn: 4, train: true},
	{name: "recurrent attention", make: recurrentAttention, turn: 8, train: true},
	// conv
	{name: "convnet", make: convnet, turn: 6, train: true},
	{name: "autoencoder", make: autoencoder, turn: 12, train: true},
	{name: "resnet18 at 64", make: resnet18, turn: 1, train: true},
	{name: "cnn at 256", make: cnn256, turn: 1, train: true},
	// text
	{name: "transformer encoder", make: encoder, turn: 4, train: true},
	{name: "embedding 20000x64", make: embedding, turn: 60, train: true},
	{name: "gpt step", make: gptStep, turn: 2, train: true},
	{name: "gpt evaluation", make: gptEvaluation, turn: 2},
	{name: "gpt generation", make: gptGeneration, turn: 3},
	// small
	{name: "request", make: request, turn: 5000},
	{name: "add", make: add, turn: 400, per: adds},
}

func find(name string) (workload, error) {
	for _, w := range workloads {
		if w.name == name {
			return w, nil
		}
	}
	return workload{}, fmt.Errorf("no workload %q", name)
}

// adam returns Adam for m's parameters.
func adam(m any) (*optim.Optimizer, error) { return optim.NewAdam(nn.Parameters(m), 1e-3) }

// training fills m's parameters and returns a step that trains them.
func training(n *numbers, m any, newOptimizer func(m any) (*optim.Optimizer, error), loss func() *tensor.Tensor) (step, error) {
	if err := n.fill(m); err != nil {
		return nil, err
	}
	opt, err := newOptimizer(m)
	if err != nil {
		return nil, err
	}
	return func(read bool) (float64, error) {
		l := loss()
		opt.ZeroGrad()
		if err := l.Backward(); err != nil {
			return 0, err
		}
		if err := opt.Step(); err != nil {
			return 0, err
		}
		return number(l, read)
	}, nil
}

// number returns the only element of t if read is true.
func number(t *tensor.Tensor, read bool) (float64, error) {
	if !read {
		return 0, t.Err()
	}
	return t.Item()
}
