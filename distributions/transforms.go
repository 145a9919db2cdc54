package distributions

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Transform is an invertible function of tensors whose Jacobian determinant is known. NewTransform makes one of functions. A
// type that embeds it can replace methods, such as Sign; its Inv then returns InverseOf of itself, and its Equal compares
// it with another value of the type. PyTorch: torch.distributions.transforms.Transform.
type Transform interface {
	// Forward returns y = f(x). PyTorch: the call.
	Forward(x *tensor.Tensor) *tensor.Tensor
	// Inverse returns x with f(x) = y.
	Inverse(y *tensor.Tensor) *tensor.Tensor
	// LogAbsDetJacobian returns log |dy/dx| for y = f(x). It lacks the dimensions of one event. PyTorch:
	// log_abs_det_jacobian.
	LogAbsDetJacobian(x, y *tensor.Tensor) *tensor.Tensor
	// Inv returns the inverse transform. PyTorch: inv.
	Inv() Transform

	// Domain returns the valid x.
	Domain() constraints.Constraint
	// Codomain returns the valid y.
	Codomain() constraints.Constraint
	// Bijective reports whether f has an inverse on all of its codomain.
	Bijective() bool
	// Sign returns whether f increases or decreases: 1 or -1, or a tensor of them; nil if it has no sign.
	Sign() any
	// ForwardShape returns the shape of f(x) for an x of the given shape. PyTorch: forward_shape.
	ForwardShape(shape []int) ([]int, error)
	// InverseShape returns the shape of an x with an f(x) of the given shape. PyTorch: inverse_shape.
	InverseShape(shape []int) ([]int, error)
	// Equal reports whether other, of the same type, computes the same function: the divergence of two
	// TransformedDistributions exists only if their transforms are equal.
	Equal(other Transform) bool

	// Err returns the error of the constructor.
	Err() error
	// String returns the transform as PyTorch prints it.
	String() string
}

// transform implements Transform.
type transform struct {
	name             string
	domain, codomain func() constraints.Constraint
	bijective        bool
	sign             any // an int, a tensor, or nil
	forward, inverse func(t *tensor.Tensor) *tensor.Tensor
	logDet           func(x, y *tensor.Tensor) *tensor.Tensor
	forwardShape     func(shape []int) ([]int, error)
	inverseShape     func(shape []int) ([]int, error)
	equal            func(other *transform) bool // nil means that all with this name are equal
	params           []any                       // numbers, tensors and what else decides equality
	parts            []Transform                 `nn:"-"`
	text             func() string
	err              error
	cached           bool
	cache            atomic.Pointer[pair]
}

// pair holds handles, the cache's own, to the last argument and result of a transform. They keep the tensors alive, so
// that no other tensor has their addresses, by which they are recognized.
type pair struct{ x, y *tensor.Tensor }

// remember replaces the cached pair.
func (t *transform) remember(x, y *tensor.Tensor) {
	if !t.cached || !handle.Usable(x) || !handle.Usable(y) {
		return
	}
	old := t.cache.Swap(&pair{x.Alias().Keep(), y.Alias().Keep()})
	if old != nil {
		old.x.Release()
		old.y.Release()
	}
}

// recall returns a handle to the cached y of x, or to the cached x of y, whichever is not nil. It returns nil if there is
// none.
func (t *transform) recall(x, y *tensor.Tensor) *tensor.Tensor {
	c := t.cache.Load()
	var other *tensor.Tensor
	switch {
	case c == nil:
		return nil
	case x != nil && handle.Same(c.x, x):
		other = c.y.Alias()
	case y != nil && handle.Same(c.y, y):
		other = c.x.Alias()
	}
	if other == nil || other.Err() != nil { // also if another goroutine has replaced the pair
		return nil
	}
	return other
}

// CacheSize sets whether a transform keeps its last argument and result: 1 keeps them, so that the inverse of the tensor
// that Forward returned last is the very x, without rounding; 0 is the default. A chain of transforms is inverted without
// rounding if each of them has a cache. The tensors live until the next call. PyTorch: cache_size.
func CacheSize(n int) Option { return Option{"CacheSize", func(s *settings) { s.cacheSize = n }} }

// EventDim sets the number of last dimensions that are one event; 0 by default. PyTorch: event_dim.
func EventDim(n int) Option { return Option{"EventDim", func(s *settings) { s.eventDim = n }} }

// Dim sets the dimension along which transforms are joined; 0 by default. PyTorch: dim.
func Dim(n int) Option { return Option{"Dim", func(s *settings) { s.dim = n }} }

// Lengths sets the lengths of the slices of NewCatTransform; 1 each by default. PyTorch: lengths.
func Lengths(n ...int) Option { return Option{"Lengths", func(s *settings) { s.lengths = n }} }

// newTransform completes t for the constructor of its name.
func newTransform(t *transform, opts []Option, known ...string) (*transform, settings) {
	op := "New" + t.name
	s, err := read(op, opts, append(known, "CacheSize")...)
	if err == nil && s.cacheSize != 0 && s.cacheSize != 1 {
		err = refuse.Error(op, tensor.ErrArgument, "CacheSize must be 0 or 1, got %d", s.cacheSize)
	}
	t.err, t.cached = err, s.cacheSize == 1
	return t, s
}

func (t *transform) fail(format string, args ...any) *transform {
	if t.err == nil {
		t.err = refuse.Error("New"+t.name, tensor.ErrArgument, format, args...)
	}
	return t
}

func (t *transform) tensors() (all []*tensor.Tensor) {
	for _, p := range t.params {
		if p, ok := p.(*tensor.Tensor); ok {
			all = append(all, p)
		}
	}
	for _, p := range t.parts {
		if p, ok := p.(interface{ tensors() []*tensor.Tensor }); ok {
			all = append(all, p.tensors()...)
		}
	}
	return all
}

// apply runs a method in a scope.
func (t *transform) apply(method string, f func() *tensor.Tensor, dims int, args ...*tensor.Tensor) *tensor.Tensor {
	if err := t.Err(); err != nil {
		return tensor.Failed(err)
	}
	op := t.name + "." + method
	for _, a := range args {
		if err := refuse.Unusable(op, "", a); err != nil {
			return tensor.Failed(err)
		}
		if a.Dim() < dims {
			return refuse.Tensor(op, tensor.ErrArgument, "a tensor of at least %d dimensions is needed, got shape %v", dims, a.Shape())
		}
	}
	return tensor.Tidy(f)
}

// Forward implements Transform.
func (t *transform) Forward(x *tensor.Tensor) *tensor.Tensor {
	if y := t.recall(x, nil); y != nil {
		return y
	}
	y := t.apply("Forward", func() *tensor.Tensor { return t.forward(x) }, t.Domain().EventDim(), x)
	t.remember(x, y)
	return y
}

// Inverse implements Transform.
func (t *transform) Inverse(y *tensor.Tensor) *tensor.Tensor {
	if x := t.recall(nil, y); x != nil {
		return x
	}
	x := t.apply("Inverse", func() *tensor.Tensor { return t.inverse(y) }, t.Codomain().EventDim(), y)
	t.remember(x, y)
	return x
}

// LogAbsDetJacobian implements Transform.
func (t *transform) LogAbsDetJacobian(x, y *tensor.Tensor) *tensor.Tensor {
	if t.logDet == nil && t.Err() == nil {
		return refuse.Tensor(t.name+".LogAbsDetJacobian", tensor.ErrNotImplemented, "%s has no LogAbsDetJacobian", t.name)
	}
	return t.apply("LogAbsDetJacobian", func() *tensor.Tensor { return t.logDet(x, y) }, 0, x, y)
}

// Inv implements Transform.
func (t *transform) Inv() Transform { return &inverse{of: t} }

// Domain implements Transform.
func (t *transform) Domain() constraints.Constraint {
	if t.err != nil {
		return constraints.Real
	}
	return t.domain()
}

// Codomain implements Transform.
func (t *transform) Codomain() constraints.Constraint {
	if t.err != nil {
		return constraints.Real
	}
	return t.codomain()
}

// Bijective implements Transform.
func (t *transform) Bijective() bool { return t.err == nil && t.bijective }

// Sign implements Transform.
func (t *transform) Sign() any {
	if t.err != nil {
		return nil
	}
	if s, ok := t.sign.(*tensor.Tensor); ok {
		return s.Sign()
	}
	return t.sign
}

// ForwardShape implements Transform.
func (t *transform) ForwardShape(shape []int) ([]int, error) { return t.shape(t.forwardShape, shape) }

// InverseShape implements Transform.
func (t *transform) InverseShape(shape []int) ([]int, error) { return t.shape(t.inverseShape, shape) }

func (t *transform) shape(f func([]int) ([]int, error), shape []int) ([]int, error) {
	if t.err != nil {
		return nil, t.err
	}
	if f == nil {
		return slices.Clone(shape), nil
	}
	out, err := f(shape)
	var e *tensor.Error
	switch {
	case errors.As(err, &e):
		return nil, rename(t.name, err)
	case err != nil:
		return nil, refuse.Error(t.name, tensor.ErrArgument, "%v", err)
	}
	return out, nil
}

// Equal implements Transform.
func (t *transform) Equal(other Transform) bool {
	o, ok := other.(*transform)
	if !ok || o == nil || t.name != o.name || t.err != nil || o.err != nil || len(t.params) != len(o.params) || len(t.parts) != len(o.parts) {
		return false
	}
	if t == o {
		return true
	}
	if t.equal != nil && !t.equal(o) {
		return false
	}
	for i, p := range t.params {
		other := o.params[i]
		if _, ok := p.(*tensor.Tensor); !ok {
			p, other = other, p // of a number and a tensor, the tensor has Eq
		}
		x, ok := p.(*tensor.Tensor)
		if !ok {
			if !reflect.DeepEqual(p, other) {
				return false
			}
			continue
		}
		same := false
		_ = tensor.WithScope(func() error {
			n, err := x.Eq(other).All().Item()
			same = err == nil && n != 0
			return nil
		})
		if !same {
			return false
		}
	}
	for i, p := range t.parts {
		if !equal(p, o.parts[i]) {
			return false
		}
	}
	return true
}

// equal reports whether x and y compute the same function. A type outside this package may have the Equal of a Transform
// that it embeds, which does not know the type: so a value equals itself, and none of another type.
func equal(x, y Transform) bool {
	v := reflect.ValueOf(x)
	return v.Type() == reflect.TypeOf(y) && (v.Comparable() && x == y || x.Equal(y))
}

// Err implements Transform.
func (t *transform) Err() error { return t.err }

// String implements Transform.
func (t *transform) String() string {
	if t.text != nil && t.err == nil {
		return t.text()
	}
	return t.name + "()"
}

// inverse is the inverse of a transform.
type inverse struct {
	of Transform `nn:"-"`
}

// Forward implements Transform.
func (i *inverse) Forward(x *tensor.Tensor) *tensor.Tensor { return i.of.Inverse(x) }

// Inverse implements Transform.
func (i *inverse) Inverse(y *tensor.Tensor) *tensor.Tensor { return i.of.Forward(y) }

// LogAbsDetJacobian implements Transform.
func (i *inverse) LogAbsDetJacobian(x, y *tensor.Tensor) *tensor.Tensor {
	return tensor.Tidy(func() *tensor.Tensor { return i.of.LogAbsDetJacobian(y, x).Neg() })
}

// Inv implements Transform.
func (i *inverse) Inv() Transform { return i.of }

// Domain implements Transform.
func (i *inverse) Domain() constraints.Constraint { return i.of.Codomain() }

// Codomain implements Transform.
func (i *inverse) Codomain() constraints.Constraint { return i.of.Domain() }

// Bijective implements Transform.
func (i *inverse) Bijective() bool { return i.of.Bijective() }

// Sign implements Transform.
func (i *inverse) Sign() any { return i.of.Sign() }

// ForwardShape implements Transform.
func (i *inverse) ForwardShape(shape []int) ([]int, error) { return i.of.InverseShape(shape) }

// InverseShape implements Transform.
func (i *inverse) InverseShape(shape []int) ([]int, error) { return i.of.ForwardShape(shape) }

// Equal implements Transform.
func (i *inverse) Equal(other Transform) bool {
	o, ok := other.(*inverse)
	return ok && o != nil && equal(i.of, o.of)
}

// Err implements Transform.
func (i *inverse) Err() error { return i.of.Err() }

// String implements Transform.
func (i *inverse) String() string { return fmt.Sprintf("_InverseTransform(%v)", i.of) }

func (i *inverse) tensors() []*tensor.Tensor {
	if t, ok := i.of.(interface{ tensors() []*tensor.Tensor }); ok {
		return t.tensors()
	}
	return nil
}

// InverseOf returns the inverse of t, as a Transform's method Inv does; the inverse of such an inverse is t. PyTorch: inv.
func InverseOf(t Transform) Transform {
	if err := usable("InverseOf", []Transform{t}); err != nil {
		return &transform{name: "_InverseTransform", err: err}
	}
	if i, ok := t.(*inverse); ok {
		return i.of
	}
	return &inverse{of: t}
}

// NewTransform returns a transform of the given name, made of functions of tensors, as a subclass of PyTorch's Transform is.
// They run in a scope of their own, and return new tensors or their argument. logDet sums over the dimensions of
// domain's and codomain's events: with constraints.RealVector, an x (*, D) has a logDet (*). With a nil inverse, the
// transform is not bijective and has no Inverse; with a nil logDet, it has no LogAbsDetJacobian. The transform keeps
// the shape of its argument, has no sign, and equals only itself. Options: CacheSize. PyTorch: a subclass with _call,
// _inverse and log_abs_det_jacobian.
func NewTransform(name string, domain, codomain constraints.Constraint, forward, inverse func(*tensor.Tensor) *tensor.Tensor,
	logDet func(x, y *tensor.Tensor) *tensor.Tensor, opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "Transform", bijective: inverse != nil, equal: func(*transform) bool { return false }}, opts)
	switch {
	case name == "":
		return t.fail("a name is needed")
	case domain == nil || codomain == nil:
		return t.fail("a domain and a codomain are needed, got nil")
	case forward == nil:
		return t.fail("a function forward is needed, got nil")
	case t.err != nil:
		return t
	}
	own := func(out *tensor.Tensor, in ...*tensor.Tensor) *tensor.Tensor {
		switch {
		case out == nil:
			return refuse.Tensor(name, tensor.ErrNil, "the function returned nil")
		case slices.Contains(in, out): // a result is the caller's to release, and its argument is not
			return out.Alias()
		}
		return out
	}
	t.name, t.domain, t.codomain = name, constant(domain), constant(codomain)
	t.forward = func(x *tensor.Tensor) *tensor.Tensor { return own(forward(x), x) }
	t.inverse = func(y *tensor.Tensor) *tensor.Tensor {
		if inverse == nil {
			return refuse.Tensor(name+".Inverse", tensor.ErrNotImplemented, "%s has no Inverse", name)
		}
		return own(inverse(y), y)
	}
	if logDet != nil {
		t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor { return own(logDet(x, y), x, y) }
	}
	return t
}

// constant returns a domain that does not depend on the transform.
func constant(c constraints.Constraint) func() constraints.Constraint {
	return func() constraints.Constraint { return c }
}

var matrices = constraints.Independent(constraints.Real, 2)

// usable returns an error of op unless all of ts can be used.
func usable(op string, ts []Transform) error {
	for i, t := range ts {
		if t == nil || reflect.ValueOf(t).Kind() == reflect.Pointer && reflect.ValueOf(t).IsNil() {
			return refuse.Error(op, tensor.ErrNil, "transform %d is nil", i)
		}
		if err := t.Err(); err != nil {
			return err
		}
	}
	return nil
}

// composeDomain returns the domain of parts with the number of event dimensions that all of them need.
func composeDomain(parts []Transform) constraints.Constraint {
	if len(parts) == 0 {
		return constraints.Real
	}
	domain, event := parts[0].Domain(), parts[len(parts)-1].Codomain().EventDim()
	for _, p := range slices.Backward(parts) {
		event = max(event+p.Domain().EventDim()-p.Codomain().EventDim(), p.Domain().EventDim())
	}
	if more := event - domain.EventDim(); more > 0 {
		domain = constraints.Independent(domain, more)
	}
	return domain
}

func composeCodomain(parts []Transform) constraints.Constraint {
	if len(parts) == 0 {
		return constraints.Real
	}
	codomain, event := parts[len(parts)-1].Codomain(), parts[0].Domain().EventDim()
	for _, p := range parts {
		event = max(event+p.Codomain().EventDim()-p.Domain().EventDim(), p.Codomain().EventDim())
	}
	if more := event - codomain.EventDim(); more > 0 {
		codomain = constraints.Independent(codomain, more)
	}
	return codomain
}

// signs returns the product of the signs of ts.
func signs(ts []Transform) any {
	var product any = 1
	for _, t := range ts {
		switch s := t.Sign().(type) {
		case int:
			switch p := product.(type) {
			case int:
				product = p * s
			case *tensor.Tensor:
				product = p.Mul(s)
			}
		case *tensor.Tensor:
			product = s.Mul(product)
		default:
			return nil
		}
	}
	return product
}

// compose returns the composition of parts.
func compose(parts []Transform) *transform {
	t := &transform{name: "ComposeTransform", parts: parts, bijective: true}
	for _, p := range parts {
		t.bijective = t.bijective && p.Bijective()
	}
	t.domain = func() constraints.Constraint { return composeDomain(parts) }
	t.codomain = func() constraints.Constraint { return composeCodomain(parts) }
	t.forward = func(x *tensor.Tensor) *tensor.Tensor {
		if len(parts) == 0 {
			return x.Alias()
		}
		for _, p := range parts {
			x = p.Forward(x)
		}
		return x
	}
	t.inverse = func(y *tensor.Tensor) *tensor.Tensor {
		if len(parts) == 0 {
			return y.Alias()
		}
		for _, p := range slices.Backward(parts) {
			y = p.Inverse(y)
		}
		return y
	}
	t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor {
		if len(parts) == 0 {
			return x.ZerosLike()
		}
		var sum *tensor.Tensor
		event := composeDomain(parts).EventDim()
		for i, p := range parts {
			next := y
			if i < len(parts)-1 {
				next = p.Forward(x)
			}
			term := sumRightmost(p.LogAbsDetJacobian(x, next), event-p.Domain().EventDim())
			if sum == nil {
				sum = term
			} else {
				sum = sum.Add(term)
			}
			event += p.Codomain().EventDim() - p.Domain().EventDim()
			x = next
		}
		return sum
	}
	t.forwardShape = func(shape []int) (out []int, err error) {
		out = slices.Clone(shape)
		for _, p := range parts {
			if out, err = p.ForwardShape(out); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	t.inverseShape = func(shape []int) (out []int, err error) {
		out = slices.Clone(shape)
		for _, p := range slices.Backward(parts) {
			if out, err = p.InverseShape(out); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	t.text = func() string {
		var b strings.Builder
		b.WriteString("ComposeTransform(\n    ")
		for i, p := range parts {
			if i > 0 {
				b.WriteString(",\n    ")
			}
			b.WriteString(p.String())
		}
		b.WriteString("\n)")
		return b.String()
	}
	return t
}

// composed is a composition: its sign is computed when it is asked for.
type composed struct{ *transform }

// Sign implements Transform.
func (c composed) Sign() any {
	if c.err != nil {
		return nil
	}
	return signs(c.parts)
}

// Inv implements Transform.
func (c composed) Inv() Transform {
	if c.err != nil {
		return c
	}
	parts := make([]Transform, len(c.parts))
	for i, p := range c.parts {
		parts[len(parts)-1-i] = p.Inv()
	}
	return NewComposeTransform(parts...)
}

// Equal implements Transform.
func (c composed) Equal(other Transform) bool {
	o, ok := other.(composed)
	return ok && c.transform.Equal(o.transform)
}

// NewComposeTransform returns the transform that applies parts in order. PyTorch:
// torch.distributions.ComposeTransform.
func NewComposeTransform(parts ...Transform) Transform {
	if err := usable("NewComposeTransform", parts); err != nil {
		return composed{&transform{name: "ComposeTransform", err: err}}
	}
	return composed{compose(slices.Clone(parts))}
}

// IdentityTransform is the transform that returns its argument. PyTorch: identity_transform.
var IdentityTransform = NewComposeTransform()

// NewExpTransform returns y = exp(x). Options: CacheSize. PyTorch: torch.distributions.ExpTransform.
func NewExpTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "ExpTransform", domain: constant(constraints.Real), codomain: constant(constraints.Positive), bijective: true, sign: 1,
		forward: (*tensor.Tensor).Exp, inverse: (*tensor.Tensor).Log,
		logDet: func(x, _ *tensor.Tensor) *tensor.Tensor { return x.Alias() }}, opts)
	return t
}

// NewPowerTransform returns y = x^exponent for positive x, where exponent is a number or a tensor. Options: CacheSize.
// PyTorch: torch.distributions.PowerTransform.
func NewPowerTransform(exponent any, opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "PowerTransform", domain: constant(constraints.Positive), codomain: constant(constraints.Positive), bijective: true}, opts)
	var e *tensor.Tensor
	switch v := exponent.(type) {
	case *tensor.Tensor:
		if err := refuse.Unusable("NewPowerTransform", "exponent", v); err != nil {
			t.err = err
			return t
		}
		e = v
	default:
		x, ok := number(v)
		if !ok {
			return t.fail("exponent must be a number or a tensor, got %T", exponent)
		}
		e = tensor.FromScalar(x, tensor.DefaultDType())
	}
	t.params, t.sign = []any{e}, e
	t.forward = func(x *tensor.Tensor) *tensor.Tensor { return x.PowTensor(e) }
	t.inverse = func(y *tensor.Tensor) *tensor.Tensor { return y.PowTensor(e.Reciprocal()) }
	t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor { return e.Mul(y).Div(x).Abs().Log() }
	t.forwardShape = func(shape []int) ([]int, error) { return tensor.BroadcastShapes(shape, e.Shape()) }
	t.inverseShape = t.forwardShape
	return t
}

func clippedSigmoid(x *tensor.Tensor) *tensor.Tensor {
	f := limits(x.DType())
	return x.Sigmoid().Clamp(f.tiny, 1.0-f.eps)
}

// NewSigmoidTransform returns y = 1/(1+exp(-x)). Options: CacheSize. PyTorch: torch.distributions.SigmoidTransform.
func NewSigmoidTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "SigmoidTransform", domain: constant(constraints.Real), codomain: constant(constraints.UnitInterval), bijective: true, sign: 1,
		forward: clippedSigmoid,
		inverse: func(y *tensor.Tensor) *tensor.Tensor {
			f := limits(y.DType())
			y = y.Clamp(f.tiny, 1.0-f.eps)
			return y.Log().Sub(y.Neg().Log1p())
		},
		logDet: func(x, _ *tensor.Tensor) *tensor.Tensor { return x.Neg().Softplus().Neg().Sub(x.Softplus()) }}, opts)
	return t
}

// NewSoftplusTransform returns y = log(1+exp(x)). Options: CacheSize. PyTorch: torch.distributions.SoftplusTransform.
func NewSoftplusTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "SoftplusTransform", domain: constant(constraints.Real), codomain: constant(constraints.Positive), bijective: true, sign: 1,
		forward: func(x *tensor.Tensor) *tensor.Tensor { return x.Softplus() },
		inverse: func(y *tensor.Tensor) *tensor.Tensor { return y.Neg().Expm1().Neg().Log().Add(y) },
		logDet:  func(x, _ *tensor.Tensor) *tensor.Tensor { return x.Neg().Softplus().Neg() }}, opts)
	return t
}

// NewTanhTransform returns y = tanh(x). Options: CacheSize. PyTorch: torch.distributions.TanhTransform.
func NewTanhTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "TanhTransform", domain: constant(constraints.Real), codomain: constant(constraints.Interval(-1.0, 1.0)), bijective: true, sign: 1,
		forward: (*tensor.Tensor).Tanh, inverse: (*tensor.Tensor).Atanh,
		logDet: func(x, _ *tensor.Tensor) *tensor.Tensor {
			return x.RSub(math.Ln2).Sub(x.Mul(-2.0).Softplus()).Mul(2.0)
		}}, opts)
	return t
}

// NewAbsTransform returns y = |x|, which has no unique inverse: Inverse returns y. Options: CacheSize. PyTorch:
// torch.distributions.AbsTransform.
func NewAbsTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "AbsTransform", domain: constant(constraints.Real), codomain: constant(constraints.Positive),
		forward: (*tensor.Tensor).Abs, inverse: (*tensor.Tensor).Alias}, opts)
	return t
}

// NewAffineTransform returns y = loc + scale*x, where loc and scale are numbers or tensors. With EventDim, scale must be a
// number or have the shape of x's events: LogAbsDetJacobian adds over the elements that scale has, as PyTorch's does.
// Options: EventDim, CacheSize. PyTorch: torch.distributions.AffineTransform.
func NewAffineTransform(loc, scale any, opts ...Option) Transform {
	t, s := newTransform(&transform{name: "AffineTransform", bijective: true}, opts, "EventDim")
	if s.eventDim < 0 {
		return t.fail("EventDim must be at least 0, got %d", s.eventDim)
	}
	region := constraints.Real
	if s.eventDim > 0 {
		region = constraints.Independent(region, s.eventDim)
	}
	t.domain, t.codomain = constant(region), constant(region)
	shapes := [2][]int{}
	for i, v := range []any{loc, scale} {
		name := []string{"loc", "scale"}[i]
		if v, ok := v.(*tensor.Tensor); ok {
			if err := refuse.Unusable("NewAffineTransform", name, v); err != nil {
				t.err = err
				return t
			}
			shapes[i] = v.Shape()
			t.params = append(t.params, v)
			continue
		}
		x, ok := number(v)
		if !ok {
			return t.fail("%s must be a number or a tensor, got %T", name, v)
		}
		t.params = append(t.params, x)
	}
	l, k := t.params[0], t.params[1]
	switch v := k.(type) {
	case float64:
		sign := 0
		if v != 0 {
			sign = int(math.Copysign(1, v))
		}
		t.sign = sign
	default:
		t.sign = v
	}
	t.forward = func(x *tensor.Tensor) *tensor.Tensor {
		// Operands in the order of loc + scale*x: libtorch rounds a tensor of shape () to float16 or bfloat16 only as the first.
		if first, ok := k.(*tensor.Tensor); ok {
			x = first.Mul(x)
		} else {
			x = x.Mul(k)
		}
		if first, ok := l.(*tensor.Tensor); ok {
			return first.Add(x)
		}
		return x.Add(l)
	}
	t.inverse = func(y *tensor.Tensor) *tensor.Tensor { return y.Sub(l).Div(k) }
	t.logDet = func(x, _ *tensor.Tensor) *tensor.Tensor {
		shape := x.Shape()
		var result *tensor.Tensor
		switch v := k.(type) {
		case float64:
			result = x.FullLike(math.Log(math.Abs(v)))
		case *tensor.Tensor:
			result = v.Abs().Log()
		}
		if s.eventDim > 0 {
			result = sumRightmost(result, s.eventDim)
			shape = shape[:max(0, len(shape)-s.eventDim)]
		}
		return result.Expand(shape...)
	}
	t.forwardShape = func(shape []int) ([]int, error) { return tensor.BroadcastShapes(shape, shapes[0], shapes[1]) }
	t.inverseShape = t.forwardShape
	t.equal = func(*transform) bool { return true }
	return t
}

// trilVector returns the elements of the lower triangle of matrices up to a diagonal. PyTorch: tril_matrix_to_vec.
func trilVector(m *tensor.Tensor, diagonal int) *tensor.Tensor {
	shape := m.Shape()
	if len(shape) < 2 {
		return m // failed
	}
	n := shape[len(shape)-1]
	flat := m.Reshape(append(slices.Clone(shape[:len(shape)-2]), -1)...)
	return flat.IndexSelect(-1, tensor.FromSlice(trilIndices(n, diagonal), nil, m.Device()))
}

func trilIndices(n, diagonal int) []int64 {
	at := []int64{}
	for i := range n {
		for j := range n {
			if j < i+diagonal+1 {
				at = append(at, int64(i*n+j))
			}
		}
	}
	return at
}

// vectorTril returns matrices with the elements of vectors below the diagonal. PyTorch: vec_to_tril_matrix.
func vectorTril(v *tensor.Tensor, n int) *tensor.Tensor {
	shape := v.Shape()
	if len(shape) < 1 {
		return v // failed
	}
	head := slices.Clone(shape[:len(shape)-1])
	flat := v.NewZeros(append(slices.Clone(head), n*n))
	flat = flat.IndexCopy(-1, tensor.FromSlice(trilIndices(n, -1), nil, v.Device()), v)
	return flat.Reshape(append(head, n, n)...)
}

// triangle returns the size of the matrix that has k elements below its diagonal.
func triangle(k int) (int, error) {
	n := int(math.Round(math.Sqrt(0.25+2*float64(k)) + 0.5))
	if n*(n-1)/2 != k {
		return 0, fmt.Errorf("%d is not the number of elements below the diagonal of a square matrix", k)
	}
	return n, nil
}

// NewCorrCholeskyTransform returns the transform of vectors of D(D-1)/2 numbers to Cholesky factors of D×D correlation
// matrices. Options: CacheSize. PyTorch: torch.distributions.CorrCholeskyTransform.
func NewCorrCholeskyTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "CorrCholeskyTransform", domain: constant(constraints.RealVector), codomain: constant(constraints.CorrCholesky), bijective: true}, opts)
	t.forward = func(x *tensor.Tensor) *tensor.Tensor {
		n, err := triangle(x.Size(-1))
		if err != nil {
			return refuse.Tensor("CorrCholeskyTransform.Forward", tensor.ErrArgument, "%v", err)
		}
		eps := limits(x.DType()).eps
		r := vectorTril(x.Tanh().Clamp(-1+eps, 1-eps), n)
		cumprod := r.Pow(2).RSub(1).Sqrt().CumProd(-1)
		r = r.Add(tensor.Eye(n, r.DType(), r.Device()))
		return r.Mul(cumprod.Narrow(-1, 0, n-1).Pad([]int{1, 0}, tensor.Value(1)))
	}
	t.inverse = func(y *tensor.Tensor) *tensor.Tensor {
		if y.Size(-1) != y.Size(-2) {
			return refuse.Tensor("CorrCholeskyTransform.Inverse", tensor.ErrArgument, "square matrices are needed, got shape %v", y.Shape())
		}
		rest := y.Mul(y).CumSum(-1).RSub(1)
		shifted := rest.Narrow(-1, 0, max(0, y.Size(-1)-1)).Pad([]int{1, 0}, tensor.Value(1))
		u := trilVector(y, -1).Div(trilVector(shifted, -1).Sqrt())
		return u.Log1p().Sub(u.Neg().Log1p()).Div(2)
	}
	t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor {
		if y.Dim() < 2 || y.Size(-1) != y.Size(-2) {
			return refuse.Tensor("CorrCholeskyTransform.LogAbsDetJacobian", tensor.ErrArgument, "square matrices are needed, got shape %v", y.Shape())
		}
		rest := y.Mul(y).CumSum(-1).RSub(1)
		stick := trilVector(rest, -2).Log().Sum(tensor.Dim(-1)).Mul(0.5)
		tanh := x.Add(x.Mul(-2).Softplus()).Sub(math.Ln2).Sum(tensor.Dim(-1)).Mul(-2)
		return stick.Add(tanh)
	}
	t.forwardShape = func(shape []int) ([]int, error) {
		if len(shape) < 1 {
			return nil, fmt.Errorf("vectors are needed, got shape %v", shape)
		}
		n, err := triangle(shape[len(shape)-1])
		return append(slices.Clone(shape[:len(shape)-1]), n, n), err
	}
	t.inverseShape = func(shape []int) ([]int, error) {
		k := len(shape)
		if k < 2 || shape[k-1] != shape[k-2] {
			return nil, fmt.Errorf("square matrices are needed, got shape %v", shape)
		}
		n := shape[k-1]
		return append(slices.Clone(shape[:k-2]), n*(n-1)/2), nil
	}
	return t
}

func atLeastOne(shape []int) ([]int, error) {
	if len(shape) < 1 {
		return nil, fmt.Errorf("vectors are needed, got shape %v", shape)
	}
	return slices.Clone(shape), nil
}

// NewSoftmaxTransform returns y = softmax(x) over the last dimension, which is not bijective. Options: CacheSize.
// PyTorch: torch.distributions.SoftmaxTransform.
func NewSoftmaxTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "SoftmaxTransform", domain: constant(constraints.RealVector), codomain: constant(constraints.Simplex),
		forward: func(x *tensor.Tensor) *tensor.Tensor {
			high, _ := x.MaxDim(-1, tensor.KeepDim(true))
			p := x.Sub(high).Exp()
			return p.Div(p.Sum(tensor.Dim(-1), tensor.KeepDim(true)))
		},
		inverse: (*tensor.Tensor).Log, forwardShape: atLeastOne, inverseShape: atLeastOne}, opts)
	return t
}

// NewStickBreakingTransform returns the bijection from vectors of K-1 numbers to the simplex of K probabilities. Options:
// CacheSize. PyTorch: torch.distributions.StickBreakingTransform.
func NewStickBreakingTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "StickBreakingTransform", domain: constant(constraints.RealVector), codomain: constant(constraints.Simplex), bijective: true}, opts)
	// shift returns x minus log(K-1), …, log(1).
	offset := func(like *tensor.Tensor, n int) *tensor.Tensor {
		return like.NewOnes([]int{n}).CumSum(-1).RSub(n + 1)
	}
	t.forward = func(x *tensor.Tensor) *tensor.Tensor {
		z := clippedSigmoid(x.Sub(offset(x, x.Size(-1)).Log()))
		return z.Pad([]int{0, 1}, tensor.Value(1)).Mul(z.RSub(1).CumProd(-1).Pad([]int{1, 0}, tensor.Value(1)))
	}
	t.inverse = func(y *tensor.Tensor) *tensor.Tensor {
		n := y.Size(-1) - 1
		crop := y.Narrow(-1, 0, max(0, n))
		rest := crop.CumSum(-1).RSub(1).ClampMin(limits(y.DType()).tiny)
		return crop.Log().Sub(rest.Log()).Add(offset(y, max(0, n)).Log())
	}
	t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor {
		x = x.Sub(offset(x, x.Size(-1)).Log())
		return x.Neg().Add(x.LogSigmoid()).Add(y.Narrow(-1, 0, max(0, y.Size(-1)-1)).Log()).Sum(tensor.Dim(-1))
	}
	t.forwardShape = func(shape []int) ([]int, error) {
		shape, err := atLeastOne(shape)
		if err == nil {
			shape[len(shape)-1]++
		}
		return shape, err
	}
	t.inverseShape = func(shape []int) ([]int, error) {
		shape, err := atLeastOne(shape)
		if err == nil {
			if shape[len(shape)-1]--; shape[len(shape)-1] < 0 {
				return nil, fmt.Errorf("a simplex has at least one element, got none")
			}
		}
		return shape, err
	}
	return t
}

func lowerCholesky(x *tensor.Tensor) *tensor.Tensor {
	return x.Tril(tensor.Diagonal(-1)).Add(x.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1)).Exp().DiagEmbed())
}

func lowerCholeskyInverse(y *tensor.Tensor) *tensor.Tensor {
	return y.Tril(tensor.Diagonal(-1)).Add(y.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1)).Log().DiagEmbed())
}

// NewLowerCholeskyTransform returns the transform of square matrices to lower triangular ones with a positive diagonal.
// Options: CacheSize. PyTorch: torch.distributions.LowerCholeskyTransform.
func NewLowerCholeskyTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "LowerCholeskyTransform", domain: constant(matrices), codomain: constant(constraints.LowerCholesky),
		forward: lowerCholesky, inverse: lowerCholeskyInverse}, opts)
	return t
}

// NewPositiveDefiniteTransform returns the transform of square matrices to positive definite ones. Options: CacheSize.
// PyTorch: torch.distributions.PositiveDefiniteTransform.
func NewPositiveDefiniteTransform(opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "PositiveDefiniteTransform", domain: constant(matrices), codomain: constant(constraints.PositiveDefinite),
		forward: func(x *tensor.Tensor) *tensor.Tensor { l := lowerCholesky(x); return l.MatMul(l.MT()) },
		inverse: func(y *tensor.Tensor) *tensor.Tensor { return lowerCholeskyInverse(y.LinalgCholesky()) }}, opts)
	return t
}

// NewIndependentTransform returns base with n more dimensions in its events: LogAbsDetJacobian adds over them. Options:
// CacheSize. PyTorch: torch.distributions.IndependentTransform.
func NewIndependentTransform(base Transform, n int, opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "IndependentTransform"}, opts)
	if err := usable("NewIndependentTransform", []Transform{base}); err != nil {
		t.err = err
		return t
	}
	if n < 0 {
		return t.fail("the number of dimensions must be at least 0, got %d", n)
	}
	t.parts, t.params, t.bijective = []Transform{base}, []any{n}, base.Bijective()
	t.domain = func() constraints.Constraint { return constraints.Independent(base.Domain(), n) }
	t.codomain = func() constraints.Constraint { return constraints.Independent(base.Codomain(), n) }
	t.forward, t.inverse = base.Forward, base.Inverse
	t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor { return sumRightmost(base.LogAbsDetJacobian(x, y), n) }
	t.forwardShape, t.inverseShape = base.ForwardShape, base.InverseShape
	t.text = func() string { return fmt.Sprintf("IndependentTransform(%v, %d)", base, n) }
	return signed{t, base.Sign}
}

// signed is a transform with a sign that is computed.
type signed struct {
	*transform
	sign func() any
}

// Sign implements Transform.
func (s signed) Sign() any {
	if s.err != nil {
		return nil
	}
	return s.sign()
}

// Inv implements Transform.
func (s signed) Inv() Transform { return &inverse{of: s} }

// Equal implements Transform.
func (s signed) Equal(other Transform) bool {
	o, ok := other.(signed)
	return ok && s.transform.Equal(o.transform)
}

// NewReshapeTransform returns the transform of the last dimensions, of shape in, to the shape out. Options: CacheSize.
// PyTorch: torch.distributions.ReshapeTransform.
func NewReshapeTransform(in, out []int, opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "ReshapeTransform", bijective: true}, opts)
	in, out = slices.Clone(in), slices.Clone(out)
	ni, no := 1, 1
	for _, k := range in {
		ni *= k
	}
	for _, k := range out {
		no *= k
	}
	if badShape(in) != nil || badShape(out) != nil || ni != no {
		return t.fail("the shapes %v and %v have different numbers of elements", in, out)
	}
	t.params = []any{in, out}
	t.domain = constant(constraints.Independent(constraints.Real, len(in)))
	t.codomain = constant(constraints.Independent(constraints.Real, len(out)))
	reshape := func(from, to []int) func(*tensor.Tensor) *tensor.Tensor {
		return func(x *tensor.Tensor) *tensor.Tensor {
			shape := x.Shape()
			return x.Reshape(append(slices.Clone(shape[:len(shape)-len(from)]), to...)...)
		}
	}
	t.forward, t.inverse = reshape(in, out), reshape(out, in)
	t.logDet = func(x, _ *tensor.Tensor) *tensor.Tensor {
		shape := x.Shape()
		return x.NewZeros(shape[:max(0, len(shape)-len(in))])
	}
	shapes := func(from, to []int) func([]int) ([]int, error) {
		return func(shape []int) ([]int, error) {
			cut := len(shape) - len(from)
			if cut < 0 || !slices.Equal(shape[cut:], from) {
				return nil, fmt.Errorf("the last dimensions must be %v, got shape %v", from, shape)
			}
			return slices.Concat(shape[:cut], to), nil
		}
	}
	t.forwardShape, t.inverseShape = shapes(in, out), shapes(out, in)
	return t
}

// joined returns what NewCatTransform and NewStackTransform have in common: split gives the slices of a tensor, and join
// puts slices together.
func joined(t *transform, ts []Transform, split func(*tensor.Tensor) ([]*tensor.Tensor, error), join func([]*tensor.Tensor) *tensor.Tensor) {
	t.parts, t.bijective = ts, true
	for _, p := range ts {
		t.bijective = t.bijective && p.Bijective()
	}
	each := func(f func(Transform, *tensor.Tensor) *tensor.Tensor) func(*tensor.Tensor) *tensor.Tensor {
		return func(x *tensor.Tensor) *tensor.Tensor {
			xs, err := split(x)
			if err != nil {
				return tensor.Failed(err)
			}
			for i, p := range ts {
				xs[i] = f(p, xs[i])
			}
			return join(xs)
		}
	}
	t.forward = each(Transform.Forward)
	t.inverse = each(Transform.Inverse)
}

// jacobians returns the results of LogAbsDetJacobian of the slices of x and y.
func jacobians(ts []Transform, split func(*tensor.Tensor) ([]*tensor.Tensor, error), x, y *tensor.Tensor) ([]*tensor.Tensor, error) {
	xs, err := split(x)
	if err != nil {
		return nil, err
	}
	ys, err := split(y)
	if err != nil {
		return nil, err
	}
	for i, p := range ts {
		xs[i] = p.LogAbsDetJacobian(xs[i], ys[i])
	}
	return xs, nil
}

// NewCatTransform returns the transform that applies ts to successive slices. Options: Dim, Lengths, CacheSize. PyTorch:
// torch.distributions.CatTransform.
func NewCatTransform(ts []Transform, opts ...Option) Transform {
	t, s := newTransform(&transform{name: "CatTransform"}, opts, "Dim", "Lengths")
	if err := usable("NewCatTransform", ts); err != nil {
		t.err = err
		return t
	}
	ts = slices.Clone(ts)
	lengths := slices.Clone(s.lengths)
	if lengths == nil {
		lengths = slices.Repeat([]int{1}, len(ts))
	}
	total := 0
	for _, n := range lengths {
		if n < 0 || n > math.MaxInt32 {
			return t.fail("invalid length %d", n)
		}
		total += n
	}
	if len(lengths) != len(ts) || len(ts) == 0 {
		return t.fail("%d lengths were given for %d transforms", len(lengths), len(ts))
	}
	t.params = []any{s.dim, lengths}
	split := func(x *tensor.Tensor) ([]*tensor.Tensor, error) {
		if x.Size(s.dim) != total {
			return nil, refuse.Error("CatTransform", tensor.ErrArgument, "dimension %d must have size %d, got shape %v", s.dim, total, x.Shape())
		}
		return x.SplitWithSizes(lengths, tensor.Dim(s.dim))
	}
	joined(t, ts, split, func(xs []*tensor.Tensor) *tensor.Tensor { return tensor.Cat(xs, tensor.Dim(s.dim)) })
	event := 0
	for _, p := range ts {
		event = max(event, p.Domain().EventDim())
	}
	t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor {
		xs, err := jacobians(ts, split, x, y)
		if err != nil {
			return tensor.Failed(err)
		}
		for i, p := range ts {
			xs[i] = sumRightmost(xs[i], event-p.Domain().EventDim())
		}
		dim := s.dim
		if dim >= 0 {
			dim -= x.Dim()
		}
		if dim += event; dim < 0 {
			return tensor.Cat(xs, tensor.Dim(dim))
		}
		sum := xs[0]
		for _, x := range xs[1:] {
			sum = sum.Add(x)
		}
		return sum
	}
	regions := func(f func(Transform) constraints.Constraint) func() constraints.Constraint {
		return func() constraints.Constraint {
			var cs []constraints.Constraint
			for _, p := range ts {
				cs = append(cs, f(p))
			}
			return constraints.Cat(cs, s.dim, lengths)
		}
	}
	t.domain, t.codomain = regions(Transform.Domain), regions(Transform.Codomain)
	return t
}

// NewStackTransform returns the transform that applies ts to the elements along a dimension. Options: Dim, CacheSize.
// PyTorch: torch.distributions.StackTransform.
func NewStackTransform(ts []Transform, opts ...Option) Transform {
	t, s := newTransform(&transform{name: "StackTransform"}, opts, "Dim")
	if err := usable("NewStackTransform", ts); err != nil {
		t.err = err
		return t
	}
	if len(ts) == 0 {
		return t.fail("at least one transform is needed")
	}
	ts = slices.Clone(ts)
	t.params = []any{s.dim}
	split := func(x *tensor.Tensor) ([]*tensor.Tensor, error) {
		if x.Size(s.dim) != len(ts) {
			return nil, refuse.Error("StackTransform", tensor.ErrArgument, "dimension %d must have size %d, got shape %v", s.dim, len(ts), x.Shape())
		}
		return x.Unbind(tensor.Dim(s.dim))
	}
	stack := func(xs []*tensor.Tensor) *tensor.Tensor { return tensor.Stack(xs, tensor.Dim(s.dim)) }
	joined(t, ts, split, stack)
	t.logDet = func(x, y *tensor.Tensor) *tensor.Tensor {
		xs, err := jacobians(ts, split, x, y)
		if err != nil {
			return tensor.Failed(err)
		}
		return stack(xs)
	}
	regions := func(f func(Transform) constraints.Constraint) func() constraints.Constraint {
		return func() constraints.Constraint {
			var cs []constraints.Constraint
			for _, p := range ts {
				cs = append(cs, f(p))
			}
			return constraints.Stack(cs, s.dim)
		}
	}
	t.domain, t.codomain = regions(Transform.Domain), regions(Transform.Codomain)
	return t
}

// NewCumulativeDistributionTransform returns y = F(x), where F is d's distribution function. Options: CacheSize.
// PyTorch: torch.distributions.CumulativeDistributionTransform.
func NewCumulativeDistributionTransform(d Distribution, opts ...Option) Transform {
	t, _ := newTransform(&transform{name: "CumulativeDistributionTransform", bijective: true, sign: 1}, opts)
	if err := usableDistribution("NewCumulativeDistributionTransform", d); err != nil {
		t.err = err
		return t
	}
	t.domain, t.codomain = d.Support, constant(constraints.UnitInterval)
	t.forward, t.inverse = d.CDF, d.ICDF
	t.logDet = func(x, _ *tensor.Tensor) *tensor.Tensor { return d.LogProb(x) }
	t.equal = func(o *transform) bool { return t == o }
	return t
}

// usableDistribution returns an error of op if d is nil or failed.
func usableDistribution(op string, d Distribution) error {
	if d == nil || reflect.ValueOf(d).Kind() == reflect.Pointer && reflect.ValueOf(d).IsNil() {
		return refuse.Error(op, tensor.ErrNil, "a distribution is needed, got nil")
	}
	return d.Err()
}
