#!/usr/bin/env python3
"""Writes distributions.json: PyTorch's distributions, divergences, transforms and constraints.

    python3 tests/golden/distributions.py

    "cases"        by case, see case()
    "kl"           by pair of cases, the divergence and its gradients
    "transforms"   by case, see transform()
    "constraints"  by case, the argument, what check() returns, and the transforms to the constraint
    "affine"       AffineTransform of float16 and bfloat16
    "empty"        by constraint, what check() returns for an empty batch of matrices
    "texts"        by case, how a constraint prints

distributions/golden_test.go has the same cases. Numbers are float64 but where a case says otherwise.
"""
import json
import math
import os
import warnings

import torch
import torch.distributions as D
from torch.distributions import constraints, kl, transforms
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical

here = os.path.dirname(os.path.abspath(__file__))
warnings.simplefilter("ignore")
torch.set_num_threads(1)
SAMPLE = (2, 3)


def t(*values, dtype=torch.float64):
    return torch.tensor(list(values), dtype=dtype)


A, B, C = t(-0.5, 0.25, 1.5), t(0.5, 1.25, 2.0), t(0.75, 2.5, 3.5)
P = t(0.2, 0.5, 0.9)
PC = t([0.1, 0.6, 0.3], [0.5, 0.25, 0.25])
LOGITS = t([0.5, -1.0, 2.0, 0.0], [1.0, 1.5, -0.5, 0.25])
L = t([1.0, 0.0, 0.0], [0.5, 1.5, 0.0], [-0.25, 0.75, 2.0])
W = t([0.5, -0.25], [1.0, 0.5], [-0.75, 0.25])
DIAG = t(0.5, 1.0, 1.5)

# name: (constructor, parameters by name)
CASES = {
    "Bernoulli": (lambda probs: D.Bernoulli(probs), dict(probs=P)),
    "BernoulliLogits": (lambda logits: D.Bernoulli(logits=logits), dict(logits=A)),
    "Beta": (D.Beta, dict(concentration1=B, concentration0=C)),
    "Binomial": (lambda probs: D.Binomial(5, probs), dict(probs=P)),
    "BinomialLogits": (lambda total_count, logits: D.Binomial(total_count, logits=logits), dict(total_count=t(2.0, 3.0, 7.0), logits=A)),
    "Categorical": (lambda probs: D.Categorical(probs), dict(probs=PC * 2)),
    "CategoricalLogits": (lambda logits: D.Categorical(logits=logits), dict(logits=LOGITS)),
    "Cauchy": (D.Cauchy, dict(loc=A, scale=B)),
    "Chi2": (D.Chi2, dict(df=C)),
    "ContinuousBernoulli": (lambda probs: D.ContinuousBernoulli(probs), dict(probs=P)),
    "ContinuousBernoulliLogits": (lambda logits: D.ContinuousBernoulli(logits=logits), dict(logits=A)),
    "Dirichlet": (D.Dirichlet, dict(concentration=t([0.5, 1.5, 2.5], [3.0, 1.0, 2.0]))),
    "Exponential": (D.Exponential, dict(rate=B)),
    "FisherSnedecor": (D.FisherSnedecor, dict(df1=C, df2=C + 3)),
    "Gamma": (D.Gamma, dict(concentration=C, rate=B)),
    "GeneralizedPareto": (D.GeneralizedPareto, dict(loc=A.float(), scale=B.float(), concentration=t(0.25, 0.0, -0.5).float())),
    "Geometric": (lambda probs: D.Geometric(probs), dict(probs=P)),
    "GeometricLogits": (lambda logits: D.Geometric(logits=logits), dict(logits=A)),
    "Gumbel": (D.Gumbel, dict(loc=A, scale=B)),
    "HalfCauchy": (D.HalfCauchy, dict(scale=B)),
    "HalfNormal": (D.HalfNormal, dict(scale=B)),
    "Independent": (lambda loc, scale: D.Independent(D.Normal(loc, scale), 1), dict(loc=t([0.0, 1.0, 2.0], [0.5, -1.0, 0.25]), scale=B)),
    "InverseGamma": (D.InverseGamma, dict(concentration=C, rate=B)),
    "Kumaraswamy": (D.Kumaraswamy, dict(concentration1=B, concentration0=C)),
    "LKJCholesky": (lambda concentration: D.LKJCholesky(3, concentration), dict(concentration=B)),
    "Laplace": (D.Laplace, dict(loc=A, scale=B)),
    "LogNormal": (D.LogNormal, dict(loc=A, scale=B)),
    "LogisticNormal": (D.LogisticNormal, dict(loc=A, scale=B)),
    "LowRankMultivariateNormal": (D.LowRankMultivariateNormal, dict(loc=A, cov_factor=W, cov_diag=DIAG)),
    "Mixture": (lambda probs, loc, scale: D.MixtureSameFamily(D.Categorical(probs), D.Normal(loc, scale)), dict(probs=P, loc=A, scale=B)),
    "MixtureVector": (lambda logits, loc, scale: D.MixtureSameFamily(D.Categorical(logits=logits), D.Independent(D.Normal(loc, scale), 1)),
                      dict(logits=t(0.5, -0.5), loc=t([0.0, 1.0, 2.0], [0.5, -1.0, 0.25]), scale=t([1.0, 0.5, 2.0], [0.5, 1.0, 0.25]))),
    "Multinomial": (lambda probs: D.Multinomial(4, probs), dict(probs=PC)),
    "MultinomialLogits": (lambda logits: D.Multinomial(3, logits=logits), dict(logits=LOGITS)),
    "MultivariateNormal": (lambda loc, scale_tril: D.MultivariateNormal(loc, scale_tril=scale_tril), dict(loc=A, scale_tril=L)),
    "MultivariateNormalCovariance": (lambda loc, covariance: D.MultivariateNormal(loc, covariance), dict(loc=t([0.0, 1.0, 2.0], [0.5, -1.0, 0.25]), covariance=L @ L.mT)),
    "MultivariateNormalPrecision": (lambda loc, precision: D.MultivariateNormal(loc, precision_matrix=precision), dict(loc=A, precision=L @ L.mT)),
    "NegativeBinomial": (lambda total_count, probs: D.NegativeBinomial(total_count, probs), dict(total_count=C, probs=P)),
    "NegativeBinomialLogits": (lambda total_count, logits: D.NegativeBinomial(total_count, logits=logits), dict(total_count=C, logits=A)),
    "Normal": (D.Normal, dict(loc=A, scale=B)),
    "NormalBroadcast": (D.Normal, dict(loc=t([0.0], [1.0]), scale=B)),
    "NormalFloat32": (D.Normal, dict(loc=t(0.5, 1.0, -2.0, dtype=torch.float32), scale=t(1.5, 0.5, 2.0, dtype=torch.float32))),
    "NormalNumbers": (lambda: D.Normal(0.5, 2), {}),
    "OneHotCategorical": (lambda probs: D.OneHotCategorical(probs), dict(probs=PC)),
    "OneHotCategoricalStraightThrough": (lambda logits: D.OneHotCategoricalStraightThrough(logits=logits), dict(logits=LOGITS)),
    "Pareto": (D.Pareto, dict(scale=B, alpha=C)),
    "Poisson": (D.Poisson, dict(rate=C)),
    "RelaxedBernoulli": (lambda temperature, probs: D.RelaxedBernoulli(temperature, probs), dict(temperature=t(0.75, 0.5, 1.0), probs=P)),
    "LogitRelaxedBernoulli": (lambda temperature, logits: LogitRelaxedBernoulli(temperature, logits=logits), dict(temperature=torch.tensor(0.75, dtype=torch.float64), logits=A)),
    "RelaxedOneHotCategorical": (lambda temperature, probs: D.RelaxedOneHotCategorical(temperature, probs), dict(temperature=torch.tensor(0.75, dtype=torch.float64), probs=PC)),
    "ExpRelaxedCategorical": (lambda temperature, logits: ExpRelaxedCategorical(temperature, logits=logits), dict(temperature=torch.tensor(0.5, dtype=torch.float64), logits=LOGITS)),
    "StudentT": (D.StudentT, dict(df=t(0.75, 1.5, 3.5), loc=A, scale=B)),
    "TanhNormal": (lambda loc, scale: D.TransformedDistribution(D.Normal(loc, scale), [transforms.TanhTransform()]), dict(loc=A, scale=B)),
    "TransformedAffine": (lambda loc, scale, shift, factor: D.TransformedDistribution(D.Normal(loc, scale), [transforms.AffineTransform(shift, factor), transforms.SigmoidTransform()]),
                          dict(loc=A, scale=B, shift=t(0.5, 0.0, -1.0), factor=t(-0.5, 1.0, 2.0))),
    "TransformedStick": (lambda loc, scale: D.TransformedDistribution(D.Independent(D.Normal(loc, scale), 1), [transforms.StickBreakingTransform()]),
                         dict(loc=t([0.0, 1.0, 2.0], [0.5, -1.0, 0.25]), scale=B)),
    "Uniform": (D.Uniform, dict(low=A, high=C + 0.5)),
    "VonMises": (D.VonMises, dict(loc=A, concentration=C)),
    "Weibull": (D.Weibull, dict(scale=B, concentration=C)),
    "Wishart": (lambda df, covariance: D.Wishart(df, covariance), dict(df=t(4.0, 5.5), covariance=L @ L.mT)),
    "WishartTril": (lambda df, scale_tril: D.Wishart(df, scale_tril=scale_tril), dict(df=torch.tensor(4.5, dtype=torch.float64), scale_tril=L)),
}


def plain(v):
    """A tensor as its shape and elements; numbers that JSON does not have are strings."""
    v = v.detach()
    data = v.to(torch.float64).reshape(-1).tolist()
    return {"shape": list(v.shape), "data": [x if math.isfinite(x) else str(x) for x in data], "dtype": str(v.dtype).replace("torch.", "")}


def weight(v):
    return torch.arange(1, v.numel() + 1, dtype=v.dtype).reshape(v.shape) / 8


def grads(out, leaves):
    """The gradients of the weighted sum of out; none where PyTorch's own in-place operators prevent them."""
    if not out.requires_grad:
        return {}
    try:
        got = torch.autograd.grad((out * weight(out)).sum(), list(leaves.values()), allow_unused=True, retain_graph=True)
    except RuntimeError:
        return {}
    return {n: plain(g) for n, g in zip(leaves, got) if g is not None}


def attempt(f):
    try:
        return f()
    except (NotImplementedError, AttributeError, RuntimeError, ValueError, AssertionError, IndexError, TypeError):
        return None


def make(name):
    build, params = CASES[name]
    leaves = {n: p.detach().clone().requires_grad_() for n, p in params.items()}
    return build(**leaves), leaves


def case(name):
    d, leaves = make(name)
    out = {"params": {n: plain(p) for n, p in leaves.items()}, "batch": list(d.batch_shape), "event": list(d.event_shape), "str": repr(d)}
    torch.manual_seed(7)
    value = d.sample(SAMPLE)
    out["sample"] = plain(value)
    out["support"] = str(attempt(lambda: d.support) or "") if name != "Wishart" else "PositiveDefinite()"
    if d.has_rsample:
        torch.manual_seed(7)
        v = d.rsample(SAMPLE)
        out["rsample"] = plain(v)
        out["rsample_grads"] = grads(v, leaves)
    value = value.detach().requires_grad_(value.is_floating_point())
    lp = attempt(lambda: d.log_prob(value))
    if lp is not None:
        out["log_prob"] = plain(lp)
        more = {"value": value} if value.requires_grad else {}
        out["log_prob_grads"] = grads(lp, {**leaves, **more})
    cdf = attempt(lambda: d.cdf(value))
    if cdf is not None:
        out["cdf"] = plain(cdf)
        out["cdf_grads"] = grads(cdf, leaves)
    u = torch.tensor([0.125, 0.5, 0.875], dtype=torch.float64)
    icdf = attempt(lambda: d.icdf(u))
    if icdf is not None:
        out["icdf"] = plain(icdf)
    for what in ["entropy", "perplexity"]:
        v = attempt(getattr(d, what))
        if v is not None:
            out[what] = plain(v)
            if what == "entropy":
                out["entropy_grads"] = grads(v, leaves)
    for what in ["mean", "mode", "variance", "stddev"]:
        v = attempt(lambda: getattr(d, what))
        if v is not None:
            if isinstance(d, D.Kumaraswamy) and what == "mode":  # PyTorch takes the logarithms of negative numbers.
                a, b = d.concentration1, d.concentration0
                v = torch.where((a < 1) | (b < 1), math.nan, ((a - 1) / (a * b - 1)) ** (1 / a))
            out[what] = plain(v)
    for expand in [True, False]:
        v = attempt(lambda: d.enumerate_support(expand))
        if v is not None:
            out["enumerate_%s" % str(expand).lower()] = plain(v)
    e = attempt(lambda: d.expand((2,) + tuple(d.batch_shape)))
    if e is not None:
        torch.manual_seed(3)
        value = e.sample()
        out["expanded"] = plain(value)
        v = attempt(lambda: e.log_prob(value))
        if v is not None:
            out["expanded_log_prob"] = plain(v)
    return out


def divergences():
    names = {}
    for name in CASES:
        # PyTorch's divergence of a batch of Wishart distributions adds over the batch.
        if name in ("NormalBroadcast", "NormalFloat32", "NormalNumbers", "Wishart"):
            continue
        d, _ = make(name)
        names.setdefault(type(d), []).append(name)
    out = {}
    pairs = [(p, q) for p, q in kl._KL_REGISTRY if p in names and q in names]
    pairs += [(D.Chi2, D.Chi2), (D.Chi2, D.Gamma), (D.Wishart, D.Wishart), (D.LogNormal, D.LogNormal), (D.HalfCauchy, D.HalfCauchy),
              (D.OneHotCategoricalStraightThrough, D.OneHotCategoricalStraightThrough), (D.InverseGamma, D.InverseGamma)]
    for tp, tq in pairs:
        for p in names[tp]:
            for q in names[tq]:
                dp, lp = make(p)
                dq, lq = make(q)
                # Another q of the same type has other parameters.
                lq = {n: (v.detach() * 0.75 + (0.1 if n in ("loc", "logits") else 0)).requires_grad_() if n != "total_count" else v for n, v in lq.items()}
                dq = attempt(lambda: CASES[q][0](**lq))
                if dq is None:
                    continue
                v = attempt(lambda: D.kl_divergence(dp, dq))
                if v is None:
                    continue
                leaves = {**{"p." + n: x for n, x in lp.items()}, **{"q." + n: x for n, x in lq.items()}}
                out[p + "|" + q] = {"value": plain(v), "grads": {} if torch.isinf(v).all() else grads(v, leaves), "q": {n: plain(x) for n, x in lq.items()}}
    return out


V3, M3 = t([0.5, -1.0, 2.0], [0.0, 0.25, -0.75]), torch.stack([L, L @ L.mT])
T = transforms
TRANSFORMS = {
    "Abs": (T.AbsTransform(), V3),
    "Affine": (T.AffineTransform(0.5, -2.0), V3),
    "AffineTensor": (T.AffineTransform(A, B), V3),
    "AffineEvent": (T.AffineTransform(A, B, event_dim=1), V3),
    "Cat": (T.CatTransform([T.ExpTransform(), T.AffineTransform(1.0, 2.0), T.TanhTransform()], dim=-1, lengths=[1, 1, 1]), V3),
    "Compose": (T.ComposeTransform([T.AffineTransform(0.5, 2.0), T.SigmoidTransform(), T.PowerTransform(torch.tensor(2.0, dtype=torch.float64))]), V3),
    "ComposeEvent": (T.ComposeTransform([T.AffineTransform(0.5, 2.0), T.StickBreakingTransform()]), V3),
    "CorrCholesky": (T.CorrCholeskyTransform(), V3),
    "Cumulative": (T.CumulativeDistributionTransform(D.Normal(torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))), V3),
    "Exp": (T.ExpTransform(), V3),
    "Identity": (T.identity_transform, V3),
    "Independent": (T.IndependentTransform(T.ExpTransform(), 1), V3),
    "InverseExp": (T.ExpTransform().inv, V3.exp()),
    "LowerCholesky": (T.LowerCholeskyTransform(), M3),
    "PositiveDefinite": (T.PositiveDefiniteTransform(), M3 / 2),
    "Power": (T.PowerTransform(B), V3.exp()),
    "Reshape": (T.ReshapeTransform((3,), (3, 1)), V3),
    "Sigmoid": (T.SigmoidTransform(), V3),
    "Softmax": (T.SoftmaxTransform(), V3),
    "Softplus": (T.SoftplusTransform(), V3),
    "Stack": (T.StackTransform([T.ExpTransform(), T.TanhTransform()], dim=0), V3),
    "StickBreaking": (T.StickBreakingTransform(), V3),
    "Tanh": (T.TanhTransform(), V3),
}


def transform(name):
    f, x = TRANSFORMS[name]
    x = x.detach().clone().requires_grad_()
    y = f(x)
    out = {"x": plain(x), "y": plain(y), "grads": grads(y, {"x": x}), "bijective": bool(f.bijective), "domain": attempt(lambda: str(f.domain)), "codomain": attempt(lambda: str(f.codomain)),
           "forward_shape": list(f.forward_shape(x.shape)), "inverse_shape": list(f.inverse_shape(y.shape)), "inverse": plain(f.inv(y))}
    sign = attempt(lambda: f.sign)
    if sign is not None:
        out["sign"] = plain(torch.as_tensor(sign, dtype=torch.float64))
    j = attempt(lambda: f.log_abs_det_jacobian(x, y))
    if j is not None:
        out["log_det"] = plain(j)
        if j.requires_grad:
            out["log_det_grads"] = grads(j, {"x": x})
    return out


S = constraints
CONSTRAINTS = {
    "boolean": (S.boolean, t(0.0, 1.0, 0.5)),
    "one_hot": (S.one_hot, t([0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.5, 0.5, 0.0])),
    "integer_interval": (S.integer_interval(1, 3), t(0.0, 1.0, 2.5, 3.0, 4.0)),
    "nonnegative_integer": (S.nonnegative_integer, t(-1.0, 0.0, 0.5, 3.0)),
    "positive_integer": (S.positive_integer, t(-1.0, 0.0, 0.5, 3.0)),
    "real": (S.real, t(0.0, math.nan, math.inf)),
    "real_vector": (S.real_vector, t([0.0, math.nan], [1.0, 2.0])),
    "positive": (S.positive, t(0.0, -1.0, 2.0)),
    "nonnegative": (S.nonnegative, t(0.0, -1.0, 2.0)),
    "greater_than": (S.greater_than(1.5), t(1.0, 1.5, 2.0)),
    "greater_than_eq": (S.greater_than_eq(1.5), t(1.0, 1.5, 2.0)),
    "less_than": (S.less_than(1.5), t(1.0, 1.5, 2.0)),
    "unit_interval": (S.unit_interval, t(-0.5, 0.0, 0.5, 1.0, 1.5)),
    "interval": (S.interval(-1.0, 2.0), t(-1.5, -1.0, 2.0, 2.5)),
    "half_open_interval": (S.half_open_interval(-1.0, 2.0), t(-1.5, -1.0, 2.0, 2.5)),
    "simplex": (S.simplex, t([0.5, 0.5], [0.25, 0.5], [1.5, -0.5])),
    "multinomial": (S.multinomial(3), t([1.0, 2.0], [2.0, 2.0], [-1.0, 0.0])),
    "lower_triangular": (S.lower_triangular, M3),
    "lower_cholesky": (S.lower_cholesky, torch.stack([L, -L, L.mT])),
    "corr_cholesky": (S.corr_cholesky, torch.stack([L / L.norm(dim=-1, keepdim=True), L])),
    "square": (S.square, W),
    "symmetric": (S.symmetric, M3),
    "positive_semidefinite": (S.positive_semidefinite, torch.stack([L @ L.mT, -(L @ L.mT)])),
    "positive_definite": (S.positive_definite, torch.stack([L @ L.mT, -(L @ L.mT)])),
    "independent": (S.independent(S.positive, 1), t([1.0, 2.0], [-1.0, 2.0])),
    "mixture": (S.MixtureSameFamilyConstraint(S.positive), t(1.0, -1.0)),
    "cat": (S.cat([S.positive, S.real, S.unit_interval], dim=-1, lengths=[1, 1, 1]), V3),
    "stack": (S.stack([S.positive, S.real], dim=0), V3),
}


def constraint(name):
    c, v = CONSTRAINTS[name]
    out = {"value": plain(v), "check": plain(c.check(v)), "str": str(c), "event_dim": c.event_dim, "discrete": bool(c.is_discrete)}
    if name in ("boolean", "one_hot", "square", "symmetric"):
        return out
    for what, of in [("biject_to", D.biject_to), ("transform_to", D.transform_to)]:
        f = attempt(lambda: of(c))
        if f is not None:
            x = M3 if c.event_dim == 2 and name != "corr_cholesky" else V3
            y = attempt(lambda: f(x))
            if y is not None:
                out[what] = {"x": plain(x), "y": plain(y), "inverse": plain(f.inv(y))}
    return out


# Tensors of shape () with float16 and bfloat16.
def affine(dtype):
    x = torch.arange(1, 40).to(dtype)
    return {"x": plain(x), "y": plain(T.AffineTransform(torch.tensor(0.1), torch.tensor(0.337))(x)), "numbers": plain(T.AffineTransform(0.1, 0.337)(x))}


EMPTY = {n: plain(getattr(S, n).check(torch.zeros(2, 0, 3, 3))) for n in ("symmetric", "positive_semidefinite", "positive_definite")}

TEXTS = {
    "tensors": S.interval(torch.tensor(0.0), torch.tensor(2.0)), "ints": S.interval(torch.tensor(0), torch.tensor(3)), "infinities": S.interval(-math.inf, math.inf),
    "large": S.interval(1e6, 1e16), "small": S.greater_than(1e-5), "nan": S.greater_than(math.nan), "numbers": S.half_open_interval(1, 2.5),
}


def main():
    data = {"cases": {n: case(n) for n in CASES}, "kl": divergences(), "transforms": {n: transform(n) for n in TRANSFORMS},
            "constraints": {n: constraint(n) for n in CONSTRAINTS},
            "affine": [affine(d) for d in (torch.float16, torch.bfloat16)], "empty": EMPTY, "texts": {n: str(c) for n, c in TEXTS.items()}}
    with open(os.path.join(here, "distributions.json"), "w") as out:
        json.dump(data, out, separators=(",", ":"), sort_keys=True)
        out.write("\n")


main()
