package nn

import (
	"reflect"
	"slices"

	"github.com/linstock-ml/linstock/tensor"
)

// ParameterDict is a list of parameters with names of their own. Under a field Weights, the tensor named "a" has the
// state name weights.a; with the tag `nn:"."` its name is a. The order is that of the list; PyTorch sorts the names of a
// plain dict. A slice of tensors, whose names are its indices, is PyTorch's ParameterList. PyTorch:
// torch.nn.ParameterDict.
type ParameterDict []Named

// Get returns the parameter with the given name, or nil.
func (d ParameterDict) Get(name string) *tensor.Tensor {
	if i := slices.IndexFunc(d, func(n Named) bool { return n.Name == name }); i >= 0 {
		return d[i].Tensor
	}
	return nil
}

// NamedModule is a module with its name in a model, such as "blocks.0.attn".
type NamedModule struct {
	Name   string
	Module any
}

// ModuleDict is a list of modules with names of their own, which are prefixes in the state as the keys of a map are; the
// order is that of the list, not the alphabet's. A slice of modules, whose names are its indices, is PyTorch's
// ModuleList. PyTorch: torch.nn.ModuleDict.
type ModuleDict []NamedModule

// Get returns the module with the given name, or nil.
func (d ModuleDict) Get(name string) any {
	if i := slices.IndexFunc(d, func(n NamedModule) bool { return n.Name == name }); i >= 0 {
		return d[i].Module
	}
	return nil
}

// dict reports whether the elements of a slice have names of their own.
func dict(t reflect.Type) bool {
	e := t.Elem()
	return e == reflect.TypeFor[Named]() || e == reflect.TypeFor[NamedModule]()
}

// entry returns the name and the value of an element of a dict.
func entry(v reflect.Value) (string, reflect.Value) { return v.Field(0).String(), v.Field(1) }
