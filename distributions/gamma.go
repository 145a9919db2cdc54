package distributions

import (
	"math"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// callOne runs an operator that is internal to libtorch, and returns its result. It does not check its arguments: the
// callers do.
func callOne(name string, args ...any) *tensor.Tensor {
	results, err := tensor.CallUnchecked(name, args...)
	if err != nil {
		return tensor.Failed(err)
	}
	if t, ok := results[0].(*tensor.Tensor); ok {
		return t
	}
	return refuse.Tensor(name, tensor.ErrInternal, "the operator returned no tensor")
}

// sampleGamma draws from gamma distributions, with gradients. PyTorch: Gamma.rsample.
func sampleGamma(concentration, rate *tensor.Tensor, shape []int) *tensor.Tensor {
	v := callOne("aten::_standard_gamma", concentration.Expand(shape...)).Div(rate.Expand(shape...))
	if clamped := v.Detach().ClampMin_(limits(v.DType()).tiny); !handle.Usable(clamped) {
		return clamped
	}
	return v
}

// Gamma is the gamma distribution.
type Gamma struct{ *Base }

var gammaKind = &kind{
	name: "Gamma", params: []param{{"concentration", constraints.Positive, 0}, {"rate", constraints.Positive, 0}},
	of: func(b *Base) Distribution { return Gamma{b} }, support: always(constraints.Nonnegative),
	mean: gammaMean, mode: gammaMode, variance: gammaVariance, rsample: gammaRSample, logProb: gammaLogProb, cdf: gammaCDF, entropy: gammaEntropy,
}

func gammaMean(b *Base) *tensor.Tensor { return b.p[0].Div(b.p[1]) }

func gammaMode(b *Base) *tensor.Tensor { return b.p[0].Sub(1).Div(b.p[1]).ClampMin(0) }

func gammaVariance(b *Base) *tensor.Tensor { return b.p[0].Div(b.p[1].Pow(2)) }

func gammaRSample(b *Base, sample []int) *tensor.Tensor {
	return sampleGamma(b.p[0], b.p[1], b.extended(sample))
}

func gammaLogProb(b *Base, v *tensor.Tensor) *tensor.Tensor {
	v = v.To(b.p[1].DType(), b.p[1].Device())
	first, power := b.p[0].XLogY(b.p[1]), b.p[0].Sub(1)
	second := free.After(power.XLogY(v), power)
	sum := free.After(first.Add(second), first, second)
	product := b.p[1].Mul(v)
	rest, normalizer := free.After(sum.Sub(product), sum, product), b.p[0].LGamma()
	return free.After(rest.Sub(normalizer), rest, normalizer)
}

func gammaCDF(b *Base, v *tensor.Tensor) *tensor.Tensor { return b.p[0].IGamma(b.p[1].Mul(v)) }

func gammaEntropy(b *Base) *tensor.Tensor {
	return b.p[0].Sub(b.p[1].Log()).Add(b.p[0].LGamma()).Add(b.p[0].RSub(1.0).Mul(b.p[0].Digamma()))
}

// NewGamma returns the gamma distribution with the given concentration and rate, numbers or tensors that are broadcast.
// Options: ValidateArgs. PyTorch: torch.distributions.Gamma.
func NewGamma(concentration, rate any, opts ...Option) Gamma {
	return Gamma{build(gammaKind, opts, nil, func(b *Base, _ settings) error { return b.floats(concentration, rate) })}
}

// Concentration returns the shape parameter.
func (d Gamma) Concentration() *tensor.Tensor { return d.param(0) }

// Rate returns the rate.
func (d Gamma) Rate() *tensor.Tensor { return d.param(1) }

// Chi2 is the chi-squared distribution.
type Chi2 struct{ *Base }

var chi2Kind = &kind{
	name: "Chi2", params: []param{{"concentration", nil, 0}, {"rate", nil, 0}},
	of: func(b *Base) Distribution { return Chi2{b} }, parent: func(b *Base) Distribution { return Gamma{b} }, support: always(constraints.Nonnegative),
	args: func(*Base) map[string]constraints.Constraint {
		return map[string]constraints.Constraint{"df": constraints.Positive, "concentration": constraints.Positive}
	},
	repr: func(*Base) string { return "Chi2()" },
	mean: gammaMean, mode: gammaMode, variance: gammaVariance, rsample: gammaRSample, logProb: gammaLogProb, cdf: gammaCDF, entropy: gammaEntropy,
}

// NewChi2 returns the chi-squared distribution with df degrees of freedom, a number or a tensor. Options: ValidateArgs.
// PyTorch: torch.distributions.Chi2.
func NewChi2(df any, opts ...Option) Chi2 {
	return Chi2{build(chi2Kind, opts, nil, func(b *Base, _ settings) error {
		dfs, err := b.broadcastAll(df)
		if err != nil {
			return err
		}
		return b.floats(dfs[0].Mul(0.5), 0.5)
	})}
}

// DF returns the degrees of freedom. PyTorch: df.
func (d Chi2) DF() *tensor.Tensor {
	return d.get("DF", func(b *Base) *tensor.Tensor { return b.p[0].Mul(2) })
}

// Concentration returns half the degrees of freedom.
func (d Chi2) Concentration() *tensor.Tensor { return d.param(0) }

// Rate returns 0.5.
func (d Chi2) Rate() *tensor.Tensor { return d.param(1) }

// dirichlet draws from Dirichlet distributions, with gradients.
type dirichlet struct{}

// Forward implements autograd.Function.
func (dirichlet) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SetMaterializeGrads(false)
	x := callOne("aten::_sample_dirichlet", in[0])
	ctx.SaveForBackward(x, in[0])
	return []*tensor.Tensor{x}, x.Err()
}

// Backward implements autograd.Function.
func (dirichlet) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	saved := ctx.Saved()
	x, concentration, g := saved[0], saved[1], grads[0]
	if g == nil {
		return []*tensor.Tensor{nil}, nil
	}
	last := []tensor.Option{tensor.Dim(-1), tensor.KeepDim(true)}
	total := concentration.Sum(last...).ExpandAs(concentration)
	grad := callOne("aten::_dirichlet_grad", x, concentration, total).Mul(g.Sub(x.Mul(g).Sum(last...)))
	return []*tensor.Tensor{grad}, grad.Err()
}

func sampleDirichlet(concentration *tensor.Tensor, shape []int) *tensor.Tensor {
	out, err := autograd.Apply(dirichlet{}, concentration.Expand(shape...))
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0]
}

func dirichletLogProb(c, v *tensor.Tensor) *tensor.Tensor {
	last := tensor.Dim(-1)
	power := c.Sub(1.0)
	terms := free.After(power.XLogY(v), power)
	sum, total := free.After(terms.Sum(last), terms), c.Sum(last)
	log := free.After(total.LGamma(), total)
	sum = free.After(sum.Add(log), sum, log)
	logs := c.LGamma()
	normalizer := free.After(logs.Sum(last), logs)
	return free.After(sum.Sub(normalizer), sum, normalizer)
}

func dirichletMode(c *tensor.Tensor) *tensor.Tensor {
	m1 := c.Sub(1).ClampMin(0.0)
	mode := m1.Div(m1.Sum(tensor.Dim(-1), tensor.KeepDim(true)))
	mask := c.Lt(1).All(tensor.Dim(-1), tensor.KeepDim(true))
	corner := mode.ArgMax(tensor.Dim(-1)).OneHot(tensor.NumClasses(c.Size(-1))).To(mode.DType())
	return tensor.Where(mask, corner, mode)
}

func dirichletEntropy(c *tensor.Tensor) *tensor.Tensor {
	last := tensor.Dim(-1)
	a0 := c.Sum(last)
	return c.LGamma().Sum(last).Sub(a0.LGamma()).Sub(a0.RSub(c.Size(-1)).Mul(a0.Digamma())).Sub(c.Sub(1.0).Mul(c.Digamma()).Sum(last))
}

// Dirichlet is the Dirichlet distribution.
type Dirichlet struct{ *Base }

var dirichletKind = &kind{
	name: "Dirichlet", params: []param{{"concentration", constraints.Independent(constraints.Positive, 1), 1}},
	of: func(b *Base) Distribution { return Dirichlet{b} }, support: always(constraints.Simplex),
	rsample: func(b *Base, sample []int) *tensor.Tensor { return sampleDirichlet(b.p[0], b.extended(sample)) },
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor { return dirichletLogProb(b.p[0], v) },
	mean:    func(b *Base) *tensor.Tensor { return b.p[0].Div(b.p[0].Sum(tensor.Dim(-1), tensor.KeepDim(true))) },
	mode:    func(b *Base) *tensor.Tensor { return dirichletMode(b.p[0]) },
	variance: func(b *Base) *tensor.Tensor {
		c0 := b.p[0].Sum(tensor.Dim(-1), tensor.KeepDim(true))
		return b.p[0].Mul(c0.Sub(b.p[0])).Div(c0.Pow(2).Mul(c0.Add(1)))
	},
	entropy: func(b *Base) *tensor.Tensor { return dirichletEntropy(b.p[0]) },
}

// NewDirichlet returns the Dirichlet distribution with the given concentration, of shape (..., K), K at least 1. Options:
// ValidateArgs. PyTorch: torch.distributions.Dirichlet.
func NewDirichlet(concentration *tensor.Tensor, opts ...Option) Dirichlet {
	return Dirichlet{build(dirichletKind, opts, nil, func(b *Base, _ settings) error { return b.vectors(concentration) })}
}

// vectors sets the first parameter to a tensor whose last dimension is the event, and the shapes.
func (b *Base) vectors(t *tensor.Tensor) error {
	if err := b.floats(t); err != nil {
		return err
	}
	shape := b.p[0].Shape()
	if len(shape) == 0 {
		return refuse.Error("New"+b.kind.name, tensor.ErrArgument, "%s must have at least one dimension, got a scalar", b.name(0))
	}
	n := len(shape) - 1
	b.batch, b.event = shape[:n:n], shape[n:]
	return nil
}

// Concentration returns the concentration.
func (d Dirichlet) Concentration() *tensor.Tensor { return d.param(0) }

// Beta is the beta distribution.
type Beta struct{ *Base }

// pair returns the concentrations as those of a Dirichlet distribution.
func (b *Base) pair() *tensor.Tensor { return tensor.Stack(b.p[:2], tensor.Dim(-1)) }

func betaMean(b *Base) *tensor.Tensor { return b.p[0].Div(b.p[0].Add(b.p[1])) }

func betaEntropy(b *Base) *tensor.Tensor { return dirichletEntropy(b.pair()) }

var betaKind = &kind{
	name: "Beta", params: []param{{"concentration1", constraints.Positive, 0}, {"concentration0", constraints.Positive, 0}},
	of: func(b *Base) Distribution { return Beta{b} }, support: always(constraints.UnitInterval), repr: func(*Base) string { return "Beta()" },
	mean: betaMean, entropy: betaEntropy,
	mode: func(b *Base) *tensor.Tensor { return dirichletMode(b.pair()).Select(-1, 0) },
	variance: func(b *Base) *tensor.Tensor {
		total := b.p[0].Add(b.p[1])
		return b.p[0].Mul(b.p[1]).Div(total.Pow(2).Mul(total.Add(1)))
	},
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return sampleDirichlet(b.pair(), append(b.extended(sample), 2)).Select(-1, 0)
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		other := v.RSub(1.0)
		both := free.After(tensor.Stack([]*tensor.Tensor{v, other}, tensor.Dim(-1)), other)
		return dirichletLogProb(b.pair(), both)
	},
}

// NewBeta returns the beta distribution with concentrations alpha and beta, numbers or tensors that are broadcast.
// Options: ValidateArgs. PyTorch: torch.distributions.Beta.
func NewBeta(concentration1, concentration0 any, opts ...Option) Beta {
	return Beta{build(betaKind, opts, nil, func(b *Base, _ settings) error { return b.floats(concentration1, concentration0) })}
}

// Concentration1 returns the first concentration, alpha.
func (d Beta) Concentration1() *tensor.Tensor { return d.param(0) }

// Concentration0 returns the second concentration, beta.
func (d Beta) Concentration0() *tensor.Tensor { return d.param(1) }

// StudentT is Student's t-distribution.
type StudentT struct{ *Base }

var studentTKind = &kind{
	name: "StudentT", params: []param{{"df", constraints.Positive, 0}, {"loc", constraints.Real, 0}, {"scale", constraints.Positive, 0}},
	of: func(b *Base) Distribution { return StudentT{b} }, support: always(constraints.Real), mode: same(1),
	mean: func(b *Base) *tensor.Tensor { return b.p[1].MaskedFill(b.p[0].Le(1), math.NaN()) },
	variance: func(b *Base) *tensor.Tensor {
		df := b.p[0]
		ok := df.Gt(2)
		safe := tensor.Where(ok, df, 3.0)
		v := tensor.Where(ok, b.p[2].Pow(2).Mul(safe).Div(safe.Sub(2)), df)
		return v.MaskedFill(df.Le(2).LogicalAnd(df.Gt(1)), math.Inf(1)).MaskedFill(df.Le(1), math.NaN())
	},
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		shape := b.extended(sample)
		x := b.standardNormal(shape)
		z := sampleGamma(b.p[0].Mul(0.5), b.p[0].FullLike(0.5), shape)
		return b.p[1].Add(b.p[2].Mul(x.Mul(z.Div(b.p[0]).RSqrt())))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		df := b.p[0]
		y := v.Sub(b.p[1]).Div(b.p[2])
		z := b.p[2].Log().Add(df.Log().Mul(0.5)).Add(0.5 * math.Log(math.Pi)).Add(df.Mul(0.5).LGamma()).Sub(df.Add(1.0).Mul(0.5).LGamma())
		return df.Add(1.0).Mul(-0.5).Mul(y.Pow(2.0).Div(df).Log1p()).Sub(z)
	},
	entropy: func(b *Base) *tensor.Tensor {
		df := b.p[0]
		half, more := df.Mul(0.5), df.Add(1).Mul(0.5)
		const lgamma = 0.5723649429247001 // of 0.5
		lbeta := half.LGamma().Add(lgamma).Sub(more.LGamma())
		return b.p[2].Log().Add(more.Mul(more.Digamma().Sub(half.Digamma()))).Add(df.Log().Mul(0.5)).Add(lbeta)
	},
}

// NewStudentT returns Student's t-distribution with df degrees of freedom, a number or a tensor. Options: Loc, Scale,
// ValidateArgs. PyTorch: torch.distributions.StudentT.
func NewStudentT(df any, opts ...Option) StudentT {
	return StudentT{build(studentTKind, opts, []string{"Loc", "Scale"}, func(b *Base, s settings) error {
		if s.loc == nil {
			s.loc = 0.0
		}
		if s.scale == nil {
			s.scale = 1.0
		}
		return b.floats(df, s.loc, s.scale)
	})}
}

// DF returns the degrees of freedom. PyTorch: df.
func (d StudentT) DF() *tensor.Tensor { return d.param(0) }

// Loc returns the location.
func (d StudentT) Loc() *tensor.Tensor { return d.param(1) }

// Scale returns the scale.
func (d StudentT) Scale() *tensor.Tensor { return d.param(2) }

// FisherSnedecor is the F-distribution.
type FisherSnedecor struct{ *Base }

var fisherSnedecorKind = &kind{
	name: "FisherSnedecor", params: []param{{"df1", constraints.Positive, 0}, {"df2", constraints.Positive, 0}},
	of: func(b *Base) Distribution { return FisherSnedecor{b} }, support: always(constraints.Positive),
	mean: func(b *Base) *tensor.Tensor {
		df2 := b.p[1].MaskedFill(b.p[1].Le(2), math.NaN())
		return df2.Div(df2.Sub(2))
	},
	mode: func(b *Base) *tensor.Tensor {
		return b.p[0].Sub(2).Div(b.p[0]).Mul(b.p[1]).Div(b.p[1].Add(2)).MaskedFill(b.p[0].Lt(2), math.NaN())
	},
	variance: func(b *Base) *tensor.Tensor {
		df2 := b.p[1].MaskedFill(b.p[1].Le(4), math.NaN())
		return df2.Pow(2).Mul(2).Mul(b.p[0].Add(df2).Sub(2)).Div(b.p[0].Mul(df2.Sub(2).Pow(2)).Mul(df2.Sub(4)))
	},
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		shape := b.extended(sample)
		x1 := sampleGamma(b.p[0].Mul(0.5), b.p[0], shape)
		x2 := sampleGamma(b.p[1].Mul(0.5), b.p[1], shape)
		tiny := limits(x2.DType()).tiny
		return x1.Div(x2.ClampMin(tiny)).ClampMin(tiny)
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		ct1, ct2, ct3 := b.p[0].Mul(0.5), b.p[1].Mul(0.5), b.p[0].Div(b.p[1])
		sum := ct1.Add(ct2)
		t1 := sum.LGamma().Sub(ct1.LGamma()).Sub(ct2.LGamma())
		t2 := ct1.Mul(ct3.Log()).Add(ct1.Sub(1).Mul(v.Log()))
		return t1.Add(t2).Sub(sum.Mul(ct3.Mul(v).Log1p()))
	},
}

// NewFisherSnedecor returns the F-distribution with the given degrees of freedom, numbers or tensors that are
// broadcast. Options: ValidateArgs. PyTorch: torch.distributions.FisherSnedecor.
func NewFisherSnedecor(df1, df2 any, opts ...Option) FisherSnedecor {
	return FisherSnedecor{build(fisherSnedecorKind, opts, nil, func(b *Base, _ settings) error { return b.floats(df1, df2) })}
}

// DF1 returns the first degrees of freedom. PyTorch: df1.
func (d FisherSnedecor) DF1() *tensor.Tensor { return d.param(0) }

// DF2 returns the second degrees of freedom. PyTorch: df2.
func (d FisherSnedecor) DF2() *tensor.Tensor { return d.param(1) }
