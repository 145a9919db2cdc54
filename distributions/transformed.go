package distributions

import (
	"fmt"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Independent makes events of batch dimensions: LogProb and Entropy add over them.
type Independent struct{ *Base }

// ofInner returns a formula whose result is that of the inner distribution.
func ofInner(f func(Distribution) *tensor.Tensor) func(*Base) *tensor.Tensor {
	return func(b *Base) *tensor.Tensor { return f(b.inner[0]) }
}

var independentKind = &kind{
	name: "Independent", of: func(b *Base) Distribution { return Independent{b} },
	repr: func(b *Base) string { return fmt.Sprintf("Independent(%v, %d)", b.inner[0], b.n) },
	support: func(b *Base) constraints.Constraint {
		if b.n == 0 {
			return b.inner[0].Support()
		}
		return constraints.Independent(b.inner[0].Support(), b.n)
	},
	reparam: func(b *Base) bool { return b.inner[0].HasRSample() },
	listed:  func(b *Base) bool { return b.n == 0 && b.inner[0].HasEnumerateSupport() },
	mean:    ofInner(Distribution.Mean), mode: ofInner(Distribution.Mode), variance: ofInner(Distribution.Variance),
	sample:  func(b *Base, sample []int) *tensor.Tensor { return b.inner[0].Sample(sample...) },
	rsample: func(b *Base, sample []int) *tensor.Tensor { return b.inner[0].RSample(sample...) },
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor { return sumRightmost(b.inner[0].LogProb(v), b.n) }, logCheck: true,
	entropy: func(b *Base) *tensor.Tensor { return sumRightmost(b.inner[0].Entropy(), b.n) },
	values:  func(b *Base, expand bool) *tensor.Tensor { return b.inner[0].EnumerateSupport(expand) },
	expand: func(b *Base, batch []int) error {
		b.inner[0] = b.inner[0].Expand(slices.Concat(batch, b.event[:b.n])...)
		return nil
	},
}

// NewIndependent returns base with the last n of its batch dimensions as event dimensions. LogProb broadcasts value as
// base's does, and base's ValidateArgs determines whether it checks values. Options: ValidateArgs, without effect.
// PyTorch: torch.distributions.Independent.
func NewIndependent(base Distribution, n int, opts ...Option) Independent {
	return Independent{build(independentKind, opts, nil, func(b *Base, _ settings) error {
		if err := usableDistribution("NewIndependent", base); err != nil {
			return err
		}
		batch := base.BatchShape()
		if n < 0 || n > len(batch) {
			return refuse.Error("NewIndependent", tensor.ErrArgument, "the number of dimensions must be in 0…%d, the number of batch dimensions, got %d", len(batch), n)
		}
		cut := len(batch) - n
		b.inner, b.n = []Distribution{base}, n
		b.batch, b.event = batch[:cut:cut], slices.Concat(batch[cut:], base.EventShape())
		return nil
	})}
}

// BaseDist returns the distribution whose dimensions are reinterpreted. PyTorch: base_dist.
func (d Independent) BaseDist() Distribution { return d.part(0) }

// part returns a distribution that d is made of.
func (b *Base) part(i int) Distribution {
	if err := b.Err(); err != nil {
		return &Base{kind: &kind{name: "Distribution"}, err: err}
	}
	if i >= len(b.inner) {
		return &Base{kind: &kind{name: "Distribution"}, err: b.foreign("a distribution that it is made of")}
	}
	return b.inner[i]
}

// TransformedDistribution is the distribution of a transformed draw.
type TransformedDistribution struct{ *Base }

// transformed returns the formulas of TransformedDistribution, for a distribution that extends it.
func transformed(name string, params []param, of func(*Base) Distribution) *kind {
	return &kind{
		name: name, params: params, of: of, parent: func(b *Base) Distribution { return TransformedDistribution{b} },
		support: transformedSupport, reparam: func(b *Base) bool { return b.inner[0].HasRSample() },
		sample: func(b *Base, sample []int) *tensor.Tensor { return forwardAll(b, b.inner[0].Sample(sample...)) },
		rsample: func(b *Base, sample []int) *tensor.Tensor {
			return forwardAll(b, b.inner[0].RSample(sample...))
		},
		logProb: transformedLogProb, cdfCheck: true, cdf: transformedCDF, icdf: transformedICDF,
		expand: func(b *Base, batch []int) (err error) {
			shape := slices.Concat(batch, b.event)
			for _, t := range slices.Backward(b.transforms) {
				if shape, err = t.InverseShape(shape); err != nil {
					return err
				}
			}
			cut := len(shape) - len(b.inner[0].EventShape())
			if cut < 0 {
				return refuse.Error(name+".Expand", tensor.ErrArgument, "invalid batch shape %v", batch)
			}
			b.inner[0] = b.inner[0].Expand(shape[:cut]...)
			return nil
		},
	}
}

func transformedSupport(b *Base) constraints.Constraint {
	if len(b.transforms) == 0 {
		return b.inner[0].Support()
	}
	c := b.transforms[len(b.transforms)-1].Codomain()
	if more := len(b.event) - c.EventDim(); more > 0 {
		c = constraints.Independent(c, more)
	}
	return c
}

func forwardAll(b *Base, x *tensor.Tensor) *tensor.Tensor {
	for _, t := range b.transforms {
		x = t.Forward(x)
	}
	return x
}

func transformedLogProb(b *Base, y *tensor.Tensor) *tensor.Tensor {
	event := len(b.event)
	var sum *tensor.Tensor
	for _, t := range slices.Backward(b.transforms) {
		x := t.Inverse(y)
		event += t.Domain().EventDim() - t.Codomain().EventDim()
		term := sumRightmost(t.LogAbsDetJacobian(x, y), event-t.Domain().EventDim())
		if sum == nil {
			sum = term.RSub(0)
		} else {
			sum = sum.Sub(term)
		}
		y = x
	}
	base := sumRightmost(b.inner[0].LogProb(y), event-len(b.inner[0].EventShape()))
	if sum == nil {
		return base
	}
	return sum.Add(base)
}

// monotone flips probabilities if the transforms decrease.
func monotone(b *Base, method string, p *tensor.Tensor) *tensor.Tensor {
	sign := signs(b.transforms)
	switch s := sign.(type) {
	case int:
		if s == 1 {
			return p
		}
	case nil:
		return refuse.Tensor(b.kind.name+"."+method, tensor.ErrNotImplemented, "a transform of the distribution has no sign")
	}
	return p.Sub(0.5).Mul(sign).Add(0.5)
}

func transformedCDF(b *Base, v *tensor.Tensor) *tensor.Tensor {
	for _, t := range slices.Backward(b.transforms) {
		v = t.Inverse(v)
	}
	return monotone(b, "CDF", b.inner[0].CDF(v))
}

func transformedICDF(b *Base, p *tensor.Tensor) *tensor.Tensor {
	return forwardAll(b, b.inner[0].ICDF(monotone(b, "ICDF", p)))
}

var transformedKind = func() *kind {
	k := transformed("TransformedDistribution", nil, func(b *Base) Distribution { return TransformedDistribution{b} })
	k.parent = nil
	return k
}()

// NewTransformedDistribution returns the distribution of a draw of base to which transforms are applied in order.
// Options: ValidateArgs. PyTorch: torch.distributions.TransformedDistribution.
func NewTransformedDistribution(base Distribution, transforms []Transform, opts ...Option) TransformedDistribution {
	return TransformedDistribution{build(transformedKind, opts, nil, func(b *Base, _ settings) error { return b.transform(base, transforms...) })}
}

// transform makes b the distribution of transformed draws of base.
func (b *Base) transform(base Distribution, transforms ...Transform) error {
	op := "New" + b.kind.name
	if err := usableDistribution(op, base); err != nil {
		return err
	}
	if err := usable(op, transforms); err != nil {
		return err
	}
	transforms = slices.Clone(transforms)
	all := compose(transforms)
	shape, event := slices.Concat(base.BatchShape(), base.EventShape()), len(base.EventShape())
	domain, codomain := all.Domain().EventDim(), all.Codomain().EventDim()
	if len(shape) < domain {
		return refuse.Error(op, tensor.ErrArgument, "the base distribution needs a shape of at least %d dimensions, got %v", domain, shape)
	}
	forward, err := all.ForwardShape(shape)
	if err != nil {
		return err
	}
	back, err := all.InverseShape(forward)
	if err != nil {
		return err
	}
	if !slices.Equal(back, shape) {
		base = base.Expand(back[:len(back)-event]...)
	}
	if more := domain - event; more > 0 {
		base = NewIndependent(base, more)
	}
	cut := len(forward) - max(codomain, event+codomain-domain)
	if cut < 0 {
		return refuse.Error(op, tensor.ErrArgument, "the transforms need more dimensions than %v", shape)
	}
	b.inner, b.transforms = []Distribution{base}, transforms
	b.batch, b.event = forward[:cut:cut], forward[cut:]
	return base.Err()
}

// BaseDist returns the distribution of the draws that are transformed. PyTorch: base_dist.
func (d TransformedDistribution) BaseDist() Distribution { return d.part(0) }

// Transforms returns the transforms.
func (d TransformedDistribution) Transforms() []Transform {
	if d.Err() != nil {
		return nil
	}
	return slices.Clone(d.transforms)
}

// validates returns the option ValidateArgs of b, for the distribution that it is made of.
func (b *Base) validates() Option { return ValidateArgs(b.validate) }

// LogNormal is the distribution of the exponential of a normal variable.
type LogNormal struct{ *Base }

var logNormalKind = func() *kind {
	k := transformed("LogNormal", locScale, func(b *Base) Distribution { return LogNormal{b} })
	k.support = always(constraints.Positive)
	k.repr = func(*Base) string { return "LogNormal()" }
	k.mean = func(b *Base) *tensor.Tensor { return b.p[0].Add(b.p[1].Pow(2).Div(2)).Exp() }
	k.mode = func(b *Base) *tensor.Tensor { return b.p[0].Sub(b.p[1].Square()).Exp() }
	k.variance = func(b *Base) *tensor.Tensor {
		sq := b.p[1].Pow(2)
		return sq.Expm1().Mul(b.p[0].Mul(2).Add(sq).Exp())
	}
	k.entropy = func(b *Base) *tensor.Tensor { return b.inner[0].Entropy().Add(b.p[0]) }
	return k
}()

// NewLogNormal returns the distribution of exp(X), where X is normal with mean loc and standard deviation scale, numbers
// or tensors that are broadcast. Options: ValidateArgs. PyTorch: torch.distributions.LogNormal.
func NewLogNormal(loc, scale any, opts ...Option) LogNormal {
	return LogNormal{build(logNormalKind, opts, nil, func(b *Base, _ settings) error {
		base := NewNormal(loc, scale, b.validates())
		if err := base.Err(); err != nil {
			return err
		}
		copy(b.p, base.p)
		return b.transform(base, NewExpTransform())
	})}
}

// Loc returns the mean of the logarithm.
func (d LogNormal) Loc() *tensor.Tensor { return d.param(0) }

// Scale returns the standard deviation of the logarithm.
func (d LogNormal) Scale() *tensor.Tensor { return d.param(1) }

// LogisticNormal is the distribution on the simplex of transformed normal variables.
type LogisticNormal struct{ *Base }

var logisticNormalKind = func() *kind {
	k := transformed("LogisticNormal", []param{{"loc", constraints.Real, 1}, {"scale", constraints.Positive, 1}}, func(b *Base) Distribution { return LogisticNormal{b} })
	k.support = always(constraints.Simplex)
	k.repr = func(*Base) string { return "LogisticNormal()" }
	return k
}()

// NewLogisticNormal returns the distribution of the simplex of K probabilities that the stick-breaking transform makes of
// K-1 normal variables with means loc and standard deviations scale, numbers or tensors that are broadcast. Options:
// ValidateArgs. PyTorch: torch.distributions.LogisticNormal.
func NewLogisticNormal(loc, scale any, opts ...Option) LogisticNormal {
	return LogisticNormal{build(logisticNormalKind, opts, nil, func(b *Base, _ settings) error {
		base := NewNormal(loc, scale, b.validates())
		if base.Err() == nil && len(base.batch) == 0 {
			base = Normal{base.expanded([]int{1})}
		}
		if err := base.Err(); err != nil {
			return err
		}
		copy(b.p, base.p)
		return b.transform(base, NewStickBreakingTransform())
	})}
}

// Loc returns the means of the normal variables.
func (d LogisticNormal) Loc() *tensor.Tensor { return d.param(0) }

// Scale returns the standard deviations of the normal variables.
func (d LogisticNormal) Scale() *tensor.Tensor { return d.param(1) }

// Gumbel is the Gumbel distribution.
type Gumbel struct{ *Base }

var gumbelKind = func() *kind {
	k := transformed("Gumbel", locScale, func(b *Base) Distribution { return Gumbel{b} })
	k.support, k.mode = always(constraints.Real), same(0)
	k.logProb = func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		y := b.p[0].Sub(v).Div(b.p[1])
		return y.Sub(y.Exp()).Sub(b.p[1].Log())
	}
	k.mean = func(b *Base) *tensor.Tensor { return b.p[0].Add(b.p[1].Mul(euler)) }
	k.stddev = func(b *Base) *tensor.Tensor { return b.p[1].Mul(math.Pi / math.Sqrt(6)) }
	k.variance = func(b *Base) *tensor.Tensor { return b.p[1].Mul(math.Pi / math.Sqrt(6)).Pow(2) }
	k.entropy = func(b *Base) *tensor.Tensor { return b.p[1].Log().Add(1 + euler) }
	return k
}()

// NewGumbel returns the Gumbel distribution with the given location and scale, numbers or tensors that are broadcast.
// Options: ValidateArgs. PyTorch: torch.distributions.Gumbel.
func NewGumbel(loc, scale any, opts ...Option) Gumbel {
	return Gumbel{build(gumbelKind, opts, nil, func(b *Base, _ settings) error {
		if err := b.floats(loc, scale); err != nil {
			return err
		}
		f := limits(b.dtype())
		base := NewUniform(b.p[0].FullLike(f.tiny), b.p[0].FullLike(1-f.eps), b.validates())
		return b.transform(base, NewExpTransform().Inv(), NewAffineTransform(0, b.p[1].OnesLike().Neg()), NewExpTransform().Inv(), NewAffineTransform(b.p[0], b.p[1].Neg()))
	})}
}

// Loc returns the location.
func (d Gumbel) Loc() *tensor.Tensor { return d.param(0) }

// Scale returns the scale.
func (d Gumbel) Scale() *tensor.Tensor { return d.param(1) }

// half sets the formulas of a distribution folded at 0.
func half(name string, of func(*Base) Distribution) *kind {
	k := transformed(name, []param{{"scale", constraints.Positive, 0}}, of)
	k.support = always(constraints.Nonnegative)
	k.repr = func(*Base) string { return name + "()" }
	k.mode = func(b *Base) *tensor.Tensor { return b.p[0].ZerosLike() }
	k.logProb = func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return tensor.Where(v.Ge(0), b.inner[0].LogProb(v).Add(math.Ln2), math.Inf(-1))
	}
	k.cdfCheck = false
	k.cdf = func(b *Base, v *tensor.Tensor) *tensor.Tensor { return b.inner[0].CDF(v).Mul(2).Sub(1) }
	k.icdf = func(b *Base, p *tensor.Tensor) *tensor.Tensor { return b.inner[0].ICDF(p.Add(1).Div(2)) }
	k.entropy = func(b *Base) *tensor.Tensor { return b.inner[0].Entropy().Sub(math.Ln2) }
	return k
}

// HalfNormal is the distribution of the absolute value of a normal variable.
type HalfNormal struct{ *Base }

var halfNormalKind = func() *kind {
	k := half("HalfNormal", func(b *Base) Distribution { return HalfNormal{b} })
	k.mean = func(b *Base) *tensor.Tensor { return b.p[0].Mul(math.Sqrt(2 / pi)) }
	k.variance = func(b *Base) *tensor.Tensor { return b.p[0].Pow(2).Mul(1 - 2/pi) }
	return k
}()

// NewHalfNormal returns the distribution of |X|, where X is normal with mean 0 and standard deviation scale, a number or
// a tensor. Options: ValidateArgs. PyTorch: torch.distributions.HalfNormal.
func NewHalfNormal(scale any, opts ...Option) HalfNormal {
	return HalfNormal{build(halfNormalKind, opts, nil, func(b *Base, _ settings) error {
		base := NewNormal(0, scale, ValidateArgs(false))
		if err := base.Err(); err != nil {
			return err
		}
		b.p[0] = base.p[1]
		return b.transform(base, NewAbsTransform())
	})}
}

// Scale returns the standard deviation of the normal variable.
func (d HalfNormal) Scale() *tensor.Tensor { return d.param(0) }

// HalfCauchy is the distribution of the absolute value of a Cauchy variable.
type HalfCauchy struct{ *Base }

var halfCauchyKind = func() *kind {
	k := half("HalfCauchy", func(b *Base) Distribution { return HalfCauchy{b} })
	k.mean = func(b *Base) *tensor.Tensor { return b.filled(math.Inf(1)) }
	k.variance = ofInner(Distribution.Variance)
	logProb := k.logProb
	k.logProb = func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return logProb(b, v.To(b.p[0].DType(), b.p[0].Device())) // only here, as in PyTorch
	}
	return k
}()

// NewHalfCauchy returns the distribution of |X|, where X is Cauchy with median 0 and the given scale, a number or a
// tensor. Options: ValidateArgs. PyTorch: torch.distributions.HalfCauchy.
func NewHalfCauchy(scale any, opts ...Option) HalfCauchy {
	return HalfCauchy{build(halfCauchyKind, opts, nil, func(b *Base, _ settings) error {
		base := NewCauchy(0, scale, ValidateArgs(false))
		if err := base.Err(); err != nil {
			return err
		}
		b.p[0] = base.p[1]
		return b.transform(base, NewAbsTransform())
	})}
}

// Scale returns the scale.
func (d HalfCauchy) Scale() *tensor.Tensor { return d.param(0) }

// InverseGamma is the distribution of the reciprocal of a gamma variable.
type InverseGamma struct{ *Base }

var inverseGammaKind = func() *kind {
	k := transformed("InverseGamma", gammaKind.params, func(b *Base) Distribution { return InverseGamma{b} })
	k.support = always(constraints.Positive)
	k.repr = func(*Base) string { return "InverseGamma()" }
	k.mean = func(b *Base) *tensor.Tensor {
		return tensor.Where(b.p[0].Gt(1), b.p[1].Div(b.p[0].Sub(1)), math.Inf(1))
	}
	k.mode = func(b *Base) *tensor.Tensor { return b.p[1].Div(b.p[0].Add(1)) }
	k.variance = func(b *Base) *tensor.Tensor {
		return tensor.Where(b.p[0].Gt(2), b.p[1].Square().Div(b.p[0].Sub(1).Square().Mul(b.p[0].Sub(2))), math.Inf(1))
	}
	k.entropy = func(b *Base) *tensor.Tensor {
		return b.p[0].Add(b.p[1].Log()).Add(b.p[0].LGamma()).Sub(b.p[0].Add(1).Mul(b.p[0].Digamma()))
	}
	return k
}()

// NewInverseGamma returns the distribution of 1/X, where X is gamma with the given concentration and rate, numbers or
// tensors that are broadcast. Options: ValidateArgs. PyTorch: torch.distributions.InverseGamma.
func NewInverseGamma(concentration, rate any, opts ...Option) InverseGamma {
	return InverseGamma{build(inverseGammaKind, opts, nil, func(b *Base, _ settings) error {
		base := NewGamma(concentration, rate, b.validates())
		if err := base.Err(); err != nil {
			return err
		}
		copy(b.p, base.p)
		return b.transform(base, NewPowerTransform(b.p[1].NewOnes([]int{}).Neg()))
	})}
}

// Concentration returns the shape parameter.
func (d InverseGamma) Concentration() *tensor.Tensor { return d.param(0) }

// Rate returns the rate of the gamma variable, which is the scale.
func (d InverseGamma) Rate() *tensor.Tensor { return d.param(1) }

// Kumaraswamy is the Kumaraswamy distribution.
type Kumaraswamy struct{ *Base }

func kumaraswamyMoment(b *Base, n int) *tensor.Tensor {
	arg := b.p[0].Reciprocal().Mul(n).Add(1)
	return b.p[1].Mul(arg.LGamma().Add(b.p[1].LGamma()).Sub(arg.Add(b.p[1]).LGamma()).Exp())
}

var kumaraswamyKind = func() *kind {
	k := transformed("Kumaraswamy", betaKind.params, func(b *Base) Distribution { return Kumaraswamy{b} })
	k.support = always(constraints.UnitInterval)
	k.mean = func(b *Base) *tensor.Tensor { return kumaraswamyMoment(b, 1) }
	k.mode = func(b *Base) *tensor.Tensor {
		// ((a-1)/(ab-1))^(1/a), without the rounding of ab-1; NaN for a = b = 1
		odds := b.p[1].Sub(1).Div(b.p[0].Sub(1)).Add(b.p[1])
		return odds.PowTensor(b.p[0].Reciprocal().Neg()).MaskedFill(b.p[1].Lt(1).LogicalOr(b.p[0].Lt(1)), math.NaN())
	}
	k.variance = func(b *Base) *tensor.Tensor { return kumaraswamyMoment(b, 2).Sub(kumaraswamyMoment(b, 1).Pow(2)) }
	k.entropy = func(b *Base) *tensor.Tensor {
		t1, t0 := b.p[0].Reciprocal().RSub(1), b.p[1].Reciprocal().RSub(1)
		h0 := b.p[1].Add(1).Digamma().Add(euler)
		return t0.Add(t1.Mul(h0)).Sub(b.p[0].Log()).Sub(b.p[1].Log())
	}
	return k
}()

// NewKumaraswamy returns the Kumaraswamy distribution with concentrations a and b, numbers or tensors that are
// broadcast. Options: ValidateArgs. PyTorch: torch.distributions.Kumaraswamy.
func NewKumaraswamy(concentration1, concentration0 any, opts ...Option) Kumaraswamy {
	return Kumaraswamy{build(kumaraswamyKind, opts, nil, func(b *Base, _ settings) error {
		if err := b.floats(concentration1, concentration0); err != nil {
			return err
		}
		base := NewUniform(b.p[1].ZerosLike(), b.p[1].OnesLike(), b.validates())
		return b.transform(base, NewPowerTransform(b.p[1].Reciprocal()), NewAffineTransform(1.0, -1.0), NewPowerTransform(b.p[0].Reciprocal()))
	})}
}

// Concentration1 returns the first concentration, a.
func (d Kumaraswamy) Concentration1() *tensor.Tensor { return d.param(0) }

// Concentration0 returns the second concentration, b.
func (d Kumaraswamy) Concentration0() *tensor.Tensor { return d.param(1) }

// Pareto is the Pareto distribution.
type Pareto struct{ *Base }

var paretoKind = func() *kind {
	k := transformed("Pareto", []param{{"alpha", constraints.Positive, 0}, {"scale", constraints.Positive, 0}}, func(b *Base) Distribution { return Pareto{b} })
	k.support, k.mode = func(b *Base) constraints.Constraint { return constraints.GreaterThanEq(b.p[1]) }, same(1)
	k.mean = func(b *Base) *tensor.Tensor {
		a := b.p[0].ClampMin(1)
		return a.Mul(b.p[1]).Div(a.Sub(1))
	}
	k.variance = func(b *Base) *tensor.Tensor {
		a := b.p[0].ClampMin(2)
		return b.p[1].Pow(2).Mul(a).Div(a.Sub(1).Pow(2).Mul(a.Sub(2)))
	}
	k.entropy = func(b *Base) *tensor.Tensor { return b.p[1].Div(b.p[0]).Log().Add(b.p[0].Reciprocal().Add(1)) }
	return k
}()

// NewPareto returns the Pareto distribution with the given scale, its least value, and shape alpha, numbers or tensors
// that are broadcast. Options: ValidateArgs. PyTorch: torch.distributions.Pareto.
func NewPareto(scale, alpha any, opts ...Option) Pareto {
	return Pareto{build(paretoKind, opts, nil, func(b *Base, _ settings) error {
		if err := b.floats(alpha, scale); err != nil {
			return err
		}
		return b.transform(NewExponential(b.p[0], b.validates()), NewExpTransform(), NewAffineTransform(0, b.p[1]))
	})}
}

// Scale returns the least value.
func (d Pareto) Scale() *tensor.Tensor { return d.param(1) }

// Alpha returns the shape.
func (d Pareto) Alpha() *tensor.Tensor { return d.param(0) }

// Weibull is the Weibull distribution.
type Weibull struct{ *Base }

var weibullKind = func() *kind {
	k := transformed("Weibull", []param{{"scale", constraints.Positive, 0}, {"concentration", constraints.Positive, 0}}, func(b *Base) Distribution { return Weibull{b} })
	k.support = always(constraints.Positive)
	k.mean = func(b *Base) *tensor.Tensor { return b.p[0].Mul(b.p[1].Reciprocal().Add(1).LGamma().Exp()) }
	k.mode = func(b *Base) *tensor.Tensor {
		return b.p[0].Mul(b.p[1].Sub(1).Div(b.p[1]).PowTensor(b.p[1].Reciprocal()))
	}
	k.variance = func(b *Base) *tensor.Tensor {
		r := b.p[1].Reciprocal()
		return b.p[0].Pow(2).Mul(r.Mul(2).Add(1).LGamma().Exp().Sub(r.Add(1).LGamma().Mul(2).Exp()))
	}
	k.entropy = func(b *Base) *tensor.Tensor {
		r := b.p[1].Reciprocal()
		return r.RSub(1).Mul(euler).Add(b.p[0].Mul(r).Log()).Add(1)
	}
	return k
}()

// NewWeibull returns the Weibull distribution with the given scale and concentration, numbers or tensors that are
// broadcast. Options: ValidateArgs. PyTorch: torch.distributions.Weibull.
func NewWeibull(scale, concentration any, opts ...Option) Weibull {
	return Weibull{build(weibullKind, opts, nil, func(b *Base, _ settings) error {
		if err := b.floats(scale, concentration); err != nil {
			return err
		}
		return b.transform(NewExponential(b.p[0].OnesLike(), b.validates()), NewPowerTransform(b.p[1].Reciprocal()), NewAffineTransform(0, b.p[0]))
	})}
}

// Scale returns the scale.
func (d Weibull) Scale() *tensor.Tensor { return d.param(0) }

// Concentration returns the shape.
func (d Weibull) Concentration() *tensor.Tensor { return d.param(1) }

// MixtureSameFamily is a mixture of distributions of one family.
type MixtureSameFamily struct{ *Base }

// pad adds the dimension of the components to a value.
func (b *Base) pad(v *tensor.Tensor) *tensor.Tensor { return v.Unsqueeze(-1 - len(b.event)) }

// weights returns the probabilities of the components with the dimensions of an event.
func (b *Base) weights() *tensor.Tensor {
	p := b.inner[0].(Categorical).probs()
	return p.Reshape(append(p.Shape(), slices.Repeat([]int{1}, len(b.event))...)...)
}

func mixtureMean(b *Base) *tensor.Tensor {
	return b.weights().Mul(b.inner[1].Mean()).Sum(tensor.Dim(-1 - len(b.event)))
}

var mixtureKind = &kind{
	name: "MixtureSameFamily", of: func(b *Base) Distribution { return MixtureSameFamily{b} },
	repr:    func(b *Base) string { return fmt.Sprintf("MixtureSameFamily(\n  %v,\n  %v)", b.inner[0], b.inner[1]) },
	support: func(b *Base) constraints.Constraint { return constraints.MixtureSameFamily(b.inner[1].Support()) },
	mean:    mixtureMean,
	variance: func(b *Base) *tensor.Tensor {
		p, dim := b.weights(), tensor.Dim(-1-len(b.event))
		within := p.Mul(b.inner[1].Variance()).Sum(dim)
		return within.Add(p.Mul(b.inner[1].Mean().Sub(b.pad(mixtureMean(b))).Pow(2.0)).Sum(dim))
	},
	cdfCheck: true,
	cdf: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return b.inner[1].CDF(b.pad(v)).Mul(b.inner[0].(Categorical).probs()).Sum(tensor.Dim(-1))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return b.inner[1].LogProb(b.pad(v)).Add(b.inner[0].(Categorical).logits().LogSoftmax(-1)).LogSumExp([]int{-1})
	},
	sample: func(b *Base, sample []int) *tensor.Tensor {
		at := len(sample) + len(b.batch)
		mix := b.inner[0].Expand(b.batch...).Sample(sample...) // a choice for each element of the batch
		draws := b.inner[1].Sample(sample...)
		shape := mix.Shape()
		index := mix.Reshape(append(slices.Clone(shape), slices.Repeat([]int{1}, len(b.event)+1)...)...)
		index = index.Repeat(slices.Concat(slices.Repeat([]int{1}, len(shape)+1), b.event)...)
		return draws.Gather(at, index).SqueezeDim(at)
	},
	expand: func(b *Base, batch []int) error {
		b.inner[1] = b.inner[1].Expand(append(slices.Clone(batch), b.n)...)
		b.inner[0] = b.inner[0].Expand(batch...)
		return nil
	},
}

// NewMixtureSameFamily returns the mixture whose component is chosen by mixture, with K categories, among the last batch
// dimension of component, of size K. The batch shape of mixture is broadcast to the other batch dimensions of component.
// Options: ValidateArgs. PyTorch: torch.distributions.MixtureSameFamily.
func NewMixtureSameFamily(mixture Categorical, component Distribution, opts ...Option) MixtureSameFamily {
	return MixtureSameFamily{build(mixtureKind, opts, nil, func(b *Base, _ settings) error {
		const op = "NewMixtureSameFamily"
		if err := usableDistribution(op, mixture); err != nil {
			return err
		}
		if err := usableDistribution(op, component); err != nil {
			return err
		}
		batch := component.BatchShape()
		if len(batch) == 0 || batch[len(batch)-1] != mixture.n {
			return refuse.Error(op, tensor.ErrArgument, "the last batch dimension of component must be the number of categories, %d, got batch shape %v", mixture.n, batch)
		}
		k := len(batch) - 1
		if shape, err := tensor.BroadcastShapes(mixture.batch, batch[:k]); err != nil || !slices.Equal(shape, batch[:k]) {
			return refuse.Error(op, tensor.ErrArgument, "mixture with batch shape %v does not fit component with batch shape %v", mixture.batch, batch)
		}
		b.inner, b.n = []Distribution{mixture, component}, mixture.n
		b.batch, b.event = batch[:k:k], component.EventShape()
		return nil
	})}
}

// MixtureDistribution returns the distribution of the components. PyTorch: mixture_distribution.
func (d MixtureSameFamily) MixtureDistribution() Distribution { return d.part(0) }

// ComponentDistribution returns the distributions that are mixed. PyTorch: component_distribution.
func (d MixtureSameFamily) ComponentDistribution() Distribution { return d.part(1) }
