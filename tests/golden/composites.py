#!/usr/bin/env python3
"""Writes composites.json: what functions return that PyTorch has in Python and package tensor in Go.

    python3 tests/golden/composites.py

A case is {"call": the Go call as tensor/composites_test.go writes it, "out": [{"dtype", "shape", "data"}]}. A decomposition
has S and the product U diag(S) V^H, because U and V have signs of their own and begin with random numbers.
"""
import json
import os

import torch
import torch.signal.windows as w

here = os.path.dirname(os.path.abspath(__file__))
cases = []


def case(call, *out):
    cases.append({"call": call, "out": [{"dtype": str(x.dtype)[6:], "shape": list(x.shape), "data": x.flatten().tolist()} for x in out]})


WINDOWS = {
    "Bartlett": w.bartlett,
    "Blackman": w.blackman,
    "Cosine": w.cosine,
    "Exponential": lambda m, **k: w.exponential(m, tau=1.5, **k),
    "Gaussian": lambda m, **k: w.gaussian(m, std=0.9, **k),
    "GeneralCosine": lambda m, **k: w.general_cosine(m, a=[0.46, 0.23, 0.31], **k),
    "GeneralHamming": lambda m, **k: w.general_hamming(m, alpha=0.6, **k),
    "Hamming": w.hamming,
    "Hann": w.hann,
    "Kaiser": lambda m, **k: w.kaiser(m, beta=8.6, **k),
    "Nuttall": w.nuttall,
}
for name, f in WINDOWS.items():
    for m in (0, 1, 2, 7):
        for sym in (True, False):
            case(f"{name} {m} {str(sym).lower()} float32", f(m, sym=sym))
    case(f"{name} 6 false float64", f(6, sym=False, dtype=torch.float64))
case("UnravelIndex 2 3 4", *torch.unravel_index(torch.tensor([[0, 5], [23, 13]]), (2, 3, 4)))
case("UnravelIndex 6", *torch.unravel_index(torch.tensor([[0, 5], [3, 1]]), (6,)))


def decomposition(call, u, s, v):
    case(call, s, u @ torch.diag_embed(s).to(u.dtype) @ v.mH)


def low(m, n):
    """A matrix of rank 2."""
    i, j = torch.arange(m, dtype=torch.float64)[:, None], torch.arange(n, dtype=torch.float64)
    return torch.sin(i + 1) * torch.cos(j) + (i - 2) * (j + 1) / 10


for m, n in ((5, 4), (3, 6)):
    x, mean = low(m, n), low(m, n).mean(-2, keepdim=True)
    decomposition(f"SVDLowRank {m} {n}", *torch.svd_lowrank(x, q=3, niter=2))
    decomposition(f"SVDLowRank {m} {n} mean", *torch.svd_lowrank(x, q=3, niter=1, M=mean))
    decomposition(f"PCALowRank {m} {n}", *torch.pca_lowrank(x, q=3))
    decomposition(f"PCALowRank {m} {n} uncentered", *torch.pca_lowrank(x, q=3, center=False))
    decomposition(f"SVDLowRank {m} {n} sparse", *torch.svd_lowrank(x.to_sparse(), q=3, niter=2))
    decomposition(f"SVDLowRank {m} {n} batch", *torch.svd_lowrank(torch.stack([x, x * 2]), q=3, niter=2))
for shapes in ([], [[2, 3]], [[2, 1], [3]], [[1], [4, 1, 0], [2, 1]], [[2], [3]], [[0], [2]]):
    try:
        out = list(torch.broadcast_shapes(*map(tuple, shapes)))
    except RuntimeError:
        out = None
    cases.append({"call": "BroadcastShapes", "shapes": shapes, "shape": out})
with open(os.path.join(here, "composites.json"), "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
