#!/usr/bin/env python3
"""Writes torch_utils.json: results of functions of torch.nn.utils on fixed inputs, by name.

    python3 tests/golden/torch_utils.py
"""
import json
import os

import torch
from torch import nn
from torch.nn import utils

here = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)
out = {}


def flat(t):
    return [float(f"{v:.9g}") for v in t.detach().reshape(-1).tolist()]


def params():
    a, b = torch.arange(6.0).reshape(2, 3).requires_grad_(), torch.tensor([1.0, -7.0]).requires_grad_()
    ((a - 2) ** 2).sum().backward()
    (b * b * 0.5).sum().backward()
    return [a, b]


for name, kind in (("2", 2.0), ("1", 1.0), ("0.5", 0.5), ("inf", float("inf"))):
    p = params()
    out["norm " + name] = flat(utils.get_total_norm([x.grad for x in p], kind))
    norm = utils.clip_grad_norm_(p, 1.5, kind)
    out["clip " + name] = flat(norm) + flat(p[0].grad) + flat(p[1].grad)
p = params()
utils.clip_grads_with_norm_(p, 2.0, torch.tensor(8.0))
out["clip with norm"] = flat(p[0].grad) + flat(p[1].grad)
out["vector"] = flat(utils.parameters_to_vector(p))


def batch_norm(d, n, **options):
    bn = getattr(nn, f"BatchNorm{d}d")(n, **options)
    bn.running_mean.copy_(torch.linspace(-1, 1, n))
    bn.running_var.copy_(torch.linspace(0.5, 2, n))
    if bn.weight is not None:
        bn.weight.data.copy_(torch.linspace(0.3, 1.7, n))
        bn.bias.data.copy_(torch.linspace(2, -1, n))
    return bn.eval()


def filled(m):
    for q in m.parameters():
        q.data.copy_(torch.linspace(-1, 1, q.numel()).reshape(q.shape))
    return m.eval()


for name, layer, bn, fuse in (
        ("conv", nn.Conv2d(2, 3, 2), batch_norm(2, 3), utils.fuse_conv_bn_eval),
        ("conv plain", nn.Conv1d(2, 3, 2, bias=False), batch_norm(1, 3, affine=False), utils.fuse_conv_bn_eval),
        ("transposed", nn.ConvTranspose1d(2, 3, 2), batch_norm(1, 3), lambda c, b: utils.fuse_conv_bn_eval(c, b, True)),
        ("linear", nn.Linear(2, 3), batch_norm(1, 3), utils.fuse_linear_bn_eval)):
    fused = fuse(filled(layer), bn)
    out["fuse " + name] = flat(fused.weight) + flat(fused.bias) + [float(fused.weight.requires_grad), float(fused.bias.requires_grad)]

with open(os.path.join(here, "torch_utils.json"), "w") as file:
    json.dump(out, file, separators=(",", ":"))
    file.write("\n")
