package vet

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// KeepAlive reports native handles that are used without anything that keeps their owner from being freed.
var KeepAlive = &analysis.Analyzer{
	Name: "keepalive",
	Doc: `report native handles used while their owner may be freed

Three rules. What a type with a cleanup or a finalizer holds for native code (a
handle, a pointer) is passed to it only where the owner is used later on every
path, by runtime.KeepAlive say. In Linstock itself a tensor's handle is used only
between a pin that succeeded and its unpin, and every pin is undone on every
path. What holds several pinned tensors is let go of after the native call, and
lets all of them go.`,
	Requires: []*analysis.Analyzer{sourceAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		s := pass.ResultOf[sourceAnalyzer].(*source)
		k := &keeper{pass: pass, owners: cleaned(s)}
		for _, fn := range s.fns {
			if k.pinning(fn) {
				k.pins(fn)
				k.holders(fn)
				k.undone(fn)
			}
			k.complete(fn)
			k.alive(fn)
		}
		return nil, nil
	},
}

type keeper struct {
	pass   *analysis.Pass
	owners map[*types.Named]bool // with a cleanup
}

// pinning says whether fn deals with handles at all.
func (k *keeper) pinning(fn *ssa.Function) bool {
	if obj, ok := fn.Object().(*types.Func); ok && primitives[nameOf(obj)] {
		return false
	}
	found := false
	instructions(fn, func(i ssa.Instruction) {
		switch i := i.(type) {
		case ssa.CallInstruction:
			n := called(i.Common())
			_, pins := pinners[n]
			found = found || pins || unpinners[n] || n == handleOf || native(i.Common())
		case *ssa.FieldAddr:
			found = found || isHandle(fieldOf(i).Type())
		}
	})
	if obj, ok := fn.Object().(*types.Func); ok {
		_, pins := pinners[nameOf(obj)]
		found = found || pins || unpinners[nameOf(obj)]
	}
	return found
}

func isHandle(t types.Type) bool { return is(t, "cshim", "Handle") }

func fieldOf(f *ssa.FieldAddr) *types.Var {
	return f.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct).Field(f.Field)
}

// native says whether a call leaves Go: into the shim, or into C.
func native(c *ssa.CallCommon) bool {
	f := callee(c)
	if f == nil || f.Pkg() == nil {
		return false
	}
	pkg, in := packageOf(f.Pkg())
	return in && pkg == "cshim" || strings.HasPrefix(f.Name(), "_Cfunc_") || f.Pkg().Path() == "syscall" && strings.Contains(f.Name(), "yscall")
}

// cleaned are the types that the package gives a cleanup or a finalizer, but for tensors, which are pinned.
func cleaned(s *source) map[*types.Named]bool {
	types_ := map[*types.Named]bool{}
	for _, fn := range s.fns {
		instructions(fn, func(i ssa.Instruction) {
			call, ok := i.(ssa.CallInstruction)
			if !ok {
				return
			}
			f := callee(call.Common())
			if f == nil || f.Pkg() == nil || f.Pkg().Path() != "runtime" || f.Name() != "AddCleanup" && f.Name() != "SetFinalizer" {
				return
			}
			arg := call.Common().Args[0]
			if m, ok := arg.(*ssa.MakeInterface); ok {
				arg = m.X
			}
			if n := namedOf(arg.Type()); n != nil && !isTensor(arg.Type()) {
				types_[n.Origin()] = true
			}
		})
	}
	return types_
}

// alive: what a type with a cleanup holds for native code is passed to it only where the owner is used later.
func (k *keeper) alive(fn *ssa.Function) {
	if len(k.owners) == 0 {
		return
	}
	instructions(fn, func(i ssa.Instruction) {
		call, ok := i.(*ssa.Call)
		if !ok || !native(&call.Call) {
			return
		}
		for _, a := range call.Call.Args {
			owner := k.ownerOf(a, 0)
			if owner == nil || used(call, owner) {
				continue
			}
			d := analysis.Diagnostic{Pos: call.Pos(), Message: "the cleanup of " + k.text(owner) + " can run during this call: its owner is not used afterwards; " +
				"call runtime.KeepAlive behind it"}
			if stmt, ok := within[ast.Stmt](k.pass, call.Pos()); ok && (owner.Name() == k.text(owner)) {
				if _, returns := stmt.(*ast.ReturnStmt); !returns {
					indent := strings.Repeat("\t", max(0, k.pass.Fset.Position(stmt.Pos()).Column-1))
					d.SuggestedFixes = insert("keep it alive", stmt.End(), "\n"+indent+"runtime.KeepAlive("+owner.Name()+")")
				}
			}
			report(k.pass, d)
		}
	})
}

// ownerOf is the thing with a cleanup that a native argument was read from.
func (k *keeper) ownerOf(v ssa.Value, depth int) ssa.Value {
	if depth > 8 {
		return nil
	}
	switch v := v.(type) {
	case *ssa.Convert:
		return k.ownerOf(v.X, depth+1)
	case *ssa.ChangeType:
		return k.ownerOf(v.X, depth+1)
	case *ssa.UnOp:
		f, ok := v.X.(*ssa.FieldAddr)
		if !ok || v.Op != token.MUL {
			return nil
		}
		if n := namedOf(f.X.Type()); n == nil || !k.owners[n.Origin()] {
			return nil
		}
		switch u := v.Type().Underlying().(type) {
		case *types.Basic:
			if u.Kind() != types.Uintptr && u.Kind() != types.UnsafePointer && u.Kind() != types.Uint64 {
				return nil
			}
		case *types.Pointer:
			// Memory of C's; what is Go's is kept by the pointer itself.
			if n := namedOf(u.Elem()); n == nil || !strings.HasPrefix(n.Obj().Name(), "_C") {
				return nil
			}
		default:
			return nil
		}
		return f.X
	}
	return nil
}

// used says whether owner is used behind a call on every path, or by what was deferred before it.
func used(call *ssa.Call, owner ssa.Value) bool { return usedAs(call, keyOf(owner)) }

func usedAs(call *ssa.Call, owner string) bool {
	by := func(i ssa.Instruction) bool {
		for _, o := range i.Operands(nil) {
			if *o == nil {
				continue
			}
			v := *o
			// An argument of runtime.KeepAlive.
			if m, ok := v.(*ssa.MakeInterface); ok {
				v = m.X
			}
			if keyOf(v) == owner {
				return true
			}
		}
		return false
	}
	deferred := false
	instructions(call.Parent(), func(i ssa.Instruction) {
		if d, ok := i.(*ssa.Defer); ok && by(d) && before(i, call) {
			deferred = true
		}
	})
	if deferred || onEveryPath(call, by) {
		return true
	}
	// cgo puts a call with a pointer in a literal, called on the spot: what counts is behind that.
	fn := call.Parent()
	if fn.Parent() == nil {
		return false
	}
	found := false
	instructions(fn.Parent(), func(i ssa.Instruction) {
		outer, ok := i.(*ssa.Call)
		if !ok {
			return
		}
		lit, ok := outer.Call.Value.(*ssa.MakeClosure)
		if !ok || lit.Fn != fn {
			return
		}
		for n, free := range fn.FreeVars {
			if inner := fmt.Sprintf("%p", free); strings.Contains(owner, inner) {
				found = found || usedAs(outer, strings.ReplaceAll(owner, inner, keyOf(lit.Bindings[n])))
			}
		}
	})
	return found
}
