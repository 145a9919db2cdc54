package lastuse

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// fate describes what happens to the handles in an expression's value.
type fate struct {
	escapes  bool
	returned bool
	assigned bool // it is the left side of an assignment, so it is not read
	part     bool // an element or field of it is assigned
	into     []*place
	consumer *ast.CallExpr // the call of which it is an operand
	stored   bool          // it escapes: stored where it outlives the call, sent, or passed to a goroutine or to panic
	ranged   bool          // a range loop may call it, or what it carries, between its iterations
	why      string
}

func (f *fate) add(g fate) {
	f.escapes = f.escapes || g.escapes
	f.returned = f.returned || g.returned
	f.stored = f.stored || g.stored
	f.ranged = f.ranged || g.ranged
	f.into = append(f.into, g.into...)
	if f.why == "" {
		f.why = g.why
	}
}

func escape(why string) fate { return fate{escapes: true, why: why} }

func stored(why string) fate { return fate{escapes: true, stored: true, why: why} }

// placeOf returns the place to which an identifier refers, or nil.
func (b *body) placeOf(e ast.Expr) *place {
	id, ok := ast.Unparen(e).(*ast.Ident)
	if !ok {
		return nil
	}
	v, _ := b.pkg.Info.ObjectOf(id).(*types.Var)
	if v == nil {
		return nil
	}
	return b.byVar[v]
}

// base returns the place of which e is an element or field, or nil.
func (b *body) base(e ast.Expr) *place {
	var in ast.Expr
	switch e := ast.Unparen(e).(type) {
	case *ast.IndexExpr:
		if pl := b.placeOf(e.X); pl != nil && pl.kind != closure && pl.kind != structure {
			return pl
		}
		if t := b.pkg.Info.TypeOf(e.X); t == nil || !isTensors(t) {
			return nil
		}
		in = e.X
	case *ast.SelectorExpr:
		if !b.pkg.isField(e) {
			return nil
		}
		if pl := b.placeOf(e.X); pl != nil {
			return pl
		}
		in = e.X
	default:
		return nil
	}
	return b.base(in)
}

// target returns the fate of a value that is assigned to l.
func (b *body) target(l ast.Expr) fate {
	l = ast.Unparen(l)
	if id, ok := l.(*ast.Ident); ok && id.Name == "_" {
		return fate{}
	}
	if pl := b.placeOf(l); pl != nil {
		return fate{into: []*place{pl}}
	}
	if pl := b.base(l); pl != nil {
		return fate{into: []*place{pl}}
	}
	switch l := l.(type) {
	case *ast.IndexExpr:
		return fate{escapes: true, stored: b.outlives(l), why: "it is stored in an element"}
	case *ast.SelectorExpr:
		return fate{escapes: true, stored: b.outlives(l), why: "it is stored in a field or package variable"}
	case *ast.Ident:
		if v, ok := b.pkg.Info.ObjectOf(l).(*types.Var); ok {
			if why := b.untaken[v]; why != "" {
				return escape("it is stored in " + l.Name + ": " + why)
			}
			if v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
				return stored("it is stored in a package variable")
			}
		}
	}
	return escape("it is stored in a variable that is not a place")
}

// outlives reports whether l is a part of what outlives the call: of a parameter or a package variable. A local variable may
// be all that points to its parts.
func (b *body) outlives(l ast.Expr) bool {
	of, _ := b.root(l)
	v, ok := of.(*types.Var)
	return ok && (slices.Contains(b.params, v) || global(v)) || isPackage(of)
}

// inValue returns the fate of what is an element of a literal that is not followed.
func (b *body) inValue(lit ast.Expr) fate {
	return fate{escapes: true, stored: b.fate(lit).stored, why: "it is stored in a struct, map or array"}
}

func (b *body) fate(e ast.Expr) fate {
	switch p := b.pkg.parent[e].(type) {
	case *ast.ParenExpr:
		return b.fate(p)
	case *ast.CallExpr:
		return b.operand(p, e)
	case *ast.SelectorExpr:
		if s := b.pkg.Info.Selections[p]; s != nil && s.Kind() == types.FieldVal && b.pkg.isStruct(s.Recv()) {
			switch {
			case !b.pkg.isField(p):
				return fate{}
			case b.isTarget(p):
				return b.partAssigned(p)
			}
			return b.fate(p)
		}
		if s := b.pkg.Info.Selections[p]; s != nil && s.Kind() == types.FieldVal && isTensor(s.Recv()) {
			return fate{} // package tensor reads its own fields, none of which holds a handle
		}
		if call, ok := b.pkg.parent[p].(*ast.CallExpr); ok && call.Fun == ast.Expr(p) && p.X == e {
			return b.operand(call, e)
		}
		return escape("a method of it is used as a value")
	case *ast.CompositeLit:
		if b.pkg.element(p, e) {
			return b.fate(p)
		}
		return b.inValue(p)
	case *ast.KeyValueExpr:
		lit := b.pkg.parent[p].(*ast.CompositeLit)
		if b.pkg.element(lit, p) {
			return b.fate(lit)
		}
		return b.inValue(lit)
	case *ast.UnaryExpr:
		if _, ok := e.(*ast.CompositeLit); ok && p.Op == token.AND {
			return b.inValue(p)
		}
	case *ast.IndexExpr:
		if p.X != e {
			return escape("it is a key")
		}
		if b.isTarget(p) {
			return b.partAssigned(p)
		}
		return b.fateIn(p, b.pkg.Info.TypeOf(p))
	case *ast.SliceExpr:
		if p.X == e {
			f := b.fate(p)
			if p.High != nil && !p.Slice3 && (len(f.into) != 0 || b.extended(p)) && b.popped(p) == nil {
				return escape("a part of it is kept, and an append to that part writes into it")
			}
			return f
		}
	case *ast.BinaryExpr:
		return fate{}
	case *ast.TypeAssertExpr:
		return b.fateIn(p, b.pkg.Info.TypeOf(p.Type))
	case *ast.AssignStmt:
		for _, l := range p.Lhs {
			if l == e {
				return fate{assigned: true}
			}
		}
		if len(p.Lhs) == len(p.Rhs) {
			for i, r := range p.Rhs {
				if r == e {
					return b.target(p.Lhs[i])
				}
			}
		}
		if ta, ok := ast.Unparen(e).(*ast.TypeAssertExpr); ok && ta.Type != nil && len(p.Lhs) == 2 {
			return b.target(p.Lhs[0])
		}
	case *ast.ValueSpec:
		for i, r := range p.Values {
			if r == e && len(p.Names) == len(p.Values) {
				return b.target(p.Names[i])
			}
		}
		for _, id := range p.Names {
			if ast.Expr(id) == e {
				return fate{assigned: true}
			}
		}
	case *ast.ReturnStmt:
		return fate{returned: true, why: "it is returned"}
	case *ast.RangeStmt:
		switch e {
		case p.Key, p.Value:
			if _, name := ast.Unparen(e).(*ast.Ident); !name {
				return escape("a range loop assigns a part of it")
			}
			return fate{assigned: true}
		}
		t := b.pkg.Info.TypeOf(p.X)
		f := fate{ranged: t != nil && carries(t)}
		if h := b.headers[p]; h != nil {
			f.into = append(f.into, h)
		}
		if p.Value != nil {
			f.add(b.target(p.Value))
		}
		if p.Key != nil && f.ranged {
			f.add(b.target(p.Key)) // an iterator
		}
		return f
	case *ast.ExprStmt:
		return fate{}
	case *ast.IfStmt, *ast.ForStmt, *ast.SwitchStmt, *ast.CaseClause:
		return fate{}
	case *ast.SendStmt:
		return stored("it is sent to a channel")
	}
	return escape("it is used in an unknown way")
}

// popped returns s if e is s[:len(s)-1] in a statement that assigns it to s, where s is a variable whose array nothing
// else can see: s is only made, indexed, appended to, ranged over and shortened in this way.
func (b *body) popped(e *ast.SliceExpr) *place {
	pl := b.placeOf(e.X)
	if b.withoutTemps || pl == nil || pl.kind != manyTensors || pl.param >= 0 || slices.Contains(b.results(), pl.v) ||
		!b.shortens(e, pl.v) {
		return nil
	}
	p := b.pkg
	alone := true
	is := func(x ast.Expr) bool {
		id, ok := x.(*ast.Ident)
		return ok && p.Info.ObjectOf(id) == types.Object(pl.v)
	}
	// made reports whether r is a new array, or s itself.
	made := func(r ast.Expr) bool {
		switch r := ast.Unparen(r).(type) {
		case *ast.CompositeLit:
			return true
		case *ast.CallExpr:
			return p.builtin(r) == "make" || p.builtin(r) == "append" && is(r.Args[0])
		case *ast.SliceExpr:
			return b.shortens(r, pl.v)
		}
		return p.Info.Types[r].IsNil()
	}
	each(b.block, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			ast.Inspect(n, func(m ast.Node) bool {
				id, ok := m.(*ast.Ident)
				alone = alone && !(ok && is(id))
				return true
			})
			return false
		case *ast.Ident:
			if !is(n) {
				return true
			}
			switch use := p.parent[n].(type) {
			case *ast.IndexExpr:
				alone = alone && use.X == ast.Expr(n)
			case *ast.CallExpr:
				extends := p.builtin(use) == "append" && use.Args[0] == ast.Expr(n) && b.assignedTo(use, is)
				alone = alone && (extends || p.builtin(use) == "len")
			case *ast.SliceExpr:
				alone = alone && b.shortens(use, pl.v)
			case *ast.RangeStmt:
				alone = alone && use.X == ast.Expr(n) && !(use.Body.Pos() <= e.Pos() && e.Pos() < use.Body.End())
			case *ast.AssignStmt:
				i := slices.Index(use.Lhs, ast.Expr(n))
				alone = alone && i >= 0 && len(use.Lhs) == len(use.Rhs) && made(use.Rhs[i])
			case *ast.ValueSpec:
				i := slices.Index(use.Names, n)
				alone = alone && (len(use.Values) == 0 || i >= 0 && len(use.Names) == len(use.Values) && made(use.Values[i]))
			default:
				alone = false
			}
		}
		return true
	})
	if !alone {
		return nil
	}
	return pl
}

// shortens reports whether e is s[:len(s)-1] in a statement, in a list of statements, that assigns it to s.
func (b *body) shortens(e *ast.SliceExpr, s *types.Var) bool {
	p := b.pkg
	is := func(x ast.Expr) bool {
		id, ok := x.(*ast.Ident)
		return ok && p.Info.Uses[id] == types.Object(s)
	}
	minus, ok := e.High.(*ast.BinaryExpr)
	if !ok || minus.Op != token.SUB || e.Low != nil || e.Slice3 || !is(e.X) || p.text(minus.Y) != "1" {
		return false
	}
	n, ok := minus.X.(*ast.CallExpr)
	return ok && p.builtin(n) == "len" && is(n.Args[0]) && b.assignedTo(e, is) && p.listOf(p.parent[e]) != nil
}

// assignedTo reports whether e is a value that a statement assigns to a variable.
func (b *body) assignedTo(e ast.Expr, variable func(ast.Expr) bool) bool {
	as, ok := b.pkg.parent[e].(*ast.AssignStmt)
	if !ok || as.Tok != token.ASSIGN || len(as.Lhs) != len(as.Rhs) {
		return false
	}
	i := slices.Index(as.Rhs, e)
	return i >= 0 && variable(as.Lhs[i])
}

// fateIn is fate of e, an expression of type t into which the handles go. In a type that is not followed they escape.
func (b *body) fateIn(e ast.Expr, t types.Type) fate {
	if t != nil && !b.pkg.holds(t) {
		if _, basic := t.Underlying().(*types.Basic); !basic {
			return fate{escapes: true, stored: b.fate(e).stored, why: "it goes into a value that is not followed"}
		}
	}
	return b.fate(e)
}

// element reports whether an element of a composite literal is followed: in a slice, or a field of a struct.
func (p *Package) element(lit *ast.CompositeLit, e ast.Expr) bool {
	switch t := types.Unalias(p.Info.TypeOf(lit)).Underlying().(type) {
	case *types.Slice:
		return isTensors(p.Info.TypeOf(lit)) || carries(p.Info.TypeOf(lit))
	case *types.Struct:
		if !p.isStruct(p.Info.TypeOf(lit)) {
			return false
		}
		for i, x := range lit.Elts {
			if x != e {
				continue
			}
			if kv, ok := x.(*ast.KeyValueExpr); ok {
				f, ok := p.Info.Uses[kv.Key.(*ast.Ident)].(*types.Var)
				return ok && p.follows(f)
			}
			return p.follows(t.Field(i))
		}
	}
	return false
}

// extended reports whether e is the slice that a call of append extends.
func (b *body) extended(e ast.Expr) bool {
	call, ok := b.pkg.parent[e].(*ast.CallExpr)
	return ok && b.pkg.builtin(call) == "append" && call.Args[0] == e
}

// partAssigned returns the fate of a value of which an element or field, e, is assigned.
func (b *body) partAssigned(e ast.Expr) fate {
	if b.base(e) == nil {
		return escape("an element or field of it is assigned through another expression")
	}
	return fate{part: true}
}

// operandOf returns the expression of which e is an element or field.
func operandOf(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.IndexExpr:
		return e.X
	case *ast.SelectorExpr:
		return e.X
	}
	return nil
}

// isTarget reports whether e is assigned.
func (b *body) isTarget(e ast.Expr) bool {
	as, ok := b.pkg.parent[e].(*ast.AssignStmt)
	if !ok {
		return false
	}
	for _, l := range as.Lhs {
		if l == e {
			return true
		}
	}
	return false
}

// operand returns the fate of e, which is an argument or the receiver of call, or the function value that it
// calls.
func (b *body) operand(call *ast.CallExpr, e ast.Expr) fate {
	switch b.pkg.parent[call].(type) {
	case *ast.GoStmt:
		return stored("it is passed to a goroutine")
	case *ast.DeferStmt:
		return escape("it is passed to a deferred call")
	}
	if call.Fun == e { // a function value
		return fate{consumer: call}
	}
	p := b.pkg
	if tv, ok := p.Info.Types[call.Fun]; ok && tv.IsType() {
		if p.holds(p.Info.TypeOf(call)) {
			return b.fate(call)
		}
		return escape("it is converted")
	}
	switch p.builtin(call) {
	case "":
	case "len", "cap", "print", "println":
		return fate{consumer: call}
	case "append":
		f := b.fateIn(call, p.Info.TypeOf(call))
		f.add(b.extension(call, 0))
		return f
	case "panic":
		return stored("it is passed to panic")
	default:
		return escape("it is passed to a built-in function")
	}
	fact := p.callee(b, call)
	if fact == nil {
		return escape("it is passed to a function without facts")
	}
	i := p.index(call, e)
	if i < 0 || fact.retains(i) || p.prints(call) && (p.hasText(p.Info.TypeOf(e)) || i == 0 && strings.HasPrefix(calleeName(call), "Fprint")) {
		return escape(calleeName(call) + " keeps it" + b.replaced(call))
	}
	f := fate{consumer: call}
	for k, r := range fact.Results {
		for _, from := range r.From {
			if from == i || i >= len(fact.Retains)-1 && from == len(fact.Retains)-1 {
				f.add(b.resultFate(call, k))
				f.add(b.extension(call, k))
				break
			}
		}
	}
	return f
}

// prints reports whether the call formats its arguments, with their own methods if they have any.
func (p *Package) prints(call *ast.CallExpr) bool {
	sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	fn, ok := p.Info.Uses[sel.Sel].(*types.Func)
	return ok && fn.Pkg() != nil && borrowing[fn.Pkg().Path()+"."+fn.Name()]
}

// hasText reports whether a value of type t, or a part of it, may have a method of the program's that fmt calls.
func (p *Package) hasText(t types.Type) bool {
	if t == nil || isTensor(t) || isTensors(t) {
		return false
	}
	if _, basic := t.Underlying().(*types.Basic); basic {
		return false
	}
	if types.IsInterface(t) || carries(t) {
		return true
	}
	for _, name := range []string{"String", "Error", "Format", "GoString"} {
		if o, _, _ := types.LookupFieldOrMethod(t, true, p.Types, name); o != nil {
			return true
		}
	}
	if s, ok := t.Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			if p.follows(f) && p.hasText(f.Type()) {
				return true
			}
		}
	}
	return false
}

// replaced returns what to write instead of a call of Keep whose result replaces another tensor, which no scope then frees.
func (b *body) replaced(call *ast.CallExpr) string {
	as, ok := b.pkg.parent[call].(*ast.AssignStmt)
	if !ok || as.Tok != token.ASSIGN || len(as.Lhs) != len(as.Rhs) || calleeName(call) != "Keep" || !isTensor(b.pkg.Info.TypeOf(call)) {
		return ""
	}
	to := b.pkg.text(as.Lhs[slices.Index(as.Rhs, ast.Expr(call))])
	if to == "_" || strings.Contains(to, "\n") {
		return ""
	}
	return ", and what " + to + " held before stays: tensor.Replace releases it"
}

func calleeName(call *ast.CallExpr) string {
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return "a function"
}

// resultFate returns the fate of a call's k-th result.
func (b *body) resultFate(call *ast.CallExpr, k int) fate {
	if t := b.resultType(call, k); !b.pkg.holds(t) {
		return escape("a result that is not followed may hold it")
	}
	if _, ok := b.pkg.Info.TypeOf(call).(*types.Tuple); !ok {
		return b.fate(call)
	}
	switch p := b.pkg.parent[call].(type) {
	case *ast.AssignStmt:
		if len(p.Rhs) == 1 && k < len(p.Lhs) {
			return b.target(p.Lhs[k])
		}
	case *ast.ValueSpec:
		if len(p.Values) == 1 && k < len(p.Names) {
			return b.target(p.Names[k])
		}
	case *ast.ReturnStmt:
		return fate{returned: true, why: "it is returned"}
	case *ast.ExprStmt:
		return fate{}
	}
	return escape("a result that may be the same tensor is used in an unknown way")
}
