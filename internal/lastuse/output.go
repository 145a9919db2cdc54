package lastuse

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
)

// edit is text that replaces the source between two positions, which are equal for an insertion.
type edit struct {
	from, to token.Pos
	class    int // order at one position: 0 in an expression, 1 after a statement or at a block's start, 2 before a statement
	seq      int
	text     string
}

// Note describes what the rewrite does with a value.
type Note struct {
	Pos      token.Pos
	Name     string
	Released bool
	Text     string
}

// output collects the text to insert in one function.
type output struct {
	body  *body
	dry   bool // insert nothing; only find places that need flags
	again bool

	edits []edit
	notes []Note
	saved map[*event]map[*place]string
	texts map[*event][]string // after the event
	order []*event
	decls []string
	slots []string
	lists []string // slots for slices
}

func (o *output) insert(pos token.Pos, class int, text string) {
	o.edits = append(o.edits, edit{pos, pos, class, len(o.edits), text})
}

func (o *output) note(pos token.Pos, name string, released bool, format string, args ...any) {
	if !o.dry {
		if strings.HasPrefix(name, prefix) {
			name = "the slice that the loop is over"
		}
		o.notes = append(o.notes, Note{pos, name, released, fmt.Sprintf(format, args...)})
	}
}

// at returns the user's line as a quoted string.
func (o *output) at(pos token.Pos) string {
	p := o.body.pkg.Fset.Position(pos)
	return fmt.Sprintf("%q", fmt.Sprintf("%s/%s:%d", filepath.Base(filepath.Dir(p.Filename)), filepath.Base(p.Filename), p.Line))
}

func (o *output) line(pos token.Pos) int { return o.body.pkg.Fset.Position(pos).Line }

// after adds a statement after ev.
func (o *output) after(ev *event, text string) {
	if o.dry {
		return
	}
	if o.texts == nil {
		o.texts = map[*event][]string{}
	}
	if o.texts[ev] == nil {
		o.order = append(o.order, ev)
	}
	o.texts[ev] = append(o.texts[ev], text)
}

// name returns a new name.
func (o *output) name(kind string) string {
	if o.dry {
		return prefix + kind
	}
	o.body.pkg.names++
	return fmt.Sprintf("%s%s%d", prefix, kind, o.body.pkg.names)
}

// prefix is the prefix of inserted names. A package with such a name is not rewritten.
const prefix = "linstock_"

// flagOf returns the name of a place's drop flag and makes the flag if there is none.
func (o *output) flagOf(pl *place) string {
	if o == nil {
		return ""
	}
	if !pl.flagged {
		pl.flagged = true
		o.again = true
	}
	if pl.flag == "" && !o.dry {
		pl.flag = o.name("f")
		o.decls = append(o.decls, pl.flag)
	}
	return pl.flag
}

// save stores the value of a place before ev.
func (o *output) save(ev *event, pl *place) string {
	if o.dry {
		return ""
	}
	if name := o.saved[ev][pl]; name != "" {
		return name
	}
	if o.saved == nil {
		o.saved = map[*event]map[*place]string{}
	}
	if o.saved[ev] == nil {
		o.saved[ev] = map[*place]string{}
	}
	name := o.name("o")
	o.saved[ev][pl] = name
	o.insert(ev.before, 2, name+" := "+pl.v.Name()+"; ")
	return name
}

func (o *output) needsFlag(pl *place) bool { return pl.flagged && !pl.noFlag }

func (o *output) giveUp(pl *place) {
	pl.noFlag, pl.flagged = true, false
	o.again = true
}

// defined updates the flag of a place that was assigned.
func (o *output) defined(ev *event, d def, own owned, dynamic string) {
	pl := d.pl
	if own == maybe {
		o.flagOf(pl)
	}
	if d.weak || !o.needsFlag(pl) {
		return
	}
	if !ev.after.IsValid() {
		o.giveUp(pl)
		return
	}
	value := "false"
	switch own {
	case yes:
		value = "true"
	case maybe:
		value = dynamic
	}
	if !o.dry {
		o.after(ev, o.flagOf(pl)+" = "+value)
	}
}

// flags updates the flags of places that escape in ev.
func (o *output) flags(st *state, ev *event, was []owned) {
	for i, pl := range o.body.places {
		if !o.needsFlag(pl) || was[i] == st.own[i] {
			continue
		}
		assigned := false
		for _, d := range ev.defs {
			assigned = assigned || d.pl == pl && !d.weak
		}
		if assigned {
			continue
		}
		if !ev.after.IsValid() {
			o.giveUp(pl)
			continue
		}
		if !o.dry {
			o.after(ev, o.flagOf(pl)+" = "+fmt.Sprint(st.own[i] == yes))
		}
	}
}

// unless lists the variables with which a release compares. The release does nothing to a handle that one of
// them holds.
type unless struct {
	names []string // variables that are tensors
	list  string   // a slice of tensors
}

// add adds a place. It returns false if no comparison with it is possible.
func (u *unless) add(p *Package, w *place) bool {
	if w.loop != nil { // its elements live as long as the loop runs
		return false
	}
	switch w.kind {
	case oneTensor:
		u.name(w.v.Name())
	case manyTensors:
		return p.fault == forgetElements || u.slice(w.v.Name())
	case structure:
		for _, f := range p.fields(w.v.Type()) {
			if path := w.v.Name() + f.path; !f.many {
				u.name(path)
			} else if !u.slice(path) {
				return false
			}
		}
	default:
		return false
	}
	return true
}

func (u *unless) name(name string) {
	if !slices.Contains(u.names, name) {
		u.names = append(u.names, name)
	}
}

func (u *unless) slice(name string) bool {
	if u.list == "" {
		u.list = name
	}
	return u.list == name
}

func (u *unless) empty() bool { return u.list == "" && len(u.names) == 0 }

// release returns the call that releases a tensor.
func (u *unless) release(tensor, at string) string {
	names := strings.Join(u.names, ", ")
	switch {
	case u.list != "" && names != "":
		return tensor + ".LastUseUnlessIn(" + at + ", " + u.list + ", " + names + ")"
	case u.list != "":
		return tensor + ".LastUseUnlessIn(" + at + ", " + u.list + ")"
	case names != "":
		return tensor + ".LastUseUnless(" + at + ", " + names + ")"
	}
	return tensor + ".LastUse(" + at + ")"
}

// releaseText returns the text that releases the handles in the variable called name, of pl's type.
func (o *output) releaseText(pl *place, name, at string, u unless) string {
	call := func(of string) string { return u.release(of, at) }
	each := func(of string) string {
		return "for _, " + prefix + "e := range " + of + " { " + call(prefix+"e") + " }"
	}
	switch pl.kind {
	case manyTensors:
		return each(name)
	case structure:
		var texts []string
		for _, f := range o.body.pkg.fields(pl.v.Type()) {
			if f.many {
				texts = append(texts, each(name+f.path))
			} else {
				texts = append(texts, call(name+f.path))
			}
		}
		return strings.Join(texts, "; ")
	}
	return call(name)
}

// guarded returns text, under the place's flag if own is maybe.
func (o *output) guarded(pl *place, own owned, text string, reset bool) string {
	if own == maybe {
		f := o.flagOf(pl)
		if reset {
			text += "; " + f + " = false"
		}
		return "if " + f + " { " + text + " }"
	}
	if reset && o.needsFlag(pl) {
		text += "; " + o.flagOf(pl) + " = false"
	}
	return text
}

func (o *output) releasePlace(ev *event, pl *place, own owned, u unless) {
	if own == maybe {
		o.flagOf(pl)
	}
	if o.dry {
		return
	}
	text := o.releaseText(pl, pl.v.Name(), o.at(ev.after-1), u)
	o.after(ev, o.guarded(pl, own, text, true))
	where := "after its last use in line %d"
	if ev.node == nil {
		where = "on the path that does not use it, in line %d"
	}
	if own == maybe {
		where += ", if its flag is set"
	}
	o.note(pl.v.Pos(), pl.v.Name(), true, "released "+where, o.line(ev.after-1))
}

// overwrite releases the handles that a place held before ev assigned it.
func (o *output) overwrite(st *state, ev *event, pl *place, u unless) {
	own := st.own[pl.id]
	if own == maybe {
		o.flagOf(pl)
	}
	// In a loop that appends to a slice, this would compare each element with all others.
	if pl.kind == manyTensors && !u.empty() || o.dry {
		return
	}
	old := o.save(ev, pl)
	text := o.releaseText(pl, old, o.at(ev.after-1), u)
	o.after(ev, o.guarded(pl, own, text, false))
	o.note(pl.v.Pos(), pl.v.Name(), true, "released when line %d assigns it again", o.line(ev.after-1))
}

// pop clears the element after the end of a slice that ev has shortened by one: no longer slice may show a released handle.
func (o *output) pop(ev *event) {
	for _, d := range ev.defs {
		if e, ok := ast.Unparen(d.rhs).(*ast.SliceExpr); ok && !o.dry && o.body.popped(e) == d.pl {
			s, none := d.pl.v.Name(), o.name("n")
			o.slots = append(o.slots, none)
			o.after(ev, s+"[:len("+s+")+1][len("+s+")] = "+none)
		}
	}
}

// loop stores the slice that a loop is over before the loop.
func (o *output) loop(st *state, ev *event) {
	for _, d := range ev.defs {
		if r := d.pl.loop; r != nil && st.own[d.pl.id] != no && !o.dry && !o.body.withoutTemps {
			name := d.pl.v.Name()
			o.lists = append(o.lists, name)
			o.edits = append(o.edits, edit{r.For, r.X.Pos(), 3, len(o.edits), name + " = "})
			o.insert(r.X.End(), 1, "; "+o.body.pkg.source(r.For, r.X.Pos())+name)
		}
	}
}

// overwriteElements releases the handles that elements held before ev assigned them, when all new values are known.
func (o *output) overwriteElements(st *state, ev *event, res []result) {
	b := o.body
	as, ok := ev.node.(*ast.AssignStmt)
	if o.dry || !ok || as.Tok != token.ASSIGN {
		return
	}
	releases := map[ast.Expr]string{}
	for i, d := range ev.defs {
		if elem, ok := d.part.(*ast.IndexExpr); ok {
			if text := o.releaseElement(st, ev, i, res); text != "" {
				releases[elem] = text
			}
		}
	}
	if len(releases) == 0 {
		return
	}
	left := ""
	switch rhs := ast.Unparen(as.Rhs[0]); {
	case len(as.Lhs) > 1:
		elements := b.elements(as, ev)
		if len(elements) == 0 {
			left = "the statement assigns several values"
			break
		}
		o.assignAfter(ev, elements, releases)
	case b.pkg.Info.Types[rhs].IsNil():
		if b.withoutTemps {
			left = "the package does not import package tensor"
			break
		}
		none := o.name("n")
		o.slots = append(o.slots, none)
		o.edits = append(o.edits, edit{rhs.Pos(), rhs.End(), 3, len(o.edits), none + releases[ev.defs[0].part]})
	default:
		switch rhs.(type) {
		case *ast.CallExpr, *ast.Ident, *ast.IndexExpr, *ast.SelectorExpr:
			o.insert(rhs.End(), 0, releases[ev.defs[0].part])
		default:
			left = "the new value is no call or variable"
		}
	}
	for _, d := range ev.defs {
		if releases[d.part] == "" {
			continue
		}
		if left != "" {
			o.leaveElement(ev, d, left)
			continue
		}
		o.note(d.part.Pos(), d.pl.v.Name()+"[…]", true, "the element is released when line %d assigns it again", o.line(as.End()-1))
	}
}

// leaveElement records why the handle that an element held before d is left to scopes.
func (o *output) leaveElement(ev *event, d def, why string) {
	o.note(d.part.Pos(), d.pl.v.Name()+"[…]", false, "%s, so line %d does not release the element that it overwrites", why, o.line(ev.node.End()-1))
}

// releaseElement returns the call, of a method on the new value, that releases the handle that the i-th assignment of ev
// overwrites, of an element. It returns "" if the handle is not released.
func (o *output) releaseElement(st *state, ev *event, i int, res []result) string {
	b, d := o.body, ev.defs[i]
	elem := d.part.(*ast.IndexExpr)
	if d.pl.kind != manyTensors || st.own[d.pl.id] == no || res[i].own != yes {
		return ""
	}
	if st.own[d.pl.id] == maybe {
		o.leaveElement(ev, d, "the function may not own the slice")
		return ""
	}
	if !b.stable(elem.X) || !b.steady(elem.Index) {
		o.leaveElement(ev, d, "a call may change the slice or the index")
		return ""
	}
	for k := range ev.defs {
		if k != i && res[k].reach.has(d.pl.id) {
			return "" // the statement moves it
		}
	}
	linked := false
	st.links[d.pl.id].each(func(k int) { linked = linked || ev.live.has(k) })
	if linked {
		o.leaveElement(ev, d, "another variable may hold it")
		return ""
	}
	at := b.index(elem.Index, ev)
	if at == "" {
		o.leaveElement(ev, d, "its index cannot be repeated")
		return ""
	}
	return ".LastUseElement(" + o.at(ev.node.End()-1) + ", " + d.pl.v.Name() + ", " + at + ")"
}

// elements returns the elements on the left side of as that a statement after as can assign, when all values are known. It
// returns none if that would change what the program sees: each other left side must be a variable that as assigns before
// the elements, or one that no code reads if the assignment of an element panics.
func (b *body) elements(as *ast.AssignStmt, ev *event) (list []ast.Expr) {
	if b.withoutTemps || !ev.after.IsValid() {
		return nil
	}
	for _, l := range as.Lhs {
		l = ast.Unparen(l)
		v, _ := b.plain(l)
		id, name := l.(*ast.Ident)
		switch {
		case b.repeats(as, l):
			list = append(list, l)
		case name && id.Name == "_" || v != nil && len(list) == 0:
		case v == nil || !b.stable(l) || b.defers && slices.Contains(b.results(), v):
			return nil
		}
	}
	return list
}

// repeats reports whether l, on the left side of as, is an element of a slice of tensors, and is the same one after as.
func (b *body) repeats(as *ast.AssignStmt, l ast.Expr) bool {
	elem, ok := l.(*ast.IndexExpr)
	return ok && isTensors(b.pkg.Info.TypeOf(elem.X)) && b.stable(elem.X) && b.steady(elem.Index) && !b.assigns(as, elem) &&
		!strings.Contains(b.pkg.text(elem), "\n")
}

// assignAfter gives the values of the elements to new variables, and inserts a statement after ev that assigns the elements
// in their order.
func (o *output) assignAfter(ev *event, elements []ast.Expr, releases map[ast.Expr]string) {
	var left, right []string
	for _, l := range elements {
		value := o.name("e")
		o.slots = append(o.slots, value)
		o.edits = append(o.edits, edit{l.Pos(), l.End(), 3, len(o.edits), value})
		left, right = append(left, o.body.pkg.text(l)), append(right, value+releases[l])
	}
	o.insert(ev.after, 1, "; "+strings.Join(left, ", ")+" = "+strings.Join(right, ", "))
}

// index returns the text of an index of type int with the value of e, which is steady, or "".
func (b *body) index(e ast.Expr, ev *event) string {
	if tv := b.pkg.Info.Types[e]; tv.Value != nil {
		return tv.Value.ExactString()
	}
	text, t := b.pkg.text(e), b.pkg.Info.TypeOf(e)
	basic, ok := t.Underlying().(*types.Basic)
	switch {
	case !ok || basic.Info()&types.IsInteger == 0 || strings.Contains(text, "\n"):
		return ""
	case types.Identical(t, types.Typ[types.Int]):
		return text
	case b.shadowsInt(ev):
		return ""
	}
	return "int(" + text + ")"
}

// assigns reports whether a variable in e is assigned by as.
func (b *body) assigns(as *ast.AssignStmt, e ast.Expr) (found bool) {
	for _, l := range as.Lhs {
		if v, _ := b.plain(l); v != nil {
			each(e, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				found = found || ok && b.pkg.Info.Uses[id] == types.Object(v)
				return true
			})
		}
	}
	return found
}

// overwriteField releases the handle that a field held before ev assigned it, unless another field or variable holds it too.
func (o *output) overwriteField(st *state, ev *event, d def, res []result) {
	b := o.body
	if o.dry || st.own[d.pl.id] != yes || !st.held.has(d.pl.id) || !isTensor(b.pkg.Info.TypeOf(d.part)) || b.pkg.hasSlices(d.pl.v.Type()) ||
		!ev.before.IsValid() || !ev.after.IsValid() || !b.names(d.pl, ev, ev.before) {
		return
	}
	text := b.pkg.text(d.part)
	if strings.Contains(text, "\n") {
		return
	}
	var u unless
	if b.pkg.fault == forgetSiblings {
		u.name(text)
	} else if !u.add(b.pkg, d.pl) {
		return
	}
	ok := true
	compare := func(w *place) { ok = ok && b.names(w, ev, ev.after) && u.add(b.pkg, w) }
	assigned := map[*place]bool{d.pl: true}
	for k, e := range ev.defs {
		if e.pl != d.pl && (e.weak || res[k].reach.has(d.pl.id)) {
			compare(e.pl)
			ok = ok && !ev.replaces(e)
		}
		assigned[e.pl] = true
	}
	st.links[d.pl.id].each(func(w int) {
		if pl := b.places[w]; !assigned[pl] && ev.live.has(w) {
			compare(pl)
		}
	})
	if !ok {
		return
	}
	old := o.name("o")
	o.insert(ev.before, 2, old+" := "+text+"; ")
	o.after(ev, u.release(old, o.at(ev.after-1)))
	o.note(d.part.Pos(), text, true, "released when line %d assigns it again", o.line(ev.after-1))
}

func (b *body) shadowsInt(ev *event) bool {
	_, o := ev.scope.LookupParent("int", ev.before)
	return o != types.Universe.Lookup("int")
}

// hold inserts the store of a temporary.
func (o *output) hold(t *temp) string {
	if t.name == "" {
		t.name = o.name("t")
		o.slots = append(o.slots, t.name)
		args := "&" + t.name
		if t.from != nil {
			for _, e := range t.from {
				a := o.name("a")
				o.slots = append(o.slots, a)
				o.insert(e.End(), 0, ".LastUseHold(&"+a+")")
				args += ", &" + a
			}
			o.insert(t.call.End(), 0, ".LastUseHoldUnless("+args+")")
			return t.name
		}
		seen := map[*place]bool{}
		for _, pl := range t.places {
			if !seen[pl] && o.body.pkg.fault != forgetUnless {
				seen[pl] = true
				args += ", " + pl.v.Name()
			}
		}
		o.insert(t.call.End(), 0, ".LastUseHold("+args+")")
	}
	return t.name
}

// releaseBlanks releases the discarded results of ev: after it, or in the condition if ev is in the header of
// an if statement.
func (o *output) releaseBlanks(ev *event) {
	if len(ev.blanks) == 0 {
		return
	}
	header, _ := o.body.pkg.parent[ev.node].(*ast.IfStmt)
	if header != nil {
		if t, ok := o.body.pkg.Info.TypeOf(header.Cond).(*types.Basic); !ok || t != types.Typ[types.Bool] && t != types.Typ[types.UntypedBool] {
			header = nil
		}
	}
	if !ev.after.IsValid() && header == nil {
		return
	}
	names := make([]string, o.body.pkg.Info.TypeOf(ev.blanks[0].call).(*types.Tuple).Len())
	for i := range names {
		names[i] = "_"
	}
	condition := ""
	for _, bl := range ev.blanks {
		names[bl.i] = o.name("b")
		if as, ok := ev.node.(*ast.AssignStmt); ok {
			if as.Tok == token.ASSIGN {
				o.slots = append(o.slots, names[bl.i])
			}
			o.edits = append(o.edits, edit{bl.id.Pos(), bl.id.End(), 3, len(o.edits), names[bl.i]})
		}
		if header == nil {
			o.after(ev, names[bl.i]+".LastUse("+o.at(ev.after-1)+")")
		} else {
			condition += names[bl.i] + ".LastUseThen(" + o.at(header.Cond.Pos()) + ") && "
		}
		o.note(bl.call.Pos(), fmt.Sprintf("result %d of %s", bl.i+1, calleeName(bl.call)), true, "released in line %d, which discards it", o.line(ev.node.End()))
	}
	if header != nil {
		o.insert(header.Cond.Pos(), 0, condition+"(")
		o.insert(header.Cond.End(), 1, ")")
	}
	if _, statement := ev.node.(*ast.ExprStmt); statement {
		o.insert(ev.node.Pos(), 3, strings.Join(names, ", ")+" := ")
	}
}

// temporaries inserts the releases of temporaries that are made when the consumer has returned: by a method on its result,
// or by a function around the call if the result is not a tensor.
func (o *output) temporaries() {
	b := o.body
	for _, t := range b.order {
		if done := b.consumed[t.consumer]; t.inside && done[0] == t {
			text := ".LastUseOf(" + o.at(t.consumer.End()-1)
			if pos := t.consumer.Pos(); !isTensor(b.pkg.Info.TypeOf(t.consumer)) {
				// After the text before the statement, and of several calls that begin here, the outer first.
				o.edits = append(o.edits, edit{pos, pos, 4, -int(t.consumer.End()), prefix + "tensor.LastUseAfter("})
				text = ", " + o.at(t.consumer.End()-1)
			}
			for _, u := range done {
				text += ", &" + o.hold(u)
				o.note(u.call.Pos(), "result of "+calleeName(u.call), true, "released when %s has used it, in line %d", calleeName(t.consumer), o.line(t.consumer.End()-1))
			}
			// Insert this before the result is itself stored as a temporary.
			o.edits = append(o.edits, edit{t.consumer.End(), t.consumer.End(), 0, -1, text + ")"})
		}
	}
}

func (o *output) releaseTemp(ev *event, t *temp) {
	if o.dry {
		return
	}
	if t.old != nil {
		if !t.allowed {
			return
		}
		scope := ev.scope
		for scope != nil && scope != t.event.scope {
			scope = scope.Parent()
		}
		if scope == nil {
			return // the variable is out of scope
		}
		o.after(ev, t.unless.release(o.save(t.event, t.old), o.at(ev.after-1)))
		o.note(t.old.v.Pos(), t.old.v.Name(), true, "released when line %d assigns it again", o.line(t.event.before))
		return
	}
	o.after(ev, o.hold(t)+".LastUse("+o.at(ev.after-1)+")")
	o.note(t.call.Pos(), "result of "+calleeName(t.call), true, "released after line %d", o.line(ev.after-1))
}

// left records that a place is left to scopes after a use.
func (o *output) left(u use) {
	if u.pl.v != nil && u.pl.kind < carrier {
		o.note(u.pl.v.Pos(), u.pl.v.Name(), false, "%s, in line %d", u.fate.why, o.line(u.pos))
	}
}

// mixed notes why a slice or struct is not owned after d, if the reason is a tensor that d puts into it.
func (o *output) mixed(st *state, d def) {
	if d.pl.v == nil || d.pl.kind != manyTensors && d.pl.kind != structure || st.own[d.pl.id] == no || d.val.other {
		return
	}
	var not *place
	for _, w := range d.val.places {
		switch {
		case w == d.pl || st.own[w.id] == yes:
		case w.kind != oneTensor:
			return
		default:
			not = w
		}
	}
	if not != nil {
		x := not.v.Name()
		o.note(d.pl.v.Pos(), d.pl.v.Name(), false, "%s, which the function may not own, is in it; with %s.Alias() it is released", x, x)
	}
}

func (o *output) ended(pl *place) {
	if pl.kind < carrier {
		o.note(pl.v.Pos(), pl.v.Name(), false, "no statement can follow its last use")
	}
}

// finish returns the edits.
func (o *output) finish() []edit {
	for _, ev := range o.order {
		text := "; " + strings.Join(o.texts[ev], "; ")
		if ev.node == nil {
			switch o.atEnd(ev) {
			case true:
			default:
				text = " " + strings.Join(o.texts[ev], "; ") + ";"
			}
		}
		o.insert(ev.after, 1, text)
	}
	o.temporaries()
	decl := ""
	if len(o.lists) > 0 {
		decl += " var " + strings.Join(o.lists, ", ") + " []*" + prefix + "tensor.Tensor;"
	}
	if len(o.slots) > 0 {
		decl += " var " + strings.Join(o.slots, ", ") + " *" + prefix + "tensor.Tensor;"
	}
	if len(o.decls) > 0 {
		decl += " var " + strings.Join(o.decls, ", ") + " bool;"
		for _, d := range o.decls {
			decl += " _ = " + d + ";"
		}
	}
	if decl != "" {
		o.edits = append(o.edits, edit{o.body.block.Lbrace + 1, o.body.block.Lbrace + 1, 1, -1, decl})
	}
	return o.edits
}

// atEnd reports whether a block's start is after the end of a statement, not inside one.
func (o *output) atEnd(ev *event) bool { return ev.done }
