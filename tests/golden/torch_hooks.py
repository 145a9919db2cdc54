#!/usr/bin/env python3
"""Writes torch_hooks.json: the order in which PyTorch calls a module's hooks, and what they see.

    python3 tests/golden/torch_hooks.py

"order" has the names of the hooks, "seen" their arguments by name and number, "y" the output, "grad" and "weight" the
gradients of the input and the weight. nn/hooks_test.go registers the same hooks.
"""
import json
import os

import torch
from torch import nn

here = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)
order, seen = [], {}


def flat(t):
    return [float(f"{v:.9g}") for v in t.detach().reshape(-1).tolist()]


def see(name, *tensors):
    order.append(name)
    for i, t in enumerate(tensors):
        seen[f"{name} {i}"] = flat(t)


def noting(name, change=None):
    def hook(module, *args):
        flat_args = [a[0] if isinstance(a, tuple) else a for a in args]
        see(name, *flat_args)
        if change is not None:
            return change(flat_args)
    return hook


linear = nn.Linear(2, 2)
model = nn.Sequential(linear, nn.Tanh())
with torch.no_grad():
    linear.weight.copy_(torch.tensor([[0.5, -1], [2, 0.25]]))
    linear.bias.copy_(torch.tensor([0.1, -0.2]))
linear.register_forward_pre_hook(noting("pre", lambda a: a[0] * 2))
linear.register_forward_pre_hook(noting("pre2"))
linear.register_forward_hook(noting("hook", lambda a: a[1] + 1))
linear.register_forward_hook(noting("hook2"))
linear.register_full_backward_pre_hook(noting("back pre", lambda a: (a[0] * 3,)))
linear.register_full_backward_hook(noting("back", lambda a: (a[0] * 0.5,)))
linear.register_full_backward_hook(noting("back2"))
x = torch.tensor([[1, -0.5], [0.25, 2]], requires_grad=True)
y = model(x)
(y * torch.linspace(-1, 1, 4).reshape(2, 2)).sum().backward()
with open(os.path.join(here, "torch_hooks.json"), "w") as out:
    json.dump({"order": order, "seen": seen, "y": flat(y), "grad": flat(x.grad), "weight": flat(linear.weight.grad)}, out, separators=(",", ":"))
    out.write("\n")
