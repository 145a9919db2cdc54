package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// ScopeClose reports scopes that are not closed, and scopes that are closed on another goroutine.
var ScopeClose = &analysis.Analyzer{
	Name: "scopeclose",
	Doc: `report scopes that are not closed, or closed on another goroutine

A scope from tensor.NewScope keeps its tensors and its goroutine's OS thread until
Close, which must run on the goroutine that opened it. The analyzer reports a path to
the end of the function without Close, and a Close in another goroutine. It does not
report a scope that is returned, stored or passed to another function.`,
	Requires: []*analysis.Analyzer{sourceAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		s := pass.ResultOf[sourceAnalyzer].(*source)
		for _, fn := range s.fns {
			instructions(fn, func(i ssa.Instruction) {
				if c, ok := i.(*ssa.Call); ok && called(&c.Call) == newScope {
					checkScope(pass, c)
				}
			})
		}
		return nil, nil
	},
}

// resultsOf returns the results of a call of NewScope, nil for one that is not used.
func resultsOf(opened *ssa.Call) (scope, failure ssa.Value) {
	for _, use := range *opened.Referrers() {
		if e, ok := use.(*ssa.Extract); ok && e.Index == 0 {
			scope = e
		} else if ok {
			failure = e
		}
	}
	return scope, failure
}

// scopeUses collects the uses of a scope.
type scopeUses struct {
	closes map[ssa.Instruction]bool // Close, called or deferred
	reads  []*ssa.Defer             // those of closes that close what the variable holds when the function ends
	else_  bool                     // other code may close it
	remote token.Pos
}

func checkScope(pass *analysis.Pass, opened *ssa.Call) {
	scope, failure := resultsOf(opened)
	u := &scopeUses{closes: map[ssa.Instruction]bool{}}
	if scope != nil {
		u.follow(scope, opened.Parent(), map[ssa.Value]bool{})
	}
	if u.remote.IsValid() {
		report(pass, analysis.Diagnostic{Pos: u.remote, Message: "the scope is closed on another goroutine than the one that opened it; Close then returns ErrScope"})
		return
	}
	for c := range u.closes {
		// The variable is one of a function around this one, which may close the scope before or after it returns.
		u.else_ = u.else_ || c.Parent() != opened.Parent()
	}
	if u.else_ {
		return
	}
	early := slices.ContainsFunc(u.reads, func(d *ssa.Defer) bool { return d.Parent() == opened.Parent() && before(d, opened) })
	end := open(opened, scope, failure, func(i ssa.Instruction) bool {
		_, ends := i.(*ssa.RunDefers)
		return u.closes[i] || early && ends
	})
	if end == nil {
		return
	}
	d := analysis.Diagnostic{Pos: opened.Pos(), Message: "the scope is never closed"}
	if len(u.closes) != 0 {
		d.Message = "the scope is not closed on all paths"
		if end.Pos().IsValid() {
			d.Related = []analysis.RelatedInformation{{Pos: end.Pos(), Message: "it is open here"}}
		}
	} else {
		d.SuggestedFixes = closing(pass, opened.Pos())
	}
	report(pass, d)
}

// follow collects the uses of a scope, or of a variable that holds it. home is the function that opens the scope.
func (u *scopeUses) follow(v ssa.Value, home *ssa.Function, seen map[ssa.Value]bool) {
	if seen[v] || v.Referrers() == nil {
		return
	}
	seen[v] = true
	for _, use := range *v.Referrers() {
		switch use := use.(type) {
		case *ssa.Store:
			if use.Val != v {
				continue
			}
			if a, ok := origin(use.Addr).(*ssa.Alloc); ok {
				u.follow(a, home, seen)
			} else {
				u.else_ = true
			}
		case *ssa.UnOp:
			if use.Op == token.MUL {
				u.follow(use, home, seen)
			}
		case *ssa.MakeClosure:
			fn := use.Fn.(*ssa.Function)
			for k, b := range use.Bindings {
				if b != v {
					continue
				}
				inner := &scopeUses{closes: map[ssa.Instruction]bool{}}
				inner.follow(fn.FreeVars[k], home, map[ssa.Value]bool{})
				u.else_ = u.else_ || inner.else_
				if inner.remote.IsValid() {
					u.remote = inner.remote
				}
				u.reads = append(u.reads, inner.reads...)
				for c := range inner.closes {
					switch {
					case !encloses(fn, home):
						u.closedIn(use, c, fn.FreeVars[k])
					case c.Parent() == home:
						u.closes[c] = true
					default:
						u.else_ = true
					}
				}
			}
		case ssa.CallInstruction:
			c, args := use.Common(), arguments(use.Common())
			if called(c) == closeScope && args[0] == v {
				if g, ok := use.(*ssa.Go); ok {
					u.remote = g.Pos()
				} else {
					u.closes[use] = true
				}
			} else if recv := callee(c); recv == nil || recv.Signature().Recv() == nil || nameOf(recv) == "" || args[0] != v {
				u.else_ = true
			}
		case *ssa.BinOp, *ssa.FieldAddr, *ssa.DebugRef:
		default:
			u.else_ = true
		}
	}
}

// encloses reports whether fn is outer, or a literal in it.
func encloses(outer, fn *ssa.Function) bool {
	for ; fn != nil; fn = fn.Parent() {
		if fn == outer {
			return true
		}
	}
	return false
}

// closedIn records that a function literal closes the scope that it captures as free, itself or in a variable. If the
// literal is deferred or called here, that closes the scope here; in a goroutine it is wrong; otherwise the effect is
// unknown.
func (u *scopeUses) closedIn(literal *ssa.MakeClosure, at ssa.Instruction, free *ssa.FreeVar) {
	pos := at.Pos()
	if !pos.IsValid() { // the literal is a method value, as in c := scope.Close
		pos = literal.Pos()
	}
	uses := *literal.Referrers()
	for _, use := range uses {
		switch use := use.(type) {
		case *ssa.Go:
			u.remote = pos
		case *ssa.Defer:
			if use.Call.Value == literal {
				u.closes[use] = true
				if !is(free.Type(), "tensor", "Scope") { // a variable
					u.reads = append(u.reads, use)
				}
			} else {
				u.else_ = true
			}
		case *ssa.Call:
			f := callee(&use.Call)
			switch {
			case use.Call.Value == literal:
				u.closes[use] = true
			case spawns(f):
				u.remote = pos
			case runsNow(f):
				u.closes[use] = true
			default:
				// The literal is the body of a range over a function, or a callback that may not run.
				u.else_ = true
			}
		default:
			u.else_ = true
		}
	}
}

// runsNow reports whether f calls its function argument before it returns.
func runsNow(f *types.Func) bool {
	_, yes := bodies[nameOf(f)]
	return yes && nameOf(f) != hook
}

// spawns reports whether f calls its function argument on another goroutine.
func spawns(f *types.Func) bool {
	if f == nil || f.Pkg() == nil {
		return false
	}
	recv := ""
	if r := f.Signature().Recv(); r != nil && namedOf(r.Type()) != nil {
		recv = namedOf(r.Type()).Obj().Name() + "."
	}
	switch f.Pkg().Path() + "." + recv + f.Name() {
	case "sync.WaitGroup.Go", "time.AfterFunc", "context.AfterFunc", "golang.org/x/sync/errgroup.Group.Go", "golang.org/x/sync/errgroup.Group.TryGo":
		return true
	}
	return false
}

// open returns the instruction where a path from from ends, or comes back to it, without passing one that closes what
// it opened, and nil if there is none. It ignores paths on which failure is not nil, or what was opened is nil.
func open(from ssa.Instruction, opened, failure ssa.Value, closes func(ssa.Instruction) bool) ssa.Instruction {
	seen := map[*ssa.BasicBlock]bool{}
	var walk func(b *ssa.BasicBlock, at int) ssa.Instruction
	walk = func(b *ssa.BasicBlock, at int) ssa.Instruction {
		var cond ssa.Value
		for _, i := range b.Instrs[at:] {
			if closes(i) {
				return nil
			}
			switch i := i.(type) {
			case *ssa.Return:
				return i
			case *ssa.If:
				cond = i.Cond
			}
			if i == from {
				return from // opened again before it was closed
			}
		}
		for k, next := range b.Succs {
			if seen[next] || cond != nil && refused(cond, opened, failure, k == 0) {
				continue
			}
			seen[next] = true
			if end := walk(next, 0); end != nil {
				return end
			}
		}
		return nil
	}
	return walk(from.Block(), index(from)+1)
}

func index(i ssa.Instruction) int { return slices.Index(i.Block().Instrs, i) }

// refused reports whether cond having the value so means that NewScope failed and there is no scope.
func refused(cond, scope, failure ssa.Value, so bool) bool {
	switch c := cond.(type) {
	case *ssa.Call:
		f := callee(&c.Call)
		return so && f != nil && f.Pkg() != nil && f.Pkg().Path() == "errors" && (f.Name() == "Is" || f.Name() == "As" || f.Name() == "AsType") &&
			holds(c.Call.Args[0], failure)
	case *ssa.Extract: // of errors.AsType
		call, ok := c.Tuple.(*ssa.Call)
		return ok && refused(call, scope, failure, so)
	case *ssa.BinOp:
		if c.Op != token.NEQ && c.Op != token.EQL {
			return false
		}
		isNil := so == (c.Op == token.EQL)
		nilled := func(v ssa.Value) bool {
			k, ok := v.(*ssa.Const)
			return ok && k.IsNil()
		}
		is := func(want ssa.Value) bool { return holds(c.X, want) && nilled(c.Y) || holds(c.Y, want) && nilled(c.X) }
		return is(failure) && !isNil || is(scope) && isNil
	}
	return false
}

// holds reports whether v is want, or is read from a variable in which want was stored last.
func holds(v, want ssa.Value) bool {
	if want == nil {
		return false
	}
	if v == want {
		return true
	}
	load, ok := v.(*ssa.UnOp)
	if !ok || load.Op != token.MUL {
		return false
	}
	last, always := lastStores(load.X, load)
	if !always || len(last) != 1 || last[0].Val != want {
		return false
	}
	a, local := load.X.(*ssa.Alloc)
	return last[0].Block() == load.Block() || local && !literalsStore(a)
}

// literalsStore reports whether a literal that runs before the function ends stores in a variable of the function.
func literalsStore(a *ssa.Alloc) bool {
	var in func(v ssa.Value) bool
	in = func(v ssa.Value) bool {
		return slices.ContainsFunc(*v.Referrers(), func(use ssa.Instruction) bool {
			switch use := use.(type) {
			case *ssa.Store:
				return use.Addr == v && v != a
			case *ssa.MakeClosure:
				k := slices.Index(use.Bindings, v)
				return !(v == a && deferred(use)) && in(use.Fn.(*ssa.Function).FreeVars[k])
			}
			return false
		})
	}
	return in(a)
}

// deferred reports whether a literal is only deferred.
func deferred(literal *ssa.MakeClosure) bool {
	return !slices.ContainsFunc(*literal.Referrers(), func(use ssa.Instruction) bool {
		d, ok := use.(*ssa.Defer)
		return !ok || d.Call.Value != literal
	})
}

// closing returns a fix that defers Close after the check of NewScope's error.
func closing(pass *analysis.Pass, pos token.Pos) []analysis.SuggestedFix {
	path := around(pass, pos)
	for k, n := range path {
		assign, ok := n.(*ast.AssignStmt)
		if !ok {
			continue
		}
		block, ok := path[k+1].(*ast.BlockStmt)
		id, isName := assign.Lhs[0].(*ast.Ident)
		if !ok || !isName || id.Name == "_" || len(assign.Lhs) != 2 {
			return nil
		}
		for at, stmt := range block.List {
			if stmt != assign || at+1 == len(block.List) {
				continue
			}
			check, ok := block.List[at+1].(*ast.IfStmt)
			if !ok || check.Else != nil || check.Init != nil {
				return nil
			}
			indent := strings.Repeat("\t", max(0, pass.Fset.Position(assign.Pos()).Column-1))
			return insert("close it when the function ends", check.End(), "\n"+indent+"defer "+id.Name+".Close()")
		}
		return nil
	}
	return nil
}
