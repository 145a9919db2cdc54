package main

import (
	_ "embed"
	"testing"
)

//go:embed testdata/aliases.go
var aliases string

// part is a package with structs that have a tensor which other packages cannot name, or only as a promoted field.
const part = `package part

import "github.com/linstock-ml/linstock/tensor"

type T = *tensor.Tensor

type State struct{ H, c T }

func New(h, c T) State      { return State{h, c} }
func (s State) C() T        { return s.c }
func (s State) Swap() State { return State{s.c, s.H} }

type inner struct {
	Hidden T
	Items  []T
}

type Output struct {
	inner
	Logits T
}

func Wrap(h, l T, items ...T) Output { return Output{inner{h, items}, l} }
func (o Output) Get() T              { return o.Hidden }

type Pair struct{ X T }

type Nested struct {
	H  T
	in Pair
}

func Nest(h, x T) Nested      { return Nested{h, Pair{x}} }
func (n Nested) X() T         { return n.in.X }
func (n Nested) Swap() Nested { return Nested{n.in.X, Pair{n.H}} }

type Outer struct {
	Y T
	N Nested
}

func Around(y, h, x T) Outer { return Outer{y, Nest(h, x)} }

type Of[E any] struct {
	Y T
	e E
}

func OfState(y, h, c T) Of[State] { return Of[State]{y, New(h, c)} }
func (o Of[E]) E() E              { return o.e }
`

// dot imports package tensor without a name.
const dot = `package dot

import . "github.com/linstock-ml/linstock/tensor"

var Global = Full([]int{2}, -3.0)

func Same() *Tensor { return Tidy(func() *Tensor { return Global }) }

var Kept *Tensor

func Flag(n int) []int {
	x := Full([]int{2}, 87.0)
	if n > 0 {
		Kept = x
	}
	return x.Shape()
}
`

// Programs in which a tensor has a second name print the same if they are rewritten. A file may begin with a byte order
// mark, and a function may be too large for the analysis.
func TestAliases(t *testing.T) {
	dir, linstock := command(t)
	marked := "\ufeffpackage main\n\nfunc twice(x T) T { y := x.Mul(2); return y.Mul(1) }\n\nfunc init() { show(twice(g0)) }\n"
	if err := writeModule(dir, map[string]string{"go.mod": module["go.mod"], "main.go": aliases, "marked.go": marked, "large.go": large(1200),
		"part/part.go": part, "dot/dot.go": dot}); err != nil {
		t.Fatal(err)
	}
	was, err := runIn(dir, "go", "run", ".")
	if err != nil {
		t.Fatalf("%v\n%s", err, was)
	}
	now, err := runIn(dir, linstock, "go", "run", ".")
	if err != nil || string(now) != string(was) {
		t.Errorf("%v\n%s\nrewritten\n%s", err, was, now)
	}
}

// large returns a file with a function of n variables.
func large(n int) string {
	b := []byte("package main\n\nfunc large(k int, x T) (n int) {\n")
	for range n {
		b = append(b, "\tif k == n {\n\t\ty := x.Mul(2)\n\t\tn += y.Dim()\n\t}\n"...)
	}
	return string(append(b, "\treturn n\n}\n\nfunc init() { println(large(2, g0)) }\n"...))
}
