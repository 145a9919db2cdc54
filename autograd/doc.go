// Package autograd differentiates: backward passes, modes that say whether gradients are recorded, differentiable
// functions written in Go, checkpoints, and checks of gradients against numerical ones.
//
//	x := tensor.FromSlice([]float64{1, 2, 3}, nil).RequiresGrad_()
//	y := x.Mul(x).Sum()
//	grads, err := autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{x}) // 2, 4, 6
//
// A backward pass from one tensor is its method Backward, and gradients lie in Grad of the leaves. This package is
// for the rest. Options of backward passes are package tensor's: tensor.RetainGraph, tensor.CreateGraph,
// tensor.Gradient, tensor.Inputs, tensor.AllowUnused.
//
// Modes belong to the goroutine that enters them, not to those that it starts:
//
//	err := autograd.NoGrad(func() error {
//		predictions = model.Forward(x)
//		return predictions.Err()
//	})
//
// A Function is an operator of one's own. Both its methods run in a scope of their own; their errors, and their
// panics, come back as errors of Apply and of the backward pass.
//
// Checkpoint trades time for memory (gradient checkpointing): it keeps the inputs of a part of the model, and computes
// the part again when backward needs what it has not kept.
//
//	for _, block := range model.Blocks {
//		x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return block.Forward(in[0]) }, x)
//	}
package autograd
