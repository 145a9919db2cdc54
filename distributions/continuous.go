package distributions

import (
	"math"

	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Constants as variables, so that expressions of them are rounded as PyTorch's are.
var (
	euler = 0.5772156649015329
	pi    = math.Pi
)

var locScale = []param{{"loc", constraints.Real, 0}, {"scale", constraints.Positive, 0}}

// standardNormal draws from the standard normal distribution. PyTorch: _standard_normal.
func (b *Base) standardNormal(shape []int) *tensor.Tensor {
	return tensor.Empty(shape, b.like()...).Normal_(0, 1)
}

// Normal is the normal distribution.
type Normal struct{ *Base }

var normalKind = &kind{
	name: "Normal", params: locScale, of: func(b *Base) Distribution { return Normal{b} }, support: always(constraints.Real),
	mean: same(0), mode: same(0), stddev: same(1),
	variance: func(b *Base) *tensor.Tensor { return b.p[1].Pow(2) },
	sample: func(b *Base, sample []int) *tensor.Tensor {
		shape := b.extended(sample)
		return b.p[0].Expand(shape...).NormalTensor(b.p[1].Expand(shape...))
	},
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return b.p[0].Add(b.standardNormal(b.extended(sample)).Mul(b.p[1]))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		difference, variance := v.Sub(b.p[0]), b.p[1].Pow(2)
		square, twice := free.After(difference.Pow(2), difference), free.After(variance.Mul(2), variance)
		negative := free.After(square.Neg(), square)
		exponent, log := free.After(negative.Div(twice), negative, twice), b.p[1].Log()
		sum := free.After(exponent.Sub(log), exponent, log)
		return free.After(sum.Sub(math.Log(math.Sqrt(2*math.Pi))), sum)
	},
	cdf: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		difference, inverse := v.Sub(b.p[0]), b.p[1].Reciprocal()
		z := free.After(difference.Mul(inverse), difference, inverse)
		z = free.After(z.Div(math.Sqrt2), z)
		erf := free.After(z.Erf(), z)
		sum := free.After(erf.Add(1), erf)
		return free.After(sum.Mul(0.5), sum)
	},
	icdf: func(b *Base, p *tensor.Tensor) *tensor.Tensor {
		twice := p.Mul(2)
		centred := free.After(twice.Sub(1), twice)
		inverse := free.After(centred.ErfInv(), centred)
		scaled := free.After(b.p[1].Mul(inverse), inverse)
		return b.p[0].Add(free.After(scaled.Mul(math.Sqrt2), scaled))
	},
	entropy: func(b *Base) *tensor.Tensor { return b.p[1].Log().Add(0.5 + 0.5*math.Log(2*math.Pi)) },
}

// NewNormal returns the normal distribution with mean loc and standard deviation scale, numbers or tensors that are
// broadcast. Options: ValidateArgs. PyTorch: torch.distributions.Normal.
func NewNormal(loc, scale any, opts ...Option) Normal {
	return Normal{build(normalKind, opts, nil, func(b *Base, _ settings) error { return b.floats(loc, scale) })}
}

// Loc returns the mean.
func (d Normal) Loc() *tensor.Tensor { return d.param(0) }

// Scale returns the standard deviation.
func (d Normal) Scale() *tensor.Tensor { return d.param(1) }

// Uniform is the uniform distribution on an interval.
type Uniform struct{ *Base }

var uniformKind = &kind{
	name: "Uniform", params: []param{{"low", constraints.Dependent, 0}, {"high", constraints.Dependent, 0}},
	of: func(b *Base) Distribution { return Uniform{b} },
	args: func(b *Base) map[string]constraints.Constraint {
		return map[string]constraints.Constraint{"low": constraints.LessThan(b.p[1]), "high": constraints.GreaterThan(b.p[0])}
	},
	support:  func(b *Base) constraints.Constraint { return constraints.Interval(b.p[0], b.p[1]) },
	mean:     func(b *Base) *tensor.Tensor { return b.p[1].Add(b.p[0]).Div(2) },
	mode:     func(b *Base) *tensor.Tensor { return b.p[1].Mul(math.NaN()) },
	stddev:   func(b *Base) *tensor.Tensor { return b.p[1].Sub(b.p[0]).Div(math.Sqrt(12)) },
	variance: func(b *Base) *tensor.Tensor { return b.p[1].Sub(b.p[0]).Pow(2).Div(12) },
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return b.p[0].Add(tensor.Rand(b.extended(sample), b.like()...).Mul(b.p[1].Sub(b.p[0])))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		lower, upper := b.p[0].Le(v).To(b.dtype()), b.p[1].Gt(v).To(b.dtype())
		return lower.Mul(upper).Log().Sub(b.p[1].Sub(b.p[0]).Log())
	},
	cdf: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return v.Sub(b.p[0]).Div(b.p[1].Sub(b.p[0])).Clamp(0, 1)
	},
	icdf:    func(b *Base, p *tensor.Tensor) *tensor.Tensor { return p.Mul(b.p[1].Sub(b.p[0])).Add(b.p[0]) },
	entropy: func(b *Base) *tensor.Tensor { return b.p[1].Sub(b.p[0]).Log() },
}

// NewUniform returns the uniform distribution on [low, high), numbers or tensors that are broadcast. Options:
// ValidateArgs. PyTorch: torch.distributions.Uniform.
func NewUniform(low, high any, opts ...Option) Uniform {
	return Uniform{build(uniformKind, opts, nil, func(b *Base, _ settings) error { return b.floats(low, high) })}
}

// Low returns the lower bounds.
func (d Uniform) Low() *tensor.Tensor { return d.param(0) }

// High returns the upper bounds.
func (d Uniform) High() *tensor.Tensor { return d.param(1) }

// Exponential is the exponential distribution.
type Exponential struct{ *Base }

var exponentialKind = &kind{
	name: "Exponential", params: []param{{"rate", constraints.Positive, 0}}, of: func(b *Base) Distribution { return Exponential{b} },
	support:  always(constraints.Nonnegative),
	mean:     func(b *Base) *tensor.Tensor { return b.p[0].Reciprocal() },
	mode:     func(b *Base) *tensor.Tensor { return b.p[0].ZerosLike() },
	stddev:   func(b *Base) *tensor.Tensor { return b.p[0].Reciprocal() },
	variance: func(b *Base) *tensor.Tensor { return b.p[0].Pow(-2) },
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return tensor.Empty(b.extended(sample), b.like()...).Exponential_().Div(b.p[0])
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor { return b.p[0].Log().Sub(b.p[0].Mul(v)) },
	cdf:     func(b *Base, v *tensor.Tensor) *tensor.Tensor { return b.p[0].Neg().Mul(v).Exp().RSub(1) },
	icdf:    func(b *Base, p *tensor.Tensor) *tensor.Tensor { return p.Neg().Log1p().Neg().Div(b.p[0]) },
	entropy: func(b *Base) *tensor.Tensor { return b.p[0].Log().RSub(1) },
}

// NewExponential returns the exponential distribution with the given rate, a number or a tensor. Options: ValidateArgs.
// PyTorch: torch.distributions.Exponential.
func NewExponential(rate any, opts ...Option) Exponential {
	return Exponential{build(exponentialKind, opts, nil, func(b *Base, _ settings) error { return b.floats(rate) })}
}

// Rate returns the rate.
func (d Exponential) Rate() *tensor.Tensor { return d.param(0) }

// Laplace is the Laplace distribution.
type Laplace struct{ *Base }

var laplaceKind = &kind{
	name: "Laplace", params: locScale, of: func(b *Base) Distribution { return Laplace{b} }, support: always(constraints.Real),
	mean: same(0), mode: same(0),
	variance: func(b *Base) *tensor.Tensor { return b.p[1].Pow(2).Mul(2) },
	stddev:   func(b *Base) *tensor.Tensor { return b.p[1].Mul(math.Sqrt2) },
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		u := tensor.Empty(b.extended(sample), b.like()...).Uniform_(limits(b.dtype()).eps-1, 1)
		return b.p[0].Sub(b.p[1].Mul(u.Sign()).Mul(u.Abs().Neg().Log1p()))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		twice := b.p[1].Mul(2)
		log := free.After(twice.Log(), twice)
		normalizer, difference := free.After(log.Neg(), log), v.Sub(b.p[0])
		distance := free.After(difference.Abs(), difference)
		return free.After(normalizer.Sub(free.After(distance.Div(b.p[1]), distance)), normalizer)
	},
	cdf: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		d := v.Sub(b.p[0])
		return d.Sign().Mul(0.5).Mul(d.Abs().Neg().Div(b.p[1]).Expm1()).RSub(0.5)
	},
	icdf: func(b *Base, p *tensor.Tensor) *tensor.Tensor {
		term := p.Sub(0.5)
		return b.p[0].Sub(b.p[1].Mul(term.Sign()).Mul(term.Abs().Mul(-2).Log1p()))
	},
	entropy: func(b *Base) *tensor.Tensor { return b.p[1].Mul(2).Log().Add(1) },
}

// NewLaplace returns the Laplace distribution with the given location and scale, numbers or tensors that are broadcast.
// Options: ValidateArgs. PyTorch: torch.distributions.Laplace.
func NewLaplace(loc, scale any, opts ...Option) Laplace {
	return Laplace{build(laplaceKind, opts, nil, func(b *Base, _ settings) error { return b.floats(loc, scale) })}
}

// Loc returns the location.
func (d Laplace) Loc() *tensor.Tensor { return d.param(0) }

// Scale returns the scale.
func (d Laplace) Scale() *tensor.Tensor { return d.param(1) }

// Cauchy is the Cauchy distribution.
type Cauchy struct{ *Base }

var cauchyKind = &kind{
	name: "Cauchy", params: locScale, of: func(b *Base) Distribution { return Cauchy{b} }, support: always(constraints.Real),
	mode:     same(0),
	mean:     func(b *Base) *tensor.Tensor { return b.filled(math.NaN()) },
	variance: func(b *Base) *tensor.Tensor { return b.filled(math.Inf(1)) },
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return b.p[0].Add(tensor.Empty(b.extended(sample), b.like()...).Cauchy_(0, 1).Mul(b.p[1]))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return b.p[1].Log().RSub(-math.Log(math.Pi)).Sub(v.Sub(b.p[0]).Div(b.p[1]).Pow(2).Log1p())
	},
	cdf: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return v.Sub(b.p[0]).Div(b.p[1]).Atan().Div(math.Pi).Add(0.5)
	},
	icdf: func(b *Base, p *tensor.Tensor) *tensor.Tensor {
		return p.Sub(0.5).Mul(math.Pi).Tan().Mul(b.p[1]).Add(b.p[0])
	},
	entropy: func(b *Base) *tensor.Tensor { return b.p[1].Log().Add(math.Log(4 * math.Pi)) },
}

// NewCauchy returns the Cauchy distribution with the given median and half width at half maximum, numbers or tensors
// that are broadcast. Options: ValidateArgs. PyTorch: torch.distributions.Cauchy.
func NewCauchy(loc, scale any, opts ...Option) Cauchy {
	return Cauchy{build(cauchyKind, opts, nil, func(b *Base, _ settings) error { return b.floats(loc, scale) })}
}

// Loc returns the median.
func (d Cauchy) Loc() *tensor.Tensor { return d.param(0) }

// Scale returns the half width at half maximum.
func (d Cauchy) Scale() *tensor.Tensor { return d.param(1) }

// GeneralizedPareto is the generalized Pareto distribution.
type GeneralizedPareto struct{ *Base }

// zeroConcentration returns where the concentration is close to 0, and the concentration with 1 there.
func zeroConcentration(c *tensor.Tensor) (zero, safe *tensor.Tensor) {
	zero = c.IsClose(c.ZerosLike())
	return zero, tensor.Where(zero, c.OnesLike(), c)
}

func paretoLogSurvival(b *Base, v *tensor.Tensor) *tensor.Tensor {
	z := v.Sub(b.p[0]).Div(b.p[1])
	zero, safe := zeroConcentration(b.p[2])
	return tensor.Where(zero, z.Neg(), safe.Mul(z).Log1p().Neg().Div(safe))
}

func paretoICDF(b *Base, p *tensor.Tensor) *tensor.Tensor {
	zero, safe := zeroConcentration(b.p[2])
	logu := p.Neg().Log1p()
	return tensor.Where(zero, b.p[0].Sub(b.p[1].Mul(logu)), b.p[0].Add(b.p[1].Div(safe).Mul(safe.Neg().Mul(logu).Expm1())))
}

var generalizedParetoKind = &kind{
	name: "GeneralizedPareto", params: append(locScale[:2:2], param{"concentration", constraints.Real, 0}),
	of: func(b *Base) Distribution { return GeneralizedPareto{b} },
	support: func(b *Base) constraints.Constraint {
		return constraints.Interval(b.p[0], tensor.Where(b.p[2].Lt(0), b.p[0].Sub(b.p[1].Div(b.p[2])), math.Inf(1)))
	},
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return paretoICDF(b, tensor.Rand(b.extended(sample), b.like()...))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		z := v.Sub(b.p[0]).Div(b.p[1])
		zero, safe := zeroConcentration(b.p[2])
		y := safe.Reciprocal().Add(z.OnesLike())
		return b.p[1].Log().Neg().Sub(tensor.Where(zero, z, tensor.Where(y.Eq(0), y, y.Mul(safe.Mul(z).Log1p()))))
	},
	cdf: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return paretoLogSurvival(b, v).Exp().Neg().Log1p().Exp()
	},
	icdf: paretoICDF,
	mean: func(b *Base) *tensor.Tensor {
		ok := b.p[2].Lt(1)
		safe := tensor.Where(ok, b.p[2], 0.5)
		return tensor.Where(ok, b.p[0].Add(b.p[1].Div(safe.RSub(1))), math.NaN())
	},
	variance: func(b *Base) *tensor.Tensor {
		ok := b.p[2].Lt(0.5)
		safe := tensor.Where(ok, b.p[2], 0.25)
		return tensor.Where(ok, b.p[1].Pow(2).Div(safe.RSub(1).Pow(2).Mul(safe.Mul(2).RSub(1))), math.NaN())
	},
	mode:    same(0),
	entropy: func(b *Base) *tensor.Tensor { return b.p[1].Log().Add(b.p[2]).Add(1) },
}

// NewGeneralizedPareto returns the generalized Pareto distribution, whose parameters are numbers or tensors that are
// broadcast. Options: ValidateArgs. PyTorch: torch.distributions.GeneralizedPareto.
func NewGeneralizedPareto(loc, scale, concentration any, opts ...Option) GeneralizedPareto {
	return GeneralizedPareto{build(generalizedParetoKind, opts, nil, func(b *Base, _ settings) error { return b.floats(loc, scale, concentration) })}
}

// Loc returns the location.
func (d GeneralizedPareto) Loc() *tensor.Tensor { return d.param(0) }

// Scale returns the scale.
func (d GeneralizedPareto) Scale() *tensor.Tensor { return d.param(1) }

// Concentration returns the shape parameter.
func (d GeneralizedPareto) Concentration() *tensor.Tensor { return d.param(2) }

// LogSurvivalFunction returns the logarithm of the probability of a draw greater than value. PyTorch:
// log_survival_function.
func (d GeneralizedPareto) LogSurvivalFunction(value *tensor.Tensor) *tensor.Tensor {
	return d.get("LogSurvivalFunction", func(*Base) *tensor.Tensor {
		if err := d.checkValue("LogSurvivalFunction", value); err != nil {
			return tensor.Failed(err)
		}
		return paretoLogSurvival(d.Base, value)
	})
}

// LogCDF returns the logarithm of CDF. PyTorch: log_cdf.
func (d GeneralizedPareto) LogCDF(value *tensor.Tensor) *tensor.Tensor {
	return d.get("LogCDF", func(*Base) *tensor.Tensor {
		if err := d.checkValue("LogCDF", value); err != nil {
			return tensor.Failed(err)
		}
		return paretoLogSurvival(d.Base, value).Exp().Neg().Log1p()
	})
}

// VonMises is the circular von Mises distribution.
type VonMises struct{ *Base }

var besselSmall = [2][]float64{
	{1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813},
	{0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411},
}

var besselLarge = [2][]float64{
	{0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537, -0.01647633, 0.00392377},
	{0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312, 0.01787654, -0.00420059},
}

func polynomial(y *tensor.Tensor, coefficients []float64) *tensor.Tensor {
	n := len(coefficients) - 1
	result := y.Mul(coefficients[n]).Add(coefficients[n-1])
	for i := n - 2; i >= 0; i-- {
		result = y.Mul(result).Add(coefficients[i])
	}
	return result
}

// logBessel returns the logarithm of the modified Bessel function of the first kind. PyTorch: _log_modified_bessel_fn.
func logBessel(x *tensor.Tensor, order int) *tensor.Tensor {
	y := x.Div(3.75)
	y = y.Mul(y)
	small := polynomial(y, besselSmall[order])
	if order == 1 {
		small = x.Abs().Mul(small)
	}
	small = small.Log()
	y = x.Reciprocal().Mul(3.75)
	large := x.Sub(x.Log().Mul(0.5)).Add(polynomial(y, besselLarge[order]).Log())
	return tensor.Where(x.Lt(3.75), small, large)
}

var vonMisesKind = &kind{
	name: "VonMises", params: []param{{"loc", constraints.Real, 0}, {"concentration", constraints.Positive, 0}},
	of: func(b *Base) Distribution { return VonMises{b} }, support: always(constraints.Real), mean: same(0), mode: same(0),
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		return b.p[1].Mul(v.Sub(b.p[0]).Cos()).Sub(math.Log(2 * math.Pi)).Sub(logBessel(b.p[1], 0))
	},
	variance: func(b *Base) *tensor.Tensor { return logBessel(b.p[1], 1).Sub(logBessel(b.p[1], 0)).Exp().RSub(1) },
	sample:   sampleVonMises,
}

// sampleVonMises draws by rejection in float64, as PyTorch does.
func sampleVonMises(b *Base, sample []int) *tensor.Tensor {
	shape := b.extended(sample)
	loc, kappa := b.p[0].To(tensor.Float64), b.p[1].To(tensor.Float64)
	tau := kappa.Pow(2).Mul(4).Add(1).Sqrt().Add(1)
	rho := tau.Sub(tau.Mul(2).Sqrt()).Div(kappa.Mul(2))
	r := tensor.Where(kappa.Lt(1e-5), kappa.Reciprocal().Add(kappa), rho.Pow(2).Add(1).Div(rho.Mul(2)))
	x := tensor.Zeros(shape, tensor.Float64, loc.Device())
	done := tensor.Zeros(shape, tensor.Bool, loc.Device())
	for round := 0; ; round++ {
		all, err := done.All().Item()
		if err != nil {
			return tensor.Failed(err)
		}
		if all != 0 {
			break
		}
		if round == 200 { // a proposal is accepted with a probability of more than 0.6
			return refuse.Tensor("VonMises.Sample", tensor.ErrArgument, "rejection sampling does not end: the concentration is not finite or too large")
		}
		us, err := tensor.Rand(append([]int{3}, shape...), tensor.Float64, loc.Device()).Unbind()
		if err != nil {
			return tensor.Failed(err)
		}
		z := us[0].Mul(math.Pi).Cos()
		f := r.Mul(z).Add(1).Div(r.Add(z))
		c := kappa.Mul(r.Sub(f))
		accept := c.Mul(c.RSub(2)).Sub(us[1]).Gt(0).LogicalOr(c.Div(us[1]).Log().Add(1).Sub(c).Ge(0))
		x = tensor.Where(accept, us[2].Sub(0.5).Sign().Mul(f.Acos()), x)
		done = done.LogicalOr(accept)
	}
	return x.Add(math.Pi).Add(loc).Remainder(2 * math.Pi).Sub(math.Pi).To(b.dtype())
}

// NewVonMises returns the von Mises distribution on the angles from -π to π, with the given mean angle and
// concentration, numbers or tensors that are broadcast. Options: ValidateArgs. PyTorch: torch.distributions.VonMises.
func NewVonMises(loc, concentration any, opts ...Option) VonMises {
	return VonMises{build(vonMisesKind, opts, nil, func(b *Base, _ settings) error { return b.floats(loc, concentration) })}
}

// Loc returns the mean angle.
func (d VonMises) Loc() *tensor.Tensor { return d.param(0) }

// Concentration returns the concentration.
func (d VonMises) Concentration() *tensor.Tensor { return d.param(1) }
