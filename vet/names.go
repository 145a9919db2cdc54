package vet

import (
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

const module = "github.com/linstock-ml/linstock"

// name is a function or method of the module, such as "tensor.NewScope" or "tensor.Scope.Close". TestNames checks every
// name in this file against the library.
type name string

const (
	newScope   name = "tensor.NewScope"
	closeScope name = "tensor.Scope.Close"
	adopt      name = "tensor.Scope.Adopt"
	replace    name = "tensor.Replace"
	keep       name = "tensor.Tensor.Keep"
	moveOut    name = "tensor.Tensor.MoveOut"
	hook       name = "tensor.Tensor.RegisterHook"
)

// bodies lists the functions that run a function in a scope; the value is true if its result moves out of the scope.
var bodies = map[name]bool{
	"tensor.WithScope": false,
	"tensor.Tidy":      true,
	"tensor.TidyAll":   true,
	hook:               true,
}

// scopedIterators lists iterators that open a scope around each iteration of the loop's body. Those of the analyzed
// package are found by their code.
var scopedIterators = map[name]bool{"data.Loader.Batches": true, "data.Loader.Resume": true}

// notFresh lists library functions that return tensors not made in the caller's scope.
var notFresh = map[name]bool{
	keep: true, moveOut: true, "tensor.Failed": true,
	"nn.Parameters": true, "nn.NewParameter": true,
}

// takeModules lists functions with the index of a parameter that is a module of any type. TestNames checks that it has all
// of them.
var takeModules = map[name]int{
	"nn.Check": 0, "nn.Parameters": 0, "nn.NamedParameters": 0, "nn.NamedBuffers": 0, "nn.StateDict": 0, "nn.LoadStateDict": 0, "nn.LoRAState": 0,
	"nn.To": 0, "nn.ToEmpty": 0, "nn.Train": 0, "nn.Eval": 0, "nn.ZeroGrad": 0, "nn.RequiresGrad_": 0, "nn.Release": 0,
	"nn.NamedModules": 0, "nn.NamedChildren": 0, "nn.Apply": 0, "nn.GetSubmodule": 0, "nn.SetSubmodule": 0,
	"nn.IsPruned": 0, "nn.Cached": 0, "nn.UpdateBN": 0, "nn.ConvertToFloat8Training": 0,
	"nn.ConvertConv2dWeightMemoryFormat": 0, "nn.ConvertConv3dWeightMemoryFormat": 0,
	"checkpoint.SaveTraining": 1, "checkpoint.LoadTraining": 1, "checkpoint.SaveModel": 1, "checkpoint.LoadModel": 1,
	"dist.NewDDP": 2, "dist.Shard": 2, "dist.FullStateDict": 2, "dist.LoadFullStateDict": 1, "dist.ConvertSyncBatchNorm": 1, "dist/dcp.Model": 1,
	"vram/plan.New": 0, "vram/plan.Within": 1,
}

// pinners lists the functions of package tensor that pin tensors for a native call: if the result is true or nil, the
// tensors among the arguments are pinned. Those of handedOver have also passed the tensors to code that will unpin
// them.
var (
	pinners   = map[name]bool{"tensor.Tensor.pin": false, "tensor.pin1": false, "tensor.pin2": false, "tensor.pin3": false, "tensor.pinSame": false, "tensor.call.hold": true}
	unpinners = map[name]bool{"tensor.Tensor.unpin": true, "tensor.done1": true, "tensor.done2": true, "tensor.done3": true, "tensor.wrote1": true, "tensor.wrote2": true, "tensor.wrote3": true}
	// primitives lists the functions that decide who owns a handle. They are not analyzed but reviewed. The last one
	// collects the handles of a scope that owns them, under its lock, and does not pass them on while the tensors live.
	primitives = map[name]bool{"tensor.Tensor.pin": true, "tensor.Tensor.unpin": true, "tensor.Tensor.handle": true, "tensor.Tensor.owned": true, "tensor.Scope.weaken": true}
	letGo      = map[string]bool{"unpin": true, "letGo": true} // the methods of what holds several
)

const handleOf name = "tensor.Tensor.handle"

// nameOf returns the name of f, or "" if f is not part of the module.
func nameOf(f *types.Func) name {
	if f == nil || f.Pkg() == nil {
		return ""
	}
	f = f.Origin()
	pkg, in := packageOf(f.Pkg())
	if !in {
		return ""
	}
	n := pkg + "."
	if recv := f.Signature().Recv(); recv != nil {
		named := namedOf(recv.Type())
		if named == nil {
			return ""
		}
		n += named.Obj().Name() + "."
	}
	return name(n + f.Name())
}

// packageOf returns the path of a package inside the module.
func packageOf(p *types.Package) (string, bool) {
	if p == nil {
		return "", false
	}
	path, _, _ := strings.Cut(p.Path(), " [") // go vet gives test variants such paths
	return strings.CutPrefix(path, module+"/")
}

func namedOf(t types.Type) *types.Named {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, _ := types.Unalias(t).(*types.Named)
	return n
}

// is reports whether t, or its element if t is a pointer, is the given type of the module, such as "tensor.Tensor".
func is(t types.Type, pkg, typ string) bool {
	n := namedOf(t)
	if n == nil || n.Obj().Name() != typ {
		return false
	}
	in, ok := packageOf(n.Obj().Pkg())
	return ok && in == pkg
}

func isTensor(t types.Type) bool {
	_, pointer := types.Unalias(t).(*types.Pointer)
	return pointer && is(t, "tensor", "Tensor")
}

// holdsTensors reports whether t is a tensor, or a list, map or batch of tensors.
func holdsTensors(t types.Type) bool { return listsTensors(t, map[types.Type]bool{}) }

func listsTensors(t types.Type, seen map[types.Type]bool) bool {
	if isTensor(t) || is(t, "data", "Batch") {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch u := t.Underlying().(type) {
	case *types.Slice:
		return listsTensors(u.Elem(), seen)
	case *types.Array:
		return listsTensors(u.Elem(), seen)
	case *types.Map:
		return listsTensors(u.Elem(), seen) || listsTensors(u.Key(), seen)
	}
	return false
}

// callee returns the function that a call names, or nil if it calls a value.
func callee(c *ssa.CallCommon) *types.Func {
	if c.IsInvoke() {
		return c.Method
	}
	fn := static(c)
	if fn == nil {
		return nil
	}
	f, _ := fn.Object().(*types.Func)
	return f
}

// static returns the called function; for an instance of a generic function, the generic one.
func static(c *ssa.CallCommon) *ssa.Function {
	fn := c.StaticCallee()
	if fn != nil && fn.Origin() != nil {
		fn = fn.Origin()
	}
	return fn
}

// arguments returns the arguments of a call, the receiver of a method first. A method value, as in f := x.Keep; f(), has
// bound it.
func arguments(c *ssa.CallCommon) []ssa.Value {
	if c.IsInvoke() {
		return append([]ssa.Value{c.Value}, c.Args...)
	}
	if bound, ok := c.Value.(*ssa.MakeClosure); ok && callee(c) != nil { // a literal has no name
		return append(slices.Clone(bound.Bindings), c.Args...)
	}
	return c.Args
}

func called(c *ssa.CallCommon) name { return nameOf(callee(c)) }

// uses reports whether a package can use Linstock at all.
func uses(p *types.Package) bool {
	seen := map[*types.Package]bool{}
	var walk func(p *types.Package) bool
	walk = func(p *types.Package) bool {
		if seen[p] {
			return false
		}
		seen[p] = true
		if in, ok := packageOf(p); ok && (in == "tensor" || in == "cshim") {
			return true
		}
		for _, i := range p.Imports() {
			if walk(i) {
				return true
			}
		}
		return false
	}
	return walk(p)
}
