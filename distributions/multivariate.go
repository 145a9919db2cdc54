package distributions

import (
	"math"
	"slices"

	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// MultivariateNormal is the normal distribution of vectors.
type MultivariateNormal struct{ *Base }

// matrixParams are the parameters of which one gives a covariance.
var matrixParams = []param{{"covariance_matrix", constraints.PositiveDefinite, 2}, {"precision_matrix", constraints.PositiveDefinite, 2}, {"scale_tril", constraints.LowerCholesky, 2}}

var byCovariance = []string{"CovarianceMatrix", "PrecisionMatrix", "ScaleTril"}

// given returns which of the matrices was given, and the matrix.
func (b *Base) given(s settings) (at int, m *tensor.Tensor, err error) {
	op := "New" + b.kind.name
	for i, v := range []*tensor.Tensor{s.covariance, s.precision, s.scaleTril} {
		if v == nil {
			continue
		}
		if m != nil {
			return 0, nil, refuse.Error(op, tensor.ErrArgument, "give only one of CovarianceMatrix, PrecisionMatrix and ScaleTril")
		}
		at, m = i, v
	}
	if m == nil {
		return 0, nil, refuse.Error(op, tensor.ErrArgument, "one of CovarianceMatrix, PrecisionMatrix and ScaleTril is needed")
	}
	if err := refuse.Unusable(op, matrixParams[at].name, m); err != nil {
		return 0, nil, err
	}
	if m.Dim() < 2 || m.Size(-1) != m.Size(-2) || !m.DType().IsFloat() {
		return 0, nil, refuse.Error(op, tensor.ErrArgument, "%s must be square floating-point matrices, got %v of shape %v", matrixParams[at].name, m.DType(), m.Shape())
	}
	return at, m, nil
}

// tril returns the Cholesky factor of the covariance that a matrix gives.
func tril(at int, m *tensor.Tensor) *tensor.Tensor {
	switch at {
	case 0:
		return m.LinalgCholesky()
	case 1:
		flipped := m.Flip(-2, -1).LinalgCholesky().Flip(-2, -1).Transpose(-2, -1)
		return flipped.LinalgSolveTriangular(tensor.Eye(m.Size(-1), m.DType(), m.Device()), tensor.Upper(false))
	}
	return m.Alias()
}

func batchMV(m, v *tensor.Tensor) *tensor.Tensor { return m.MatMul(v.Unsqueeze(-1)).SqueezeDim(-1) }

// mahalanobis returns the squared Mahalanobis distance x' (L L')^-1 x. PyTorch: _batch_mahalanobis.
func mahalanobis(l, x *tensor.Tensor) *tensor.Tensor {
	ls, xs := l.Shape(), x.Shape()
	switch {
	case len(xs) < 1:
		return x // failed
	case len(ls) < 2:
		return l
	}
	n := xs[len(xs)-1]
	xb := xs[:len(xs)-1]
	lDims := len(ls) - 2
	outer := len(xb) - lDims
	if outer < 0 {
		x = x.Expand(append(slices.Repeat([]int{1}, -outer), xs...)...)
		return mahalanobis(l, x)
	}
	old, more := outer+lDims, outer+2*lDims
	shape := slices.Clone(xb[:outer])
	for i, sl := range ls[:lDims] {
		if sl == 0 || xb[outer+i]%sl != 0 {
			return refuse.Tensor("LogProb", tensor.ErrArgument, "shapes %v and %v cannot be broadcast", ls, xs)
		}
		shape = append(shape, xb[outer+i]/sl, sl)
	}
	x = x.Reshape(append(shape, n)...)
	var dims []int
	for i := range outer {
		dims = append(dims, i)
	}
	for i := outer; i < more; i += 2 {
		dims = append(dims, i)
	}
	for i := outer + 1; i < more; i += 2 {
		dims = append(dims, i)
	}
	x = x.Permute(append(dims, more)...)
	permuted := x.Shape()
	if len(permuted) == 0 { // an operator has failed
		return x
	}
	flatL := l.Reshape(-1, n, n)
	flatX := x.Reshape(-1, flatL.Size(0), n).Permute(1, 2, 0)
	m := flatL.LinalgSolveTriangular(flatX, tensor.Upper(false)).Pow(2).Sum(tensor.Dim(-2)).T().Reshape(permuted[:len(permuted)-1]...)
	dims = dims[:0]
	for i := range outer {
		dims = append(dims, i)
	}
	for i := range lDims {
		dims = append(dims, outer+i, old+i)
	}
	return m.Permute(dims...).Reshape(xb...)
}

// halfLogDet returns half the logarithm of the determinant of L L'.
func halfLogDet(l *tensor.Tensor) *tensor.Tensor {
	return l.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1)).Log().Sum(tensor.Dim(-1))
}

// square returns the shape of matrices over the batch.
func (b *Base) square() []int {
	n := b.event[len(b.event)-1]
	return slices.Concat(b.batch, []int{n, n})
}

var multivariateNormalKind = &kind{
	name: "MultivariateNormal", params: append([]param{{"loc", constraints.RealVector, 1}}, matrixParams...),
	of: func(b *Base) Distribution { return MultivariateNormal{b} }, support: always(constraints.RealVector), mean: same(0), mode: same(0),
	variance: func(b *Base) *tensor.Tensor { return b.keep[0].Pow(2).Sum(tensor.Dim(-1)).Expand(b.extended(nil)...) },
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		return b.p[0].Add(batchMV(b.keep[0], b.standardNormal(b.extended(sample))))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		m := mahalanobis(b.keep[0], v.Sub(b.p[0]))
		return m.Add(float64(b.event[0]) * math.Log(2*math.Pi)).Mul(-0.5).Sub(halfLogDet(b.keep[0]))
	},
	entropy: func(b *Base) *tensor.Tensor {
		return halfLogDet(b.keep[0]).Add(0.5 * float64(b.event[0]) * (1.0 + math.Log(2*math.Pi))).Expand(b.batch...)
	},
}

// NewMultivariateNormal returns the normal distribution of vectors with mean loc, of shape (..., D). Options:
// CovarianceMatrix, PrecisionMatrix or ScaleTril, which one is needed; ValidateArgs. The last is the fastest, as the
// others are decomposed. PyTorch: torch.distributions.MultivariateNormal.
func NewMultivariateNormal(loc *tensor.Tensor, opts ...Option) MultivariateNormal {
	return MultivariateNormal{build(multivariateNormalKind, opts, byCovariance, func(b *Base, s settings) error {
		at, m, err := b.given(s)
		if err != nil {
			return err
		}
		if err := b.vectors(loc); err != nil {
			return err
		}
		ms := m.Shape()
		n := ms[len(ms)-1]
		if b.event[0] != n && b.event[0] != 1 {
			return refuse.Error("NewMultivariateNormal", tensor.ErrArgument, "loc of shape %v does not fit matrices of shape %v", loc.Shape(), ms)
		}
		batch, err := tensor.BroadcastShapes(ms[:len(ms)-2], b.batch)
		if err != nil {
			return err
		}
		b.batch = batch
		b.event = []int{b.event[0]}
		if b.event[0] != n {
			return refuse.Error("NewMultivariateNormal", tensor.ErrArgument, "loc of shape %v does not fit matrices of shape %v", loc.Shape(), ms)
		}
		b.p[0] = b.p[0].Expand(b.extended(nil)...)
		b.p[1+at] = m.Expand(b.square()...)
		if err := b.checkParams("NewMultivariateNormal"); err != nil {
			return err
		}
		b.keep = []*tensor.Tensor{tril(at, m)}
		return b.keep[0].Err()
	})}
}

// Loc returns the mean.
func (d MultivariateNormal) Loc() *tensor.Tensor { return d.param(0) }

// scaleTril returns the Cholesky factor, expanded.
func (b *Base) scaleTril() *tensor.Tensor { return b.keep[0].Expand(b.square()...) }

// matrix returns a matrix parameter, or computes it.
func (b *Base) matrix(method string, at int, f func() *tensor.Tensor) *tensor.Tensor {
	return b.get(method, func(b *Base) *tensor.Tensor {
		if b.p[at] != nil {
			return b.p[at].Alias()
		}
		return f().Expand(b.square()...)
	})
}

// ScaleTril returns the lower Cholesky factor of the covariance matrix, of shape batch shape + (D, D).
func (d MultivariateNormal) ScaleTril() *tensor.Tensor { return d.get("ScaleTril", (*Base).scaleTril) }

// CovarianceMatrix returns the covariance matrix, of shape batch shape + (D, D).
func (d MultivariateNormal) CovarianceMatrix() *tensor.Tensor {
	return d.matrix("CovarianceMatrix", 1, func() *tensor.Tensor { return d.keep[0].MatMul(d.keep[0].MT()) })
}

// PrecisionMatrix returns the inverse of the covariance matrix, of shape batch shape + (D, D).
func (d MultivariateNormal) PrecisionMatrix() *tensor.Tensor {
	return d.matrix("PrecisionMatrix", 2, func() *tensor.Tensor { return d.keep[0].CholeskyInverse() })
}

// LowRankMultivariateNormal is the normal distribution of vectors whose covariance is a low-rank matrix plus a diagonal
// one.
type LowRankMultivariateNormal struct{ *Base }

// addIdentity adds 1 to the diagonals of square matrices.
func addIdentity(m *tensor.Tensor) *tensor.Tensor {
	return m.Add(tensor.Eye(m.Size(-1), m.DType(), m.Device()))
}

func capacitanceTril(w, d *tensor.Tensor) *tensor.Tensor {
	return addIdentity(w.MT().Div(d.Unsqueeze(-2)).MatMul(w)).LinalgCholesky()
}

func lowRankLogDet(d, capacitance *tensor.Tensor) *tensor.Tensor {
	return halfLogDet(capacitance).Mul(2).Add(d.Log().Sum(tensor.Dim(-1)))
}

func lowRankMahalanobis(w, d, x, capacitance *tensor.Tensor) *tensor.Tensor {
	wx := batchMV(w.MT().Div(d.Unsqueeze(-2)), x)
	return x.Pow(2).Div(d).Sum(tensor.Dim(-1)).Sub(mahalanobis(capacitance, wx))
}

// lowRank returns the factor, the diagonal and the capacitance as they were given, not expanded.
func (b *Base) lowRank() (w, d, capacitance *tensor.Tensor) { return b.keep[0], b.keep[1], b.keep[2] }

var lowRankKind = &kind{
	name:   "LowRankMultivariateNormal",
	params: []param{{"loc", constraints.RealVector, 1}, {"cov_factor", constraints.Independent(constraints.Real, 2), 2}, {"cov_diag", constraints.Independent(constraints.Positive, 1), 1}},
	of:     func(b *Base) Distribution { return LowRankMultivariateNormal{b} }, support: always(constraints.RealVector), mean: same(0), mode: same(0),
	variance: func(b *Base) *tensor.Tensor {
		w, d, _ := b.lowRank()
		return w.Pow(2).Sum(tensor.Dim(-1)).Add(d).Expand(b.extended(nil)...)
	},
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		w, d, _ := b.lowRank()
		shape := b.extended(sample)
		epsW := b.standardNormal(append(slices.Clone(shape[:len(shape)-1]), w.Size(-1)))
		epsD := b.standardNormal(shape)
		return b.p[0].Add(batchMV(w, epsW)).Add(d.Sqrt().Mul(epsD))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		w, d, c := b.lowRank()
		m := lowRankMahalanobis(w, d, v.Sub(b.p[0]), c)
		return lowRankLogDet(d, c).Add(float64(b.event[0]) * math.Log(2*math.Pi)).Add(m).Mul(-0.5)
	},
	entropy: func(b *Base) *tensor.Tensor {
		_, d, c := b.lowRank()
		return lowRankLogDet(d, c).Add(float64(b.event[0]) * (1.0 + math.Log(2*math.Pi))).Mul(0.5).Expand(b.batch...)
	},
}

// NewLowRankMultivariateNormal returns the normal distribution of vectors with mean loc, of shape (..., D), and the
// covariance W W' + diag(d), where W is covFactor, of shape (..., D, R), and d is covDiag, of shape (..., D). Options:
// ValidateArgs. PyTorch: torch.distributions.LowRankMultivariateNormal.
func NewLowRankMultivariateNormal(loc, covFactor, covDiag *tensor.Tensor, opts ...Option) LowRankMultivariateNormal {
	return LowRankMultivariateNormal{build(lowRankKind, opts, nil, func(b *Base, _ settings) error {
		const op = "NewLowRankMultivariateNormal"
		for i, t := range []*tensor.Tensor{loc, covFactor, covDiag} {
			if err := refuse.Unusable(op, b.name(i), t); err != nil {
				return err
			}
			if !t.DType().IsFloat() {
				return refuse.Error(op, tensor.ErrArgument, "%s must have a floating-point dtype, got %v", b.name(i), t.DType())
			}
		}
		ls, ws, ds := loc.Shape(), covFactor.Shape(), covDiag.Shape()
		if len(ls) < 1 || len(ws) < 2 || len(ds) < 1 || ws[len(ws)-2] != ls[len(ls)-1] || ds[len(ds)-1] != ls[len(ls)-1] {
			return refuse.Error(op, tensor.ErrArgument, "want loc (..., D), covFactor (..., D, R) and covDiag (..., D), got shapes %v, %v and %v", ls, ws, ds)
		}
		batch, err := tensor.BroadcastShapes(ls[:len(ls)-1], ws[:len(ws)-2], ds[:len(ds)-1])
		if err != nil {
			return err
		}
		n, r := ls[len(ls)-1], ws[len(ws)-1]
		b.batch, b.event = batch, []int{n}
		b.p[0], b.p[1], b.p[2] = loc.Expand(b.extended(nil)...), covFactor.Expand(slices.Concat(batch, []int{n, r})...), covDiag.Expand(b.extended(nil)...)
		if err := b.checkParams(op); err != nil {
			return err
		}
		b.keep = []*tensor.Tensor{covFactor.Alias(), covDiag.Alias(), capacitanceTril(covFactor, covDiag)}
		return nil
	})}
}

// Loc returns the mean.
func (d LowRankMultivariateNormal) Loc() *tensor.Tensor { return d.param(0) }

// CovFactor returns the factor of the covariance, of shape batch shape + (D, R).
func (d LowRankMultivariateNormal) CovFactor() *tensor.Tensor { return d.param(1) }

// CovDiag returns the diagonal part of the covariance.
func (d LowRankMultivariateNormal) CovDiag() *tensor.Tensor { return d.param(2) }

// ScaleTril returns the lower Cholesky factor of the covariance matrix, of shape batch shape + (D, D).
func (d LowRankMultivariateNormal) ScaleTril() *tensor.Tensor {
	return d.get("ScaleTril", func(b *Base) *tensor.Tensor {
		w, diag, _ := b.lowRank()
		root := diag.Sqrt().Unsqueeze(-1)
		scaled := w.Div(root)
		return root.Mul(addIdentity(scaled.MatMul(scaled.MT())).LinalgCholesky()).Expand(b.square()...)
	})
}

// CovarianceMatrix returns the covariance matrix, of shape batch shape + (D, D).
func (d LowRankMultivariateNormal) CovarianceMatrix() *tensor.Tensor {
	return d.get("CovarianceMatrix", func(b *Base) *tensor.Tensor {
		w, diag, _ := b.lowRank()
		return w.MatMul(w.MT()).Add(diag.DiagEmbed()).Expand(b.square()...)
	})
}

// PrecisionMatrix returns the inverse of the covariance matrix, of shape batch shape + (D, D).
func (d LowRankMultivariateNormal) PrecisionMatrix() *tensor.Tensor {
	return d.get("PrecisionMatrix", func(b *Base) *tensor.Tensor {
		w, diag, c := b.lowRank()
		a := c.LinalgSolveTriangular(w.MT().Div(diag.Unsqueeze(-2)), tensor.Upper(false))
		return diag.Reciprocal().DiagEmbed().Sub(a.MT().MatMul(a)).Expand(b.square()...)
	})
}

// temperature sets keep[0]. A number is rounded to the dtype of the parameters, but not to 16 bits.
func (b *Base) temperature(v any) error {
	if x, ok := number(v); ok {
		d := b.dtype()
		if d != tensor.Float64 {
			d = tensor.Float32
		}
		v = tensor.FromScalar(x, d)
	}
	ts, err := b.broadcastAll(v)
	if err != nil {
		return rename("New"+b.kind.name, err)
	}
	if !ts[0].DType().IsFloat() {
		return refuse.Error("New"+b.kind.name, tensor.ErrArgument, "the temperature must have a floating-point dtype, got %v", ts[0].DType())
	}
	b.keep = ts
	return nil
}

// ExpRelaxedCategorical is the distribution of the logarithms of RelaxedOneHotCategorical.
type ExpRelaxedCategorical struct{ *Base }

var expRelaxedKind = &kind{
	name: "ExpRelaxedCategorical", params: categoryParams, of: func(b *Base) Distribution { return ExpRelaxedCategorical{b} }, support: always(constraints.RealVector),
	repr: func(*Base) string { return "ExpRelaxedCategorical()" },
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		uniforms := clampProbs(tensor.Rand(b.extended(sample), b.like()...))
		gumbels := uniforms.Log().Neg().Log().Neg()
		scores := b.logits().Add(gumbels).Div(b.keep[0])
		return scores.Sub(scores.LogSumExp([]int{-1}, tensor.KeepDim(true)))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		ts, err := tensor.BroadcastTensors([]*tensor.Tensor{b.logits(), v})
		if err != nil {
			return tensor.Failed(err)
		}
		temperature := b.keep[0]
		scale := temperature.FullLike(float64(b.n)).LGamma().Sub(temperature.Log().Mul(-(b.n - 1)))
		score := ts[0].Sub(ts[1].Mul(temperature))
		return score.Sub(score.LogSumExp([]int{-1}, tensor.KeepDim(true))).Sum(tensor.Dim(-1)).Add(scale)
	},
}

// NewExpRelaxedCategorical returns the distribution of the logarithms of the draws of RelaxedOneHotCategorical, which
// avoids underflow. temperature is a number or a scalar tensor. Options: Probs or Logits, of shape (..., K), which one is
// needed; ValidateArgs. PyTorch: torch.distributions.relaxed_categorical.ExpRelaxedCategorical.
func NewExpRelaxedCategorical(temperature any, opts ...Option) ExpRelaxedCategorical {
	return ExpRelaxedCategorical{build(expRelaxedKind, opts, byOdds, func(b *Base, s settings) error {
		if err := b.oneHot(s); err != nil {
			return err
		}
		return b.temperature(temperature)
	})}
}

// Temperature returns the temperature.
func (d ExpRelaxedCategorical) Temperature() *tensor.Tensor {
	return d.get("Temperature", func(b *Base) *tensor.Tensor { return b.keep[0].Alias() })
}

// Probs returns the normalized probabilities.
func (d ExpRelaxedCategorical) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logarithms of the normalized probabilities.
func (d ExpRelaxedCategorical) Logits() *tensor.Tensor { return odds(d).Logits() }

// RelaxedOneHotCategorical is the concrete distribution: a differentiable approximation of one-hot vectors, also called
// Gumbel-softmax.
type RelaxedOneHotCategorical struct{ *Base }

// relaxed sets the accessors of a distribution whose parameters are those of its base distribution.
func relaxed(name string, support constraints.Constraint, of func(*Base) Distribution) *kind {
	k := transformed(name, nil, of)
	k.support = always(support)
	k.repr = func(*Base) string { return name + "()" }
	return k
}

var relaxedOneHotKind = relaxed("RelaxedOneHotCategorical", constraints.Simplex, func(b *Base) Distribution { return RelaxedOneHotCategorical{b} })

// NewRelaxedOneHotCategorical returns the concrete distribution with the given temperature, a number or a scalar tensor.
// Options: Probs or Logits, of shape (..., K), which one is needed; ValidateArgs. PyTorch:
// torch.distributions.RelaxedOneHotCategorical.
func NewRelaxedOneHotCategorical(temperature any, opts ...Option) RelaxedOneHotCategorical {
	return RelaxedOneHotCategorical{build(relaxedOneHotKind, opts, byOdds, func(b *Base, s settings) error {
		return b.transform(NewExpRelaxedCategorical(temperature, opts...), NewExpTransform())
	})}
}

// ofBase returns the result of f for the distribution that d transforms.
func (b *Base) ofBase(method string, f func(*Base) *tensor.Tensor) *tensor.Tensor {
	return b.get(method, func(b *Base) *tensor.Tensor {
		in, ok := b.inner[0].(interface{ self() *Base })
		if !ok {
			return tensor.Failed(nil)
		}
		return f(in.self())
	})
}

func temperature(b *Base) *tensor.Tensor { return b.keep[0].Alias() }

// Temperature returns the temperature.
func (d RelaxedOneHotCategorical) Temperature() *tensor.Tensor {
	return d.ofBase("Temperature", temperature)
}

// Probs returns the normalized probabilities.
func (d RelaxedOneHotCategorical) Probs() *tensor.Tensor { return d.ofBase("Probs", (*Base).probs) }

// Logits returns the logarithms of the normalized probabilities.
func (d RelaxedOneHotCategorical) Logits() *tensor.Tensor { return d.ofBase("Logits", (*Base).logits) }

// LogitRelaxedBernoulli is the distribution of the logits of RelaxedBernoulli.
type LogitRelaxedBernoulli struct{ *Base }

var logitRelaxedKind = &kind{
	name: "LogitRelaxedBernoulli", params: binaryParams, of: func(b *Base) Distribution { return LogitRelaxedBernoulli{b} }, support: always(constraints.Real),
	rsample: func(b *Base, sample []int) *tensor.Tensor {
		shape := b.extended(sample)
		p := clampProbs(b.probs().Expand(shape...))
		u := clampProbs(tensor.Rand(shape, b.like()...))
		return u.Log().Sub(u.Neg().Log1p()).Add(p.Log()).Sub(p.Neg().Log1p()).Div(b.keep[0])
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		ts, err := tensor.BroadcastTensors([]*tensor.Tensor{b.logits(), v})
		if err != nil {
			return tensor.Failed(err)
		}
		diff := ts[0].Sub(ts[1].Mul(b.keep[0]))
		return b.keep[0].Log().Add(diff).Sub(diff.Exp().Log1p().Mul(2))
	},
}

// NewLogitRelaxedBernoulli returns the distribution of the logits of the draws of RelaxedBernoulli. temperature is a
// number or a tensor. Options: Probs or Logits, which one is needed; ValidateArgs. PyTorch:
// torch.distributions.relaxed_bernoulli.LogitRelaxedBernoulli.
func NewLogitRelaxedBernoulli(temperature any, opts ...Option) LogitRelaxedBernoulli {
	return LogitRelaxedBernoulli{build(logitRelaxedKind, opts, byOdds, func(b *Base, s settings) error {
		if err := b.either(s); err != nil {
			return err
		}
		return b.temperature(temperature)
	})}
}

// Temperature returns the temperature.
func (d LogitRelaxedBernoulli) Temperature() *tensor.Tensor { return d.get("Temperature", temperature) }

// Probs returns the probabilities.
func (d LogitRelaxedBernoulli) Probs() *tensor.Tensor { return odds(d).Probs() }

// Logits returns the logits.
func (d LogitRelaxedBernoulli) Logits() *tensor.Tensor { return odds(d).Logits() }

// RelaxedBernoulli is a differentiable approximation of the Bernoulli distribution.
type RelaxedBernoulli struct{ *Base }

var relaxedBernoulliKind = relaxed("RelaxedBernoulli", constraints.UnitInterval, func(b *Base) Distribution { return RelaxedBernoulli{b} })

// NewRelaxedBernoulli returns the relaxed Bernoulli distribution with the given temperature, a number or a tensor.
// Options: Probs or Logits, which one is needed; ValidateArgs. PyTorch: torch.distributions.RelaxedBernoulli.
func NewRelaxedBernoulli(temperature any, opts ...Option) RelaxedBernoulli {
	return RelaxedBernoulli{build(relaxedBernoulliKind, opts, byOdds, func(b *Base, s settings) error {
		return b.transform(NewLogitRelaxedBernoulli(temperature, opts...), NewSigmoidTransform())
	})}
}

// Temperature returns the temperature.
func (d RelaxedBernoulli) Temperature() *tensor.Tensor { return d.ofBase("Temperature", temperature) }

// Probs returns the probabilities.
func (d RelaxedBernoulli) Probs() *tensor.Tensor { return d.ofBase("Probs", (*Base).probs) }

// Logits returns the logits.
func (d RelaxedBernoulli) Logits() *tensor.Tensor { return d.ofBase("Logits", (*Base).logits) }

// LKJCholesky is the LKJ distribution of the Cholesky factors of correlation matrices.
type LKJCholesky struct{ *Base }

var lkjKind = &kind{
	name: "LKJCholesky", params: []param{{"concentration", constraints.Positive, 0}}, of: func(b *Base) Distribution { return LKJCholesky{b} }, support: always(constraints.CorrCholesky),
	sample: func(b *Base, sample []int) *tensor.Tensor {
		shape := b.extended(sample)
		offset := tensor.Cat([]*tensor.Tensor{tensor.Zeros([]int{1}, b.like()...), tensor.Arange(0, b.n-1, b.like()...)})
		c1 := offset.Add(0.5)
		c0 := b.p[0].Add(0.5 * float64(b.n-2)).Unsqueeze(-1).Sub(offset.Mul(0.5))
		both, err := tensor.BroadcastTensors([]*tensor.Tensor{c1, c0})
		if err != nil {
			return tensor.Failed(err)
		}
		y := sampleDirichlet(tensor.Stack(both, tensor.Dim(-1)), append(slices.Clone(shape[:len(shape)-1]), 2)).Select(-1, 0).Unsqueeze(-1)
		normal := tensor.Randn(shape, b.like()...).Tril(tensor.Diagonal(-1))
		sphere := normal.Div(normal.LinalgVectorNorm(tensor.Dim(-1), tensor.KeepDim(true)))
		if top := sphere.Select(-2, 0).Fill_(0.0); !handle.Usable(top) {
			return top
		}
		w := y.Sqrt().Mul(sphere)
		diagonal := w.Pow(2).Sum(tensor.Dim(-1)).RSub(1).ClampMin(limits(b.dtype()).tiny).Sqrt()
		return w.Add(diagonal.DiagEmbed())
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		n := b.n
		diagonal := v.Diagonal(tensor.Dim1(-1), tensor.Dim2(-2)).Narrow(-1, 1, n-1)
		order := b.p[0].Sub(1).Mul(2).Unsqueeze(-1).Add(n).Sub(tensor.Arange(2, n+1, b.p[0].Device()))
		unnormalized := order.Mul(diagonal.Log()).Sum(tensor.Dim(-1))
		dm1 := n - 1
		alpha := b.p[0].Add(0.5 * float64(dm1))
		denominator := alpha.LGamma().Mul(dm1)
		numerator := alpha.Sub(0.5).MVLGamma(dm1)
		normalize := numerator.Add(0.5 * float64(dm1) * math.Log(math.Pi)).Sub(denominator)
		return unnormalized.Sub(normalize)
	},
}

// NewLKJCholesky returns the distribution of lower Cholesky factors of dim×dim correlation matrices. Options:
// Concentration, a number or a tensor, 1 by default; ValidateArgs. PyTorch: torch.distributions.LKJCholesky.
func NewLKJCholesky(dim int, opts ...Option) LKJCholesky {
	return LKJCholesky{build(lkjKind, opts, []string{"Concentration"}, func(b *Base, s settings) error {
		if dim < 2 || dim > 1<<20 {
			return refuse.Error("NewLKJCholesky", tensor.ErrArgument, "dim must be at least 2 and no larger than 2^20, got %d", dim)
		}
		if s.concentration == nil {
			s.concentration = 1.0
		}
		b.n, b.event = dim, []int{dim, dim}
		return b.floats(s.concentration)
	})}
}

// Concentration returns the concentration.
func (d LKJCholesky) Concentration() *tensor.Tensor { return d.param(0) }

// Wishart is the Wishart distribution of positive definite matrices.
type Wishart struct{ *Base }

// df returns the degrees of freedom with the dimensions of a matrix.
func (b *Base) dfMatrix() *tensor.Tensor { return b.p[0].Unsqueeze(-1).Unsqueeze(-1) }

func (b *Base) wishartCovariance() *tensor.Tensor {
	if b.p[1] != nil {
		return b.p[1].Alias()
	}
	return b.keep[0].MatMul(b.keep[0].MT()).Expand(b.square()...)
}

func (b *Base) wishartPrecision() *tensor.Tensor {
	if b.p[2] != nil {
		return b.p[2].Alias()
	}
	return tensor.Eye(b.n, b.likeMatrices()...).CholeskySolve(b.keep[0]).Expand(b.square()...)
}

// likeMatrices returns the dtype and device of the matrices; those of df may be others.
func (b *Base) likeMatrices() []tensor.Option {
	return []tensor.Option{b.keep[0].DType(), b.keep[0].Device()}
}

// bartlett draws by Bartlett's decomposition.
func bartlett(b *Base, sample []int) *tensor.Tensor {
	shape := slices.Concat(sample, b.batch)
	df := b.p[0].Unsqueeze(-1).Sub(tensor.Arange(0, b.n, b.likeMatrices()...))
	chi := sampleGamma(df.Mul(0.5), df.FullLike(0.5), append(slices.Clone(shape), b.n))
	noise := chi.Sqrt().ClampMin(limits(chi.DType()).eps).DiagEmbed()
	below := tensor.Randn(append(slices.Clone(shape), b.n*(b.n-1)/2), chi.DType(), chi.Device())
	noise = noise.Add(vectorTril(below, b.n))
	chol := b.keep[0].MatMul(noise)
	return chol.MatMul(chol.MT())
}

// sampleWishart draws. To keep PyTorch's random stream, it draws a second time if a matrix of the first draw is
// positive definite, and then up to nine times if a matrix of the last draw is singular by rounding. A draw replaces
// the matrices of a whole batch.
func sampleWishart(b *Base, sample []int) *tensor.Tensor {
	out := bartlett(b, sample)
	if out.Numel() == 0 {
		return out
	}
	perBatch := func(t *tensor.Tensor) *tensor.Tensor {
		for range b.batch {
			t = t.Any(tensor.Dim(-1))
		}
		return t
	}
	again := noGrad(func() *tensor.Tensor { return perBatch(constraints.PositiveDefinite.Check(out)) })
	for range 10 {
		count, err := tensor.Item[int](again.Sum())
		if err != nil {
			return tensor.Failed(err)
		}
		if count == 0 {
			break
		}
		drawn := bartlett(b, []int{count})
		singular := noGrad(func() *tensor.Tensor { return perBatch(constraints.PositiveDefinite.Check(drawn).LogicalNot()) })
		if err := out.SetIndex(again, drawn); err != nil {
			return tensor.Failed(err)
		}
		rest := again.Clone() // the graph keeps again
		if err := rest.SetIndex(again, singular); err != nil {
			return tensor.Failed(err)
		}
		again = rest
	}
	return out
}

// wishartLogNormalizer is the log normalizer at the natural parameters x and y.
func wishartLogNormalizer(n int, x, y *tensor.Tensor) *tensor.Tensor {
	half := float64(n+1) / 2
	_, log := x.Mul(-2).LinalgSlogdet()
	return y.Add(half).Mul(log.Neg().Add(math.Ln2 * float64(n))).Add(y.Add(half).MVLGamma(n))
}

// wishartNatural returns the natural parameters.
func (b *Base) wishartNatural() (x, y *tensor.Tensor) {
	return b.wishartPrecision().Neg().Div(2), b.p[0].Sub(b.n).Sub(1).Div(2)
}

var wishartKind = &kind{
	name: "Wishart", params: append([]param{{"df", constraints.Dependent, 0}}, matrixParams...), of: func(b *Base) Distribution { return Wishart{b} }, order: []int{1, 2, 3, 0},
	args: func(b *Base) map[string]constraints.Constraint {
		return map[string]constraints.Constraint{"df": constraints.GreaterThan(b.n - 1), "covariance_matrix": constraints.PositiveDefinite,
			"precision_matrix": constraints.PositiveDefinite, "scale_tril": constraints.LowerCholesky}
	},
	support: always(constraints.PositiveDefinite), rsample: sampleWishart,
	mean: func(b *Base) *tensor.Tensor { return b.dfMatrix().Mul(b.wishartCovariance()) },
	mode: func(b *Base) *tensor.Tensor {
		factor := b.p[0].Sub(b.n).Sub(1)
		return factor.MaskedFill(factor.Le(0), math.NaN()).Unsqueeze(-1).Unsqueeze(-1).Mul(b.wishartCovariance())
	},
	variance: func(b *Base) *tensor.Tensor {
		v := b.wishartCovariance()
		d := v.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1))
		return b.dfMatrix().Mul(v.Pow(2).Add(d.Unsqueeze(-1).Mul(d.Unsqueeze(-2))))
	},
	logProb: func(b *Base, v *tensor.Tensor) *tensor.Tensor {
		nu, n := b.p[0], b.n
		_, log := v.LinalgSlogdet()
		trace := v.CholeskySolve(b.keep[0]).Diagonal(tensor.Dim1(-2), tensor.Dim2(-1)).Sum(tensor.Dim(-1))
		return nu.Neg().Mul(halfLogDet(b.keep[0]).Add(float64(n) * math.Ln2 / 2)).Sub(nu.Div(2).MVLGamma(n)).Add(nu.Sub(n).Sub(1).Div(2).Mul(log)).Sub(trace.Div(2))
	},
	entropy: func(b *Base) *tensor.Tensor {
		nu, n := b.p[0], b.n
		digamma := nu.Div(2).Unsqueeze(-1).Sub(tensor.Arange(0, n, b.like()...).Div(2)).Digamma().Sum(tensor.Dim(-1))
		return halfLogDet(b.keep[0]).Add(float64(n) * math.Ln2 / 2).Mul(n + 1).Add(nu.Div(2).MVLGamma(n)).Sub(nu.Sub(n).Sub(1).Div(2).Mul(digamma)).Add(nu.Mul(n).Div(2))
	},
}

// NewWishart returns the Wishart distribution with df degrees of freedom, a number or a tensor greater than D-1;
// integers are converted to the dtype of the matrices. Options: CovarianceMatrix, PrecisionMatrix or ScaleTril, of
// shape (..., D, D), which one is needed; ValidateArgs. PyTorch: torch.distributions.Wishart.
func NewWishart(df any, opts ...Option) Wishart {
	return Wishart{build(wishartKind, opts, byCovariance, func(b *Base, s settings) error {
		const op = "NewWishart"
		at, m, err := b.given(s)
		if err != nil {
			return err
		}
		if x, ok := number(df); ok {
			df = tensor.FromScalar(x, m.DType(), m.Device())
		}
		t, ok := df.(*tensor.Tensor)
		if !ok {
			return refuse.Error(op, tensor.ErrArgument, "df must be a number or a tensor, got %T", df)
		}
		if err := refuse.Unusable(op, "df", t); err != nil {
			return err
		}
		ms := m.Shape()
		batch, err := tensor.BroadcastShapes(ms[:len(ms)-2], t.Shape())
		if err != nil {
			return err
		}
		b.n = m.Size(-1)
		b.batch, b.event = batch, []int{b.n, b.n}
		if d := t.DType(); !d.IsFloat() && !d.IsComplex() {
			t = t.To(m.DType())
		}
		b.p[0] = t.Expand(batch...)
		b.p[1+at] = m.Expand(b.square()...)
		if err := b.float(); err != nil {
			return err
		}
		ok, err = valid(constraints.GreaterThan(b.n-1), b.p[0])
		if err != nil {
			return err
		}
		if !ok {
			return refuse.Error(op, tensor.ErrArgument, "df must be greater than the size of the matrices - 1 = %d, got %v", b.n-1, t)
		}
		if err := b.checkParams(op); err != nil {
			return err
		}
		b.keep = []*tensor.Tensor{tril(at, m)}
		return nil
	})}
}

// DF returns the degrees of freedom. PyTorch: df.
func (d Wishart) DF() *tensor.Tensor { return d.param(0) }

// ScaleTril returns the lower Cholesky factor of the covariance matrix, of shape batch shape + (D, D).
func (d Wishart) ScaleTril() *tensor.Tensor { return d.get("ScaleTril", (*Base).scaleTril) }

// CovarianceMatrix returns the covariance matrix, of shape batch shape + (D, D).
func (d Wishart) CovarianceMatrix() *tensor.Tensor {
	return d.get("CovarianceMatrix", (*Base).wishartCovariance)
}

// PrecisionMatrix returns the inverse of the covariance matrix, of shape batch shape + (D, D).
func (d Wishart) PrecisionMatrix() *tensor.Tensor {
	return d.get("PrecisionMatrix", (*Base).wishartPrecision)
}
