package distributions

import (
	"math"
	"reflect"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// divergences holds the functions of RegisterKL by the types of their arguments.
var divergences = struct {
	sync.RWMutex
	of map[[2]reflect.Type]func(p, q Distribution) *tensor.Tensor
}{of: map[[2]reflect.Type]func(p, q Distribution) *tensor.Tensor{}}

// RegisterKL sets the function that KLDivergence calls for distributions of the types P and Q, which are not interfaces:
// the function of an interface is never called. It replaces the one that was registered before. PyTorch:
// torch.distributions.kl.register_kl.
func RegisterKL[P, Q Distribution](f func(p P, q Q) *tensor.Tensor) {
	if f == nil {
		return
	}
	key := [2]reflect.Type{reflect.TypeFor[P](), reflect.TypeFor[Q]()}
	divergences.Lock()
	defer divergences.Unlock()
	divergences.of[key] = func(p, q Distribution) *tensor.Tensor { return f(p.(P), q.(Q)) }
}

// lineage returns d and d as the types whose divergences it inherits.
func lineage(d Distribution) []Distribution {
	all := []Distribution{d}
	if in, ok := d.(interface{ self() *Base }); ok {
		if b := in.self(); b != nil && b.kind != nil && b.kind.parent != nil && reflect.TypeOf(b.kind.of(b)) == reflect.TypeOf(d) {
			all = append(all, b.kind.parent(b))
		}
	}
	return all
}

// borrowed reports whether d is a struct literal of a type of this package with the Base of another distribution.
func borrowed(d Distribution) bool {
	in, ok := d.(interface{ self() *Base })
	t := reflect.TypeOf(d)
	if !ok || t.PkgPath() != reflect.TypeFor[Base]().PkgPath() {
		return false
	}
	b := in.self()
	return b.kind.of == nil || reflect.TypeOf(b.kind.of(b)) != t
}

// KLDivergence returns the Kullback-Leibler divergence of q from p, the expected value of log p(X) - log q(X) for a draw
// X of p. Its shape is that of the two batch shapes, broadcast. It returns an error for types without a registered
// function. PyTorch: torch.distributions.kl_divergence.
func KLDivergence(p, q Distribution) *tensor.Tensor {
	const op = "KLDivergence"
	for _, d := range []Distribution{p, q} {
		if err := usableDistribution(op, d); err != nil {
			return tensor.Failed(err)
		}
		if borrowed(d) {
			return refuse.Tensor(op, tensor.ErrArgument, "a %T whose Base is that of another distribution", d)
		}
	}
	for _, p := range lineage(p) {
		for _, q := range lineage(q) {
			divergences.RLock()
			f := divergences.of[[2]reflect.Type{reflect.TypeOf(p), reflect.TypeOf(q)}]
			divergences.RUnlock()
			if f != nil {
				return tensor.Tidy(func() *tensor.Tensor { return f(p, q) })
			}
		}
	}
	return refuse.Tensor(op, tensor.ErrNotImplemented, "no divergence is registered for %T and %T; see RegisterKL", p, q)
}

func xLogX(t *tensor.Tensor) *tensor.Tensor { return t.XLogY(t) }

// traceXXT returns the trace of X X' of matrices.
func traceXXT(m *tensor.Tensor) *tensor.Tensor { return sumRightmost(m.Pow(2), 2) }

// never registers the pairs of P whose divergence is infinite.
func never[P, Q Distribution](like func(P) *tensor.Tensor) {
	RegisterKL(func(p P, q Q) *tensor.Tensor {
		shape, err := tensor.BroadcastShapes(p.BatchShape(), q.BatchShape())
		if err != nil {
			return tensor.Failed(rename("KLDivergence", err))
		}
		return like(p).NewFull(shape, math.Inf(1))
	})
}

func klNormal(p, q *Base) *tensor.Tensor {
	quotient := p.p[1].Div(q.p[1])
	ratio, difference := free.After(quotient.Pow(2), quotient), p.p[0].Sub(q.p[0])
	scaled := free.After(difference.Div(q.p[1]), difference)
	square := free.After(scaled.Pow(2), scaled)
	sum := free.After(ratio.Add(square), square)
	sum = free.After(sum.Sub(1), sum)
	log := free.After(ratio.Log(), ratio)
	sum = free.After(sum.Sub(log), sum, log)
	return free.After(sum.Mul(0.5), sum)
}

func klCategorical(p, q *Base) *tensor.Tensor {
	pp := p.probs()
	t := pp.Mul(p.logits().Sub(q.logits()))
	return t.MaskedFill(q.probs().Eq(0), math.Inf(1)).MaskedFill(pp.Eq(0), 0).Sum(tensor.Dim(-1))
}

// sameEvents returns an error for distributions of vectors of different sizes.
func sameEvents(p, q *Base) error {
	if p.event[0] != q.event[0] {
		return refuse.Error("KLDivergence", tensor.ErrArgument, "the event shapes %v and %v differ", p.event, q.event)
	}
	return nil
}

// solve returns L^-1 M for lower triangular matrices, which are broadcast.
func solve(l, m *tensor.Tensor) *tensor.Tensor {
	ls, ms := l.Shape(), m.Shape()
	switch {
	case len(ls) < 2:
		return l // failed
	case len(ms) < 2:
		return m
	}
	batch, err := tensor.BroadcastShapes(ls[:len(ls)-2], ms[:len(ms)-2])
	if err != nil {
		return tensor.Failed(rename("KLDivergence", err))
	}
	l = l.Expand(append(append([]int{}, batch...), ls[len(ls)-2:]...)...)
	m = m.Expand(append(append([]int{}, batch...), ms[len(ms)-2:]...)...)
	return l.LinalgSolveTriangular(m, tensor.Upper(false))
}

// klWishart is the Bregman divergence of the log normalizer.
func klWishart(p, q Wishart) *tensor.Tensor {
	if p.n != q.n {
		return refuse.Tensor("KLDivergence", tensor.ErrArgument, "the event shapes %v and %v differ", p.event, q.event)
	}
	var out *tensor.Tensor
	err := autograd.EnableGrad(func() error {
		px, py := p.wishartNatural()
		px, py = px.Detach().RequiresGrad_(), py.Detach().RequiresGrad_()
		qx, qy := q.wishartNatural()
		log := wishartLogNormalizer(p.n, px, py)
		grads, err := autograd.Grad([]*tensor.Tensor{log.Sum()}, []*tensor.Tensor{px, py}, tensor.CreateGraph(true))
		if err != nil {
			return err
		}
		out = wishartLogNormalizer(q.n, qx, qy).Sub(log).Sub(sumRightmost(qx.Sub(px).Mul(grads[0]), 2)).Sub(qy.Sub(py).Mul(grads[1]))
		return nil
	})
	if err != nil {
		return tensor.Failed(err)
	}
	return out
}

func init() {
	registerSame()
	registerBeta()
	registerUnbounded()
	registerPositive()
	registerUniform()
}

// registerSame registers the pairs of one family.
func registerSame() {
	RegisterKL(func(p, q Bernoulli) *tensor.Tensor {
		pp, qp, pl, ql := p.probs(), q.probs(), p.logits(), q.logits()
		t1 := pp.Mul(ql.Neg().Softplus().Sub(pl.Neg().Softplus())).MaskedFill(qp.Eq(0), math.Inf(1)).MaskedFill(pp.Eq(0), 0)
		t2 := pp.RSub(1).Mul(ql.Softplus().Sub(pl.Softplus())).MaskedFill(qp.Eq(1), math.Inf(1)).MaskedFill(pp.Eq(1), 0)
		return t1.Add(t2)
	})
	RegisterKL(func(p, q Beta) *tensor.Tensor {
		sumP, sumQ := p.p[0].Add(p.p[1]), q.p[0].Add(q.p[1])
		t1 := q.p[0].LGamma().Add(q.p[1].LGamma()).Add(sumP.LGamma())
		t2 := p.p[0].LGamma().Add(p.p[1].LGamma()).Add(sumQ.LGamma())
		t3 := p.p[0].Sub(q.p[0]).Mul(p.p[0].Digamma())
		t4 := p.p[1].Sub(q.p[1]).Mul(p.p[1].Digamma())
		t5 := sumQ.Sub(sumP).Mul(sumP.Digamma())
		return t1.Sub(t2).Add(t3).Add(t4).Add(t5)
	})
	RegisterKL(func(p, q Binomial) *tensor.Tensor {
		fewer, err := p.p[2].Lt(q.p[2]).Any().Item()
		if err != nil {
			return tensor.Failed(err)
		}
		if fewer != 0 {
			return refuse.Tensor("KLDivergence", tensor.ErrNotImplemented, "the divergence of binomial distributions is not known where the second has more trials")
		}
		pp := p.probs()
		kl := p.p[2].Mul(pp.Mul(p.logits().Sub(q.logits())).Add(pp.Neg().Log1p()).Sub(q.probs().Neg().Log1p()))
		return kl.MaskedFill(p.p[2].Gt(q.p[2]), math.Inf(1))
	})
	RegisterKL(func(p, q Categorical) *tensor.Tensor { return klCategorical(p.Base, q.Base) })
	RegisterKL(func(p, q OneHotCategorical) *tensor.Tensor { return klCategorical(p.Base, q.Base) })
	RegisterKL(func(p, q ContinuousBernoulli) *tensor.Tensor {
		t1 := continuousMean(p.Base).Mul(p.logits().Sub(q.logits()))
		t2 := p.logNorm().Add(p.continuousProbs().Neg().Log1p())
		return t1.Add(t2).Add(q.logNorm().Neg().Sub(q.continuousProbs().Neg().Log1p()))
	})
	RegisterKL(func(p, q Dirichlet) *tensor.Tensor {
		last := tensor.Dim(-1)
		sumP, sumQ := p.p[0].Sum(last), q.p[0].Sum(last)
		t1 := sumP.LGamma().Sub(sumQ.LGamma())
		t2 := p.p[0].LGamma().Sub(q.p[0].LGamma()).Sum(last)
		t4 := p.p[0].Digamma().Sub(sumP.Digamma().Unsqueeze(-1))
		return t1.Sub(t2).Add(p.p[0].Sub(q.p[0]).Mul(t4).Sum(last))
	})
	RegisterKL(func(p, q Exponential) *tensor.Tensor {
		ratio := q.p[0].Div(p.p[0])
		return ratio.Log().Neg().Add(ratio).Sub(1)
	})
	RegisterKL(func(p, q Gamma) *tensor.Tensor {
		t1 := q.p[0].Mul(p.p[1].Div(q.p[1]).Log())
		t2 := q.p[0].LGamma().Sub(p.p[0].LGamma())
		t3 := p.p[0].Sub(q.p[0]).Mul(p.p[0].Digamma())
		t4 := q.p[1].Sub(p.p[1]).Mul(p.p[0].Div(p.p[1]))
		return t1.Add(t2).Add(t3).Add(t4)
	})
	RegisterKL(func(p, q Gumbel) *tensor.Tensor {
		ct1, ct2, ct3 := p.p[1].Div(q.p[1]), q.p[0].Div(q.p[1]), p.p[0].Div(q.p[1])
		t1 := ct1.Log().Neg().Sub(ct2).Add(ct3)
		t3 := ct2.Add(ct1.Add(1).LGamma()).Sub(ct3).Exp()
		return t1.Add(ct1.Mul(euler)).Add(t3).Sub(1 + euler)
	})
	RegisterKL(func(p, q Geometric) *tensor.Tensor {
		return geometricEntropy(p.Base).Neg().Sub(q.probs().Neg().Log1p().Div(p.probs())).Sub(q.logits())
	})
	RegisterKL(func(p, q HalfNormal) *tensor.Tensor {
		return klNormal(p.inner[0].(Normal).Base, q.inner[0].(Normal).Base)
	})
	RegisterKL(func(p, q Laplace) *tensor.Tensor {
		ratio, diff := p.p[1].Div(q.p[1]), p.p[0].Sub(q.p[0]).Abs()
		t3 := ratio.Mul(diff.Neg().Div(p.p[1]).Exp())
		return ratio.Log().Neg().Add(diff.Div(q.p[1])).Add(t3).Sub(1)
	})
	RegisterKL(func(p, q LowRankMultivariateNormal) *tensor.Tensor {
		if err := sameEvents(p.Base, q.Base); err != nil {
			return tensor.Failed(err)
		}
		pw, pd, pc := p.lowRank()
		qw, qd, qc := q.lowRank()
		term1 := lowRankLogDet(qd, qc).Sub(lowRankLogDet(pd, pc))
		term3 := lowRankMahalanobis(qw, qd, q.p[0].Sub(p.p[0]), qc)
		a := qc.LinalgSolveTriangular(qw.MT().Div(qd.Unsqueeze(-2)), tensor.Upper(false))
		term2 := pd.Div(qd).Sum(tensor.Dim(-1)).Add(traceXXT(pw.Mul(qd.RSqrt().Unsqueeze(-1)))).Sub(traceXXT(a.Mul(pd.Sqrt().Unsqueeze(-2)))).Sub(traceXXT(a.MatMul(pw)))
		return term1.Add(term2).Add(term3).Sub(p.event[0]).Mul(0.5)
	})
	RegisterKL(func(p MultivariateNormal, q LowRankMultivariateNormal) *tensor.Tensor {
		if err := sameEvents(p.Base, q.Base); err != nil {
			return tensor.Failed(err)
		}
		qw, qd, qc := q.lowRank()
		term1 := lowRankLogDet(qd, qc).Sub(halfLogDet(p.keep[0]).Mul(2))
		term3 := lowRankMahalanobis(qw, qd, q.p[0].Sub(p.p[0]), qc)
		a := qc.LinalgSolveTriangular(qw.MT().Div(qd.Unsqueeze(-2)), tensor.Upper(false))
		term2 := traceXXT(p.keep[0].Mul(qd.RSqrt().Unsqueeze(-1))).Sub(traceXXT(a.MatMul(p.keep[0])))
		return term1.Add(term2).Add(term3).Sub(p.event[0]).Mul(0.5)
	})
	RegisterKL(func(p LowRankMultivariateNormal, q MultivariateNormal) *tensor.Tensor {
		if err := sameEvents(p.Base, q.Base); err != nil {
			return tensor.Failed(err)
		}
		pw, pd, pc := p.lowRank()
		term1 := halfLogDet(q.keep[0]).Mul(2).Sub(lowRankLogDet(pd, pc))
		term3 := mahalanobis(q.keep[0], q.p[0].Sub(p.p[0]))
		term2 := traceXXT(solve(q.keep[0], pw)).Add(traceXXT(solve(q.keep[0], pd.Sqrt().DiagEmbed())))
		return term1.Add(term2).Add(term3).Sub(p.event[0]).Mul(0.5)
	})
	RegisterKL(func(p, q MultivariateNormal) *tensor.Tensor {
		if err := sameEvents(p.Base, q.Base); err != nil {
			return tensor.Failed(err)
		}
		half := halfLogDet(q.keep[0]).Sub(halfLogDet(p.keep[0]))
		term2 := traceXXT(solve(q.keep[0], p.keep[0]))
		term3 := mahalanobis(q.keep[0], q.p[0].Sub(p.p[0]))
		return half.Add(term2.Add(term3).Sub(p.event[0]).Mul(0.5))
	})
	RegisterKL(func(p, q Normal) *tensor.Tensor { return klNormal(p.Base, q.Base) })
	RegisterKL(func(p, q Pareto) *tensor.Tensor {
		ratio := q.p[0].Div(p.p[0])
		result := q.p[0].Mul(p.p[1].Div(q.p[1]).Log()).Add(ratio.Log().Neg()).Add(ratio).Sub(1)
		return result.MaskedFill(p.p[1].Lt(q.p[1]), math.Inf(1))
	})
	RegisterKL(func(p, q Poisson) *tensor.Tensor {
		return p.p[0].Mul(p.p[0].Log().Sub(q.p[0].Log())).MaskedFill(p.p[0].Eq(0), 0).Sub(p.p[0].Sub(q.p[0]))
	})
	RegisterKL(func(p, q TransformedDistribution) *tensor.Tensor {
		same := len(p.transforms) == len(q.transforms) && len(p.event) == len(q.event)
		for i := range p.event {
			same = same && p.event[i] == q.event[i]
		}
		for i := range p.transforms {
			same = same && equal(p.transforms[i], q.transforms[i])
		}
		if !same {
			return refuse.Tensor("KLDivergence", tensor.ErrNotImplemented, "the divergence of transformed distributions is known only for equal transforms and event shapes")
		}
		return KLDivergence(p.inner[0], q.inner[0])
	})
	RegisterKL(func(p, q Uniform) *tensor.Tensor {
		result := q.p[1].Sub(q.p[0]).Div(p.p[1].Sub(p.p[0])).Log()
		return result.MaskedFill(q.p[0].Gt(p.p[0]).LogicalOr(q.p[1].Lt(p.p[1])), math.Inf(1))
	})
	RegisterKL(func(p, q Independent) *tensor.Tensor {
		if p.n != q.n {
			return refuse.Tensor("KLDivergence", tensor.ErrNotImplemented, "the numbers of reinterpreted dimensions, %d and %d, differ", p.n, q.n)
		}
		return sumRightmost(KLDivergence(p.inner[0], q.inner[0]), p.n)
	})
	RegisterKL(func(p, q Cauchy) *tensor.Tensor {
		t1 := p.p[1].Add(q.p[1]).Pow(2).Add(p.p[0].Sub(q.p[0]).Pow(2)).Log()
		return t1.Sub(p.p[1].Mul(4).Mul(q.p[1]).Log())
	})
	RegisterKL(klWishart)
}

// registerBeta registers the pairs whose first distribution is on [0, 1], and those of Bernoulli.
func registerBeta() {
	RegisterKL(func(p Bernoulli, q Poisson) *tensor.Tensor {
		return bernoulliEntropy(p.Base).Neg().Sub(p.probs().XLogY(q.p[0]).Sub(q.p[0]))
	})
	RegisterKL(func(p Beta, q ContinuousBernoulli) *tensor.Tensor {
		return betaEntropy(p.Base).Neg().Sub(betaMean(p.Base).Mul(q.logits())).Sub(q.continuousProbs().Neg().Log1p()).Sub(q.logNorm())
	})
	never[Beta, Pareto](func(p Beta) *tensor.Tensor { return p.p[0] })
	RegisterKL(func(p Beta, q Exponential) *tensor.Tensor {
		return betaEntropy(p.Base).Neg().Sub(q.p[0].Log()).Add(q.p[0].Mul(betaMean(p.Base)))
	})
	RegisterKL(func(p Beta, q Gamma) *tensor.Tensor {
		sum := p.p[0].Add(p.p[1])
		t2 := q.p[0].LGamma().Sub(q.p[0].Mul(q.p[1].Log()))
		t3 := q.p[0].Sub(1).Mul(p.p[0].Digamma().Sub(sum.Digamma()))
		return betaEntropy(p.Base).Neg().Add(t2).Sub(t3).Add(q.p[1].Mul(p.p[0]).Div(sum))
	})
	RegisterKL(func(p Beta, q Normal) *tensor.Tensor {
		mean, variance := betaMean(p.Base), q.p[1].Pow(2)
		t2 := variance.Mul(2).Mul(math.Pi).Log().Mul(0.5)
		t3 := mean.Mul(mean.RSub(1)).Div(p.p[0].Add(p.p[1]).Add(1)).Add(mean.Pow(2)).Mul(0.5)
		t4, t5 := q.p[0].Mul(mean), q.p[0].Pow(2).Mul(0.5)
		return betaEntropy(p.Base).Neg().Add(t2).Add(t3.Sub(t4).Add(t5).Div(variance))
	})
	RegisterKL(func(p Beta, q Uniform) *tensor.Tensor {
		result := betaEntropy(p.Base).Neg().Add(q.p[1].Sub(q.p[0]).Log())
		return result.MaskedFill(q.p[0].Gt(0).LogicalOr(q.p[1].Lt(1)), math.Inf(1))
	})
	never[ContinuousBernoulli, Pareto](func(p ContinuousBernoulli) *tensor.Tensor { return p.continuousProbs() })
	entropy := continuousBernoulliKind.entropy
	RegisterKL(func(p ContinuousBernoulli, q Exponential) *tensor.Tensor {
		return entropy(p.Base).Neg().Sub(q.p[0].Log()).Add(q.p[0].Mul(continuousMean(p.Base)))
	})
	RegisterKL(func(p ContinuousBernoulli, q Normal) *tensor.Tensor {
		mean := continuousMean(p.Base)
		t2 := q.p[0].Div(q.p[1]).Square().Add(math.Log(2.0 * math.Pi)).Mul(0.5).Add(q.p[1].Log())
		t3 := continuousBernoulliKind.variance(p.Base).Add(mean.Square()).Sub(q.p[0].Mul(2.0).Mul(mean)).Div(q.p[1].Square().Mul(2.0))
		return entropy(p.Base).Neg().Add(t2).Add(t3)
	})
	RegisterKL(func(p ContinuousBernoulli, q Uniform) *tensor.Tensor {
		result := entropy(p.Base).Neg().Add(q.p[1].Sub(q.p[0]).Log())
		return result.MaskedFill(q.p[0].Gt(0).LogicalOr(q.p[1].Lt(1)), math.Inf(1))
	})
}

// registerUnbounded registers the pairs whose first distribution is on all numbers.
func registerUnbounded() {
	gumbel := func(p Gumbel) *tensor.Tensor { return p.p[0] }
	never[Gumbel, Beta](gumbel)
	never[Gumbel, ContinuousBernoulli](gumbel)
	never[Gumbel, Exponential](gumbel)
	never[Gumbel, Gamma](gumbel)
	never[Gumbel, Pareto](gumbel)
	never[Gumbel, Uniform](gumbel)
	RegisterKL(func(p Gumbel, q Normal) *tensor.Tensor {
		ratio := p.p[1].Div(q.p[1])
		t1 := ratio.Div(math.Sqrt(2 * math.Pi)).Log()
		t2 := ratio.Mul(math.Pi).Mul(0.5).Pow(2).Div(3)
		t3 := p.p[0].Add(p.p[1].Mul(euler)).Sub(q.p[0]).Div(q.p[1]).Pow(2).Mul(0.5)
		return t1.Neg().Add(t2).Add(t3).Sub(euler + 1)
	})
	laplace := func(p Laplace) *tensor.Tensor { return p.p[0] }
	never[Laplace, Beta](laplace)
	never[Laplace, ContinuousBernoulli](laplace)
	never[Laplace, Exponential](laplace)
	never[Laplace, Gamma](laplace)
	never[Laplace, Pareto](laplace)
	never[Laplace, Uniform](laplace)
	RegisterKL(func(p Laplace, q Normal) *tensor.Tensor {
		variance := q.p[1].Pow(2)
		ratio := p.p[1].Pow(2).Div(variance)
		t1 := ratio.Mul(2).Div(math.Pi).Log().Mul(0.5)
		t2, t3, t4 := p.p[0].Pow(2).Mul(0.5), p.p[0].Mul(q.p[0]), q.p[0].Pow(2).Mul(0.5)
		return t1.Neg().Add(ratio).Add(t2.Sub(t3).Add(t4).Div(variance)).Sub(1)
	})
	normal := func(p Normal) *tensor.Tensor { return p.p[0] }
	never[Normal, Beta](normal)
	never[Normal, ContinuousBernoulli](normal)
	never[Normal, Exponential](normal)
	never[Normal, Gamma](normal)
	never[Normal, Pareto](normal)
	never[Normal, Uniform](normal)
	RegisterKL(func(p Normal, q Gumbel) *tensor.Tensor {
		mean, ratio, loc := p.p[0].Div(q.p[1]), p.p[1].Div(q.p[1]).Pow(2), q.p[0].Div(q.p[1])
		t3 := mean.Neg().Add(ratio.Mul(0.5)).Add(loc).Exp()
		return ratio.Log().Mul(0.5).Neg().Add(mean.Sub(loc)).Add(t3).Sub(0.5 * (1 + math.Log(2*math.Pi)))
	})
	RegisterKL(func(p Normal, q Laplace) *tensor.Tensor {
		diff, ratio := p.p[0].Sub(q.p[0]), p.p[1].Div(q.p[1])
		z := diff.Div(p.p[1])
		t2 := p.p[1].Mul(math.Sqrt(2 / pi)).Mul(z.Pow(2).Mul(-0.5).Exp())
		t3 := diff.Mul(z.Mul(math.Sqrt(0.5)).Erf())
		return ratio.Log().Neg().Add(t2.Add(t3).Div(q.p[1])).Sub(0.5 * (1 + math.Log(0.5*math.Pi)))
	})
}

// registerPositive registers the pairs whose first distribution is on positive numbers or counts.
func registerPositive() {
	exponential := func(p Exponential) *tensor.Tensor { return p.p[0] }
	never[Exponential, Beta](exponential)
	never[Exponential, ContinuousBernoulli](exponential)
	never[Exponential, Pareto](exponential)
	never[Exponential, Uniform](exponential)
	RegisterKL(func(p Exponential, q Gamma) *tensor.Tensor {
		ratio := q.p[1].Div(p.p[0])
		return q.p[0].Neg().Mul(ratio.Log()).Add(ratio).Add(q.p[0].LGamma()).Add(q.p[0].Mul(euler)).Sub(1 + euler)
	})
	RegisterKL(func(p Exponential, q Gumbel) *tensor.Tensor {
		product, ratio := p.p[0].Mul(q.p[1]), q.p[0].Div(q.p[1])
		t2 := ratio.Exp().Mul(product).Div(product.Add(1))
		return product.Log().Sub(1).Sub(ratio).Add(t2).Add(product.Reciprocal())
	})
	RegisterKL(func(p Exponential, q Normal) *tensor.Tensor {
		variance, square := q.p[1].Pow(2), p.p[0].Pow(2)
		t1 := square.Mul(variance).Mul(2).Mul(math.Pi).Log().Mul(0.5)
		t2, t3, t4 := square.Reciprocal(), q.p[0].Div(p.p[0]), q.p[0].Pow(2).Mul(0.5)
		return t1.Sub(1).Add(t2.Sub(t3).Add(t4).Div(variance))
	})
	gamma := func(p Gamma) *tensor.Tensor { return p.p[0] }
	never[Gamma, Beta](gamma)
	never[Gamma, ContinuousBernoulli](gamma)
	never[Gamma, Pareto](gamma)
	never[Gamma, Uniform](gamma)
	RegisterKL(func(p Gamma, q Exponential) *tensor.Tensor {
		return gammaEntropy(p.Base).Neg().Sub(q.p[0].Log()).Add(q.p[0].Mul(p.p[0]).Div(p.p[1]))
	})
	RegisterKL(func(p Gamma, q Gumbel) *tensor.Tensor {
		product, ratio := p.p[1].Mul(q.p[1]), q.p[0].Div(q.p[1])
		t1 := p.p[0].Sub(1).Mul(p.p[0].Digamma()).Sub(p.p[0].LGamma()).Sub(p.p[0])
		t2 := product.Log().Add(p.p[0].Div(product))
		t3 := ratio.Exp().Mul(product.Reciprocal().Add(1).PowTensor(p.p[0].Neg())).Sub(ratio)
		return t1.Add(t2).Add(t3)
	})
	RegisterKL(func(p Gamma, q Normal) *tensor.Tensor {
		variance, square := q.p[1].Pow(2), p.p[1].Pow(2)
		t1 := square.Mul(variance).Mul(2).Mul(math.Pi).Log().Mul(0.5).Sub(p.p[0]).Sub(p.p[0].LGamma())
		t2 := p.p[0].Pow(2).Add(p.p[0]).Mul(0.5).Div(square)
		t3, t4 := q.p[0].Mul(p.p[0]).Div(p.p[1]), q.p[0].Pow(2).Mul(0.5)
		return t1.Add(p.p[0].Sub(1).Mul(p.p[0].Digamma())).Add(t2.Sub(t3).Add(t4).Div(variance))
	})
	pareto := func(p Pareto) *tensor.Tensor { return p.p[1] }
	never[Pareto, Beta](pareto)
	never[Pareto, ContinuousBernoulli](pareto)
	never[Pareto, Uniform](pareto)
	RegisterKL(func(p Pareto, q Exponential) *tensor.Tensor {
		alpha, product := p.p[0], p.p[1].Mul(q.p[0])
		result := alpha.Div(product).Log().Sub(alpha.Reciprocal()).Add(alpha.Mul(product).Div(alpha.Sub(1))).Sub(1)
		return result.MaskedFill(alpha.Le(1), math.Inf(1))
	})
	RegisterKL(func(p Pareto, q Gamma) *tensor.Tensor {
		alpha, scale := p.p[0], p.p[1]
		common := scale.Log().Add(alpha.Reciprocal())
		t2 := q.p[0].LGamma().Sub(q.p[0].Mul(q.p[1].Log()))
		t4 := q.p[1].Mul(alpha).Mul(scale).Div(alpha.Sub(1))
		result := alpha.Log().Sub(common).Add(t2).Add(q.p[0].RSub(1).Mul(common)).Add(t4).Sub(1)
		return result.MaskedFill(alpha.Le(1), math.Inf(1))
	})
	RegisterKL(func(p Pareto, q Normal) *tensor.Tensor {
		alpha, scale, variance := p.p[0], p.p[1], q.p[1].Pow(2).Mul(2)
		common := scale.Div(alpha.Sub(1))
		t1 := q.p[1].Mul(math.Sqrt(2 * math.Pi)).Mul(alpha).Div(scale).Log()
		t3 := alpha.Mul(common.Pow(2)).Div(alpha.Sub(2))
		t4 := alpha.Mul(common).Sub(q.p[0]).Pow(2)
		result := t1.Sub(alpha.Reciprocal()).Add(t3.Add(t4).Div(variance)).Sub(1)
		return result.MaskedFill(alpha.Le(2), math.Inf(1))
	})
	poisson := func(p Poisson) *tensor.Tensor { return p.p[0] }
	never[Poisson, Bernoulli](poisson)
	never[Poisson, Binomial](poisson)
}

// registerUniform registers the pairs whose first distribution is uniform.
func registerUniform() {
	part := func(low, high *tensor.Tensor) *tensor.Tensor { return xLogX(high).Sub(xLogX(low)) }
	RegisterKL(func(p Uniform, q Beta) *tensor.Tensor {
		low, high := p.p[0], p.p[1]
		width := high.Sub(low)
		t2 := q.p[0].Sub(1).Mul(part(low, high).Sub(width)).Div(width)
		t3 := q.p[1].Sub(1).Mul(xLogX(high.RSub(1)).Sub(xLogX(low.RSub(1))).Add(width)).Div(width)
		t4 := q.p[0].LGamma().Add(q.p[1].LGamma()).Sub(q.p[0].Add(q.p[1]).LGamma())
		result := t3.Add(t4).Sub(width.Log()).Sub(t2)
		return result.MaskedFill(high.Gt(1).LogicalOr(low.Lt(0)), math.Inf(1))
	})
	RegisterKL(func(p Uniform, q ContinuousBernoulli) *tensor.Tensor {
		low, high := p.p[0], p.p[1]
		result := high.Sub(low).Log().Neg().Sub(high.Add(low).Div(2).Mul(q.logits())).Sub(q.continuousProbs().Neg().Log1p()).Sub(q.logNorm())
		return result.MaskedFill(high.Gt(1).LogicalOr(low.Lt(0)), math.Inf(1))
	})
	RegisterKL(func(p Uniform, q Exponential) *tensor.Tensor {
		low, high, rate := p.p[0], p.p[1], q.p[0]
		result := rate.Mul(high.Add(low)).Div(2).Sub(high.Sub(low).Mul(rate).Log())
		return result.MaskedFill(low.Lt(0), math.Inf(1))
	})
	RegisterKL(func(p Uniform, q Gamma) *tensor.Tensor {
		low, high := p.p[0], p.p[1]
		width := high.Sub(low)
		t2 := q.p[0].LGamma().Sub(q.p[0].Mul(q.p[1].Log()))
		t3 := q.p[0].RSub(1).Mul(part(low, high).Sub(width)).Div(width)
		t4 := q.p[1].Mul(high.Add(low)).Div(2)
		return width.Log().Neg().Add(t2).Add(t3).Add(t4).MaskedFill(low.Lt(0), math.Inf(1))
	})
	RegisterKL(func(p Uniform, q Gumbel) *tensor.Tensor {
		common := q.p[1].Div(p.p[1].Sub(p.p[0]))
		high, low := p.p[1].Sub(q.p[0]).Div(q.p[1]), p.p[0].Sub(q.p[0]).Div(q.p[1])
		t1 := common.Log().Add(high.Add(low).Mul(0.5))
		return t1.Sub(common.Mul(high.Neg().Exp().Sub(low.Neg().Exp())))
	})
	RegisterKL(func(p Uniform, q Normal) *tensor.Tensor {
		width := p.p[1].Sub(p.p[0])
		t1 := q.p[1].Mul(math.Sqrt(math.Pi * 2)).Div(width).Log()
		t2 := width.Pow(2).Div(12)
		t3 := p.p[1].Add(p.p[0]).Sub(q.p[0].Mul(2)).Div(2).Pow(2)
		return t1.Add(t2.Add(t3).Mul(0.5).Div(q.p[1].Pow(2)))
	})
	RegisterKL(func(p Uniform, q Pareto) *tensor.Tensor {
		low, high, alpha, scale := p.p[0], p.p[1], q.p[0], q.p[1]
		width := high.Sub(low)
		t1 := alpha.Mul(scale.PowTensor(alpha)).Mul(width).Log()
		t2 := part(low, high).Sub(width).Div(width)
		return t2.Mul(alpha.Add(1)).Sub(t1).MaskedFill(low.Lt(scale), math.Inf(1))
	})
}
