package distributions

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/repr"
	"github.com/linstock-ml/linstock/tensor"
)

// Distribution is a probability distribution, or a batch of them. A sample has the shape
//
//	sample shape + BatchShape() + EventShape()
//
// where the sample shape is the argument of Sample, the batch shape is that of the parameters, and the event shape is
// that of one draw: () for the univariate distributions. Results are new tensors. A method that a distribution does not
// have, and every method of a distribution whose constructor failed, returns a failed tensor.
//
// A distribution outside this package embeds the result of NewBase and declares the methods that it has. PyTorch:
// torch.distributions.Distribution.
type Distribution interface {
	// BatchShape returns the shape of the parameters without the dimensions of one event. It is nil only if there is an Err.
	BatchShape() []int
	// EventShape returns the shape of one draw. It is nil only if there is an Err.
	EventShape() []int
	// Support returns the values that the distribution can draw.
	Support() constraints.Constraint
	// ArgConstraints returns the constraints of the parameters by their names.
	ArgConstraints() map[string]constraints.Constraint

	// Sample draws without recording gradients. PyTorch: sample.
	Sample(sampleShape ...int) *tensor.Tensor
	// RSample draws so that gradients reach the parameters. PyTorch: rsample.
	RSample(sampleShape ...int) *tensor.Tensor
	// HasRSample reports whether RSample is available.
	HasRSample() bool
	// LogProb returns the logarithm of the density or of the probability of value, which is broadcast with the
	// batch shape. The result lacks the event's dimensions. PyTorch: log_prob.
	LogProb(value *tensor.Tensor) *tensor.Tensor
	// CDF returns the probability of a draw of at most value.
	CDF(value *tensor.Tensor) *tensor.Tensor
	// ICDF returns the inverse of CDF at probabilities.
	ICDF(probability *tensor.Tensor) *tensor.Tensor
	// Entropy returns the entropy in nats, of the batch shape.
	Entropy() *tensor.Tensor
	// Perplexity returns exp(Entropy()).
	Perplexity() *tensor.Tensor
	// Mean returns the expected value, of the batch shape and event shape.
	Mean() *tensor.Tensor
	// Mode returns the most probable value, of the batch shape and event shape.
	Mode() *tensor.Tensor
	// Variance returns the variance of each element.
	Variance() *tensor.Tensor
	// Stddev returns the standard deviation of each element.
	Stddev() *tensor.Tensor
	// EnumerateSupport returns all values of a discrete distribution along a new first dimension. With expand, the
	// others have the batch shape; without, they have size 1. PyTorch: enumerate_support.
	EnumerateSupport(expand bool) *tensor.Tensor
	// HasEnumerateSupport reports whether EnumerateSupport is available.
	HasEnumerateSupport() bool
	// Expand returns the distribution with its parameters expanded to another batch shape. They share memory.
	Expand(batchShape ...int) Distribution

	// Err returns the error of the constructor or of Expand.
	Err() error
	// String returns the distribution as PyTorch prints it.
	String() string
}

// Base implements the methods of Distribution. The distributions of this package embed it, and one outside this package
// embeds the result of NewBase.
type Base struct {
	kind         *kind
	p            []*tensor.Tensor // in the order of kind.params; nil for a parameter that was not given
	keep         []*tensor.Tensor // further tensors, which Expand leaves as they are
	inner        []Distribution
	transforms   []Transform
	n            int
	lims         [2]float64
	batch, event []int
	validate     bool
	err          error
}

// kind holds what is common to all distributions of a type. Its functions are nil where PyTorch has no such method.
// They are called in a scope, with a usable Base and checked arguments.
type kind struct {
	name     string
	params   []param
	of       func(*Base) Distribution // returns the Base as its own type
	parent   func(*Base) Distribution // returns it as the type whose divergences it inherits
	support  func(*Base) constraints.Constraint
	args     func(*Base) map[string]constraints.Constraint // replaces the constraints of params
	repr     func(*Base) string
	order    []int                                      // of the parameters in String; nil means as in params
	sample   func(b *Base, sample []int) *tensor.Tensor // under NoGrad; by default rsample
	rsample  func(b *Base, sample []int) *tensor.Tensor
	reparam  func(*Base) bool // whether rsample is available; nil means that it is there
	logProb  func(b *Base, value *tensor.Tensor) *tensor.Tensor
	logCheck bool // whether logProb checks its value itself
	cdf      func(b *Base, value *tensor.Tensor) *tensor.Tensor
	cdfCheck bool // whether cdf checks its value itself
	icdf     func(b *Base, p *tensor.Tensor) *tensor.Tensor
	entropy  func(*Base) *tensor.Tensor
	mean     func(*Base) *tensor.Tensor
	mode     func(*Base) *tensor.Tensor
	variance func(*Base) *tensor.Tensor
	stddev   func(*Base) *tensor.Tensor // by default the square root of variance
	values   func(b *Base, expand bool) *tensor.Tensor
	listed   func(*Base) bool // whether values is available; nil means that it is there
	expand   func(b *Base, batch []int) error
}

// param is a parameter: its name in PyTorch, its constraint, and the number of its last dimensions that belong to the
// event.
type param struct {
	name       string
	constraint constraints.Constraint
	tail       int
}

// Option is a keyword argument of a constructor, such as ValidateArgs(false) or Logits(x). A constructor that does not
// accept an option returns a distribution or transform with an error that lists the accepted ones.
type Option struct {
	name string
	set  func(*settings)
}

type settings struct {
	validate                         *bool
	probs, logits, loc, scale        any
	covariance, precision, scaleTril *tensor.Tensor
	concentration                    any
	lims                             [2]float64
	cacheSize, eventDim, dim         int
	lengths                          []int
}

// ValidateArgs sets whether the constructor checks the values of parameters, and LogProb and CDF those of their
// argument. The default is that of SetDefaultValidateArgs. A check waits for the device. PyTorch: validate_args.
func ValidateArgs(on ...bool) Option {
	v := options.On(on)
	return Option{"ValidateArgs", func(s *settings) { s.validate = &v }}
}

// Probs sets the probabilities, a number or a tensor. PyTorch: probs.
func Probs(v any) Option { return Option{"Probs", func(s *settings) { s.probs = v }} }

// Logits sets the logarithms of odds, or for categories of probabilities up to a constant: a number or a tensor.
// PyTorch: logits.
func Logits(v any) Option { return Option{"Logits", func(s *settings) { s.logits = v }} }

// Loc sets the location, a number or a tensor; 0 by default. PyTorch: loc.
func Loc(v any) Option { return Option{"Loc", func(s *settings) { s.loc = v }} }

// Scale sets the scale, a number or a tensor; 1 by default. PyTorch: scale.
func Scale(v any) Option { return Option{"Scale", func(s *settings) { s.scale = v }} }

// Concentration sets the concentration, a number or a tensor; 1 by default. PyTorch: concentration.
func Concentration(v any) Option {
	return Option{"Concentration", func(s *settings) { s.concentration = v }}
}

// CovarianceMatrix sets the covariance matrices, of shape (..., D, D). PyTorch: covariance_matrix.
func CovarianceMatrix(m *tensor.Tensor) Option {
	return Option{"CovarianceMatrix", func(s *settings) { s.covariance = orNil(m) }}
}

// PrecisionMatrix sets the inverses of the covariance matrices, of shape (..., D, D). PyTorch: precision_matrix.
func PrecisionMatrix(m *tensor.Tensor) Option {
	return Option{"PrecisionMatrix", func(s *settings) { s.precision = orNil(m) }}
}

// ScaleTril sets the lower triangular Cholesky factors of the covariance matrices, of shape (..., D, D). PyTorch:
// scale_tril.
func ScaleTril(m *tensor.Tensor) Option {
	return Option{"ScaleTril", func(s *settings) { s.scaleTril = orNil(m) }}
}

// orNil distinguishes a nil matrix from one that was not given.
func orNil(m *tensor.Tensor) *tensor.Tensor {
	if m == nil {
		return &tensor.Tensor{}
	}
	return m
}

// Lims sets the probabilities between which ContinuousBernoulli computes with a Taylor series; 0.499 and 0.501 by
// default. PyTorch: lims.
func Lims(low, high float64) Option {
	return Option{"Lims", func(s *settings) { s.lims = [2]float64{low, high} }}
}

var validateByDefault atomic.Bool

func init() { validateByDefault.Store(true) }

// SetDefaultValidateArgs sets whether distributions made from now on check their arguments without the option
// ValidateArgs; true at first. PyTorch: Distribution.set_default_validate_args.
func SetDefaultValidateArgs(on bool) { validateByDefault.Store(on) }

// read returns the settings of opts, which may have the names in known.
func read(op string, opts []Option, known ...string) (settings, error) {
	s := settings{lims: [2]float64{0.499, 0.501}}
	for _, o := range opts {
		if err := refuse.Option(op, o.name, known); err != nil {
			return s, err
		}
		o.set(&s)
	}
	return s, nil
}

// build makes a distribution: init sets the Base's tensors and shapes, in a scope that frees its temporaries.
func build(k *kind, opts []Option, known []string, init func(b *Base, s settings) error) *Base {
	op := "New" + k.name
	b := &Base{kind: k, validate: validateByDefault.Load()}
	s, err := read(op, opts, append(known, "ValidateArgs")...)
	if err != nil {
		b.err = err
		return b
	}
	if s.validate != nil {
		b.validate = *s.validate
	}
	_, err = tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		b.p = make([]*tensor.Tensor, len(k.params))
		if err := init(b, s); err != nil {
			return nil, err
		}
		for _, t := range b.tensors() {
			if err := t.Err(); err != nil {
				return nil, err
			}
		}
		for _, d := range b.inner {
			if err := d.Err(); err != nil {
				return nil, err
			}
		}
		for _, t := range b.transforms {
			if err := t.Err(); err != nil {
				return nil, err
			}
		}
		return b.tensors(), b.checkParams(op)
	})
	b.err = rename(op, err)
	return b
}

// rename returns err under the name of the user's call.
func rename(op string, err error) error {
	var e *tensor.Error
	if !errors.As(err, &e) || e.Op == op {
		return err
	}
	named := *e
	if named.Op = op; e.Op != "" {
		named.Message = e.Op + ": " + e.Message
	}
	return &named
}

// tensors returns the tensors of b and of the distributions and transforms that it was made of.
func (b *Base) tensors() (all []*tensor.Tensor) {
	for _, t := range slices.Concat(b.p, b.keep) {
		if t != nil {
			all = append(all, t)
		}
	}
	for _, d := range b.inner {
		if in, ok := d.(interface{ self() *Base }); ok && in.self() != nil {
			all = append(all, in.self().tensors()...)
		}
	}
	for _, t := range b.transforms {
		if in, ok := t.(interface{ tensors() []*tensor.Tensor }); ok {
			all = append(all, in.tensors()...)
		}
	}
	return all
}

func (b *Base) self() *Base { return b }

// checkParams checks the values of the parameters.
func (b *Base) checkParams(op string) error {
	if !b.validate {
		return nil
	}
	all := b.ArgConstraints()
	for i, p := range b.kind.params {
		c := all[p.name]
		if b.p[i] == nil || c == nil || constraints.IsDependent(c) {
			continue
		}
		ok, err := valid(c, b.p[i])
		if err != nil {
			return err
		}
		if !ok {
			return refuse.Error(op, tensor.ErrArgument, "expected parameter %s (of shape %v) to satisfy the constraint %v, but found invalid values: %v", p.name, b.p[i].Shape(), c, b.p[i])
		}
	}
	return nil
}

// valid reports whether all of v satisfies c.
func valid(c constraints.Constraint, v *tensor.Tensor) (ok bool, err error) {
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			n, err := c.Check(v).All().Item()
			ok = n != 0
			return err
		})
	})
	return ok, err
}

// NewBase returns the Base of a distribution outside this package, whose methods return the given shapes, the given
// support (nil and constraints.Dependent mean that values are not checked), and otherwise errors. Options: ValidateArgs.
//
//	type Triangular struct{ *distributions.Base }
//
//	func (d Triangular) LogProb(value *tensor.Tensor) *tensor.Tensor { … }
func NewBase(name string, batchShape, eventShape []int, support constraints.Constraint, opts ...Option) *Base {
	if support == nil {
		support = constraints.Dependent
	}
	k := &kind{name: name, support: always(support)}
	s, err := read("NewBase", opts, "ValidateArgs")
	b := &Base{kind: k, batch: slices.Clone(batchShape), event: slices.Clone(eventShape), validate: validateByDefault.Load(), err: err}
	if s.validate != nil {
		b.validate = *s.validate
	}
	if err := badShape(slices.Concat(batchShape, eventShape)); err != nil && b.err == nil {
		b.err = refuse.Error("NewBase", tensor.ErrArgument, "%v", err)
	}
	return b
}

func badShape(shape []int) error {
	n := 1
	for _, k := range shape {
		if k < 0 || k > 0 && n > math.MaxInt/16/k {
			return fmt.Errorf("invalid shape %v", shape)
		}
		n *= max(k, 1)
	}
	return nil
}

// Err implements Distribution.
func (b *Base) Err() error {
	if b == nil || b.kind == nil {
		return refuse.Error("Err", tensor.ErrNil, "a distribution is needed, got a zero value; a constructor makes one")
	}
	return b.err
}

// call runs a method in a scope. has reports whether the distribution has it.
func (b *Base) call(method string, has bool, f func() *tensor.Tensor) *tensor.Tensor {
	if err := b.Err(); err != nil {
		return tensor.Failed(err)
	}
	if !has {
		return refuse.Tensor(b.kind.name+"."+method, tensor.ErrNotImplemented, "the distribution %s has no %s", b.kind.name, method)
	}
	return tensor.Tidy(f)
}

// BatchShape implements Distribution.
func (b *Base) BatchShape() []int {
	if b.Err() != nil {
		return nil
	}
	return append([]int{}, b.batch...)
}

// EventShape implements Distribution.
func (b *Base) EventShape() []int {
	if b.Err() != nil {
		return nil
	}
	return append([]int{}, b.event...)
}

// ArgConstraints implements Distribution.
func (b *Base) ArgConstraints() map[string]constraints.Constraint {
	if b.Err() != nil {
		return nil
	}
	if b.kind.args != nil {
		return b.kind.args(b)
	}
	all := map[string]constraints.Constraint{}
	for _, p := range b.kind.params {
		if p.constraint != nil {
			all[p.name] = p.constraint
		}
	}
	return all
}

// Support implements Distribution.
func (b *Base) Support() constraints.Constraint {
	if b.Err() != nil || b.kind.support == nil {
		return constraints.Dependent
	}
	return b.kind.support(b)
}

// extended returns the shape of a sample.
func (b *Base) extended(sample []int) []int { return slices.Concat(sample, b.batch, b.event) }

func (b *Base) draw(method string, has bool, sample []int, f func() *tensor.Tensor) *tensor.Tensor {
	return b.call(method, has, func() *tensor.Tensor {
		if err := badShape(b.extended(sample)); err != nil {
			return refuse.Tensor(b.kind.name+"."+method, tensor.ErrArgument, "%v", err)
		}
		return f()
	})
}

// Sample implements Distribution.
func (b *Base) Sample(sampleShape ...int) *tensor.Tensor {
	has := b != nil && b.kind != nil && (b.kind.sample != nil || b.kind.rsample != nil)
	return b.draw("Sample", has, sampleShape, func() *tensor.Tensor {
		return noGrad(func() *tensor.Tensor {
			if b.kind.sample != nil {
				return b.kind.sample(b, sampleShape)
			}
			return b.kind.rsample(b, sampleShape)
		})
	})
}

func noGrad(f func() *tensor.Tensor) (out *tensor.Tensor) {
	if err := autograd.NoGrad(func() error { out = f(); return nil }); err != nil {
		return tensor.Failed(err)
	}
	return out
}

// HasRSample implements Distribution.
func (b *Base) HasRSample() bool {
	return b.Err() == nil && b.kind.rsample != nil && (b.kind.reparam == nil || b.kind.reparam(b))
}

// RSample implements Distribution.
func (b *Base) RSample(sampleShape ...int) *tensor.Tensor {
	return b.draw("RSample", b.HasRSample(), sampleShape, func() *tensor.Tensor { return b.kind.rsample(b, sampleShape) })
}

// LogProb implements Distribution.
func (b *Base) LogProb(value *tensor.Tensor) *tensor.Tensor {
	return b.call("LogProb", b != nil && b.kind != nil && b.kind.logProb != nil, func() *tensor.Tensor {
		if err := b.check("LogProb", value, b.kind.logCheck); err != nil {
			return tensor.Failed(err)
		}
		return b.kind.logProb(b, value)
	})
}

// CDF implements Distribution.
func (b *Base) CDF(value *tensor.Tensor) *tensor.Tensor {
	return b.call("CDF", b != nil && b.kind != nil && b.kind.cdf != nil, func() *tensor.Tensor {
		if err := b.check("CDF", value, b.kind.cdfCheck); err != nil {
			return tensor.Failed(err)
		}
		return b.kind.cdf(b, value)
	})
}

// ICDF implements Distribution.
func (b *Base) ICDF(probability *tensor.Tensor) *tensor.Tensor {
	return b.call("ICDF", b != nil && b.kind != nil && b.kind.icdf != nil, func() *tensor.Tensor {
		if err := refuse.Unusable(b.kind.name+".ICDF", "", probability); err != nil {
			return tensor.Failed(err)
		}
		return b.kind.icdf(b, probability)
	})
}

// check is checkValue; where the formula checks its value itself, it only refuses a tensor that cannot be used.
func (b *Base) check(method string, v *tensor.Tensor, itself bool) error {
	if itself {
		return refuse.Unusable(b.kind.name+"."+method, "", v)
	}
	return b.checkValue(method, v)
}

// checkValue returns an error for a value that the distribution cannot draw. Shapes are checked always, values only with
// ValidateArgs.
func (b *Base) checkValue(method string, v *tensor.Tensor) error {
	op := b.kind.name + "." + method
	if err := refuse.Unusable(op, "", v); err != nil {
		return err
	}
	shape, want := v.Shape(), slices.Concat(b.batch, b.event)
	if n := len(shape) - len(b.event); n < 0 || !slices.Equal(shape[n:], b.event) {
		return refuse.Error(op, tensor.ErrArgument, "the last dimensions of value must be the event shape %v, got shape %v", b.event, shape)
	}
	for i := 1; i <= min(len(shape), len(want)); i++ {
		if x, y := shape[len(shape)-i], want[len(want)-i]; x != y && x != 1 && y != 1 {
			return refuse.Error(op, tensor.ErrArgument, "value of shape %v cannot be broadcast with batch shape + event shape %v", shape, want)
		}
	}
	if !b.validate {
		return nil
	}
	c := b.Support()
	if c == nil || constraints.IsDependent(c) {
		return nil
	}
	ok, err := valid(c, v)
	if err == nil && !ok {
		err = refuse.Error(op, tensor.ErrArgument, "expected value (of shape %v) to be within the support (%v) of the distribution %v, but found invalid values: %v", shape, c, b, v)
	}
	return err
}

// method runs a method without arguments.
func (b *Base) method(name string, of func(*kind) func(*Base) *tensor.Tensor) *tensor.Tensor {
	if err := b.Err(); err != nil {
		return tensor.Failed(err)
	}
	f := of(b.kind)
	return b.call(name, f != nil, func() *tensor.Tensor { return f(b) })
}

// Entropy implements Distribution.
func (b *Base) Entropy() *tensor.Tensor {
	return b.method("Entropy", func(k *kind) func(*Base) *tensor.Tensor { return k.entropy })
}

// Perplexity implements Distribution.
func (b *Base) Perplexity() *tensor.Tensor {
	return b.method("Perplexity", func(k *kind) func(*Base) *tensor.Tensor {
		if k.entropy == nil {
			return nil
		}
		return func(b *Base) *tensor.Tensor { return k.entropy(b).Exp() }
	})
}

// Mean implements Distribution.
func (b *Base) Mean() *tensor.Tensor {
	return b.method("Mean", func(k *kind) func(*Base) *tensor.Tensor { return k.mean })
}

// Mode implements Distribution.
func (b *Base) Mode() *tensor.Tensor {
	return b.method("Mode", func(k *kind) func(*Base) *tensor.Tensor { return k.mode })
}

// Variance implements Distribution.
func (b *Base) Variance() *tensor.Tensor {
	return b.method("Variance", func(k *kind) func(*Base) *tensor.Tensor { return k.variance })
}

// Stddev implements Distribution.
func (b *Base) Stddev() *tensor.Tensor {
	return b.method("Stddev", func(k *kind) func(*Base) *tensor.Tensor {
		if k.stddev == nil && k.variance != nil {
			return func(b *Base) *tensor.Tensor { return k.variance(b).Sqrt() }
		}
		return k.stddev
	})
}

// HasEnumerateSupport implements Distribution.
func (b *Base) HasEnumerateSupport() bool {
	return b.Err() == nil && b.kind.values != nil && (b.kind.listed == nil || b.kind.listed(b))
}

// EnumerateSupport implements Distribution.
func (b *Base) EnumerateSupport(expand bool) *tensor.Tensor {
	return b.call("EnumerateSupport", b.HasEnumerateSupport(), func() *tensor.Tensor { return b.kind.values(b, expand) })
}

// Expand implements Distribution.
func (b *Base) Expand(batchShape ...int) Distribution {
	if b.Err() != nil {
		if b == nil || b.kind == nil || b.kind.of == nil {
			return b
		}
		return b.kind.of(b)
	}
	if b.kind.of == nil {
		out := *b
		out.err = refuse.Error(b.kind.name+".Expand", tensor.ErrNotImplemented, "the distribution %s has no Expand", b.kind.name)
		return &out
	}
	return b.kind.of(b.expanded(batchShape))
}

func (b *Base) expanded(batch []int) *Base {
	out := *b
	op := b.kind.name + ".Expand"
	out.inner, out.transforms = slices.Clone(b.inner), slices.Clone(b.transforms)
	out.p, out.batch = nil, slices.Clone(batch)
	made, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		if err := badShape(batch); err != nil {
			return nil, refuse.Error(op, tensor.ErrArgument, "%v", err)
		}
		ps := slices.Clone(b.p)
		for i, p := range ps {
			if p == nil {
				continue
			}
			shape := p.Shape()
			tail := min(b.kind.params[i].tail, len(shape))
			ps[i] = p.Expand(slices.Concat(batch, shape[len(shape)-tail:])...)
			if err := ps[i].Err(); err != nil {
				return nil, err
			}
		}
		if b.kind.expand != nil {
			if err := b.kind.expand(&out, batch); err != nil {
				return nil, err
			}
		}
		for _, d := range out.inner {
			if err := d.Err(); err != nil {
				return nil, err
			}
		}
		return append(ps, out.tensors()...), nil
	})
	if out.err = rename(op, err); err == nil {
		out.p = made[:len(b.p):len(b.p)]
	}
	return &out
}

// String implements Distribution.
func (b *Base) String() string {
	if b == nil || b.kind == nil {
		return "Distribution(<nil>)"
	}
	if b.err != nil {
		return b.kind.name + "(<failed>)"
	}
	if b.kind.repr != nil {
		return b.kind.repr(b)
	}
	var args []string
	for at, p := range b.kind.params {
		i := at
		if b.kind.order != nil {
			i = b.kind.order[at]
			p = b.kind.params[i]
		}
		t := b.p[i]
		if t == nil || p.constraint == nil && b.kind.args == nil {
			continue
		}
		text := fmt.Sprintf("torch.Size(%s)", strings.ReplaceAll(fmt.Sprint(t.Shape()), " ", ", "))
		if t.Numel() == 1 {
			text = t.String()
			if v, err := t.Item(); err == nil && t.Dim() == 0 {
				text = repr.Float(v)
			}
		}
		args = append(args, p.name+": "+text)
	}
	return b.kind.name + "(" + strings.Join(args, ", ") + ")"
}

// param returns a new handle to a parameter, for the accessors.
func (b *Base) param(i int) *tensor.Tensor {
	if err := b.Err(); err != nil {
		return tensor.Failed(err)
	}
	if i >= len(b.p) || b.p[i] == nil {
		return tensor.Failed(b.foreign(b.name(i)))
	}
	return b.p[i].Alias()
}

// foreign returns the error of an accessor in a struct literal that combines b with another distribution's type, so
// that b lacks the value.
func (b *Base) foreign(what string) error {
	return refuse.Error(b.kind.name, tensor.ErrArgument, "the Base is that of a %s without %s", b.kind.name, what)
}

// same returns a formula whose result is a parameter.
func same(i int) func(*Base) *tensor.Tensor {
	return func(b *Base) *tensor.Tensor { return b.p[i].Alias() }
}

// always returns a support that does not depend on the parameters.
func always(c constraints.Constraint) func(*Base) constraints.Constraint {
	return func(*Base) constraints.Constraint { return c }
}

// filled returns a tensor of the batch and event shape.
func (b *Base) filled(v float64) *tensor.Tensor {
	return tensor.Full(b.extended(nil), v, b.like()...)
}

// like returns the dtype and device of the parameters.
func (b *Base) like() []tensor.Option {
	for _, t := range b.tensors() {
		return []tensor.Option{t.DType(), t.Device()}
	}
	return nil
}

func (b *Base) dtype() tensor.DType {
	for _, t := range b.tensors() {
		return t.DType()
	}
	return tensor.Invalid
}

// broadcast sets the first parameters to values, numbers or tensors, broadcast against each other. PyTorch:
// broadcast_all.
func (b *Base) broadcast(values ...any) error {
	ts, err := b.broadcastAll(values...)
	if err != nil {
		return err
	}
	copy(b.p, ts)
	b.batch = ts[0].Shape()
	return nil
}

func (b *Base) broadcastAll(values ...any) ([]*tensor.Tensor, error) {
	op := "New" + b.kind.name
	dtype := tensor.DefaultDType()
	opts := []tensor.Option{dtype}
	found := false
	ts := make([]*tensor.Tensor, len(values))
	for i, v := range values {
		t, ok := v.(*tensor.Tensor)
		if !ok {
			continue
		}
		if err := refuse.Unusable(op, b.name(i), t); err != nil {
			return nil, err
		}
		if !found {
			found, dtype = true, t.DType()
			opts = []tensor.Option{dtype, t.Device()}
		}
		ts[i] = t
	}
	for i, v := range values {
		if ts[i] != nil {
			continue
		}
		x, ok := number(v)
		if !ok {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s must be a number or a tensor, got %T", b.name(i), v)
		}
		if !dtype.IsFloat() {
			ts[i] = tensor.FromScalar(x, append([]tensor.Option{tensor.DefaultDType()}, opts[1:]...)...)
		} else {
			ts[i] = tensor.FromScalar(x, opts...)
		}
	}
	if len(ts) == 1 {
		ts[0] = ts[0].Alias()
		return ts, ts[0].Err()
	}
	return tensor.BroadcastTensors(ts)
}

func (b *Base) name(i int) string {
	if i < len(b.kind.params) {
		return b.kind.params[i].name
	}
	return fmt.Sprintf("argument %d", i)
}

// number returns the value of a Go number.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case float32:
		return float64(v), true
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case int32:
		return float64(v), true
	case uint8:
		return float64(v), true
	}
	return 0, false
}

// float returns an error if a parameter has no floating-point dtype.
func (b *Base) float() error {
	for i, t := range b.p {
		if t != nil && !t.DType().IsFloat() {
			return refuse.Error("New"+b.kind.name, tensor.ErrArgument, "%s must have a floating-point dtype, got %v", b.name(i), t.DType())
		}
	}
	return nil
}

// floats is broadcast for parameters that must be floating-point numbers.
func (b *Base) floats(values ...any) error {
	if err := b.broadcast(values...); err != nil {
		return err
	}
	return b.float()
}

// finfo are the limits of a floating-point dtype, as torch.finfo returns them.
type finfo struct{ eps, tiny, min float64 }

func limits(d tensor.DType) finfo {
	switch d {
	case tensor.Float64:
		return finfo{0x1p-52, 0x1p-1022, -math.MaxFloat64}
	case tensor.Float16:
		return finfo{0x1p-10, 0x1p-14, -65504}
	case tensor.BFloat16:
		return finfo{0x1p-7, 0x1p-126, -0x1.fep127}
	}
	return finfo{0x1p-23, 0x1p-126, -math.MaxFloat32}
}

// sumRightmost adds the elements of the last n dimensions, or of all if t has fewer. PyTorch: _sum_rightmost.
func sumRightmost(t *tensor.Tensor, n int) *tensor.Tensor {
	shape := t.Shape()
	if n <= 0 || len(shape) == 0 {
		return t
	}
	return t.Reshape(append(slices.Clone(shape[:max(0, len(shape)-n)]), -1)...).Sum(tensor.Dim(-1))
}

func clampProbs(p *tensor.Tensor) *tensor.Tensor {
	eps := limits(p.DType()).eps
	return p.Clamp(eps, 1-eps)
}

func probsToLogits(p *tensor.Tensor, binary bool) *tensor.Tensor {
	c := clampProbs(p)
	if binary {
		return c.Log().Sub(c.Neg().Log1p())
	}
	return c.Log()
}
