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

// KeepAlive reports native handles that are used although their owner may be freed.
var KeepAlive = &analysis.Analyzer{
	Name: "keepalive",
	Doc: `report native handles used while their owner may be freed

There are three rules. A native value (a handle, a pointer) of a type with a cleanup or
a finalizer may be passed to native code only if its owner is used later on every path,
for example by runtime.KeepAlive, or is read from a package variable. In Linstock itself, a tensor's handle may be used only
between a successful pin and the unpin, and every pin must be undone on every path. A
list of pinned tensors must be unpinned after the native call, and must unpin all of
them.`,
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
	owners map[*types.Named]bool // types with a cleanup
}

// pinning reports whether fn uses handles at all.
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

// native reports whether a call leaves Go, into the shim or into C.
func native(c *ssa.CallCommon) bool {
	f := callee(c)
	if f == nil || f.Pkg() == nil {
		return false
	}
	pkg, in := packageOf(f.Pkg())
	return in && pkg == "cshim" || strings.HasPrefix(f.Name(), "_Cfunc_") || f.Pkg().Path() == "syscall" && strings.Contains(f.Name(), "yscall")
}

// cleaned returns the types to which the package gives a cleanup or finalizer, except tensors, which are pinned.
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

// alive checks that the owner of a native value is used after each call that receives the value, if it has a cleanup.
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
			if _, global := rootOf(owner).(*ssa.Global); global { // the package variable keeps it
				continue
			}
			d := analysis.Diagnostic{Pos: call.Pos(), Message: "the cleanup of " + k.text(owner) + " can run during this call: its owner is not used afterwards; " +
				"call runtime.KeepAlive after it"}
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

// ownerOf returns the value with a cleanup from which a native argument was read.
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
			// Only memory of C counts: a pointer to Go memory keeps it alive.
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

// pointsTo reports whether a value is the owner, a pointer into it, or a function that has captured one of them.
func pointsTo(v ssa.Value, owner string) bool {
	if keyOf(v) == owner {
		return true
	}
	switch v := v.(type) {
	case *ssa.MakeInterface: // an argument of runtime.KeepAlive
		return pointsTo(v.X, owner)
	case *ssa.FieldAddr:
		return pointsTo(v.X, owner)
	case *ssa.IndexAddr:
		return pointsTo(v.X, owner)
	case *ssa.MakeClosure:
		for _, b := range v.Bindings {
			if "*"+keyOf(b) == owner || pointsTo(b, owner) { // a variable is captured by its address
				return true
			}
		}
	}
	return false
}

// used reports whether owner is used after a call, on every path or by an earlier defer.
func used(call *ssa.Call, owner ssa.Value) bool { return usedAs(call, keyOf(owner)) }

func usedAs(call *ssa.Call, owner string) bool {
	by := func(i ssa.Instruction) bool {
		for _, o := range i.Operands(nil) {
			if *o != nil && pointsTo(*o, owner) {
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
	// cgo moves a call with a pointer into a function literal that is called immediately. Look at the code after that
	// call.
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
