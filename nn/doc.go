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
// A module is a pointer to a struct, and its exported fields are its parts: a *tensor.Tensor is a parameter; a pointer to
// another struct, an interface that holds one, a slice, and a map with string keys have parts of their own. There is
// nothing to register. State names are PyTorch's, so that its checkpoints load: RunningMean is running_mean,
// Blocks[0].LN1.Weight is blocks.0.ln1.weight. A tag changes that:
//
//	Weight      *tensor.Tensor `nn:"w"`         // another name
//	RunningMean *tensor.Tensor `nn:",buffer"`   // kept and saved, not learned
//	Cache       *tensor.Tensor `nn:"-"`         // not a part
//	Layers      []nn.Layer     `nn:"."`         // the elements' names have no prefix "layers."
//	Head        *nn.Linear     `nn:",optional"` // may be nil
//
// An embedded struct adds no prefix. Parameters, StateDict, LoadStateDict, Train, Eval and To work on any module. What a
// module keeps must be out of all scopes: the constructors and NewParameter see to it, and other tensors need Keep.
//
// # Check
//
// [Check] reports what would otherwise be lost or fail in silence. Optimizers, Save, Load, To and ZeroGrad return what it
// finds. A module passes if
//
//   - no constructor of a part failed: no method Err() error of a module, the user's own too, returns an error. A module
//     here is what has a method Forward or SetTraining, or holds tensors;
//   - no two fields have one state name: `nn:"proj"` twice, FC and Fc, a field and one of an embedded struct;
//   - no unexported field holds a module or a tensor, unless it is tagged `nn:"-"`. Structs of other packages that are no
//     modules may;
//   - every map that holds modules or tensors has string keys, and no pointer to a pointer, slice, map or interface holds
//     them;
//   - tags have the options buffer and optional only;
//   - every tensor can be used, and is a buffer or a parameter: it requires a gradient, or RequiresGrad_(false) froze it;
//   - no field or element for a module is nil, unless the field is tagged `nn:",optional"`. A nil *tensor.Tensor, such as
//     a Bias that is left out, is no fault.
//
// The analyzer module of linstockvet finds in the source what can be seen there.
//
// # Lifetimes
//
// A result that passes from one layer of this package to the next in Sequential, Pipe or Residual is freed as soon as it
// has been used, so that forward passes peak where PyTorch's do. What a Func or a layer of the user's has seen lives until
// its scope closes or it is unreachable, as every tensor. What autograd needs stays until the backward pass is through.
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
