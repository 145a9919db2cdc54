"""Writes functional.json: results of torch.autograd.functional, and of forward mode.

    python3 tests/golden/functional.py
"""

import json
import os

import torch
from torch.autograd import forward_ad
from torch.autograd import functional as F

x = (torch.arange(6, dtype=torch.float64).reshape(2, 3) - 2) / 4
w = (torch.arange(3, dtype=torch.float64) + 1) / 5
vx, vw = x.flip(0) + 0.5, w.flip(0)


def f(x, w):  # two outputs, of shape (2, 2)
    return torch.stack([(x.exp() * w).sum(1).tanh(), (x * x).sum(1)])


def g(x, w):  # a scalar
    return (x.exp() * w).sum() ** 2 + (w**3).sum()


def plain(v):
    if isinstance(v, torch.Tensor):
        return {"shape": list(v.shape), "values": v.flatten().tolist()}
    return [plain(e) for e in v]


v = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
results = {
    "vjp": F.vjp(f, (x, w), v),
    "jvp": F.jvp(f, (x, w), (vx, vw)),
    "jacobian": F.jacobian(f, (x, w)),
    "hessian": F.hessian(g, (x, w)),
    "hvp": F.hvp(g, (x, w), (vx, vw)),
    "vhp": F.vhp(g, (x, w), (vx, vw)),
    "twice": F.jacobian(lambda a: F.jacobian(lambda b: (b**3).sum(), a, create_graph=True), x),
}
with forward_ad.dual_level():
    dual = forward_ad.make_dual(x, vx)
    results["dual"] = forward_ad.unpack_dual(torch.nn.functional.layer_norm(dual, [3], w).softmax(1) @ (w * dual).T.tanh())
    in_place = x.clone()
    in_place[:, 1:] *= dual[:, :2]
    results["dual_in_place"] = forward_ad.unpack_dual(in_place)
results["func_jvp"] = torch.func.jvp(f, (x, w), (vx, vw))
results["jacfwd"] = torch.func.jacfwd(f, (0, 1))(x, w)
results["jacobian_forward"] = F.jacobian(f, (x, w), vectorize=True, strategy="forward-mode")
results["hessian_forward"] = F.hessian(g, (x, w), vectorize=True, outer_jacobian_strategy="forward-mode")
leaf = x.clone().requires_grad_()
with forward_ad.dual_level():
    tangent = forward_ad.unpack_dual((forward_ad.make_dual(leaf, vx) ** 3).sum()).tangent
    results["backward_of_tangent"] = torch.autograd.grad(tangent, leaf)
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "functional.json"), "w") as out:
    json.dump({k: plain(v) for k, v in results.items()}, out, indent=1)
    out.write("\n")
