package lastuse

import (
	"bytes"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"sort"
	"strings"
)

// Package is a package to analyse: its files, parsed with comments, their types and their text.
type Package struct {
	Fset    *token.FileSet
	Files   []*ast.File
	Sources [][]byte
	Types   *types.Package
	Info    *types.Info // with Types, Defs, Uses, Selections, Scopes
	Imports Facts       // of the packages that it imports, directly or not

	parent   map[ast.Node]ast.Node
	facts    Facts
	literals map[*ast.FuncLit]*Func
	read     func(function any) // set while facts are computed: the function's, by full name or literal, are read
	analyses int                // of functions, by Analyze
	names    int
	taken    *ast.Ident // has a name that inserted text needs; the package is then not rewritten
	fault    fault
}

// NewInfo returns an Info with the maps that a Package needs.
func NewInfo() *types.Info {
	return &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Scopes: map[ast.Node]*types.Scope{}, Instances: map[*ast.Ident]types.Instance{},
		Implicits: map[ast.Node]types.Object{}, FileVersions: map[*ast.File]string{}}
}

// root is a declared function or a function literal.
type root struct {
	decl *ast.FuncDecl
	lit  *ast.FuncLit
	sig  *types.Signature
}

// Analyze computes the package's facts.
func (p *Package) Analyze() Facts {
	p.parent = map[ast.Node]ast.Node{}
	for _, f := range p.Files {
		var stack []ast.Node
		ast.Inspect(f, func(n ast.Node) bool {
			if n == nil {
				stack = stack[:len(stack)-1]
				return true
			}
			if len(stack) > 0 {
				p.parent[n] = stack[len(stack)-1]
			}
			if id, ok := n.(*ast.Ident); ok && p.taken == nil && id != f.Name && p.takes(id) {
				p.taken = id
			}
			stack = append(stack, n)
			return true
		})
	}
	p.facts, p.literals = Facts{}, map[*ast.FuncLit]*Func{}
	for name, f := range p.Imports {
		p.facts[name] = f
	}
	own := Facts{}
	roots := p.roots()
	facts := map[root]*Func{}
	set := func(r root, f *Func) {
		facts[r] = f
		switch {
		case r.lit != nil:
			p.literals[r.lit] = f
		case r.decl.Name.Name != "_" && r.decl.Name.Name != "init": // several may have these names; nothing calls them
			name := p.Info.Defs[r.decl.Name].(*types.Func).FullName()
			own[name], p.facts[name] = f, f
		}
	}
	for _, r := range roots {
		n := r.sig.Params().Len()
		if r.sig.Recv() != nil {
			n++
		}
		set(r, &Func{Retains: make([]bool, n), Results: make([]Result, r.sig.Results().Len())})
	}
	// A function is analysed again when the facts of one that it refers to have changed.
	readers := map[any][]root{} // by full name or literal
	queued := map[root]bool{}
	for _, r := range roots {
		queued[r] = true
	}
	for work := slices.Clone(roots); len(work) > 0; work = work[1:] {
		r := work[0]
		queued[r] = false
		p.analyses++
		seen := map[any]bool{}
		p.read = func(function any) {
			if !seen[function] {
				seen[function] = true
				if !slices.Contains(readers[function], r) {
					readers[function] = append(readers[function], r)
				}
			}
		}
		b := p.newBody(r.decl, r.lit, r.sig)
		b.flow(nil)
		if f := facts[r].merge(b.fact); !f.equal(facts[r]) {
			set(r, f)
			for _, q := range readers[r.function(p)] {
				if !queued[q] {
					queued[q] = true
					work = append(work, q)
				}
			}
		}
	}
	p.read = nil
	return own
}

// takes reports whether id has a name that inserted text declares, or declares one that it uses.
func (p *Package) takes(id *ast.Ident) bool {
	if o := p.Info.ObjectOf(id); o != nil && o.Parent() == nil { // a field or method
		return false
	}
	_, declares := p.Info.Defs[id]
	return strings.HasPrefix(id.Name, prefix) || declares && (id.Name == "bool" || id.Name == "true" || id.Name == "false")
}

// function returns what identifies the function to its callers: the literal, or the full name.
func (r root) function(p *Package) any {
	if r.lit != nil {
		return r.lit
	}
	return p.Info.Defs[r.decl.Name].(*types.Func).FullName()
}

// factsOf returns the facts of a function, or nil.
func (p *Package) factsOf(fn *types.Func) *Func {
	if p.read != nil && fn.Pkg() == p.Types {
		p.read(fn.Origin().FullName())
	}
	return p.facts.of(fn)
}

// factsOfLiteral returns the facts of a function literal, or nil.
func (p *Package) factsOfLiteral(lit *ast.FuncLit) *Func {
	if p.read != nil {
		p.read(lit)
	}
	return p.literals[lit]
}

// merge returns the union of two facts of one function.
func (f *Func) merge(g *Func) *Func {
	m := &Func{Retains: make([]bool, len(f.Retains)), Results: make([]Result, len(f.Results))}
	for i := range m.Retains {
		m.Retains[i] = f.Retains[i] || g.Retains[i]
	}
	for i := range m.Results {
		m.Results[i].Other = f.Results[i].Other || g.Results[i].Other
		for _, r := range []Result{f.Results[i], g.Results[i]} {
			for _, k := range r.From {
				m.Results[i].addFrom(k)
			}
		}
	}
	return m
}

// roots returns the functions with bodies and all function literals, inner literals first.
func (p *Package) roots() (list []root) {
	for _, f := range p.Files {
		for _, d := range f.Decls {
			var lits []*ast.FuncLit
			ast.Inspect(d, func(n ast.Node) bool {
				if l, ok := n.(*ast.FuncLit); ok {
					lits = append(lits, l)
				}
				return true
			})
			for i := len(lits) - 1; i >= 0; i-- {
				if sig, ok := p.Info.TypeOf(lits[i]).(*types.Signature); ok {
					list = append(list, root{lit: lits[i], sig: sig})
				}
			}
			if fd, ok := d.(*ast.FuncDecl); ok && fd.Body != nil {
				if fn, ok := p.Info.Defs[fd.Name].(*types.Func); ok {
					list = append(list, root{decl: fd, sig: fn.Signature()})
				}
			}
		}
	}
	return list
}

// text returns the source of an expression.
func (p *Package) text(e ast.Expr) string { return p.source(e.Pos(), e.End()) }

// source returns the source between two positions.
func (p *Package) source(from, to token.Pos) string {
	for i, f := range p.Files {
		if f.FileStart <= from && from < f.FileEnd {
			return string(p.Sources[i][p.offset(from):p.offset(to)])
		}
	}
	return ""
}

func (p *Package) offset(pos token.Pos) int { return p.Fset.File(pos).Offset(pos) }

// Rewrite returns the sources with releases, nil for files without any, and a note for each value. Analyze must
// have been called. Temporaries are released only if importsTensor is set: the package imports package tensor
// directly.
func (p *Package) Rewrite(importsTensor bool) (sources [][]byte, notes []Note) {
	if p.taken != nil {
		const why = "the package is compiled without releases: inserted text needs this name"
		return make([][]byte, len(p.Files)), []Note{{p.taken.Pos(), p.taken.Name, false, why}}
	}
	edits := make([][]edit, len(p.Files))
	slots := make([]bool, len(p.Files))
	for _, r := range p.roots() {
		var n ast.Node = r.decl
		if r.lit != nil {
			n = r.lit
		}
		at := -1
		for i, f := range p.Files {
			if f.FileStart <= n.Pos() && n.Pos() < f.FileEnd {
				at = i
			}
		}
		if at < 0 {
			continue
		}
		b := p.newBody(r.decl, r.lit, r.sig)
		b.withoutTemps = !importsTensor
		out := &output{}
		b.flow(out)
		if b.leave != "" {
			notes = append(notes, Note{Pos: n.Pos(), Name: b.name, Text: "left alone: " + b.leave})
			continue
		}
		edits[at] = append(edits[at], out.finish()...)
		slots[at] = slots[at] || len(out.slots)+len(out.lists) > 0
		notes = append(notes, out.notes...)
		notes = append(notes, b.notes()...)
		notes = append(notes, b.neverOwned(out.notes)...)
	}
	for i, f := range p.Files {
		types, left := p.layers(f)
		notes = append(notes, left...)
		if importsTensor && len(types) > 0 {
			text := ""
			for _, t := range types {
				text += " " + prefix + "tensor.LastUseLayer[" + t + "]();"
			}
			end := f.Decls[len(f.Decls)-1].End()
			edits[i] = append(edits[i], edit{end, end, 4, 0, "; func init() {" + text + " }"})
			slots[i] = true
		}
	}
	sources = make([][]byte, len(p.Files))
	for i, f := range p.Files {
		if len(edits[i]) == 0 {
			continue
		}
		if slots[i] {
			edits[i] = append(edits[i], edit{f.Name.End(), f.Name.End(), 0, 0, "; import " + prefix + "tensor \"" + tensorPath + "\""})
		}
		sources[i] = p.apply(i, edits[i])
	}
	sort.SliceStable(notes, func(i, k int) bool { return notes[i].Pos < notes[k].Pos })
	return sources, notes
}

// layers returns the names of the types whose methods Forward, declared in f, keep the contract of nn.Layer, and notes about
// those that may not.
func (p *Package) layers(f *ast.File) (names []string, left []Note) {
	for _, d := range f.Decls {
		fd, ok := d.(*ast.FuncDecl)
		if !ok || fd.Body == nil || fd.Recv == nil {
			continue
		}
		fn, ok := p.Info.Defs[fd.Name].(*types.Func)
		if !ok || !isForward(fn.Name(), fn.Signature()) {
			continue
		}
		t := types.Unalias(fn.Signature().Recv().Type())
		if pointer, ok := t.(*types.Pointer); ok {
			t = types.Unalias(pointer.Elem())
		}
		why := ""
		switch n, ok := t.(*types.Named); {
		case !ok || n.TypeParams().Len() > 0:
			why = "the type is generic"
		case p.facts.of(fn).retains(1):
			why = "it may keep its argument"
		case !p.facts.of(fn).borrows():
			why = "it may return a tensor that others hold"
		default:
			names = append(names, n.Obj().Name())
			continue
		}
		left = append(left, Note{fd.Name.Pos(), "Forward", false, "nn.Pipe releases neither its argument nor its result: " + why})
	}
	return names, left
}

func (p *Package) apply(file int, edits []edit) []byte {
	sort.SliceStable(edits, func(i, k int) bool {
		a, b := edits[i], edits[k]
		if a.from != b.from {
			return a.from < b.from
		}
		if a.class != b.class {
			return a.class < b.class
		}
		return a.seq < b.seq
	})
	src := p.Sources[file]
	var out bytes.Buffer
	at := 0
	for _, e := range edits {
		from, to := p.offset(e.from), p.offset(e.to)
		out.Write(src[at:from])
		out.WriteString(e.text)
		at = to
	}
	out.Write(src[at:])
	return out.Bytes()
}

// notes returns the reasons why variables are not places and temporaries are not released.
func (b *body) notes() (notes []Note) {
	for v, why := range b.untaken {
		if t := v.Type(); isTensor(t) || isTensors(t) || b.pkg.isStruct(t) {
			notes = append(notes, Note{v.Pos(), v.Name(), false, why})
		}
	}
	each(b.block, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !isTensor(b.pkg.Info.TypeOf(call)) || b.temps[call] != nil {
			return true
		}
		switch parent := b.pkg.parent[call].(type) {
		case *ast.CallExpr, *ast.CompositeLit, *ast.KeyValueExpr:
		case *ast.SelectorExpr:
			if parent.X != ast.Expr(call) {
				return true
			}
		default:
			return true
		}
		why := "its uses are unknown"
		switch v := b.val(call); {
		case b.pkg.callee(b, call) == nil:
			why = calleeName(call) + " has no facts"
		case v.other:
			why = calleeName(call) + " may return a handle that others hold"
		default:
			f := b.fate(call)
			if f.returned || len(f.into) > 0 && !f.escapes { // a variable holds it
				return true
			}
			if c := b.consumer(call); c != nil && (b.followed(c) || b.enclosed(c)) {
				why = "it would be held while other calls of the statement run"
			}
			for _, pl := range v.places {
				if pl.v != nil && pl.loop == nil && pl.kind != oneTensor {
					why = "it may be a tensor in " + pl.v.Name()
				}
			}
			if f.why != "" {
				why = f.why
			}
		}
		notes = append(notes, Note{call.Pos(), "result of " + calleeName(call), false, why})
		return true
	})
	return notes
}

// neverOwned returns a note for each variable without one that is assigned a handle of unknown origin.
func (b *body) neverOwned(known []Note) (notes []Note) {
	seen := map[token.Pos]bool{}
	for _, n := range known {
		seen[n.Pos] = true
	}
	for _, bl := range b.blocks() {
		for _, ev := range bl.events {
			for _, d := range ev.defs {
				if d.pl.v == nil || d.pl.loop != nil || d.pl.kind >= carrier || !d.val.other || seen[d.pl.v.Pos()] {
					continue
				}
				seen[d.pl.v.Pos()] = true
				notes = append(notes, Note{d.pl.v.Pos(), d.pl.v.Name(), false, "it may be a handle that others hold"})
			}
		}
	}
	return notes
}

// String returns the note as a line in the style of -gcflags=-m.
func (n Note) String() string {
	var s strings.Builder
	s.WriteString(n.Name + ": ")
	if !n.Released {
		s.WriteString("left to scopes: ")
	}
	s.WriteString(n.Text)
	return s.String()
}
