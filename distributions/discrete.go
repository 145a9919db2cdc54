package distributions

import (
	"math"
	"runtime"
	"slices"

	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

var (
	binaryParams   = []param{{"probs", constraints.UnitInterval, 0}, {"logits", constraints.Real, 0}}
	categoryParams = []param{{"probs", constraints.Simplex, 1}, {"logits", constraints.RealVector, 1}}
	byOdds         = []string{"Probs", "Logits"}
)

// either sets the parameter probs or logits, whichever was given, and broadcasts others with it.
func (b *Base) either(s settings, others ...any) error {
	if (s.probs == nil) == (s.logits == nil) {
		return refuse.Error("New"+b.kind.name, tensor.ErrArgument, "give Probs or Logits, and not both")
	}
	at, v := 0, s.probs
	if v == nil {
		at, v = 1, s.logits
	}
	ts, err := b.broadcastAll(append([]any{v}, others...)...)
	if err != nil {
		return err
	}
	b.p[at] = ts[0]
	for i, t := range ts[1:] {
		b.p[2+i] = t.To(ts[0].DType(), ts[0].Device())
	}
	b.batch = ts[0].Shape()
	return b.float()
}

// probs returns the probabilities of two or of many outcomes.
func (b *Base) probs() *tensor.Tensor {
	switch {
	case b.p[0] != nil:
		return b.p[0].Alias()
	case b.kind.params[1].tail == 1:
		return b.p[1].Softmax(-1)
	}
	return b.p[1].Sigmoid()
}

func (b *Base) logits() *tensor.Tensor {
	if b.p[1] != nil {
		return b.p[1].Alias()
	}
	return probsToLogits(b.p[0], b.kind.params[1].tail == 0)
}

// odds returns the parameter that was given.
func (b *Base) odds() *tensor.Tensor {
	if b.p[0] != nil {
		return b.p[0]
	}
	return b.p[1]
}

// odds has the accessors of distributions that take Probs or Logits.
type odds struct{ *Base }

// get returns the result of f for an accessor. f panics if the Base is that of another distribution, see foreign.
func (b *Base) get(method string, f func(*Base) *tensor.Tensor) *tensor.Tensor {
	return b.call(method, true, func() (out *tensor.Tensor) {
		defer func() {
			switch p := recover().(type) {
			case nil:
			case runtime.Error:
				out = tensor.Failed(b.foreign(method))
			default:
				panic(p)
			}
		}()
		return f(b)
	})
}

// Probs returns the probabilities.
func (d odds) Probs() *tensor.Tensor { return d.get("Probs", (*Base).probs) }

// Logits returns the logits.
func (d odds) Logits() *tensor.Tensor { return d.get("Logits", (*Base).logits) }

// Bernoulli is the Bernoulli distribution.
type Bernoulli struct{ *Base }

func bernoulliEntropy(b *Base) *tensor.Tensor {
	return b.logits().BinaryCrossEntropyWithLogits(b.probs(), tensor.ReduceNone)
}

// crossEntropy returns -log p(v) of the logits of two outcomes.
func crossEntropy(b *Base, v *tensor.Tensor) *tensor.Tensor {
	ts, err := tensor.BroadcastTensors([]*tensor.Tensor{b.logits(), v})
	if err != nil {
		return tensor.Failed(err)
	}
	return ts[0].BinaryCrossEntropyWithLogits(ts[1], tensor.ReduceNone)
}

// enumerate returns values along a new first dimension.
func enumerate(b *Base, values *tensor.Tensor, expand bool) *tensor.Tensor {
	n := values.Size(0)
	v := values.View(append([]int{n}, slices.Repeat([]int{1}, len(b.batch))...)...)
	if expand {
		v = v.Expand(append([]int{n}, b.batch...)...)
	}
	return v
}

var bernoulliKind = &kind{
	name: "Bernoulli", params: binaryParams, of: func(b *Base) Distribution { return Bernoulli{b} }, support: always(constraints.Boolean),
	mean: (*Base).probs,
	mode: func(b *Base) *tensor.Tensor {
		p := b.probs()
		return p.Ge(0.5).To(p.DType()).MaskedFill(p.Eq(0.5), math.NaN())
	},
	variance: func(b *Base) *tensor.Tensor { p := b.probs(); return p.Mul(p.RSub(1)) },
	sample: func(b *Base, sample []int) *tensor.Tensor {
		return b.probs().Expand(b.extended(sample)...).Bernoulli()
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor { return crossEntropy(b, v).Neg() },
	entropy: bernoulliEntropy,
	values: func(b *Base, expand bool) *tensor.Tensor {
		return enumerate(b, tensor.Arange(0, 2, b.like()...), expand)
	},
}

// NewBernoulli returns the Bernoulli distribution. Options: Probs or Logits, which one is needed; ValidateArgs. PyTorch:
// torch.distributions.Bernoulli.
func NewBernoulli(opts ...Option) Bernoulli {
	return Bernoulli{build(bernoulliKind, opts, byOdds, func(b *Base, s settings) error { return b.either(s) })}
}

// Probs returns the probabilities of 1.
func (d Bernoulli) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the odds of 1.
func (d Bernoulli) Logits() *tensor.Tensor { return odds(d).Logits() }

// ContinuousBernoulli is the continuous Bernoulli distribution on [0, 1].
type ContinuousBernoulli struct{ *Base }

func (b *Base) continuousProbs() *tensor.Tensor {
	if b.p[0] != nil {
		return b.p[0].Alias()
	}
	return clampProbs(b.p[1].Sigmoid())
}

// stable returns where the formulas without a Taylor series are accurate.
func (b *Base) stable() *tensor.Tensor {
	p := b.continuousProbs()
	return p.Le(b.lims[0]).Maximum(p.Gt(b.lims[1]))
}

func (b *Base) cutProbs() *tensor.Tensor {
	p := b.continuousProbs()
	return tensor.Where(b.stable(), p, p.OnesLike().Mul(b.lims[0]))
}

func (b *Base) logNorm() *tensor.Tensor {
	cut := b.cutProbs()
	below := tensor.Where(cut.Le(0.5), cut, cut.ZerosLike())
	above := tensor.Where(cut.Ge(0.5), cut, cut.OnesLike())
	norm := cut.Neg().Log1p().Sub(cut.Log()).Abs().Log().Sub(tensor.Where(cut.Le(0.5), below.Mul(-2.0).Log1p(), above.Mul(2.0).Sub(1.0).Log()))
	x := b.continuousProbs().Sub(0.5).Pow(2)
	taylor := x.Mul(104.0 / 45.0).Add(4.0 / 3.0).Mul(x).Add(math.Log(2.0))
	return tensor.Where(b.stable(), norm, taylor)
}

func continuousMean(b *Base) *tensor.Tensor {
	cut := b.cutProbs()
	mus := cut.Div(cut.Mul(2.0).Sub(1.0)).Add(cut.Neg().Log1p().Sub(cut.Log()).Reciprocal().Mul(1.0))
	x := b.continuousProbs().Sub(0.5)
	taylor := x.Pow(2).Mul(16.0 / 45.0).Add(1.0 / 3.0).Mul(x).Add(0.5)
	return tensor.Where(b.stable(), mus, taylor)
}

func continuousICDF(b *Base, p *tensor.Tensor) *tensor.Tensor {
	cut := b.cutProbs()
	rest := cut.Neg().Log1p()
	return tensor.Where(b.stable(), cut.Neg().Add(p.Mul(cut.Mul(2.0).Sub(1.0))).Log1p().Sub(rest).Div(cut.Log().Sub(rest)), p)
}

var continuousBernoulliKind = &kind{
	name: "ContinuousBernoulli", params: binaryParams, of: func(b *Base) Distribution { return ContinuousBernoulli{b} }, support: always(constraints.UnitInterval),
	mean: continuousMean,
	variance: func(b *Base) *tensor.Tensor {
		cut := b.cutProbs()
		vars := cut.Mul(cut.Sub(1.0)).Div(cut.Mul(2.0).RSub(1.0).Pow(2)).Add(cut.Neg().Log1p().Sub(cut.Log()).Pow(2).Reciprocal().Mul(1.0))
		x := b.continuousProbs().Sub(0.5).Pow(2)
		taylor := x.Mul(128.0 / 945.0).RSub(1.0 / 15.0).Mul(x).RSub(1.0 / 12.0)
		return tensor.Where(b.stable(), vars, taylor)
	},
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return continuousICDF(b, tensor.Rand(b.extended(sample), b.like()...))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor { return crossEntropy(b, v).Neg().Add(b.logNorm()) },
	cdf: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		cut := b.cutProbs()
		cdfs := cut.PowTensor(v).Mul(cut.RSub(1.0).PowTensor(v.RSub(1.0))).Add(cut).Sub(1.0).Div(cut.Mul(2.0).Sub(1.0))
		open := tensor.Where(b.stable(), cdfs, v)
		return tensor.Where(v.Le(0.0), v.ZerosLike(), tensor.Where(v.Ge(1.0), v.OnesLike(), open))
	},
	icdf: continuousICDF,
	entropy: func(b *Base) *tensor.Tensor {
		p := b.continuousProbs()
		log0, log1 := p.Neg().Log1p(), p.Log()
		return continuousMean(b).Mul(log0.Sub(log1)).Sub(b.logNorm()).Sub(log0)
	},
}

// NewContinuousBernoulli returns the continuous Bernoulli distribution. Options: Probs or Logits, which one is needed;
// Lims, ValidateArgs. PyTorch: torch.distributions.ContinuousBernoulli.
func NewContinuousBernoulli(opts ...Option) ContinuousBernoulli {
	return ContinuousBernoulli{build(continuousBernoulliKind, opts, append(byOdds[:2:2], "Lims"), func(b *Base, s settings) error {
		b.lims = s.lims
		if err := b.either(s); err != nil || b.p[0] == nil {
			return err
		}
		if b.validate {
			if err := b.checkParams("NewContinuousBernoulli"); err != nil {
				return err
			}
		}
		b.p[0] = clampProbs(b.p[0])
		return nil
	})}
}

// Probs returns the parameter as probabilities.
func (d ContinuousBernoulli) Probs() *tensor.Tensor { return d.get("Probs", (*Base).continuousProbs) }

// Logits returns the parameter as logits.
func (d ContinuousBernoulli) Logits() *tensor.Tensor { return odds(d).Logits() }

// Geometric is the distribution of the number of failures before the first success.
type Geometric struct{ *Base }

var geometricKind = &kind{
	name: "Geometric", params: binaryParams, of: func(b *Base) Distribution { return Geometric{b} }, support: always(constraints.NonnegativeInteger),
	mean:     func(b *Base) *tensor.Tensor { return b.probs().Reciprocal().Sub(1.0) },
	mode:     func(b *Base) *tensor.Tensor { return b.probs().ZerosLike() },
	variance: func(b *Base) *tensor.Tensor { p := b.probs(); return p.Reciprocal().Sub(1.0).Div(p) },
	sample: func(b *Base, sample []int) *tensor.Tensor {
		u := tensor.Empty(b.extended(sample), b.like()...).Uniform_(limits(b.dtype()).tiny, 1)
		return u.Log().Div(b.probs().Neg().Log1p()).Floor()
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		ts, err := tensor.BroadcastTensors([]*tensor.Tensor{v, b.probs()})
		if err != nil {
			return tensor.Failed(err)
		}
		v, p := ts[0], ts[1]
		p = p.MaskedFill(p.Eq(1).LogicalAnd(v.Eq(0)), 0)
		return v.Mul(p.Neg().Log1p()).Add(b.probs().Log())
	},
	entropy: geometricEntropy,
}

func geometricEntropy(b *Base) *tensor.Tensor { return bernoulliEntropy(b).Div(b.probs()) }

// NewGeometric returns the geometric distribution. Options: Probs, which are greater than 0, or Logits, which one is
// needed; ValidateArgs. PyTorch: torch.distributions.Geometric.
func NewGeometric(opts ...Option) Geometric {
	return Geometric{build(geometricKind, opts, byOdds, func(b *Base, s settings) error {
		if err := b.either(s); err != nil || b.p[0] == nil || !b.validate {
			return err
		}
		ok, err := valid(constraints.Positive, b.p[0])
		if err == nil && !ok {
			err = refuse.Error("NewGeometric", tensor.ErrArgument, "expected parameter probs (of shape %v) to be positive, but found invalid values: %v", b.p[0].Shape(), b.p[0])
		}
		return err
	})}
}

// Probs returns the probabilities of success.
func (d Geometric) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the odds of success.
func (d Geometric) Logits() *tensor.Tensor { return odds(d).Logits() }

// Binomial is the binomial distribution.
type Binomial struct{ *Base }

// total returns the number of trials if it is the same in the whole batch.
func (b *Base) total(method string) (int, error) {
	low, high := b.p[2].Min(), b.p[2].Max()
	least, err := low.Item()
	if err != nil {
		return 0, err
	}
	most, err := high.Item()
	if err != nil {
		return 0, err
	}
	if least != most {
		return 0, refuse.Error(b.kind.name+"."+method, tensor.ErrNotImplemented, "the total counts differ, from %v to %v", least, most)
	}
	if !(most >= 0 && most < 1<<31) {
		return 0, refuse.Error(b.kind.name+"."+method, tensor.ErrArgument, "invalid total count %v", most)
	}
	return int(most), nil
}

func clampByZero(x *tensor.Tensor) *tensor.Tensor {
	return x.ClampMin(0).Add(x).Sub(x.ClampMax(0)).Div(2)
}

func binomialLogProb(total, logits, v *tensor.Tensor) *tensor.Tensor {
	factorialN, factorialK, factorialNK := total.Add(1).LGamma(), v.Add(1).LGamma(), total.Sub(v).Add(1).LGamma()
	normalize := total.Mul(clampByZero(logits)).Add(total.Mul(logits.Abs().Neg().Exp().Log1p())).Sub(factorialN)
	return v.Mul(logits).Sub(factorialK).Sub(factorialNK).Sub(normalize)
}

var binomialKind = &kind{
	name: "Binomial", params: append(binaryParams[:2:2], param{"total_count", constraints.NonnegativeInteger, 0}),
	of: func(b *Base) Distribution { return Binomial{b} }, order: []int{2, 0, 1},
	support: func(b *Base) constraints.Constraint { return constraints.IntegerInterval(0, b.p[2]) },
	mean:    func(b *Base) *tensor.Tensor { return b.p[2].Mul(b.probs()) },
	mode: func(b *Base) *tensor.Tensor {
		return b.p[2].Add(1).Mul(b.probs()).Floor().Minimum(b.p[2])
	},
	variance: func(b *Base) *tensor.Tensor { p := b.probs(); return b.p[2].Mul(p).Mul(p.RSub(1)) },
	sample: func(b *Base, sample []int) *tensor.Tensor {
		shape := b.extended(sample)
		return b.p[2].Expand(shape...).Binomial(b.probs().Expand(shape...))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor { return binomialLogProb(b.p[2], b.logits(), v) },
	entropy: func(b *Base) *tensor.Tensor {
		n, err := b.total("Entropy")
		if err != nil {
			return tensor.Failed(err)
		}
		lp := binomialLogProb(b.p[2], b.logits(), enumerate(b, tensor.Arange(0, n+1, b.like()...), false))
		return lp.Exp().Mul(lp).Sum(tensor.Dim(0)).Neg()
	},
	values: func(b *Base, expand bool) *tensor.Tensor {
		n, err := b.total("EnumerateSupport")
		if err != nil {
			return tensor.Failed(err)
		}
		return enumerate(b, tensor.Arange(0, n+1, b.like()...), expand)
	},
}

// NewBinomial returns the distribution of the number of successes in totalCount trials, a number or a tensor. Options:
// Probs or Logits, which one is needed; ValidateArgs. PyTorch: torch.distributions.Binomial.
func NewBinomial(totalCount any, opts ...Option) Binomial {
	return Binomial{build(binomialKind, opts, byOdds, func(b *Base, s settings) error { return b.either(s, totalCount) })}
}

// TotalCount returns the number of trials.
func (d Binomial) TotalCount() *tensor.Tensor { return d.param(2) }

// Probs returns the probabilities of success.
func (d Binomial) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the odds of success.
func (d Binomial) Logits() *tensor.Tensor { return odds(d).Logits() }

// NegativeBinomial is the distribution of the number of successes before totalCount failures.
type NegativeBinomial struct{ *Base }

var negativeBinomialKind = &kind{
	name: "NegativeBinomial", params: []param{{"probs", constraints.HalfOpenInterval(0.0, 1.0), 0}, {"logits", constraints.Real, 0}, {"total_count", constraints.GreaterThanEq(0), 0}},
	of: func(b *Base) Distribution { return NegativeBinomial{b} }, order: []int{2, 0, 1}, support: always(constraints.NonnegativeInteger),
	mean:     func(b *Base) *tensor.Tensor { return b.p[2].Mul(b.logits().Exp()) },
	mode:     func(b *Base) *tensor.Tensor { return b.p[2].Sub(1).Mul(b.logits().Exp()).Floor().ClampMin(0.0) },
	variance: func(b *Base) *tensor.Tensor { l := b.logits(); return b.p[2].Mul(l.Exp()).Div(l.Neg().Sigmoid()) },
	sample: func(b *Base, sample []int) *tensor.Tensor {
		return sampleGamma(b.p[2], b.logits().Neg().Exp(), b.extended(sample)).Poisson()
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		l := b.logits()
		unnormalized := b.p[2].Mul(l.Neg().LogSigmoid()).Add(v.Mul(l.LogSigmoid()))
		sum := b.p[2].Add(v)
		normalization := sum.LGamma().Neg().Add(v.Add(1.0).LGamma()).Add(b.p[2].LGamma())
		return unnormalized.Sub(normalization.MaskedFill(sum.Eq(0.0), 0.0))
	},
}

// NewNegativeBinomial returns the distribution of the number of successes before totalCount failures, a number or a
// tensor. Options: Probs or Logits of success, which one is needed; ValidateArgs. PyTorch:
// torch.distributions.NegativeBinomial.
func NewNegativeBinomial(totalCount any, opts ...Option) NegativeBinomial {
	return NegativeBinomial{build(negativeBinomialKind, opts, byOdds, func(b *Base, s settings) error { return b.either(s, totalCount) })}
}

// TotalCount returns the number of failures.
func (d NegativeBinomial) TotalCount() *tensor.Tensor { return d.param(2) }

// Probs returns the probabilities of success.
func (d NegativeBinomial) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the odds of success.
func (d NegativeBinomial) Logits() *tensor.Tensor { return odds(d).Logits() }

// Poisson is the Poisson distribution.
type Poisson struct{ *Base }

var poissonKind = &kind{
	name: "Poisson", params: []param{{"rate", constraints.Nonnegative, 0}}, of: func(b *Base) Distribution { return Poisson{b} },
	support: always(constraints.NonnegativeInteger), mean: same(0), variance: same(0),
	mode:   func(b *Base) *tensor.Tensor { return b.p[0].Floor() },
	sample: func(b *Base, sample []int) *tensor.Tensor { return b.p[0].Expand(b.extended(sample)...).Poisson() },
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		ts, err := tensor.BroadcastTensors([]*tensor.Tensor{b.p[0], v}) // a value of 0 dimensions counts for the dtype
		if err != nil {
			return tensor.Failed(err)
		}
		return ts[1].XLogY(ts[0]).Sub(ts[0]).Sub(ts[1].Add(1).LGamma())
	},
}

// NewPoisson returns the Poisson distribution with the given rate, a number or a tensor. Options: ValidateArgs. PyTorch:
// torch.distributions.Poisson.
func NewPoisson(rate any, opts ...Option) Poisson {
	return Poisson{build(poissonKind, opts, nil, func(b *Base, _ settings) error { return b.floats(rate) })}
}

// Rate returns the rate.
func (d Poisson) Rate() *tensor.Tensor { return d.param(0) }

// Categorical is the distribution of the indices of K categories.
type Categorical struct{ *Base }

// categories sets the parameters probs or logits of categories, normalized.
func (b *Base) categories(s settings) error {
	op := "New" + b.kind.name
	if (s.probs == nil) == (s.logits == nil) {
		return refuse.Error(op, tensor.ErrArgument, "give Probs or Logits, and not both")
	}
	at, v := 0, s.probs
	if v == nil {
		at, v = 1, s.logits
	}
	t, ok := v.(*tensor.Tensor)
	if !ok {
		return refuse.Error(op, tensor.ErrArgument, "%s must be a tensor, got %T", b.name(at), v)
	}
	if err := refuse.Unusable(op, b.name(at), t); err != nil {
		return err
	}
	shape := t.Shape()
	if len(shape) == 0 || t.DType().IsComplex() {
		return refuse.Error(op, tensor.ErrArgument, "%s must be real numbers of at least one dimension, got %v of shape %v", b.name(at), t.DType(), shape)
	}
	if at == 0 {
		b.p[0] = t.Div(t.Sum(tensor.Dim(-1), tensor.KeepDim(true)))
	} else {
		b.p[1] = t.Sub(t.LogSumExp([]int{-1}, tensor.KeepDim(true)))
	}
	last := len(shape) - 1
	b.batch, b.n = shape[:last:last], shape[last]
	return nil
}

// sampleCategories draws indices of shape sample + batch.
func sampleCategories(b *Base, sample []int) *tensor.Tensor {
	n := 1
	for _, k := range sample {
		n *= k
	}
	shape := slices.Concat(sample, b.batch)
	if n == 0 || b.n == 0 || slices.Contains(b.batch, 0) {
		return tensor.Zeros(shape, tensor.Int64, b.odds().Device())
	}
	return b.probs().Reshape(-1, b.n).Multinomial(n, tensor.Replacement(true)).T().Reshape(shape...)
}

func categoricalLogProb(b *Base, v *tensor.Tensor) *tensor.Tensor {
	ts, err := tensor.BroadcastTensors([]*tensor.Tensor{v.To(tensor.Int64).Unsqueeze(-1), b.logits()})
	if err != nil {
		return tensor.Failed(err)
	}
	return ts[1].Gather(-1, ts[0].Slice(-1, tensor.End(1))).SqueezeDim(-1)
}

func categoricalEntropy(b *Base) *tensor.Tensor {
	l := b.logits()
	return l.ClampMin(limits(l.DType()).min).Mul(b.probs()).Sum(tensor.Dim(-1)).Neg()
}

var categoricalKind = &kind{
	name: "Categorical", params: categoryParams, of: func(b *Base) Distribution { return Categorical{b} },
	support: func(b *Base) constraints.Constraint { return constraints.IntegerInterval(0, b.n-1) },
	mean:    func(b *Base) *tensor.Tensor { return b.filled(math.NaN()) }, variance: func(b *Base) *tensor.Tensor { return b.filled(math.NaN()) },
	mode:   func(b *Base) *tensor.Tensor { return b.probs().ArgMax(tensor.Dim(-1)) },
	sample: sampleCategories, logProb: categoricalLogProb, entropy: categoricalEntropy,
	values: func(b *Base, expand bool) *tensor.Tensor {
		return enumerate(b, tensor.Arange(0, b.n, tensor.Int64, b.odds().Device()), expand)
	},
}

// NewCategorical returns the distribution of the indices of categories. Options: Probs, of shape (..., K), which are
// divided by their sum, or Logits, of shape (..., K), which one is needed; ValidateArgs. PyTorch:
// torch.distributions.Categorical.
func NewCategorical(opts ...Option) Categorical {
	return Categorical{build(categoricalKind, opts, byOdds, func(b *Base, s settings) error { return b.categories(s) })}
}

// Probs returns the normalized probabilities.
func (d Categorical) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the normalized probabilities.
func (d Categorical) Logits() *tensor.Tensor { return odds(d).Logits() }

// oneHot sets the parameters of categories whose draws are vectors.
func (b *Base) oneHot(s settings) error {
	err := b.categories(s)
	b.event = []int{b.n}
	return err
}

// OneHotCategorical is the distribution of categories as one-hot vectors.
type OneHotCategorical struct{ *Base }

func sampleOneHot(b *Base, sample []int) *tensor.Tensor {
	return sampleCategories(b, sample).OneHot(tensor.NumClasses(b.n)).To(b.dtype())
}

func oneHotKind(name string) *kind {
	return &kind{
		name: name, params: categoryParams, repr: func(*Base) string { return name + "()" }, support: always(constraints.OneHot), sample: sampleOneHot, entropy: categoricalEntropy,
		mean: (*Base).probs,
		mode: func(b *Base) *tensor.Tensor {
			return b.probs().ArgMax(tensor.Dim(-1)).OneHot(tensor.NumClasses(b.n)).To(b.dtype())
		},
		variance: func(b *Base) *tensor.Tensor { p := b.probs(); return p.Mul(p.RSub(1)) },
		logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
			_, at := v.MaxDim(-1)
			return categoricalLogProb(b, at)
		},
		values: func(b *Base, expand bool) *tensor.Tensor {
			v := tensor.Eye(b.n, b.like()...).View(slices.Concat([]int{b.n}, slices.Repeat([]int{1}, len(b.batch)), []int{b.n})...)
			if expand {
				v = v.Expand(slices.Concat([]int{b.n}, b.batch, []int{b.n})...)
			}
			return v
		},
	}
}

var oneHotCategoricalKind = func() *kind {
	k := oneHotKind("OneHotCategorical")
	k.of = func(b *Base) Distribution { return OneHotCategorical{b} }
	return k
}()

// NewOneHotCategorical returns the distribution of categories as one-hot vectors. Options: Probs or Logits, of shape
// (..., K), which one is needed; ValidateArgs. PyTorch: torch.distributions.OneHotCategorical.
func NewOneHotCategorical(opts ...Option) OneHotCategorical {
	return OneHotCategorical{build(oneHotCategoricalKind, opts, byOdds, func(b *Base, s settings) error { return b.oneHot(s) })}
}

// Probs returns the normalized probabilities.
func (d OneHotCategorical) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the normalized probabilities.
func (d OneHotCategorical) Logits() *tensor.Tensor { return odds(d).Logits() }

// OneHotCategoricalStraightThrough is OneHotCategorical with an RSample whose gradients are those of the probabilities.
type OneHotCategoricalStraightThrough struct{ *Base }

var oneHotStraightThroughKind = func() *kind {
	k := oneHotKind("OneHotCategoricalStraightThrough")
	k.of = func(b *Base) Distribution { return OneHotCategoricalStraightThrough{b} }
	k.parent = func(b *Base) Distribution { return OneHotCategorical{b} }
	k.rsample = func(b *Base, sample []int) *tensor.Tensor {
		p := b.probs()
		return noGrad(func() *tensor.Tensor { return sampleOneHot(b, sample) }).Add(p.Sub(p.Detach()))
	}
	return k
}()

// NewOneHotCategoricalStraightThrough returns the distribution of categories as one-hot vectors with the straight-through
// gradient estimator. Options: Probs or Logits, of shape (..., K), which one is needed; ValidateArgs. PyTorch:
// torch.distributions.OneHotCategoricalStraightThrough.
func NewOneHotCategoricalStraightThrough(opts ...Option) OneHotCategoricalStraightThrough {
	return OneHotCategoricalStraightThrough{build(oneHotStraightThroughKind, opts, byOdds, func(b *Base, s settings) error { return b.oneHot(s) })}
}

// Probs returns the normalized probabilities.
func (d OneHotCategoricalStraightThrough) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the normalized probabilities.
func (d OneHotCategoricalStraightThrough) Logits() *tensor.Tensor { return odds(d).Logits() }

// Multinomial is the distribution of the counts of categories.
type Multinomial struct{ *Base }

var multinomialKind = &kind{
	name: "Multinomial", params: categoryParams, of: func(b *Base) Distribution { return Multinomial{b} },
	support:  func(b *Base) constraints.Constraint { return constraints.Multinomial(int(b.lims[0])) },
	repr:     func(*Base) string { return "Multinomial()" },
	mean:     func(b *Base) *tensor.Tensor { return b.probs().Mul(b.lims[0]) },
	variance: func(b *Base) *tensor.Tensor { p := b.probs(); return p.Mul(b.lims[0]).Mul(p.RSub(1)) },
	sample: func(b *Base, sample []int) *tensor.Tensor {
		draws := sampleCategories(b, append([]int{int(b.lims[0])}, sample...)).MoveDim(0, -1)
		counts := tensor.Zeros(b.extended(sample), tensor.Int64, draws.Device())
		return counts.ScatterAdd_(-1, draws, draws.OnesLike()).To(b.dtype())
	},
	entropy: func(b *Base) *tensor.Tensor {
		n := tensor.FromScalar(b.lims[0], b.like()...)
		term1 := n.Mul(categoricalEntropy(b)).Sub(n.Add(1).LGamma())
		p := b.probs()
		support := tensor.Arange(1, int(b.lims[0])+1, b.like()...).View(append([]int{-1}, slices.Repeat([]int{1}, p.Dim())...)...)
		binomial := binomialLogProb(n, probsToLogits(p, true), support).Exp()
		return term1.Add(binomial.Mul(support.Add(1).LGamma()).Sum(tensor.Dim(0, -1)))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		ts, err := tensor.BroadcastTensors([]*tensor.Tensor{b.logits(), v})
		if err != nil {
			return tensor.Failed(err)
		}
		l, v := ts[0], ts[1]
		last := tensor.Dim(-1)
		l = l.MaskedFill(v.Eq(0).LogicalAnd(l.Eq(math.Inf(-1))), 0)
		return v.Sum(last).Add(1).LGamma().Sub(v.Add(1).LGamma().Sum(last)).Add(l.Mul(v).Sum(last))
	},
}

// NewMultinomial returns the distribution of the counts of categories in totalCount draws. Options: Probs or Logits, of
// shape (..., K), which one is needed; ValidateArgs. PyTorch: torch.distributions.Multinomial.
func NewMultinomial(totalCount int, opts ...Option) Multinomial {
	return Multinomial{build(multinomialKind, opts, byOdds, func(b *Base, s settings) error {
		if totalCount < 0 || totalCount > 1<<31 {
			return refuse.Error("NewMultinomial", tensor.ErrArgument, "totalCount must be at least 0 and no larger than 2^31, got %d", totalCount)
		}
		b.lims[0] = float64(totalCount)
		return b.oneHot(s)
	})}
}

// TotalCount returns the number of draws.
func (d Multinomial) TotalCount() int {
	if d.Err() != nil {
		return 0
	}
	return int(d.lims[0])
}

// Probs returns the normalized probabilities.
func (d Multinomial) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the normalized probabilities.
func (d Multinomial) Logits() *tensor.Tensor { return odds(d).Logits() }
