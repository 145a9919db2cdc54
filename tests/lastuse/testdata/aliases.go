// Program aliases prints the values of tensors that have a second name, and may be read by either.
package main

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"example.com/app/dot"
	"example.com/app/part"
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

type T = *tensor.Tensor

func mk(v float64) T { return tensor.Full([]int{2}, v) }

func show(x T) {
	v, err := tensor.Data[float32](x)
	fmt.Println(v, err)
}

var g0, g1 = mk(-1), mk(-2)

func both() (T, T) { return g0, g1 }

// Elements and fields of values that are no variables.

type state struct{ X, Y T }

type list struct{ Items []T }

func pick(i int, a, b T) T  { return []T{a, b}[i] }
func lastOf(ts []T) T       { return ts[len(ts)-1:][0] }
func same(ts []T) []T       { return ts }
func swapped(s state) state { return state{s.Y, s.X} }
func items(l list) list     { return l }

func elements(i int) {
	a, b := mk(1), mk(2)
	y := []T{a, b}[i]
	show(y)
	c, d := mk(3), mk(4)
	y = pick(1, c, d)
	show(y)
	ts := []T{mk(5), mk(6)}
	y = ts[1:][0]
	show(y)
	ts = []T{mk(7), mk(8)}
	y = lastOf(ts)
	show(y)
	ts = []T{mk(9), mk(10)}
	y = same(ts)[0]
	show(y)
	ts, x := []T{mk(11)}, mk(12)
	y = append(ts, x)[1]
	show(y)
	s := state{mk(13), mk(14)}
	y = swapped(s).X
	show(y)
	s = state{mk(15), mk(16)}
	var v any = s
	y = v.(state).X
	show(y)
	e, f := mk(17), mk(18)
	y = state{e, f}.Y
	show(y)
	l := list{[]T{mk(19), mk(20)}}
	for _, x := range items(l).Items {
		show(x)
	}
}

// written returns a tensor that an element of a slice, under another expression, holds too.
func written() T {
	ts, y := []T{mk(21)}, mk(22)
	same(ts)[0] = y
	ts[0:][0] = y
	return y
}

// Several results as arguments.

func second(a, b T) T          { return b }
func last(ts ...T) T           { return ts[len(ts)-1] }
func product(a, b T) (T, T)    { return b.Mul(2), b }
func group() ([]T, T)          { return []T{mk(23)}, g0 }
func pair(a, b T) state        { return state{a, b} }
func (s state) other(a, b T) T { return b }

func several() {
	y := second(both())
	show(y)
	y = last(both())
	show(y)
	y, _ = product(both())
	show(y)
	ts := append(group())
	show(ts[1])
	s := pair(both())
	show(s.Y)
	y = s.other(both())
	show(y)
	show(g0)
	show(g1)
}

// Named results, a panic and recover.

func safe(f func()) (y T) {
	defer func() { _ = recover() }()
	y = mk(24)
	f()
	y = mk(25)
	return y
}

func caught(x T, m map[string]int) (y T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("caught")
		}
	}()
	y = x.Mul(2)
	m["a"] = 1
	return x.Mul(3), nil
}

func global(f func()) (y T) {
	defer func() { _ = recover() }()
	y = g0
	f()
	y = mk(26)
	return y
}

func panics() {
	show(safe(func() {}))
	show(safe(func() { panic("") }))
	y, err := caught(mk(27), nil)
	fmt.Println(err)
	show(y)
	global(func() { panic("") })
	show(g0)
}

// Hooks.

func hooks() {
	_ = tensor.ManualSeed(1)
	h := nn.NewHooked(nn.NewLinear(2, 2))
	scale, bias, half := mk(2), mk(3), mk(0.5)
	_, err1 := h.RegisterForwardPreHook(func(x T) (T, error) { return x.Mul(scale), nil })
	_, err2 := h.RegisterForwardHook(func(x, y T) (T, error) { return y.Add(bias), nil })
	_, err3 := h.RegisterFullBackwardHook(func(in, out T) (T, error) { return in.Mul(half), nil })
	x := tensor.Ones([]int{2, 2}).RequiresGrad_()
	y := h.Forward(x)
	show(y.Sum())
	fmt.Println(err1, err2, err3, y.Sum().Backward())
	show(x.Grad().Sum())
	z, seen := mk(1).RequiresGrad_(), mk(28)
	_, err := autograd.RegisterMultiGradHook([]T{z}, func([]T) error { show(seen); return nil })
	fmt.Println(err, z.Mul(z).Sum().Backward())
}

// Functions that yield, and type parameters.

func yields(ts []T) func(yield func(T) bool) {
	return func(yield func(T) bool) {
		for _, x := range ts {
			if !yield(x) {
				return
			}
		}
	}
}

func ranges() {
	pool := []T{mk(29), mk(30)}
	for x := range yields(pool) {
		show(x)
		break
	}
	var kept T
	for x := range yields(pool) {
		kept = x
	}
	show(kept)
	show(pool[0])
	show(pool[1])
	one := mk(31)
	f := func(yield func(T) bool) { yield(one) }
	g := f
	for x := range g {
		show(x)
	}
	show(one)
}

func thrice(yield func() bool, f func()) {
	for range 3 {
		f()
		if !yield() {
			return
		}
	}
}

func itself[E any](e E) E { return e }

// Iterators that read what the body of the loop assigns.
func iterators() {
	x := mk(190)
	steps := func(yield func() bool) { thrice(yield, func() { show(x) }) }
	n := 190.0
	for range steps {
		n++
		x = mk(n)
	}
	y := mk(191)
	for range itself(func(yield func() bool) {
		for range 3 {
			show(y)
			if !yield() {
				return
			}
		}
	}) {
		n++
		y = mk(n)
	}
	ts := []T{mk(194)}
	all := func(yield func() bool) {
		for i := 0; i < len(ts); i++ {
			show(ts[i])
			if !yield() {
				return
			}
		}
	}
	more := true
	for range all {
		if more {
			ts, more = []T{mk(195), mk(196), mk(197)}, false
		}
	}
	s := state{mk(198), mk(199)}
	one := func(yield func(int) bool) { _ = yield(1); show(s.X) }
	for _ = range one {
		s.X = mk(200)
	}
	two := func(yield func(int, int) bool) { _ = yield(1, 2); show(s.X.Mul(s.Y)) }
	for _, _ = range two {
		s = state{mk(2), mk(3)}
	}
}

func slice[S ~[]E, E any](x E) S { return S{x} }

func generic() {
	x := mk(32)
	ts := slice[[]T](x)
	show(ts[0])
	show(x)
}

// Interfaces of the library that programs implement.

type identity struct{}

func (identity) Forward(originals ...T) T { return originals[0] }

type passing struct{}

func (passing) Forward(_ *autograd.Context, in ...T) ([]T, error)   { return in, nil }
func (passing) Backward(_ *autograd.Context, out ...T) ([]T, error) { return out, nil }

func called(f autograd.Function, x T) T {
	out, err := f.Forward(nil, x)
	if err != nil {
		return nil
	}
	return out[0].Mul(2)
}

func interfaces() {
	var p nn.Parametrization = identity{}
	x := mk(33)
	y := p.Forward(x)
	show(y)
	show(x)
	show(called(passing{}, x))
	show(x)
}

// Fields that are not followed, beside one that is.

type List []T

type mixed struct {
	X  T
	L  List
	V  any
	ar [2]T
}

func value(m mixed) T { return m.V.(T) }

func unfollowed() {
	w := &nn.Linear{Weight: mk(34)}
	s := struct {
		*nn.Linear
		H T
	}{w, mk(35)}
	y := s.Weight
	show(y)
	show(s.H)
	show(w.Weight)
	g := mk(36)
	m := mixed{X: mk(37), L: List{g}, V: g0, ar: [2]T{g, g}}
	var ts []T = m.L
	y = m.V.(T)
	show(ts[0])
	show(y)
	y = value(m)
	show(y)
	y = m.ar[:][1]
	show(y)
	show(m.X)
	show(g)
	show(g0)
}

// A generic struct with a tensor and a field of the type parameter, which is a tensor in an instance.

type pairOf[E any] struct {
	X T
	V E
}

var kept any

func pairUp[E any](x T, v E) pairOf[E]       { return pairOf[E]{x, v} }
func with[E any](p pairOf[E], v E) pairOf[E] { p.V = v; return p }
func (p pairOf[E]) keep()                    { kept = p.V }

func instances() {
	p := pairUp(mk(38), g0)
	show(p.X)
	show(p.V)
	p = with(pairOf[T]{mk(39), mk(40)}, g1)
	show(p.X)
	p = pairOf[T]{mk(41), mk(42)}
	p.keep()
	show(p.X)
	show(kept.(T))
	show(g0)
	show(g1)
}

// A struct of another package, with a tensor that this one cannot name.

func hidden() {
	h, c := mk(43), mk(44)
	s := part.New(h, c)
	show(s.H)
	show(s.C())
	s = s.Swap()
	show(s.H)
	show(s.C())
	y := part.New(mk(45), mk(46)).C()
	show(y)
}

// Structs of another package, with such a tensor in a struct in them.

func nested() {
	h := mk(210)
	o := part.Wrap(h, h.Mul(2))
	show(o.Logits)
	show(o.Hidden)
	show(o.Get())
	h, x := mk(211), mk(212)
	n := part.Nest(h, x)
	show(n.H)
	show(h)
	show(x)
	show(n.X())
	n = n.Swap()
	show(n.H)
	show(n.X())
	n.H = mk(213)
	show(n.X())
	n = part.Nest(mk(214), mk(215))
	z := n.X()
	n.H = n.X()
	show(z)
	show(n.H)
	show(n.X())
}

func promoted() {
	h := mk(216)
	o := part.Wrap(h, mk(217))
	y := o.Hidden
	show(o.Logits)
	show(h)
	show(y)
	y, x := mk(218), mk(219)
	o.Hidden = y
	show(x)
	show(o.Get())
	o = part.Wrap(mk(220), mk(221), y, x)
	z := o.Items[1]
	show(x)
	show(z)
	for _, z := range o.Items {
		show(z)
	}
	w := mk(222)
	o.Items[0] = w
	show(w)
	show(o.Items[0])
}

func around() {
	y, h, x := mk(223), mk(224), mk(225)
	o := part.Around(y, h, x)
	show(y)
	show(h)
	show(x)
	show(o.Y)
	show(o.N.H)
	show(o.N.X())
	s := struct {
		part.Nested
		Z T
	}{part.Nest(mk(226), h), x}
	show(s.Z)
	show(s.H)
	h = s.X()
	s.Nested = s.Swap()
	show(h)
	show(s.H)
	show(s.X())
	h = mk(227)
	e := part.OfState(mk(228), h, h.Mul(2))
	show(h)
	show(e.Y)
	show(e.E().H)
	show(e.E().C())
}

// Hooks that keep their tensors, or replace them, in a model; a checkpointed function that keeps its input.

func models() {
	_ = tensor.ManualSeed(1)
	h := nn.NewHooked(nn.NewLinear(2, 2))
	var seen []T
	patch := mk(47)
	_, err := h.RegisterForwardHook(func(x, y T) (T, error) { seen = append(seen, x, y); return patch, nil })
	fmt.Println(err)
	model := nn.NewSequential(h)
	for range 2 {
		y := model.Forward(mk(48))
		show(y)
	}
	for _, x := range seen {
		show(x)
	}
	show(patch)
	var saved T
	y := autograd.Checkpoint(func(in ...T) T { saved = in[0]; return in[0].Mul(2) }, mk(49))
	show(y)
	show(saved)
}

// Functions that keep their argument or return what they keep.

type memory struct{ x T }

func (m *memory) store(in ...T) T { m.x = in[0]; return in[0].Mul(2) }
func (m *memory) stored(...T) T   { return m.x }

var stored T

func store(in ...T) T { stored = in[0]; return in[0].Mul(2) }

func keepers() {
	m := &memory{}
	show(autograd.Checkpoint(m.store, mk(201)))
	show(m.x)
	show(autograd.Checkpoint(m.stored, mk(202)))
	show(m.x)
	show(autograd.Checkpoint(store, mk(203)))
	show(stored)
	fs := []func(...T) T{store}
	show(autograd.Checkpoint(fs[0], mk(204)))
	show(stored)
	var first T
	memo := nn.Func(func(x T) T {
		if first == nil {
			first = x.Mul(2)
		}
		return first
	})
	for range 2 {
		y := memo.Forward(mk(205))
		show(y)
	}
	var seen []T
	tap := nn.Func(func(x T) T { seen = append(seen, x); return x.Mul(2) })
	show(tap.Forward(mk(206)))
	show(seen[0])
}

// Values of types that are not followed: named slices, slices of slices and of structs.

func toList(ts []T) List                              { return ts }
func iterator(f func(yield func(T) bool)) iter.Seq[T] { return f }

func second2() T { ts := []T{mk(53), mk(54)}; return toList(ts)[1] }

func types() {
	ts := []T{mk(55), mk(56)}
	y := toList(ts)[1]
	show(y)
	us := []T{mk(57), mk(58)}
	for _, y := range toList(us) {
		show(y)
	}
	show(second2())
	rows, last := [][]T{{mk(59)}}, []T{mk(60)}
	for _, r := range append(rows, last) {
		show(r[0])
	}
	s := state{mk(61), mk(62)}
	q := append([]state(nil), s)[0]
	show(q.X)
	x := mk(63)
	z := append([]fmt.Stringer(nil), x)[0].(T)
	show(z)
	w := mk(64)
	for y := range iterator(func(yield func(T) bool) { _ = yield(w.Mul(2)) && yield(w.Mul(3)) }) {
		show(y)
	}
}

// Appends into arrays that others see, and that no variable holds.

func total(ts []T) T {
	y := ts[0].Mul(1)
	for _, t := range ts[1:] {
		y = y.Add(t)
	}
	return y
}

func addTo(ts []T, x T) []T   { return append(ts, x) }
func addGlobal(ts []T) []T    { return append(ts, g0) }
func push(l list, x T) list   { return list{append(l.Items, x)} }
func pushAny(ts []T, x T) any { return append(ts, x) }

func deeper(n int, ts ...T) T {
	if n == 0 {
		return ts[len(ts)-1]
	}
	x := ts[0].Mul(2)
	return deeper(n-1, append(ts, x)...)
}

func appends() {
	ts, x := []T{mk(65), mk(66)}, mk(67)
	show(total(append(ts[:1], x)))
	show(ts[1])
	us, y := make([]T, 1, 4), mk(68)
	us[0] = mk(69)
	_ = append(us, y)
	show(us[:2][1])
	vs, z := []T{mk(70), mk(71)}, mk(72)
	fmt.Println(len(addTo(vs[:1], z)))
	show(vs[1])
	ws := []T{mk(73), mk(74)}
	fmt.Println(len(addGlobal(ws[:1])))
	show(ws[0])
	show(ws[1])
	show(g0)
	l, a := list{[]T{mk(75), mk(76)}}, mk(77)
	m := push(list{l.Items[:1]}, a)
	show(m.Items[1])
	show(l.Items[1])
	bs, b := []T{mk(78), mk(79)}, mk(80)
	v := pushAny(bs[:1:2], b)
	show(v.([]T)[1])
	show(bs[1])
	cs := make([]T, 1, 8)
	cs[0] = mk(81)
	show(deeper(2, cs...))
	show(cs[:3][1])
	ds := []T{mk(87), mk(88), mk(89)}
	_ = append(ds[:1], mk(90))
	fmt.Println(len(addTo(ds[:2], mk(91))))
	show(ds[1])
	show(ds[2])
}

// Appends into arrays that no variable holds: of a field behind a pointer, an array, a map and the enclosing function.

type cache struct {
	items []T
	anys  []any
}

func (c *cache) all() []T                  { return c.items }
func (c *cache) with(i int, x T) []T       { return append(c.items[:i], x) }
func (c *cache) withPart(i int, x T) []T   { ts := c.items[:i]; return append(ts, x) }
func (c *cache) withVar(i int, x T) []T    { ts := c.items[:i]; us := append(ts, x); return us }
func (c *cache) named(i int, x T) (us []T) { us = c.items[:i]; return append(us, x) }
func (c *cache) list(i int, x T) list      { return list{append(c.items[:i], x)} }

var pool = make([]T, 0, 8)

func arrays() {
	c := &cache{make([]T, 24), make([]any, 2)}
	x := mk(92)
	fmt.Println(len(append(c.items[:0], x)))
	x = mk(93)
	us := append(c.items[:1], x)
	fmt.Println(len(us), x.Dim())
	for i, with := range []func(*cache, int, T) []T{(*cache).with, (*cache).withPart, (*cache).withVar, (*cache).named} {
		x := mk(float64(94 + i))
		us := with(c, 2+i, x)
		fmt.Println(len(us), x.Dim())
	}
	y := mk(98)
	us = c.with(6, y)
	fmt.Println(len(us), y.Dim())
	z := mk(99)
	us = c.withPart(7, z)
	fmt.Println(len(us), z.Dim())
	v := mk(100)
	us = c.withVar(8, v)
	fmt.Println(len(us), v.Dim())
	w := mk(101)
	us = c.named(9, w)
	fmt.Println(len(us), w.Dim())
	a := mk(102)
	fmt.Println(len(c.list(10, a).Items), a.Dim())
	b := mk(103)
	us = addTo(c.items[:11], b)
	fmt.Println(len(us), b.Dim())
	d := mk(104)
	us = append(c.all()[:12], d)
	fmt.Println(len(us), d.Dim())
	e, l := mk(105), list{}
	l.Items = append(c.items[:13], e)
	fmt.Println(len(l.Items), e.Dim())
	f := mk(106)
	m := push(list{c.items[:14]}, f)
	fmt.Println(len(m.Items), f.Dim())
	for i := 15; i < 18; i++ {
		x := mk(float64(92 + i))
		us := append(c.items[:i], x)
		fmt.Println(len(us), x.Dim())
	}
	fmt.Println(len(addTo(c.items[:18], mk(110))))
	for i := range append(c.items[:19], mk(111)) {
		_ = i
	}
	for _, x := range c.items[:20] {
		show(x)
	}
	g := mk(112)
	vs := append(c.anys[:1], g)
	fmt.Println(len(vs), g.Dim())
	show(c.anys[1].(T))
	var buf [4]T
	h := mk(113)
	us = append(buf[:0], h)
	fmt.Println(len(us), h.Dim())
	show(buf[0])
	j := mk(114)
	us = append(pool, j)
	fmt.Println(len(us), j.Dim())
	show(pool[:1][0])
	k := mk(115)
	by := map[string][]T{"a": make([]T, 1)}
	us = append(by["a"][:0], k)
	fmt.Println(len(us), k.Dim())
	show(by["a"][0])
	outer := []T{mk(116), mk(117)}
	func() {
		x := mk(118)
		us := append(outer[:1], x)
		fmt.Println(len(us), x.Dim())
	}()
	show(outer[1])
}

// Elements of an array after the end of a slice.

func headOf(ts []T) []T { return ts[:1] }

func capacity() {
	ts := []T{mk(119), mk(120)}
	us := ts[:1:2]
	show(us[0])
	show(us[:2][1])
	ts = []T{mk(121), mk(122)}
	vs := headOf(ts)
	show(vs[0])
	show(vs[:2][1])
	as, x := make([]T, 0, 4), mk(123)
	bs := append(as, x)
	show(bs[0])
	cs := as[:1]
	show(cs[0])
	same := mk(124)
	ds := []T{same, same}
	ds = ds[:1:2]
	ds[0] = mk(125)
	ds = ds[:2]
	show(ds[1])
}

// Keys of range loops that are evaluated in each iteration.

func keys() {
	var counts [4]int
	x, seen, y := mk(126), map[T]int{}, mk(127)
	for counts[x.Dim()] = range 3 {
	}
	for counts[x.Mul(2).Dim()+1] = range 2 {
	}
	fmt.Println(counts)
	for seen[y] = range 2 {
	}
	for x := range seen {
		show(x)
	}
}

// Handles in pointers of package unsafe.

type slot struct{ p unsafe.Pointer }

func ofPointer[P ~unsafe.Pointer](p P) T { return T(p) }
func (s *slot) get() T                   { return T(s.p) }
func (s *slot) word() uintptr            { return uintptr(s.p) }

func pointers() {
	x := mk(128)
	y := ofPointer(unsafe.Pointer(x))
	show(y)
	show(x)
	s := &slot{unsafe.Pointer(x)}
	for range 2 {
		y := s.get()
		show(y)
		z := T(unsafe.Add(nil, s.word()))
		show(z)
	}
	show(x)
}

// Temporaries whose consumers return no tensors.

type number float64

func (n number) half() number { return n / 2 }

func mean(x T) number                   { v, _ := x.Mean().Item(); return number(v) }
func meanOf(x T) (number, error)        { v, err := x.Mean().Item(); return number(v), err }
func plus(x T, n number) number         { return mean(x) + n }
func plusErr(n number, err error) error { return errors.Join(err, mk(float64(n)).Err()) }
func sizeOf(x T) func() int             { n := x.Dim(); return func() int { return n } }
func single(x T) []T                    { return []T{x} }

func temporaries() {
	fmt.Println(plus(mk(135), plus(mk(136), mean(mk(137)).half())))
	fmt.Println(plusErr(meanOf(mk(138))), mk(139).Add(1).Dim()+sizeOf(mk(140).Add(1))())
	counts := make([]int, 3)
	counts[mk(141).Dim()]++
	x := mk(142).
		Add(1)
	mk(143).Add(1).Shape()[0] = mk(144).Dim() + x.Mul(2).
		Dim()
	switch y := mk(145); mean(y.Mul(2)) {
	case mean(mk(290)):
		show(y)
	}
	for i := 0; i < mk(146).Dim(); i++ {
		if n, err := meanOf(mk(147)); err == nil && n > mean(mk(3)) {
			fmt.Println(n)
		} else if m, err := meanOf(x); err == nil {
			fmt.Println(m)
		}
	}
	show(single(single(mk(148))[0])[0])
	fmt.Println(len(single(mk(149))), mean(single(mk(150))[0]), total(single(mk(151))).Dim(), counts)
	defer func(n number) { fmt.Println(n) }(mean(mk(152)))
}

// Methods that fmt calls.

type noisy struct{ X T }

var printed T

func (n noisy) String() string { printed = n.X; return "noisy" }

func prints() {
	n := noisy{mk(82)}
	fmt.Println(n)
	show(printed)
	var v any = noisy{mk(83)}
	fmt.Println(v)
	show(printed)
	o := outer{N: noisy{mk(129)}}
	fmt.Println(o)
	show(printed)
	w := writer{mk(130)}
	fmt.Fprintln(w, "written")
	show(printed)
	fmt.Fprint(writer{mk(131)}, "written\n")
	show(printed)
}

type outer struct{ N noisy }

type writer struct{ X T }

func (w writer) Write(p []byte) (int, error) { printed = w.X; return os.Stdout.Write(p) }

// Results that a short declaration would give other types, and a call of panic in parentheses.

func large64(x T) (T, uint64)           { y := x.Mul(2); return y.Add(1), 1<<64 - 1 }
func instance(x T) (T, func([]int) int) { y := x.Mul(2); return y.Add(1), slices.Max }
func partly(x T) (T, func(int) string)  { y := x.Mul(2); return y.Add(1), nothing[int] }
func size(x T) (T, uintptr)             { y := x.Mul(2); return y.Add(1), unsafe.Sizeof(x.Mul(2).Add(1)) }
func sizeOfFunc(x T) (T, uintptr) {
	y := x.Mul(2)
	return y.Add(1), unsafe.Sizeof(func(x T) T { return x.Mul(2).Add(1) })
}
func nothing[A, B any](A) (b B) { return b }
func parenthesised(c bool) T {
	x := mk(84)
	if c {
		(panic(fmt.Sprint(x.Shape())))
	} else {
		return x.Mul(2)
	}
}

// A label before a statement with an assignment, and a shift whose type is that of the result.

func labelled(x T, n int) T {
	x = x.Mul(2)
last:
	switch x = x.Add(1); n {
	case 1:
		for {
			break last
		}
	default:
		show(x)
	}
	return x
}

func shifted(x T, n uint) (T, int64) {
	y := x.Mul(2)
	return y.Add(1), -(1 << n)
}

// The line of a return, which a deferred call sees.

func caller() { _, _, line, _ := runtime.Caller(2); fmt.Println("returned in line", line) }

func deferred(x T) (T, int) {
	defer func() { caller() }()
	y := x.Mul(2)
	return y.
		Add(1).
		Mul(2), 3
}

// Functions whose name several have.

func _(x int)  {}
func _(a, b T) {}
func init()    { show(g0) }
func init()    { show(g1) }

// Slices of which the last element is taken while another name has it, and operands that are elements or fields.

func popped(x T) {
	s := []T{x.Mul(2), x.Mul(3)}
	last := s[len(s)-1]
	s = s[:len(s)-1]
	s = append(s, x.Mul(4))
	show(last)
	show(s[1])
	t := s
	y := s[len(s)-1]
	s = s[:len(s)-1]
	show(y)
	show(t[1])
	r := []T{x.Mul(5), x.Mul(6)}
	for _, y := range r {
		z := r[len(r)-1]
		r = r[:len(r)-1]
		show(z)
		show(y)
	}
	longer := []T{x.Mul(7), x.Mul(8)}
	z := longer[len(longer)-1]
	longer = longer[:len(longer)-1]
	show(z)
	longer = longer[:2]
	show(longer[1])
	double := []T{x.Mul(9)}
	double = append(double, double[0])
	z = double[len(double)-1]
	double = double[:len(double)-1]
	show(z)
	show(double[0])
	for range 3 {
		z = x.Mul(10)
		double = append(double, z)
	}
	for len(double) > 1 {
		w := double[len(double)-1]
		double = double[:len(double)-1]
		show(w.Add(double[0]))
	}
	show(z)
	show(double[0])
}

// Several left sides: two that may be the same element, one that may panic, an element and the variable of its slice.

func sameElement(i, j int, perm []int) {
	ts := []T{mk(300), mk(301)}
	ts[i], ts[j] = ts[j], nil
	fmt.Println(ts[0] == nil, ts[1] == nil)
	w := mk(302)
	ts = []T{mk(303), mk(304)}
	ts[i], ts[j] = w.Mul(2), w
	show(ts[j])
	ts = []T{mk(305), mk(306)}
	ts[i], ts[j] = w, w.Mul(2)
	show(ts[j])
	show(w)
	ts = []T{g0.Mul(2), g0.Mul(3)}
	ts[i], ts[j] = g0, g0.Mul(4)
	show(ts[j])
	ts = []T{g0.Mul(2), g0.Mul(3)}
	ts[i], ts[j] = g0.Mul(4), g0
	show(ts[j])
	show(g0)
	ts = []T{mk(307), mk(308)}
	ts[i], ts[perm[i]] = mk(309), mk(310)
	show(ts[perm[i]])
	h := []T{mk(311), mk(312)}
	c := h
	h[0], c[0] = mk(313), mk(314)
	show(h[0])
	h = []T{mk(315), mk(316)}
	c = h
	c[0], h[0] = g0, mk(317)
	show(h[0])
	show(g0)
	h = []T{mk(318), mk(319)}
	v := mk(320)
	h[i], h[j] = v, mk(321)
	show(h[j])
	show(v)
}

func replacedSlices() {
	w := mk(322)
	ts := []T{mk(323), mk(324)}
	ts[0], ts = w, make([]T, len(ts))
	ts = []T{mk(325), mk(326)}
	ts, ts[0] = make([]T, len(ts)), w
	ts = []T{mk(327), mk(328)}
	us := ts
	show(us[0])
	us[0], ts = w, make([]T, len(ts))
	l := list{[]T{mk(329), mk(330)}}
	l.Items[0], l = w, list{}
	show(w)
	ts = []T{mk(331), mk(332)}
	us = ts
	w, ts[0], ts = mk(333), w, nil
	show(us[0])
	show(w)
	ts = []T{mk(334), mk(335)}
	us = ts
	s := state{mk(336), mk(337)}
	s.X, ts, ts[0] = mk(338), nil, s.X
	show(us[0])
	show(s.X)
	s.X, w, w = mk(339), mk(340), s.X
	show(w)
	fmt.Println(len(ts), len(l.Items))
}

// later shows what a statement assigned after an element for which it panicked.
func later(i int, p *int, by map[string]int) (n int) {
	ts, seen, count := []T{mk(341), mk(342)}, false, struct{ n int }{}
	var one, two struct{ n [1]int }
	field, part := &one.n[0], two.n[:]
	defer func() {
		fmt.Println(recover() != nil, seen, count, n, *field, part)
	}()
	if p == nil {
		ts[i], one = mk(349), struct{ n [1]int }{[1]int{1}}
	}
	ts[i], two = mk(350), struct{ n [1]int }{[1]int{i}}
	ts[i], seen = mk(343), true
	ts[i], count.n = mk(344), 1
	ts[i], n = mk(345), 2
	ts[i], by["a"] = mk(346), 1
	ts[0], *p = mk(347), i
	seen, ts[i+3] = false, mk(348)
	show(ts[0])
	return 3
}

func either(a, b T, first bool) T {
	if first {
		return a
	}
	if b != nil {
		return b
	}
	return a.Mul(2)
}

// moved returns x, which may be an element of ts, after it has replaced all elements.
func moved(ts []T, x T) T {
	for i := range ts {
		ts[i] = nil
	}
	if x == nil {
		return mk(88)
	}
	return x
}

func operands(i int) {
	ts, s := []T{mk(89), mk(90)}, state{mk(91), mk(92)}
	for _, first := range []bool{true, false} {
		show(either(ts[i], s.X, first).Add(0))
		show(either(s.Y, nil, first).Add(0))
		show(either(either(ts[0], ts[1], first), (s.X), !first).Add(0))
		show(either(g0, ts[0], first).Mul(1))
	}
	show(ts[0])
	show(ts[1])
	show(s.X)
	show(s.Y)
	y := ts[0]
	show(moved(ts, ts[0]).Add(0))
	show(y)
}

func main() {
	err := tensor.WithScope(func() error {
		elements(1)
		show(written())
		several()
		panics()
		hooks()
		ranges()
		generic()
		interfaces()
		unfollowed()
		instances()
		hidden()
		nested()
		promoted()
		around()
		models()
		keepers()
		iterators()
		show(labelled(mk(50), 1))
		show(labelled(mk(51), 2))
		x := dot.Same()
		show(x)
		show(dot.Global)
		fmt.Println(dot.Flag(1))
		show(dot.Kept)
		types()
		appends()
		arrays()
		capacity()
		keys()
		pointers()
		temporaries()
		lines, _ := deferred(mk(153))
		show(lines)
		prints()
		z, most := large64(mk(85))
		show(z)
		fmt.Println(most)
		z, largest := instance(mk(86))
		show(z)
		fmt.Println(largest([]int{1, 2}))
		show(parenthesised(false))
		popped(mk(1))
		sameElement(0, 0, []int{0, 1})
		sameElement(0, 1, []int{1, 0})
		replacedSlices()
		for i := range 3 {
			n, by := 0, map[string]int{}
			fmt.Println(later(i, &n, by), later(i, nil, by), n, by)
		}
		operands(0)
		operands(1)
		z, text := partly(mk(132))
		show(z)
		fmt.Println(text(1) == "")
		z, n := size(mk(133))
		show(z)
		fmt.Println(n == 8)
		z, n = sizeOfFunc(mk(134))
		show(z)
		fmt.Println(n == 8)
		y, by := shifted(mk(52), 40)
		show(y)
		fmt.Println(by)
		return nil
	})
	fmt.Println(err)
}
