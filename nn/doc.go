// Package nn has layers, losses, initializers, and functions over modules.
//
//	scope, err := tensor.NewScope()
//	if err != nil {
//		return err
//	}
//	defer scope.Close()
//	model := nn.NewSequential(nn.NewLinear(2, 8), &nn.Tanh{}, nn.NewLinear(8, 1))
//	x := tensor.FromSlice([]float32{0, 0, 0, 1, 1, 0, 1, 1}, []int{4, 2})
//	loss := nn.MSELoss(model.Forward(x), tensor.Zeros([]int{4, 1}))
//	return loss.Backward() // nn.Parameters(model) have their gradients now
//
// # Modules
//
// A module is a pointer to a struct, and its exported fields are its parts: a *tensor.Tensor is a parameter, a
// pointer to another module, an interface that holds one, a slice or a map with string keys of them is a part with
// parts. There is nothing to register. Names are PyTorch's, so that its checkpoints load: RunningMean is
// running_mean, Blocks[0].LN1.Weight is blocks.0.ln1.weight. A tag changes that:
//
//	Weight      *tensor.Tensor `nn:"w"`       // another name
//	RunningMean *tensor.Tensor `nn:",buffer"` // kept and saved, not learned
//	Cache       *tensor.Tensor `nn:"-"`       // not the module's
//	Layers      []nn.Layer     `nn:"."`       // the elements' names without "layers."
//
// An embedded struct adds no name, and a nil field is no part. What a module keeps must be out of all scopes: the
// constructors here see to it, and one's own calls Keep. Parameters, StateDict, LoadStateDict, Train, Eval and To work
// on any module.
//
// # Lifetimes
//
// Layers free what they make on the way, Pipe, Residual and Sequential each intermediate result once the next layer
// has consumed it, so that forward passes peak where PyTorch's do. What autograd needs stays until the backward pass
// is through.
//
// # Errors
//
// A constructor returns the module alone. If its sizes or options are invalid, the module carries the error: Err and Check
// return it, Forward gives a failed tensor, and optimizers, Save and Load return it too. The error names the constructor
// and the line that called it.
//
// Forward returns a failed tensor for a nil module or tensor and for a shape that does not fit. Every later operator and
// layer passes the error on, up to Backward, Item or the scope's Close.
package nn
