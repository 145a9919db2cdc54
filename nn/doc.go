// Package nn provides neural-network layers, losses, weight initializers, and functions that act on whole models. It
// corresponds to torch.nn, torch.nn.init and torch.nn.utils.
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
// A module is a pointer to a struct. Its exported fields are its parameters, buffers and submodules; nothing is
// registered. A field of type *tensor.Tensor is a parameter. A pointer to a struct, an interface that holds one, a
// slice, and a map with string keys are searched for further parts.
//
// A module's own parameters come before those of its submodules, and both are in the order of the fields; an
// optimizer's state knows parameters by their numbers alone. A map is in the alphabet's order, unlike PyTorch's
// ModuleDict: with a map, an optimizer's state from PyTorch may load into the wrong parameters, without an error.
// [ModuleDict] and [ParameterDict] keep the order of their elements.
//
// Names in the state dict follow PyTorch's conventions, so that PyTorch's checkpoints load: the field RunningMean is
// named running_mean, and Blocks[0].LN1.Weight is named blocks.0.ln1.weight. A struct tag changes how a field is
// treated:
//
//	Weight      *tensor.Tensor `nn:"w"`              // use another name
//	RunningMean *tensor.Tensor `nn:",buffer"`        // saved, but not trained
//	Frequencies *tensor.Tensor `nn:",nonpersistent"` // a buffer that is not saved
//	Cache       *tensor.Tensor `nn:"-"`              // ignored
//	Layers      []nn.Layer     `nn:"."`              // no prefix "layers." in the names of the elements
//	Head        *nn.Linear     `nn:",optional"`      // may be nil
//
// An embedded struct adds no prefix. Parameters, StateDict, LoadStateDict, Train, Eval and To accept any module. The
// tensors in a module must not belong to a scope: constructors and NewParameter return such tensors, and Tensor.Keep
// removes any other tensor from its scope.
//
// # Check
//
// [Check] reports mistakes in a module that would otherwise lose a parameter silently or fail much later. Optimizers,
// Save, Load, To and ZeroGrad call it and return its error. A module passes if
//
//   - no constructor of a submodule failed: no submodule, including those of user-defined types, has a method Err() error
//     that returns an error. A submodule, here, is a value that has a method Forward or SetTraining, or that holds tensors;
//   - no two fields have the same state name, for example two fields with the tag `nn:"proj"`, fields FC and Fc, or a
//     field and one of an embedded struct;
//   - no unexported field holds a module or a tensor, unless the field is tagged `nn:"-"`. Structs of other packages that
//     are not modules are exempt;
//   - every map that holds modules or tensors has string keys, and none is held through a pointer to a pointer, slice, map
//     or interface;
//   - struct tags have no options other than buffer, nonpersistent and optional;
//   - every tensor is usable, and is either a buffer or a parameter: it requires a gradient, or was frozen by
//     RequiresGrad_(false);
//   - no module field or element is nil, unless the field is tagged `nn:",optional"`. A nil *tensor.Tensor, such as the
//     Bias of a layer without one, is allowed.
//
// The module analyzer of linstockvet finds those mistakes that are visible in the source.
//
// # Hooks and wrappers
//
// Forward is called directly, so a function that is to run before or after a layer is a layer around it: a [Hooked], a
// [Parametrized], a [LoRALinear]. A wrapper adds nothing to the names in the state. Declare a field that may hold a
// wrapper as Layer, not as *Linear; [SetSubmodule] replaces a layer by a wrapper.
//
// # Lifetimes
//
// In Sequential, Pipe and Residual, a tensor that passes from one layer of this package to the next is freed as soon as
// it has been used, so that forward passes reach the same peak memory as in PyTorch. A tensor that a Func or a
// user-defined layer has received or returned lives until its scope closes or it becomes unreachable, like any other
// tensor. Tensors that autograd saves for the backward pass live until that pass ends.
//
// # Errors
//
// A constructor returns only the module. If its sizes or options are invalid, the module carries the error: Err and
// Check return it, Forward returns a failed tensor, and optimizers, Save and Load return it too. The error names the
// constructor and the line that called it.
//
// Forward returns a failed tensor if the module or its input is nil, or if a shape does not fit. Every later operator
// and layer passes the error on, until Backward, Item or the scope's Close returns it.
package nn
