package nn

import (
	"reflect"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

func nilModule(op string) error { return refuse.Nil(op, "a module") }

func noModule(op string) *tensor.Tensor { return tensor.Failed(nilModule(op)) }

// Sequential applies its layers in order. Its parts are named "0", "1" and so on. PyTorch: torch.nn.Sequential.
type Sequential struct {
	Layers []Layer `nn:"."`
}

// NewSequential returns a Sequential of the given layers.
func NewSequential(layers ...Layer) *Sequential { return &Sequential{layers} }

// Forward returns Pipe(x, s's layers...), and like [Pipe] releases intermediate results between layers of this package,
// and with "linstock go" also between user-defined layers.
func (s *Sequential) Forward(x *tensor.Tensor) *tensor.Tensor {
	if s == nil {
		return noModule("Sequential")
	}
	y, _ := through("Sequential", x, false, s.Layers, 0)
	return y
}

// Pipe applies layers to x in order, each to the result of the one before, and returns the last result, or x if there
// are no layers.
//
// A result that only layers of this package have seen, the one that made it and the one that took it, is released as
// soon as the second has returned, unless autograd needs it. The peak memory is then the same as in PyTorch. A tensor
// that a Func, a user-defined layer or the caller could have seen is not released: it lives until its scope closes or
// it becomes unreachable. Pipe runs a [Sequential] as its layers.
//
// In a program that "linstock go" has compiled, the same holds for user-defined layers (a type with a method Forward,
// not a Func) that it has found to keep the contract of [Layer].
//
// A [Linear] and a ReLU, SiLU, Sigmoid, Tanh or GELU after it, not in place, are one native call. Where no gradients are
// recorded, the activation then overwrites the result of the Linear.
func Pipe(x *tensor.Tensor, layers ...Layer) *tensor.Tensor {
	y, _ := through("Pipe", x, false, layers, 0)
	return y
}

// Residual returns x + Pipe(x, layers...). It releases the result of Pipe if Pipe would release it
// after one more layer.
func Residual(x *tensor.Tensor, layers ...Layer) *tensor.Tensor {
	branch, own := through("Residual", x, false, layers, 0)
	sum := x.Add(branch)
	if own {
		branch.Release()
	}
	return sum
}

// internal is a Layer made of a function of this package, which returns either a tensor that it made or its argument.
type internal func(x *tensor.Tensor) *tensor.Tensor

func (f internal) Forward(x *tensor.Tensor) *tensor.Tensor { return f(x) }

// deepest is the greatest depth to which Sequentials may be nested.
const deepest = 1000

// borrows reports whether a layer of type t borrows its argument and returns a new tensor or the argument: it belongs to
// this package, or "linstock go" has found that in its source.
func borrows(t reflect.Type) bool {
	if factsOf(t).library {
		return true
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	_, ok := handle.Borrowing.Load(t)
	return ok
}

// through applies layers to y. own reports that a layer that borrows made y and that no other code has seen it; the second
// result reports the same of the first. While a layer runs, through holds no reference to a y that is not its
// own, so that a sweep can free it if the caller holds none either.
func through(op string, y *tensor.Tensor, own bool, layers []Layer, depth int) (*tensor.Tensor, bool) {
	if depth > deepest {
		return refuse.Tensor(op, tensor.ErrArgument, "Sequentials are nested more than %d deep: does one contain itself?", deepest), false
	}
	for i := 0; i < len(layers); i++ {
		l := layers[i]
		if l == nil {
			return refuse.Tensor(op, tensor.ErrNil, "layer %d is nil", i), false
		}
		if handle.Failed(y) {
			return y, false
		}
		if inner, ok := l.(*Sequential); ok && inner != nil {
			y, own = through("Sequential", y, own, inner.Layers, depth+1)
			continue
		}
		linear, activation := fusible(layers[i:])
		known := linear != nil || borrows(reflect.TypeOf(l))
		if p, ok := l.(*Parametrized); ok {
			known = p.library()
		}
		mine, at := held(y, own && known)
		var next *tensor.Tensor
		if linear != nil {
			next = linear.activated(y, activation)
			i++
		} else {
			next = l.Forward(y)
		}
		if mine != nil && next != mine {
			mine.Release()
		}
		if next == nil {
			return refuse.Tensor(op, tensor.ErrNil, "layer %d (%T) returned nil", i, l), false
		}
		own = known && (mine != nil || reflect.ValueOf(next).Pointer() != at)
		y = next
	}
	return y, own
}

// held returns y if it is to be released, and nil otherwise, which keeps nothing alive. It also returns y's address, to
// detect whether a layer returned its argument. If the compiler inlined it, it could choose after the layer ran and
// keep y alive until then.
//
//go:noinline
func held(y *tensor.Tensor, own bool) (*tensor.Tensor, uintptr) {
	at := reflect.ValueOf(y).Pointer()
	if own {
		return y, at
	}
	return nil, at
}

// tidy is tensor.Tidy with the scope as an argument. The enclosing scope reports a failure inside too. f runs only code
// of this package.
func tidy(f func(s *tensor.Scope) *tensor.Tensor) *tensor.Tensor {
	s, err := tensor.NewScope()
	if err != nil {
		return tensor.Failed(err)
	}
	y, err := inside(s, f)
	if err != nil {
		return tensor.Failed(err)
	}
	return y
}

// tidyAs is tidy for a function that users call, op: an error of an operator in f names op.
func tidyAs(op string, f func(s *tensor.Scope) *tensor.Tensor) *tensor.Tensor {
	y := tidy(f)
	if err := y.Err(); err != nil {
		return tensor.Failed(refuse.Named(op, err))
	}
	return y
}

func inside(s *tensor.Scope, f func(s *tensor.Scope) *tensor.Tensor) (*tensor.Tensor, error) {
	defer s.Close()
	return outward(s, f(s))
}

// outward moves a result out of a scope that is about to close.
func outward(s *tensor.Scope, y *tensor.Tensor) (*tensor.Tensor, error) {
	if y == nil {
		return nil, refuse.Error("nn", tensor.ErrNil, "a tensor is needed, got nil")
	}
	if err := y.Err(); err != nil {
		return nil, err
	}
	if s.Contains(y) {
		y.MoveOut()
	}
	return y, nil
}
