package vet

import (
	"go/types"
	"strings"

	"golang.org/x/tools/go/ssa"
)

const module = "github.com/linstock-ml/linstock"

// name is a function or a method of the module: "tensor.NewScope", "tensor.Scope.Close". TestNames holds every name
// here against the library.
type name string

const (
	newScope   name = "tensor.NewScope"
	closeScope name = "tensor.Scope.Close"
	adopt      name = "tensor.Scope.Adopt"
	keep       name = "tensor.Tensor.Keep"
	moveOut    name = "tensor.Tensor.MoveOut"
	hook       name = "tensor.Tensor.RegisterHook"
)

// bodies are the functions that run a function in a scope of its own; true where the result moves out of it.
var bodies = map[name]bool{
	"tensor.WithScope": false,
	"tensor.Tidy":      true,
	"tensor.TidyAll":   true,
	hook:               true,
}

// scopedIterators open a scope around each run of the loop's body. Those of the package at hand are found by what
// they do.
var scopedIterators = map[name]bool{"data.Loader.Batches": true, "data.Loader.Resume": true}

// notFresh are library functions whose tensors are not made in the caller's scope, though they return some.
var notFresh = map[name]bool{
	keep: true, moveOut: true, "tensor.Failed": true,
	"nn.Parameters": true, "nn.NewParameter": true,
}

// takeModules are functions with the index of a parameter that is a module of whatever type.
var takeModules = map[name]int{
	"nn.Check": 0, "nn.Parameters": 0, "nn.NamedParameters": 0, "nn.NamedBuffers": 0, "nn.StateDict": 0, "nn.LoadStateDict": 0, "nn.To": 0,
	"nn.Train": 0, "nn.Eval": 0, "nn.ZeroGrad": 0, "nn.RequiresGrad_": 0, "nn.Release": 0,
	"checkpoint.SaveTraining": 1, "checkpoint.LoadTraining": 1, "checkpoint.LoadModel": 1,
}

// closers may be deferred with their error unread.
var closers = map[name]bool{closeScope: true, "checkpoint.File.Close": true}

// pinners are package tensor's own ways to hold a tensor through a native call: when the result is true or nil, the
// tensors among the arguments are pinned. Those in handedOver have also been put where somebody else will unpin them.
var (
	pinners   = map[name]bool{"tensor.Tensor.pin": false, "tensor.pin1": false, "tensor.pin2": false, "tensor.pin3": false, "tensor.pinSame": false, "tensor.call.hold": true}
	unpinners = map[name]bool{"tensor.Tensor.unpin": true, "tensor.done1": true, "tensor.done2": true, "tensor.done3": true, "tensor.wrote1": true, "tensor.wrote2": true, "tensor.wrote3": true}
	// primitives are what the rest is made of: who owns a handle is decided there, and they are read by people. The
	// last notes handles for a scope that owns them, under its lock, and gives them to nobody while the tensors live.
	primitives = map[name]bool{"tensor.Tensor.pin": true, "tensor.Tensor.unpin": true, "tensor.Tensor.handle": true, "tensor.Tensor.owned": true, "tensor.Scope.weaken": true}
	letGo      = map[string]bool{"unpin": true, "letGo": true} // the methods of what holds several
)

const handleOf name = "tensor.Tensor.handle"

// nameOf is f's name; empty for what is not the module's.
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

// packageOf is a package's path inside the module.
func packageOf(p *types.Package) (string, bool) {
	if p == nil {
		return "", false
	}
	path, _, _ := strings.Cut(p.Path(), " [") // a test variant, as go vet names it
	return strings.CutPrefix(path, module+"/")
}

func namedOf(t types.Type) *types.Named {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, _ := types.Unalias(t).(*types.Named)
	return n
}

// is says whether t, or what it points to, is the module's type: "tensor.Tensor".
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

// holdsTensors says whether t is a tensor, or a list, map or batch of them.
func holdsTensors(t types.Type) bool {
	if isTensor(t) || is(t, "data", "Batch") {
		return true
	}
	switch u := t.Underlying().(type) {
	case *types.Slice:
		return holdsTensors(u.Elem())
	case *types.Array:
		return holdsTensors(u.Elem())
	case *types.Map:
		return holdsTensors(u.Elem()) || holdsTensors(u.Key())
	}
	return false
}

// callee is the function that a call names; nil for a call of a value.
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

// static is the function that is called, a generic one for its instances.
func static(c *ssa.CallCommon) *ssa.Function {
	fn := c.StaticCallee()
	if fn != nil && fn.Origin() != nil {
		fn = fn.Origin()
	}
	return fn
}

func called(c *ssa.CallCommon) name { return nameOf(callee(c)) }

// uses says whether a package can have to do with Linstock at all.
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
