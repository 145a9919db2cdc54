package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/buildssa"
	"golang.org/x/tools/go/ast/astutil"
	"golang.org/x/tools/go/ssa"
)

// source holds what the analyzers share about a package.
type source struct {
	fns   []*ssa.Function // including literals and the bodies of ranges over functions
	iters map[*ssa.Function]bool
	body  map[*ssa.Function]bodyKind
}

// bodyKind is the way in which a function is run in a scope.
type bodyKind int

const (
	noBody      bodyKind = iota
	bodyPlain            // of WithScope: returns no tensor
	bodyTidy             // its result moves out
	bodyLoop             // of a loop over a scoped iterator
	bodyOperate          // autograd.Function's Forward and Backward
)

var sourceAnalyzer = &analysis.Analyzer{
	Name:       "linstocksource",
	Doc:        "find the functions that run in scopes",
	Requires:   []*analysis.Analyzer{buildssa.Analyzer},
	ResultType: reflect.TypeFor[*source](),
	Run: func(pass *analysis.Pass) (any, error) {
		s := &source{iters: map[*ssa.Function]bool{}, body: map[*ssa.Function]bodyKind{}}
		if !uses(pass.Pkg) {
			return s, nil
		}
		built := pass.ResultOf[buildssa.Analyzer].(*buildssa.SSA)
		var add func(fn *ssa.Function)
		add = func(fn *ssa.Function) {
			s.fns = append(s.fns, fn)
			for _, a := range fn.AnonFuncs {
				add(a)
			}
		}
		for _, fn := range built.SrcFuncs {
			if fn.Parent() == nil {
				add(fn)
			}
		}
		// Literals in package variables.
		if init := built.Pkg.Func("init"); init != nil {
			for _, a := range init.AnonFuncs {
				add(a)
			}
		}
		// A loop over an iterator of the package can make another iterator scoped.
		for before := -1; before != len(s.iters)+len(s.body); {
			before = len(s.iters) + len(s.body)
			s.findBodies()
			s.findIterators()
		}
		return s, nil
	},
}

func instructions(fn *ssa.Function, f func(ssa.Instruction)) {
	for _, b := range fn.Blocks {
		for _, i := range b.Instrs {
			f(i)
		}
	}
}

func (s *source) findBodies() {
	for _, fn := range s.fns {
		if fn.Signature.Recv() != nil && (fn.Name() == "Forward" || fn.Name() == "Backward") &&
			len(fn.Params) > 1 && is(fn.Params[1].Type(), "autograd", "Context") {
			s.body[fn] = bodyOperate
		}
		instructions(fn, func(i ssa.Instruction) {
			call, ok := i.(ssa.CallInstruction)
			if !ok {
				return
			}
			c := call.Common()
			if moves, ok := bodies[called(c)]; ok {
				for _, a := range c.Args {
					if f := declared(a); f != nil {
						s.body[f] = bodyPlain
						if moves {
							s.body[f] = bodyTidy
						}
					}
				}
			} else if s.scopedIterator(c.Value) && len(c.Args) == 1 {
				if f := declared(c.Args[0]); f != nil {
					s.body[f] = bodyLoop
				}
			}
		})
	}
}

// literal returns the function that a value is, if that is known.
func literal(v ssa.Value) *ssa.Function {
	switch v := v.(type) {
	case *ssa.MakeClosure:
		return v.Fn.(*ssa.Function)
	case *ssa.Function:
		return v
	case *ssa.ChangeType:
		return literal(v.X)
	}
	return nil
}

// declared is literal, except that it returns the method for a method value, and the generic function for an instance.
func declared(v ssa.Value) *ssa.Function {
	fn := literal(v)
	if fn == nil {
		return nil
	}
	if f, ok := fn.Object().(*types.Func); ok {
		if fn := fn.Prog.FuncValue(f.Origin()); fn != nil {
			return fn
		}
	}
	return fn
}

// scopedIterator reports whether v is an iterator that opens a scope around each iteration of the loop's body.
func (s *source) scopedIterator(v ssa.Value) bool { return s.isScoped(v, map[ssa.Value]bool{}) }

func (s *source) isScoped(v ssa.Value, seen map[ssa.Value]bool) bool {
	if seen[v] || !iterates(v.Type()) {
		return false
	}
	seen[v] = true
	switch v := v.(type) {
	case *ssa.ChangeType:
		return s.isScoped(v.X, seen)
	case *ssa.Call:
		return scopedIterators[called(&v.Call)] || s.iters[static(&v.Call)]
	case *ssa.Phi:
		for _, e := range v.Edges {
			if s.isScoped(e, seen) {
				return true
			}
		}
	case *ssa.UnOp:
		// A variable captured by a literal.
		if v.Op == token.MUL {
			for _, val := range storedIn(origin(v.X)) {
				if s.isScoped(val, seen) {
					return true
				}
			}
		}
	case *ssa.MakeClosure, *ssa.Function:
		if fn := literal(v); len(fn.Params) == 1 && len(fn.Blocks) != 0 {
			return s.yieldsInScope(fn.Params[0], map[ssa.Value]bool{})
		}
	}
	return false
}

// iterates reports whether t is func(yield func(…) bool).
func iterates(t types.Type) bool {
	f, ok := t.Underlying().(*types.Signature)
	if !ok || f.Params().Len() != 1 || f.Results().Len() != 0 {
		return false
	}
	yield, ok := f.Params().At(0).Type().Underlying().(*types.Signature)
	return ok && yield.Results().Len() == 1 && types.Identical(yield.Results().At(0).Type(), types.Typ[types.Bool])
}

// findIterators finds the functions that return scoped iterators.
func (s *source) findIterators() {
	for _, fn := range s.fns {
		instructions(fn, func(i ssa.Instruction) {
			if r, ok := i.(*ssa.Return); ok && len(r.Results) == 1 && s.scopedIterator(r.Results[0]) {
				s.iters[fn] = true
			}
		})
	}
}

// yieldsInScope reports whether the function value yield is called while a scope is open.
func (s *source) yieldsInScope(yield ssa.Value, seen map[ssa.Value]bool) bool {
	if seen[yield] || yield.Referrers() == nil {
		return false
	}
	seen[yield] = true
	for _, use := range *yield.Referrers() {
		switch use := use.(type) {
		case *ssa.Store:
			if a, ok := use.Addr.(*ssa.Alloc); ok && use.Val == yield && s.yieldsInScope(a, seen) {
				return true
			}
		case *ssa.UnOp:
			if s.yieldsInScope(use, seen) {
				return true
			}
		case *ssa.MakeClosure:
			fn := use.Fn.(*ssa.Function)
			for k, b := range use.Bindings {
				if b == yield && s.yieldsInScope(fn.FreeVars[k], seen) {
					return true
				}
			}
		case ssa.CallInstruction:
			c := use.Common()
			to := static(c)
			inside := s.inScope(use)
			if c.Value == yield && inside {
				return true
			}
			for k, a := range c.Args {
				if a != yield {
					continue
				}
				if to == nil || len(to.Blocks) == 0 {
					continue
				}
				if inside || s.yieldsInScope(to.Params[k], seen) {
					return true
				}
			}
		}
	}
	return false
}

// inScope reports whether the instruction is in the body of a scope, or after a NewScope of its function.
func (s *source) inScope(i ssa.Instruction) bool {
	for fn := i.Parent(); fn != nil; fn = fn.Parent() {
		if s.body[fn] != noBody {
			return true
		}
	}
	found := false
	instructions(i.Parent(), func(o ssa.Instruction) {
		if c, ok := o.(*ssa.Call); ok && called(&c.Call) == newScope && openAfter(c).at(i) {
			found = true
		}
	})
	return found
}

// opening says where in its function the scope of a call of NewScope is open.
type opening struct {
	opened *ssa.Call
	blocks map[*ssa.BasicBlock]bool // those at whose beginning the scope is open, on every path to them
}

func openAfter(opened *ssa.Call) *opening {
	o := &opening{opened, map[*ssa.BasicBlock]bool{}}
	scope, failure := resultsOf(opened)
	all := opened.Parent().Blocks
	for _, b := range all {
		o.blocks[b] = len(b.Preds) > 0
	}
	for changed := true; changed; {
		changed = false
		for _, b := range all {
			for _, p := range b.Preds {
				open := o.until(p, nil)
				if cond, ok := p.Instrs[len(p.Instrs)-1].(*ssa.If); ok && refused(cond.Cond, scope, failure, p.Succs[0] == b) {
					open = false
				}
				if o.blocks[b] && !open {
					o.blocks[b], changed = false, true
				}
			}
		}
	}
	return o
}

// at reports whether the scope is open where an instruction runs, on every path to it.
func (o *opening) at(i ssa.Instruction) bool { return o.until(i.Block(), i) }

// until reports whether the scope is open before an instruction of b, or at the end of b.
func (o *opening) until(b *ssa.BasicBlock, end ssa.Instruction) bool {
	open := o.blocks[b]
	for _, i := range b.Instrs {
		if i == end {
			break
		}
		call, ok := i.(*ssa.Call)
		switch {
		case !ok:
		case call == o.opened:
			open = true
		case called(&call.Call) == closeScope:
			other, ok := arguments(&call.Call)[0].(*ssa.Extract)
			open = open && ok && other.Tuple != o.opened
		}
	}
	return open
}

// before reports whether every path to b passes a.
func before(a, b ssa.Instruction) bool {
	if a.Block() != b.Block() {
		return a.Block().Dominates(b.Block())
	}
	for _, i := range a.Block().Instrs {
		if i == a {
			return a != b
		}
		if i == b {
			return false
		}
	}
	return false
}

// origin returns the variable that a captured one refers to.
func origin(v ssa.Value) ssa.Value {
	for {
		free, ok := v.(*ssa.FreeVar)
		if !ok || free.Parent().Parent() == nil {
			return v
		}
		outer := ssa.Value(nil)
		instructions(free.Parent().Parent(), func(i ssa.Instruction) {
			if c, ok := i.(*ssa.MakeClosure); ok && c.Fn == free.Parent() {
				for k, f := range free.Parent().FreeVars {
					if f == free {
						outer = c.Bindings[k]
					}
				}
			}
		})
		if outer == nil {
			return v
		}
		v = outer
	}
}

// storedIn returns the values that its own function stores in a variable.
func storedIn(v ssa.Value) (vals []ssa.Value) {
	if a, ok := v.(*ssa.Alloc); ok {
		for _, use := range *a.Referrers() {
			if st, ok := use.(*ssa.Store); ok && st.Addr == a {
				vals = append(vals, st.Val)
			}
		}
	}
	return vals
}

// lastStores returns the stores in a variable that may be the last one before an instruction of the same function, and
// whether there is one on every path to it.
func lastStores(addr ssa.Value, at ssa.Instruction) (last []*ssa.Store, always bool) {
	always = true
	seen := map[*ssa.BasicBlock]bool{}
	var back func(b *ssa.BasicBlock, end int)
	back = func(b *ssa.BasicBlock, end int) {
		for _, i := range slices.Backward(b.Instrs[:end]) {
			if st, ok := i.(*ssa.Store); ok && st.Addr == addr {
				last = append(last, st)
				return
			}
		}
		always = always && len(b.Preds) > 0
		for _, p := range b.Preds {
			if !seen[p] {
				seen[p] = true
				back(p, len(p.Instrs))
			}
		}
	}
	back(at.Block(), index(at))
	return last, always
}

// report is pass.Report, except for reports that a comment silences.
func report(pass *analysis.Pass, d analysis.Diagnostic) {
	file := fileOf(pass, d.Pos)
	if file != nil {
		line := pass.Fset.Position(d.Pos).Line
		for _, group := range file.Comments {
			for _, c := range group.List {
				rest, ok := strings.CutPrefix(c.Text, "//linstockvet:ignore")
				at := pass.Fset.Position(c.Pos()).Line
				if !ok || at != line && at != line-1 {
					continue
				}
				if words := strings.Fields(rest); len(words) > 1 && words[0] == pass.Analyzer.Name {
					return
				}
			}
		}
	}
	d.Category = pass.Analyzer.Name
	// Code generated by cgo cannot be edited.
	if pass.Fset.PositionFor(d.Pos, false).Filename != pass.Fset.Position(d.Pos).Filename {
		d.SuggestedFixes = nil
	}
	pass.Report(d)
}

func fileOf(pass *analysis.Pass, pos token.Pos) *ast.File {
	for _, f := range pass.Files {
		if f.FileStart <= pos && pos < f.FileEnd {
			return f
		}
	}
	return nil
}

// around returns the path of syntax nodes from pos outward.
func around(pass *analysis.Pass, pos token.Pos) []ast.Node {
	f := fileOf(pass, pos)
	if f == nil || !pos.IsValid() {
		return nil
	}
	path, _ := astutil.PathEnclosingInterval(f, pos, pos)
	return path
}

// within returns the innermost node of a kind around pos.
func within[N ast.Node](pass *analysis.Pass, pos token.Pos) (n N, ok bool) {
	for _, a := range around(pass, pos) {
		if n, ok := a.(N); ok {
			return n, true
		}
	}
	return n, false
}

func insert(message string, pos token.Pos, text string) []analysis.SuggestedFix {
	return []analysis.SuggestedFix{{Message: message, TextEdits: []analysis.TextEdit{{Pos: pos, End: pos, NewText: []byte(text)}}}}
}
