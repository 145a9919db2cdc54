// Package autograd provides automatic differentiation: backward passes, modes that turn the recording of gradients on
// and off, differentiable functions written in Go, gradient checkpointing, and numerical checks of gradients. It
// corresponds to torch.autograd.
//
//	x := tensor.FromSlice([]float64{1, 2, 3}, nil).RequiresGrad_()
//	y := x.Mul(x).Sum()
//	grads, err := autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{x}) // 2, 4, 6
//
// The usual backward pass, from one tensor, is Tensor.Backward, which stores gradients in the Grad of the leaves. This
// package has the other forms. The options of backward passes are in package tensor: tensor.RetainGraph,
// tensor.CreateGraph, tensor.Gradient, tensor.Inputs, tensor.AllowUnused.
//
// A mode applies to the goroutine that enters it, and not to goroutines that it starts:
//
//	err := autograd.NoGrad(func() error {
//		predictions = model.Forward(x)
//		return predictions.Err()
//	})
//
// Mixed precision is such a mode, too, and takes two lines around the forward pass of a training loop:
//
//	loss := autograd.Autocast(tensor.CPUType, tensor.BFloat16, func() *tensor.Tensor {
//		return nn.CrossEntropy(model.Forward(batch.Inputs), batch.Targets)
//	})
//
// A Function is a differentiable operator written in Go. Each of its methods runs in a scope. Their errors and panics
// are returned as errors by Apply and by the backward pass.
//
// Checkpoint trades time for memory (gradient checkpointing): it keeps only the inputs of a part of the model and
// computes the part again during the backward pass.
//
//	for _, block := range model.Blocks {
//		x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return block.Forward(in[0]) }, x)
//	}
//
// SavedTensors trades copies for memory: it keeps what operators save for the backward pass on the CPU, on disk or in a
// smaller dtype. KeepInCheckpoint keeps the results of chosen parts of a checkpointed function.
//
// Jacobian, Hessian and their products with vectors, VJP, JVP, HVP and VHP, differentiate a function. ForwardMode makes
// them use forward mode, without a graph; DualLevel differentiates any code in forward mode.
//
// DetectAnomaly finds the operator whose backward computes NaN or fails: the error names the line that called it.
// RegisterMultiGradHook calls a function with the gradients of several tensors at once.
package autograd
