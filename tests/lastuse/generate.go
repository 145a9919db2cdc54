package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// prelude contains the functions that generated programs call: one for each way in which a handle can be
// borrowed, kept, passed on or made.
const prelude = `
import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

var _ = autograd.NoGrad
var _ nn.Layer
var _ = slices.Values[[]int]

// run collects the output of a program and the native bytes at its probes.
type run struct {
	strings.Builder
	Bytes    []int64
	Released string // the first ErrReleased
	n        int
}

func (r *run) show(x *tensor.Tensor) {
	if x == nil {
		r.WriteString("nil ")
		return
	}
	v, err := tensor.Data[float32](x)
	if errors.Is(err, tensor.ErrReleased) {
		// Not the error's text, since it names the lines that made the tensor, which are recorded for samples only.
		r.WriteString("released ")
		if r.Released == "" {
			r.Released = err.Error()
		}
		return
	}
	if err != nil {
		r.WriteString("error ")
		return
	}
	fmt.Fprintf(r, "%v ", v)
}

func (r *run) probe() {
	s, err := vram.Stats(tensor.CPU)
	if err != nil {
		panic(err)
	}
	r.Bytes = append(r.Bytes, s.Allocated)
}

// yes is a condition that the compiler does not know.
func (r *run) yes(k int) bool { r.n++; return (r.n*7+k)%3 != 0 }

type keeper struct {
	last *tensor.Tensor
	all  []*tensor.Tensor
	by   map[string]*tensor.Tensor
}

func fresh(x *tensor.Tensor) *tensor.Tensor { return x.Mul(0.5).Add(1) }
func pass(x *tensor.Tensor) *tensor.Tensor { return x }
func pick(on bool, x, y *tensor.Tensor) *tensor.Tensor {
	if on {
		return x
	}
	return y
}
func maybe(on bool, x *tensor.Tensor) *tensor.Tensor {
	if on {
		x = x.Neg()
	}
	return x
}
func same[T any](x T) T { return x }
func both(x *tensor.Tensor) (*tensor.Tensor, *tensor.Tensor) { return x.Sin(), x.Cos() }
func twin(x *tensor.Tensor) (*tensor.Tensor, *tensor.Tensor) { y := x.Neg(); return y, y }
func with(x *tensor.Tensor) (*tensor.Tensor, error) {
	y := x.Exp()
	if x.Dim() > 5 {
		return nil, errors.New("too many")
	}
	return y.Neg(), nil
}
func through(x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil }
func list(x *tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{x.Neg(), x.Sin()} }
func first(xs []*tensor.Tensor) *tensor.Tensor { return xs[0] }
func sum(xs ...*tensor.Tensor) *tensor.Tensor {
	s := tensor.Zeros([]int{4})
	for _, x := range xs {
		s = s.Add(x)
	}
	return s
}
func (k *keeper) keep(x *tensor.Tensor) *tensor.Tensor { k.last = x; return x.Neg() }
func (k *keeper) push(x *tensor.Tensor) { k.all = append(k.all, x) }
func (k *keeper) name(x *tensor.Tensor) { k.by["x"] = x }
func (k *keeper) Forward(x *tensor.Tensor) *tensor.Tensor {
	if x.Dim() == 1 {
		return x.Neg()
	}
	return x
}
func named(x *tensor.Tensor) (y *tensor.Tensor, err error) {
	y = x.Sin()
	if x.Dim() > 5 {
		err = errors.New("too many")
		return
	}
	y = y.Add(x)
	return
}
func apply(x *tensor.Tensor, f func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor { return f(x) }
func deferred(r *run, x *tensor.Tensor) *tensor.Tensor {
	y := x.Neg()
	defer r.show(y)
	defer func() { r.show(x) }()
	return y.Add(x)
}
func count(n int, x *tensor.Tensor) *tensor.Tensor {
	if n == 0 {
		return x
	}
	return count(n-1, x.Neg())
}
func put(xs []*tensor.Tensor, x *tensor.Tensor) { xs[0] = x }
func second(a, b *tensor.Tensor) *tensor.Tensor { return b }
func latest(xs ...*tensor.Tensor) *tensor.Tensor { return xs[len(xs)-1] }
func (k *keeper) two(x *tensor.Tensor) (*tensor.Tensor, *tensor.Tensor) { k.last = x.Sin(); return x, k.last }
func chosen(i int, a, b *tensor.Tensor) *tensor.Tensor { return []*tensor.Tensor{a, b}[i] }
func these(xs []*tensor.Tensor) []*tensor.Tensor { return xs }
func swapped(p pair) pair { return pair{p.b, p.a} }
func wrapped[S ~[]E, E any](x E) S { return S{x} }
func halted(x *tensor.Tensor) (y *tensor.Tensor) {
	defer func() { _ = recover() }()
	y = x.Sin()
	if x.Dim() >= 0 {
		panic("halted")
	}
	y = x.Neg()
	return y
}
func yielding(xs []*tensor.Tensor) func(yield func(*tensor.Tensor) bool) {
	return func(yield func(*tensor.Tensor) bool) {
		for _, x := range xs {
			if !yield(x) {
				return
			}
		}
	}
}
func appended(xs []*tensor.Tensor, x *tensor.Tensor) []*tensor.Tensor { return append(xs, x) }
func negate(xs []*tensor.Tensor) {
	for i, x := range xs {
		y := x.Neg()
		xs[i] = y
	}
}
func fill(xs []*tensor.Tensor, x *tensor.Tensor) {
	for i := range xs {
		xs[i] = x.Mul(0.5)
	}
}
func crossed(a, b *tensor.Tensor) (*tensor.Tensor, *tensor.Tensor) { return b, a }
func paired(a, b *tensor.Tensor) (*tensor.Tensor, *tensor.Tensor) { return a.Sin(), b.Neg() }
func reads(xs []*tensor.Tensor) int { return len(xs) }
func mean(x *tensor.Tensor) float64 { v, _ := x.Mean().Item(); return v }
func meanOf(x *tensor.Tensor) (float64, error) { return x.Mean().Item() }
func twice(v float64, err error) float64 { return 2 * v }
func (c *chest) with(i int, x *tensor.Tensor) []*tensor.Tensor { return append(c.items[:i], x) }
func (c *chest) holds(i int, x *tensor.Tensor) []*tensor.Tensor { xs := c.items[:i]; return append(xs, x) }

type chest struct{ items []*tensor.Tensor }

type pair struct{ a, b *tensor.Tensor }

type group struct {
	n  int
	p  pair
	xs []*tensor.Tensor
}

func halves(x *tensor.Tensor) pair { return pair{x.Mul(0.5), x.Neg()} }
func around(x *tensor.Tensor) pair { y := x.Neg(); return pair{b: y, a: y} }
func holding(x *tensor.Tensor) (p pair, err error) {
	p.a = x
	p.b = x.Sin()
	if x.Dim() > 5 {
		err = errors.New("too many")
	}
	return
}
func step(p pair, x *tensor.Tensor) pair { return pair{p.a.Add(x), p.b.Add(p.a)} }
func shift(p pair, x *tensor.Tensor) pair { p.a = p.b; p.b = x.Neg(); return p }
func total(p pair) *tensor.Tensor { return p.a.Add(p.b) }
func (p pair) one() *tensor.Tensor { return p.a }
func (p *pair) set(x *tensor.Tensor) { p.b = x }
func (k *keeper) both(p pair) { k.last = p.b }
func grouped(p pair) group { return group{p: p, xs: []*tensor.Tensor{p.a, p.b.Neg()}} }
func (g group) sum() *tensor.Tensor { return sum(g.xs...).Add(g.p.a) }

type holder struct{ *tensor.Tensor }

func held(x *tensor.Tensor) holder { return holder{x.Neg()} }
func call(f func() *tensor.Tensor) *tensor.Tensor { return f() }
func recovered(x *tensor.Tensor) (y *tensor.Tensor) {
	y = x.Sin()
	defer func() {
		if recover() != nil {
			y = y.Add(x)
		}
	}()
	y = y.Neg()
	panic("recovered")
}
func each(x *tensor.Tensor, n int) iter.Seq2[int, *tensor.Tensor] {
	return func(yield func(int, *tensor.Tensor) bool) {
		for i := range n {
			y := x.Neg()
			if !yield(i, y) {
				return
			}
			x = y.Add(x)
		}
	}
}
func values(x *tensor.Tensor) iter.Seq[*tensor.Tensor] {
	return func(yield func(*tensor.Tensor) bool) { _ = yield(x) && yield(x.Neg()) && yield(x.Sin()) }
}
`

// generator writes one function.
type generator struct {
	r     *rand.Rand
	b     strings.Builder
	depth int
	next  int
	ts    []string // tensor variables in scope
	ss    []string // slices in scope
	fs    []string // closures in scope
	ps    []string // structs in scope
	loop  int
	size  int
}

func (g *generator) line(format string, args ...any) {
	g.b.WriteString(strings.Repeat("\t", g.depth+1))
	fmt.Fprintf(&g.b, format, args...)
	g.b.WriteByte('\n')
}

func (g *generator) name(kind string) string {
	g.next++
	return fmt.Sprintf("%s%d", kind, g.next)
}

func (g *generator) of(list []string) string { return list[g.r.IntN(len(list))] }

// t returns an expression of a tensor.
func (g *generator) t(depth int) string {
	if depth <= 0 || g.r.IntN(5) == 0 {
		return g.of(g.ts)
	}
	sub := func() string { return g.t(depth - 1 - g.r.IntN(2)) }
	cond := fmt.Sprintf("r.yes(%d)", g.r.IntN(9))
	switch g.r.IntN(44) {
	case 36:
		return g.of([]string{"[]*tensor.Tensor{" + sub() + ", " + sub() + "}[" + fmt.Sprint(g.r.IntN(2)) + "]", "chosen(1, " + sub() + ", " + sub() + ")"})
	case 37:
		return g.of([]string{"(pair{" + sub() + ", " + sub() + "}).b", "any(pair{" + sub() + ", " + sub() + "}).(pair).a"})
	case 38:
		return g.of([]string{"second", "latest"}) + "(" + g.of([]string{"both", "twin", "k.two"}) + "(" + sub() + "))"
	case 39:
		if len(g.ss) > 0 {
			s := g.of(g.ss)
			return g.of([]string{s + "[0:][0]", "these(" + s + ")[0]", "append(" + s + ", " + sub() + ")[len(" + s + ")]"})
		}
		return "wrapped[[]*tensor.Tensor](" + sub() + ")[0]"
	case 40:
		if len(g.ps) > 0 {
			return "swapped(" + g.of(g.ps) + ").a"
		}
		return "swapped(" + g.p() + ").b"
	case 41:
		return "halted(" + sub() + ")"
	case 42:
		return "append([]*tensor.Tensor{" + sub() + "}, " + sub() + ")[1]"
	case 43:
		return "wrapped[[]*tensor.Tensor](" + sub() + ")[0]"
	case 28:
		return "(*tensor.Tensor).Neg(" + sub() + ")"
	case 29:
		return "call(" + sub() + ".Neg)"
	case 30:
		return "(*new(" + sub() + "))"
	case 31:
		return g.of([]string{"(holder{" + sub() + "}).Add(" + sub() + ")", "held(" + sub() + ").Tensor", "held(" + sub() + ").Sin()"})
	case 32:
		return "slices.Collect(values(" + sub() + "))[" + fmt.Sprint(g.r.IntN(3)) + "]"
	case 33:
		return "([...]*tensor.Tensor{" + sub() + ", " + sub() + "})[" + fmt.Sprint(g.r.IntN(2)) + "]"
	case 34:
		return "recovered(" + sub() + ")"
	case 35:
		return "(map[bool]*tensor.Tensor{true: " + sub() + ", false: " + sub() + "})[" + cond + "]"
	case 26, 27:
		if len(g.ps) > 0 {
			p := g.of(g.ps)
			return g.of([]string{p + ".a", p + ".b", p + ".one()", "total(" + p + ")", "total(pair{" + sub() + ", " + p + ".a})"})
		}
		return sub() + ".Cos()"
	case 0, 1, 2:
		return sub() + ".Add(" + sub() + ")"
	case 3, 4:
		return sub() + ".Sin()"
	case 5:
		return sub() + ".Mul(0.5)"
	case 6:
		return "fresh(" + sub() + ")"
	case 7:
		return "pass(" + sub() + ")"
	case 8:
		return "pick(" + cond + ", " + sub() + ", " + sub() + ")"
	case 9:
		return "maybe(" + cond + ", " + sub() + ")"
	case 10:
		return "same(" + sub() + ")"
	case 11:
		return "k.keep(" + sub() + ")"
	case 12:
		return "layer.Forward(" + sub() + ")"
	case 13:
		return "tensor.Stack([]*tensor.Tensor{" + sub() + ", " + sub() + "}).Sum(tensor.Dim(0))"
	case 14:
		return "sum(" + sub() + ", " + sub() + ")"
	case 15:
		if len(g.ss) > 0 {
			return g.of(g.ss) + "[0]"
		}
		return sub() + ".Neg()"
	case 16:
		if len(g.ss) > 0 {
			return "first(" + g.of(g.ss) + ")"
		}
		return sub() + ".View(-1)"
	case 17:
		if len(g.fs) > 0 {
			return g.of(g.fs) + "(" + sub() + ")"
		}
		return sub() + ".Neg()"
	case 18:
		return "apply(" + sub() + ", func(x *tensor.Tensor) *tensor.Tensor { return x.Add(" + g.of(g.ts) + ") })"
	case 19:
		return "tensor.Tidy(func() *tensor.Tensor { return " + sub() + ".Neg() })"
	case 20:
		return "count(" + fmt.Sprint(g.r.IntN(3)) + ", " + sub() + ")"
	case 21:
		return "deferred(r, " + sub() + ")"
	case 22:
		if g.r.IntN(3) == 0 && len(g.ss) > 0 {
			return "sum(" + g.of(g.ss) + "...)"
		}
		return sub() + ".Neg().Add_(" + sub() + ")"
	case 23:
		return "nn.Pipe(" + sub() + ", layer, &nn.ReLU{})"
	case 24:
		return "func() *tensor.Tensor { return " + sub() + " }()"
	}
	return sub() + ".Cos()"
}

// p returns an expression of a struct.
func (g *generator) p() string {
	switch g.r.IntN(7) {
	case 0:
		return "halves(" + g.t(2) + ")"
	case 1:
		return "around(" + g.t(1) + ")"
	case 2:
		return "pair{b: " + g.t(2) + ", a: " + g.t(2) + "}"
	case 3:
		if len(g.ps) > 0 {
			return "step(" + g.of(g.ps) + ", " + g.t(1) + ")"
		}
	case 4:
		if len(g.ps) > 0 {
			return "shift(" + g.of(g.ps) + ", " + g.t(1) + ")"
		}
	case 5:
		if len(g.ps) > 0 {
			return g.of(g.ps)
		}
	}
	return "pair{" + g.t(2) + ", " + g.t(2) + "}"
}

// block writes statements in their own scope.
func (g *generator) block(n int) {
	ts, ss, fs, ps := len(g.ts), len(g.ss), len(g.fs), len(g.ps)
	g.depth++
	for range n {
		g.statement()
	}
	g.depth--
	g.ts, g.ss, g.fs, g.ps = g.ts[:ts], g.ss[:ss], g.fs[:fs], g.ps[:ps]
}

func (g *generator) statement() {
	g.size--
	if g.size < 0 {
		g.line("r.show(%s)", g.of(g.ts))
		return
	}
	cond := fmt.Sprintf("r.yes(%d)", g.r.IntN(9))
	declare := func(kind string) string { return g.name(kind) }
	few := 1 + g.r.IntN(3)
	nested := g.depth < 3
	switch g.r.IntN(50) {
	case 45, 46, 47, 48, 49:
		g.lessCommon(cond, few, nested)
	case 0, 1, 2, 3:
		v := declare("x")
		g.line("%s := %s", v, g.t(3))
		g.line("_ = %s", v)
		g.ts = append(g.ts, v)
	case 4, 5, 6:
		g.line("%s = %s", g.of(g.ts), g.t(3))
	case 7, 8:
		g.line("r.show(%s)", g.t(2))
	case 9:
		g.line("r.probe()")
	case 10, 11:
		if !nested {
			return
		}
		g.line("if %s {", cond)
		g.block(few)
		if g.r.IntN(2) == 0 {
			g.line("} else if r.yes(1) {")
			g.block(few)
		}
		if g.r.IntN(2) == 0 {
			g.line("} else {")
			g.block(few)
		}
		g.line("}")
	case 12:
		if !nested || g.loop > 1 {
			return
		}
		g.loop++
		g.line("for i := range %d {", 1+g.r.IntN(3))
		g.line("\t_ = i")
		g.block(few)
		switch g.r.IntN(4) {
		case 0:
			g.line("\tif %s { break }", cond)
		case 1:
			g.line("\tif %s { continue }", cond)
			g.block(1)
		}
		g.line("}")
		g.loop--
	case 13:
		if !nested || g.loop > 1 {
			return
		}
		if len(g.ss) == 0 || g.r.IntN(2) == 0 { // a slice that the function owns
			s := declare("s")
			g.line("%s := list(%s)", s, g.t(2))
			g.line("_ = reads(%s)", s)
			g.ss = append(g.ss, s)
		}
		g.loop++
		v := declare("x")
		ss := g.of(g.ss)
		g.line("for _, %s := range %s {", v, g.of([]string{ss, ss, "list(" + g.t(2) + ")", "these(" + ss + ")"}))
		g.ts = append(g.ts, v)
		if g.r.IntN(3) > 0 { // the loop continues over the old elements
			g.line("\t%s = list(%s)", ss, g.t(1))
		}
		g.line("\tr.show(%s)", v)
		g.block(few)
		g.ts = g.ts[:len(g.ts)-1]
		g.line("}")
		g.loop--
	case 14:
		if !nested {
			return
		}
		g.line("switch r.n %% 4 {")
		for i := range 3 {
			g.line("case %d:", i)
			g.block(few)
			if i < 2 && g.r.IntN(3) == 0 {
				g.line("\tfallthrough")
			}
		}
		if g.r.IntN(2) == 0 {
			g.line("default:")
			g.block(few)
		}
		g.line("}")
	case 15:
		v := declare("s")
		switch g.r.IntN(6) {
		case 4:
			g.line("%s := make([]*tensor.Tensor, 2)", v)
			g.line("fill(%s, %s)", v, g.t(2))
		case 0:
			g.line("%s := list(%s)", v, g.t(2))
		case 1:
			g.line("%s := []*tensor.Tensor{%s, %s}", v, g.t(2), g.t(2))
		case 2:
			g.line("%s, _ := %s.Chunk(2)", v, g.t(2))
			g.line("for i := range %s { %s[i] = tensor.Cat([]*tensor.Tensor{%s[i], %s[i]}) }", v, v, v, v)
		case 3:
			g.line("var %s []*tensor.Tensor", v)
			g.line("for range 2 { %s = append(%s, %s) }", v, v, g.t(2))
		default:
			if len(g.ss) > 0 {
				g.line("%s := append(%s[:1], %s)", v, g.of(g.ss), g.t(2))
			} else {
				g.line("%s := list(%s)", v, g.t(1))
			}
		}
		g.line("_ = reads(%s)", v)
		g.ss = append(g.ss, v)
	case 16:
		if len(g.ss) > 0 {
			s := g.of(g.ss)
			switch g.r.IntN(11) {
			case 0:
				g.line("%s[%d] = %s", s, g.r.IntN(2), g.t(2))
			case 7, 8: // two elements that may be the same one
				w, i := s, declare("i")
				if g.r.IntN(2) == 0 {
					w = declare("s")
					g.line("%s := %s", w, s)
				}
				g.line("%s := r.n %% 2", i)
				v := g.of(g.ts)
				g.line("%s[%s], %s[0] = %s", s, i, w, g.of([]string{g.t(2) + ", " + v, v + ", " + g.t(2), g.t(1) + ", " + g.t(2), s + "[0], " + g.t(2)}))
				g.line("r.show(%s[0])", s)
			case 9, 10: // an element and its slice; an element, perhaps after the end, and a variable that other code reads
				switch w := g.of(g.ss); g.r.IntN(4) {
				case 0:
					g.line("%s[0], %s = %s, list(%s)", w, s, g.of(g.ts), g.t(1))
				case 1:
					g.line("%s, %s[1] = list(%s), %s", s, w, g.t(1), g.of(g.ts))
				default:
					done := declare("done")
					g.line("func() {")
					g.line("\t%s, xs := false, list(%s)", done, g.t(1))
					g.line("\tdefer func() { _ = recover(); fmt.Fprint(r, %s, \" \") }()", done)
					g.line("\ti := r.n %% 3")
					g.line("\txs[i], %s = %s, true", done, g.t(1))
					g.line("\tr.show(xs[0])")
					g.line("}()")
				}
			case 4: // an index that is computed, and a value that a variable holds
				g.line("%s[%s] = %s", s, g.of([]string{"len(" + s + ")-1", "7%len(" + s + ")"}), g.of([]string{g.t(2), g.of(g.ts)}))
			case 5: // several elements
				w := g.of(g.ss)
				g.line("%s[0], %s[1] = %s(%s[0], %s[1])", s, w, g.of([]string{"paired", "crossed"}), w, s)
			case 6: // an element and a variable
				v := g.of(g.ts)
				g.line("%s, %s[1] = %s", v, s, g.of([]string{"paired(" + v + ", " + s + "[1])", "k.two(" + v + ")", s + "[0], " + v, s + "[1], " + g.t(1)}))
			case 1:
				g.line("%s = append(%s, %s)", s, s, g.t(2))
			case 2:
				g.line("%s = %s", s, g.of(g.ss))
			default:
				g.line("for i := range %s { %s[i] = %s[i].Neg().Add(%s) }", s, s, s, g.t(1))
			}
		}
	case 17:
		f := declare("f")
		g.line("%s := func(x *tensor.Tensor) *tensor.Tensor { return x.Add(%s) }", f, g.t(1))
		g.line("_ = %s", f)
		g.fs = append(g.fs, f)
	case 18:
		a, b := declare("x"), declare("x")
		g.line("%s, %s := %s(%s)", a, b, g.of([]string{"both", "twin"}), g.t(2))
		g.line("_, _ = %s, %s", a, b)
		g.ts = append(g.ts, a, b)
	case 19:
		v := declare("x")
		g.line("%s, err := %s(%s)", v, g.of([]string{"with", "named"}), g.t(2))
		g.line("if err != nil { return nil, err }")
		g.line("_ = %s", v)
		g.ts = append(g.ts, v)
	case 20:
		if g.r.IntN(2) == 0 && nested {
			g.line("if %s, err := with(%s); err != nil { return nil, err } else { r.show(%s) }", "z", g.t(1), "z")
			g.line("{")
			g.line("\tvar err error")
			v := g.of(g.ts)
			g.line("\tvar all []*tensor.Tensor")
			g.line("\tfor range 3 {")
			g.line("\t\tif %s, err = named(%s); err != nil { return nil, err }", v, g.t(2))
			g.line("\t\tall = append(all, %s)", v)
			g.line("\t}")
			g.line("\tr.show(tensor.Stack(all))")
			g.line("}")
			return
		}
		g.line("%s, %s = %s, %s", g.ts[0], g.ts[1], g.of(g.ts), g.t(2))
	case 21:
		g.line("%s", g.of([]string{"k.push(" + g.t(2) + ")", "k.name(" + g.t(2) + ")", "k.last = " + g.t(2)}))
	case 22:
		g.line("if k.last != nil { r.show(k.last) }")
		g.line("for _, x := range k.all { r.show(x) }")
	case 23:
		g.line("c <- %s", g.t(2))
		g.line("%s = <-c", g.of(g.ts))
	case 24, 36, 37:
		v := declare("p")
		if g.r.IntN(4) == 0 {
			g.line("%s, err := holding(%s)", v, g.t(2))
			g.line("if err != nil { return nil, err }")
		} else {
			g.line("%s := %s", v, g.p())
		}
		g.line("%s = %s.a", g.of(g.ts), v)
		g.line("r.show(%s.b)", v)
		g.ps = append(g.ps, v)
	case 38, 39, 40:
		if len(g.ps) == 0 {
			return
		}
		p := g.of(g.ps)
		switch g.r.IntN(7) {
		case 0:
			g.line("%s = %s", p, g.p())
		case 1, 2:
			if g.r.IntN(2) == 0 {
				g.line("%s.b = %s.a", p, p)
			}
			g.line("%s.%s = %s", p, g.of([]string{"a", "b"}), g.t(2))
			g.line("r.show(%s.b)", p)
		case 3:
			g.line("%s.a, %s.b = %s.b, %s", p, p, p, g.t(2))
			g.line("%s.b = %s.a", p, p)
			g.line("%s.a = %s", p, g.t(2))
			g.line("r.show(%s.b)", p)
		case 4:
			g.line("%s, %s.a = %s.a, %s", g.of(g.ts), p, p, g.t(2))
		case 5:
			g.line("%s.b, %s = %s(%s)", p, g.of(g.ts), g.of([]string{"both", "twin"}), g.t(2))
		default:
			if !nested || g.loop > 1 {
				return
			}
			g.loop++
			g.line("for range 3 {")
			g.line("\t%s = step(%s, %s)", p, p, g.t(1))
			g.block(few)
			g.line("}")
			g.loop--
		}
	case 41:
		if len(g.ps) == 0 {
			return
		}
		p, v := g.of(g.ps), declare("g")
		switch g.r.IntN(6) {
		case 0:
			g.line("%s := &%s.a", v, p)
			g.line("r.show(*%s)", v)
		case 1:
			g.line("%s.set(%s)", p, g.t(1))
		case 2:
			g.line("k.both(%s)", p)
		case 3:
			g.line("func() { %s.b = %s; r.show(%s.a) }()", p, g.t(1), p)
		case 4:
			g.line("select { case c <- %s: default: }", g.t(1))
			g.line("select { case %s.a = <-c: default: }", p)
		default:
			g.line("%s := grouped(%s)", v, p)
			g.line("%s.xs[0] = %s", v, g.t(1))
			g.line("for _, x := range %s.xs { r.show(x) }", v)
			g.line("%s.p.b = %s", v, g.t(1))
			g.line("r.show(%s.sum())", v)
			g.line("%s.xs = append(%s.xs, %s)", v, v, g.t(1))
			g.line("%s = %s.p", p, v)
		}
	case 25:
		v := g.of(g.ts)
		if !nested {
			return
		}
		g.line("if %s := %s; %s.Dim() > 0 {", v, g.t(2), v)
		g.line("\t_ = %s", v)
		g.block(few)
		g.line("}")
	case 26:
		g.line("if err := tensor.WithScope(func() error { r.show(%s); return nil }); err != nil { return nil, err }", g.t(2))
	case 27:
		g.line("m[%q] = %s", g.of([]string{"a", "b"}), g.t(2))
		g.line("if x := m[\"a\"]; x != nil { r.show(x) }")
	case 28:
		if g.r.IntN(3) == 0 {
			g.line("if %s { return %s, nil }", cond, g.t(2))
		} else {
			g.line("if %s.Sum().Dim() > 3 { return nil, errors.New(\"no\") }", g.t(2))
		}
	case 29:
		g.line("var a%d any = %s", g.next+1, g.t(2))
		g.next++
		v := declare("x")
		g.line("%s, _ := a%d.(*tensor.Tensor)", v, g.next-1)
		g.line("_ = %s", v)
		g.ts = append(g.ts, v)
	case 30:
		g.line("select { case c <- %s: default: }", g.t(1))
		g.line("select { case x := <-c: r.show(x); default: r.show(%s) }", g.t(1))
	case 32:
		if !nested {
			return
		}
		v := g.of(g.ts) // another variable of the same name
		g.line("{")
		g.line("\t%s := %s.Neg()", v, v)
		g.block(few)
		g.line("\tr.show(%s)", v)
		g.line("}")
	case 42:
		v := declare("s")
		if len(g.ss) == 0 || g.r.IntN(2) == 0 { // two slices that share an array
			w := declare("s")
			g.line("%s := make([]*tensor.Tensor, 0, 8)", v)
			g.line("%s := append(%s, %s)", w, v, g.t(2))
			if g.r.IntN(2) == 0 {
				g.line("%s = append(%s, %s)", v, v, g.of(g.ts))
			} else {
				g.line("%s = appended(%s, %s)", v, v, g.of(g.ts))
			}
			g.line("r.show(%s[0])", w)
			g.ss = append(g.ss, v, w)
			return
		}
		s := g.of(g.ss)
		g.line("%s := %s", v, s)
		g.line("%s[0] = %s", v, g.of(g.ts))
		g.line("_ = reads(%s)", s)
		g.line("r.show(%s[0])", s)
		g.ss = append(g.ss, v)
	case 44:
		if len(g.ss) > 0 {
			g.line("%s", g.of([]string{"put(" + g.of(g.ss) + ", " + g.of(g.ts) + ")", "put(" + g.of(g.ss) + ", " + g.t(2) + ")", "negate(" + g.of(g.ss) + ")"}))
		}
	case 43:
		if len(g.ss) == 0 || !nested || g.loop > 1 {
			return
		}
		v, s := declare("x"), g.of(g.ss)
		g.line("for _, %s := range %s {", v, s)
		g.line("\t%s[len(%s)-1] = %s", s, s, g.t(1))
		g.line("\tr.show(%s)", v)
		g.line("}")
	case 33:
		switch g.r.IntN(4) {
		case 0:
			g.line("_ = %s", g.t(2))
		case 1:
			g.line("%s(%s)", g.of([]string{"fresh", "pass", "k.keep", "both", "with", "through"}), g.t(2))
		case 2:
			g.line("_, %s = %s(%s)", g.of(g.ts), g.of([]string{"both", "twin"}), g.t(2))
		default:
			g.line("%s.Neg()", g.t(2))
		}
	case 34:
		f := g.of([]string{"with", "named", "through"})
		if g.r.IntN(2) == 0 || !nested {
			g.line("if _, err := %s(%s); err != nil { return nil, err }", f, g.t(2))
			return
		}
		g.line("{")
		g.line("\t_, err := %s(%s)", f, g.t(2))
		g.line("\tif _, err = %s(%s); err != nil || %s {", f, g.t(2), cond)
		g.block(few)
		g.line("\t}")
		g.line("\t_ = err")
		g.line("}")
	case 35:
		if len(g.ss) == 0 {
			return
		}
		v := declare("f")
		g.line("%s := func() { %s[0] = %s }", v, g.of(g.ss), g.t(2))
		g.line("%s()", v)
		g.line("%s()", v)
	case 31:
		v := declare("g")
		g.line("%s := []func() *tensor.Tensor{func() *tensor.Tensor { return %s }}", v, g.t(1))
		g.line("r.show(%s[0]())", v)
	}
}

// lessCommon writes a statement of a kind that programs over tensors have less often.
func (g *generator) lessCommon(cond string, few int, nested bool) {
	v := g.name("x")
	switch g.r.IntN(20) {
	case 16: // appends into an array that no variable holds
		w := g.name("c")
		g.line("%s, %s := &chest{[]*tensor.Tensor{%s, %s}}, %s", w, v, g.t(1), g.t(1), g.t(2))
		g.line("%s", g.of([]string{
			fmt.Sprintf("r.show(append(%s.items[:1], %s)[1])", w, v),
			fmt.Sprintf("r.show(sum(%s.%s(1, %s)...))", w, g.of([]string{"with", "holds"}), v),
			fmt.Sprintf("for _, x := range appended(%s.items[:1], %s) { r.show(x) }", w, v),
			fmt.Sprintf("_ = append(%s.items[:1], %s)", w, g.t(2)),
			fmt.Sprintf("_ = reads(%s.%s(1, %s))", w, g.of([]string{"with", "holds"}), g.t(2)),
		}))
		if g.r.IntN(2) == 0 {
			u := g.name("s")
			g.line("%s := %s", u, g.of([]string{"append(" + w + ".items[:1], " + v + ")", w + ".with(1, " + v + ")", w + ".holds(1, " + v + ")"}))
			g.line("r.show(sum(%s...))", u)
			g.ss = append(g.ss, u)
		}
		g.line("r.show(%s)", v)
		g.line("for _, x := range %s.items { r.show(x) }", w)
	case 17: // a slice of a part, and the elements of its array after it
		w := g.name("s")
		g.line("%s := []*tensor.Tensor{%s, %s}", w, g.t(2), g.t(1))
		g.line("%s := %s", v, g.of([]string{w + "[:1:2]", "these(" + w + "[:1])"}))
		g.line("r.show(%s[0])", v)
		if g.r.IntN(2) == 0 {
			g.line("%s[0] = %s", v, g.t(1))
		}
		g.line("r.show(%s[:2][1])", v)
	case 18: // temporaries whose consumers return no tensors
		g.line("%s := mean(%s) + mean(%s)", v, g.t(2), g.t(1))
		g.line("fmt.Fprint(r, %s, twice(meanOf(%s)), %s.Shape()[0], len(list(%s)), \" \")", v, g.t(2), g.t(1), g.t(2))
		g.line("if %s, err := meanOf(%s); err == nil && %s > mean(%s) { r.probe() }", v, g.t(2), v, g.t(2))
	case 19: // keys of a loop
		g.line("var %s [9]int", v)
		g.line("for %s[%s.Dim()+%s.Dim()] = range 2 { r.probe() }", v, g.of(g.ts), g.t(2))
		g.line("fmt.Fprint(r, %s, \" \")", v)
	case 14: // a write through another name
		if len(g.ss) > 0 {
			s := g.of(g.ss)
			g.line("%s = %s", g.of([]string{s + "[0:][0]", "these(" + s + ")[0]"}), g.t(2))
		}
	case 15: // a loop over a function without a name
		if len(g.ss) == 0 || !nested || g.loop > 1 {
			return
		}
		if g.r.IntN(3) == 0 { // that reads what the loop's body assigns
			f := g.name("f")
			g.line("%s := %s", v, g.t(2))
			g.line("%s := func(yield func() bool) { for range 2 { r.show(%s); if !yield() { return } } }", f, v)
			g.line("for range %s { %s = %s }", f, v, g.t(2))
			return
		}
		g.loop++
		g.line("for %s := range yielding(%s) {", v, g.of(g.ss))
		g.line("\tr.show(%s)", v)
		g.ts = append(g.ts, v)
		g.block(few)
		g.ts = g.ts[:len(g.ts)-1]
		g.line("\tif %s { break }", cond)
		g.line("}")
		g.loop--
	case 0, 1, 2: // a loop over a function
		if !nested || g.loop > 1 {
			return
		}
		g.loop++
		if g.r.IntN(2) == 0 {
			g.line("for i, %s := range each(%s, %d) {", v, g.t(2), few)
			g.line("\tif i > 0 && %s { %s }", cond, g.of([]string{"break", "continue", "return " + v + ", nil", "return " + g.of(g.ts) + ", nil"}))
		} else {
			g.line("for %s := range values(%s) {", v, g.t(2))
		}
		g.line("\tr.show(%s)", v)
		g.ts = append(g.ts, v)
		g.block(few)
		g.ts = g.ts[:len(g.ts)-1]
		if g.r.IntN(2) == 0 {
			g.line("\t%s = %s", g.of(g.ts), v)
		}
		g.line("}")
		g.loop--
	case 3: // two loops and a label
		if !nested || g.loop > 0 {
			return
		}
		g.loop += 2
		label := g.name("outer")
		g.line("%s:", label)
		g.line("for range 2 {")
		g.block(1)
		g.line("\tfor range 2 {")
		g.line("\t\t%s := %s", v, g.t(2))
		g.line("\t\tif %s { %s %s }", cond, g.of([]string{"break", "continue"}), label)
		g.line("\t\t%s = %s", g.of(g.ts), g.of([]string{v, v + ".Neg()"}))
		g.line("\t}")
		g.line("}")
		g.loop -= 2
	case 4: // deferred calls
		if g.r.IntN(2) == 0 {
			g.line("for range 2 { %s := %s; defer r.show(%s) }", v, g.t(2), v)
			return
		}
		g.line("%s := %s", v, g.t(2))
		g.line("defer func() { r.show(%s.Neg()) }()", v)
		g.ts = append(g.ts, v)
	case 5: // a type switch
		g.line("switch %s := any(%s).(type) {", v, g.t(2))
		g.line("case *tensor.Tensor: r.show(%s.Neg()); %s = %s", v, g.of(g.ts), v)
		g.line("case nil: return nil, errors.New(\"nil\")")
		g.line("}")
	case 6: // copies of arrays
		w := g.name("a")
		g.line("%s := [2]*tensor.Tensor{%s, %s}", v, g.t(2), g.t(1))
		g.line("%s := %s", w, v)
		g.line("%s[0] = %s", v, g.t(1))
		g.line("%s, %s[1] = %s[1], %s[0]", g.of(g.ts), w, v, w)
		g.line("for _, x := range %s { r.show(x) }", w)
	case 7: // slices of structs
		g.line("%s := []pair{%s, %s}", v, g.p(), g.p())
		g.line("for i := range %s { %s[i].a, %s[i].b = %s[i].b, %s[i].a.Add(%s) }", v, v, v, v, v, g.t(1))
		g.line("for _, p := range %s { r.show(p.a); r.show(p.b) }", v)
		g.line("%s = %s[1].a", g.of(g.ts), v)
	case 8: // functions of package slices, copy and clear
		if len(g.ss) == 0 {
			return
		}
		s := g.of(g.ss)
		g.line("%s := %s", v, g.of([]string{"slices.Clone(" + s + ")", "slices.Concat(" + s + ", " + g.of(g.ss) + ")",
			"slices.Insert(" + s + ", 1, " + g.t(1) + ")", s + "[:1:1]", "make([]*tensor.Tensor, len(" + s + "))"}))
		g.line("%s = append(%s, %s)", v, v, g.t(1))
		if g.r.IntN(2) == 0 {
			g.line("copy(%s[:1], %s)", v, s)
		}
		if g.r.IntN(3) == 0 {
			g.line("clear(%s[1:])", v)
		}
		if g.r.IntN(3) == 0 {
			g.line("slices.Reverse(%s[:1])", s)
		}
		g.line("for _, x := range %s { r.show(x) }", v)
	case 9: // a goroutine, which makes no tensor: it would be in no scope
		w := g.name("done")
		g.line("%s := make(chan *tensor.Tensor)", w)
		g.line("%s := %s", v, g.t(2))
		g.line("go func() { %s <- %s }()", w, g.of(g.ts))
		g.line("%s = <-%s", v, w)
		g.line("_ = %s", v)
		g.ts = append(g.ts, v)
	case 10: // a closure that calls itself
		f := g.name("f")
		g.line("var %s func(x *tensor.Tensor, n int) *tensor.Tensor", f)
		g.line("%s = func(x *tensor.Tensor, n int) *tensor.Tensor { if n == 0 { return x }; y := x.Neg(); return %s(y, n-1) }", f, f)
		g.line("%s := %s(%s, %d)", v, f, g.t(2), g.r.IntN(3))
		g.line("_ = %s", v)
		g.ts = append(g.ts, v)
	case 11: // a closure that assigns what it captured
		f := g.name("f")
		g.line("%s := %s", v, g.t(2))
		g.line("%s := func() *tensor.Tensor { %s = %s.Add(%s); return %s }", f, v, v, g.t(1), v)
		g.line("r.show(%s()); r.show(%s())", f, f)
		g.ts = append(g.ts, v)
	case 12: // a tensor behind a pointer
		w := g.name("p")
		g.line("%s := new(%s)", w, g.t(2))
		g.line("%s := *%s", v, w)
		g.line("*%s = %s", w, g.t(2))
		g.line("r.show(*%s)", w)
		g.ts = append(g.ts, v)
		g.line("_ = %s", v)
	case 13: // a struct with an embedded tensor
		g.line("%s := held(%s)", v, g.t(2))
		g.line("%s.Tensor = %s", v, g.of([]string{v + ".Neg()", g.t(2), v + ".Tensor.Add(" + g.t(1) + ")"}))
		g.line("r.show(%s.Tensor); r.show(%s.Mul(2))", v, v)
	}
}

// program returns the source of a package with functions F0 to Fn-1.
func program(name string, seed uint64, from, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n%s\n", name, prelude)
	for i := range n {
		g := &generator{r: rand.New(rand.NewPCG(seed, uint64(from+i))), ts: []string{"x", "y"}}
		g.size = 8 + g.r.IntN(24)
		for g.size > 0 {
			g.statement()
		}
		g.line("r.probe()")
		fmt.Fprintf(&b, "func f%d(r *run, k *keeper, layer nn.Layer, x, y *tensor.Tensor) (*tensor.Tensor, error) {\n", i)
		fmt.Fprintf(&b, "\tc := make(chan *tensor.Tensor, 9)\n\tm := map[string]*tensor.Tensor{}\n\t_, _ = c, m\n%s\treturn %s, nil\n}\n\n", &g.b, g.t(2))
	}
	fmt.Fprintf(&b, "var All = []func(r *run, k *keeper, layer nn.Layer, x, y *tensor.Tensor) (*tensor.Tensor, error){")
	for i := range n {
		fmt.Fprintf(&b, "f%d, ", i)
	}
	b.WriteString(`}

// Run runs the i-th program. released is the first ErrReleased.
func Run(i int) (said, released string, bytes []int64) {
	r := &run{}
	defer func() {
		if p := recover(); p != nil {
			said, bytes = fmt.Sprint(r, "panic: ", p), r.Bytes
		}
	}()
	err := tensor.WithScope(func() error {
		before := len(r.Bytes)
		r.probe()
		base := r.Bytes[before]
		k := &keeper{by: map[string]*tensor.Tensor{}}
		x, y := tensor.FromSlice([]float32{1, 2, 3, 4}, nil), tensor.FromSlice([]float32{-1, .5, 0, 2}, nil)
		z, err := All[i](r, k, k, x, y)
		fmt.Fprint(r, err, " ")
		if err == nil {
			r.show(z)
		}
		r.show(x)
		r.show(y)
		if k.last != nil {
			r.show(k.last)
		}
		for _, t := range k.all {
			r.show(t)
		}
		for i := range r.Bytes {
			r.Bytes[i] -= base
		}
		return nil
	})
	if err != nil {
		fmt.Fprint(r, "scope: ", err)
		if r.Released == "" && errors.Is(err, tensor.ErrReleased) {
			r.Released = err.Error()
		}
	}
	return r.String(), r.Released, r.Bytes
}
`)
	return b.String()
}
