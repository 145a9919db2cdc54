#!/usr/bin/env python3
"""Writes options.json: what operators and initializers draw from a generator, the strides that a memory format gives, and the
backends of attention.

    python3 tests/golden/options.py

Each draw is made from torch.Generator().manual_seed(11), twice, and has the values of both results.
"""
import json
import os
import warnings

import torch
from torch.nn import init
from torch.nn.attention import SDPBackend, sdpa_kernel

warnings.simplefilter("ignore")
here = os.path.dirname(os.path.abspath(__file__))
p = torch.tensor([0.2, 0.5, 0.8])
x = torch.zeros(2, 3)

DRAWS = {
    "Rand": lambda g: torch.rand(2, 3, generator=g),
    "Randn": lambda g: torch.randn(2, 3, generator=g),
    "RandInt": lambda g: torch.randint(3, 100, (5,), generator=g),
    "RandPerm": lambda g: torch.randperm(7, generator=g),
    "RandLike": lambda g: torch.rand_like(x, generator=g),
    "RandnLike": lambda g: torch.randn_like(x, generator=g),
    "RandIntLike": lambda g: torch.randint_like(x, 3, 100, generator=g),
    "Bernoulli": lambda g: torch.bernoulli(p, generator=g),
    "BernoulliP": lambda g: torch.bernoulli(x, 0.5, generator=g),
    "Bernoulli_": lambda g: x.clone().bernoulli_(0.4, generator=g),
    "BernoulliTensor_": lambda g: x.clone().bernoulli_(p, generator=g),
    "Multinomial": lambda g: torch.multinomial(p, 2, generator=g),
    "Poisson": lambda g: torch.poisson(10 * p, generator=g),
    "Binomial": lambda g: torch.binomial(torch.full((3,), 10.0), p, generator=g),
    "Normal": lambda g: torch.normal(1.0, 2.0, (3,), generator=g),
    "NormalTensor": lambda g: torch.normal(p, p, generator=g),
    "Normal_": lambda g: x.clone().normal_(1, 2, generator=g),
    "Uniform_": lambda g: x.clone().uniform_(-1, 2, generator=g),
    "Exponential_": lambda g: x.clone().exponential_(2, generator=g),
    "LogNormal_": lambda g: x.clone().log_normal_(0, 1, generator=g),
    "Cauchy_": lambda g: x.clone().cauchy_(0, 1, generator=g),
    "Geometric_": lambda g: x.clone().geometric_(0.3, generator=g),
    "Random_": lambda g: x.clone().random_(generator=g),
    "RandomTo_": lambda g: x.clone().random_(50, generator=g),
    "RandomFrom_": lambda g: x.clone().random_(3, 50, generator=g),
    "RReLU": lambda g: torch.ops.aten.rrelu(x - 1, 0.1, 0.3, True, g),
    "RReLU_": lambda g: torch.ops.aten.rrelu_(x - 1, 0.1, 0.3, True, g),
    "init.Uniform_": lambda g: init.uniform_(x.clone(), -1, 1, generator=g),
    "init.Normal_": lambda g: init.normal_(x.clone(), 1, 2, generator=g),
    "init.TruncNormal_": lambda g: init.trunc_normal_(torch.zeros(4, 8), 0, 1, -0.7, 0.9, generator=g),
    "init.TruncNormal_ of a tail": lambda g: init.trunc_normal_(torch.zeros(4, 8), 0, 1, 1.5, 2.5, generator=g),
    "init.XavierUniform_": lambda g: init.xavier_uniform_(x.clone(), 1.5, generator=g),
    "init.XavierNormal_": lambda g: init.xavier_normal_(x.clone(), 1, generator=g),
    "init.KaimingUniform_": lambda g: init.kaiming_uniform_(x.clone(), generator=g),
    "init.KaimingNormal_": lambda g: init.kaiming_normal_(x.clone(), mode="fan_out", generator=g),
    "init.Orthogonal_": lambda g: init.orthogonal_(x.clone(), 2, generator=g),
}


def twice(f):
    g = torch.Generator().manual_seed(11)
    return [f(g).flatten().tolist() for _ in range(2)]


image, volume = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4, 5, 6)
last, last3d = torch.channels_last, torch.channels_last_3d
STRIDES = {
    "Contiguous": image.contiguous(memory_format=last),
    "Contiguous back": image.contiguous(memory_format=last).contiguous(memory_format=torch.contiguous_format),
    "Clone": image.clone(memory_format=last),
    "Clone of channels last": image.contiguous(memory_format=last).clone(memory_format=torch.preserve_format),
    "Clone to contiguous": image.contiguous(memory_format=last).clone(memory_format=torch.contiguous_format),
    "Clone 3d": volume.clone(memory_format=last3d),
    "Empty": torch.empty(2, 3, 4, 5, memory_format=last),
    "ZerosLike": torch.zeros_like(image, memory_format=last),
    "OnesLike": torch.ones_like(image, memory_format=last),
    "FullLike": torch.full_like(image, 2, memory_format=last),
    "EmptyLike": torch.empty_like(volume, memory_format=last3d),
    "RandLike": torch.rand_like(image, memory_format=last),
    "RandnLike": torch.randn_like(image, memory_format=last),
    "RandIntLike": torch.randint_like(image, 0, 9, memory_format=last),
}

q = torch.linspace(-1, 1, 64).reshape(1, 2, 4, 8)


def attention(*backends):
    try:
        with sdpa_kernel([SDPBackend(b) for b in backends], set_priority=True):
            y = torch.nn.functional.scaled_dot_product_attention(q.clone().requires_grad_(), q, q)
    except RuntimeError as e:
        return {"error": str(e)}
    return {"node": y.grad_fn.name(), "values": y.flatten().tolist()}


CHOICES = [[0], [1], [1, 0], [0, 1], [2, 0], [2], [3]]
data = {
    "draws": {name: twice(f) for name, f in DRAWS.items()},
    "strides": {name: list(y.stride()) for name, y in STRIDES.items()},
    "attention": [{"backends": c, **attention(*c)} for c in CHOICES],
}
with open(os.path.join(here, "options.json"), "w") as out:
    json.dump(data, out, indent=1)
    out.write("\n")
