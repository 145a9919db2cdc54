#!/usr/bin/env python3
"""Writes scalars.json: what Python's PyTorch makes of numbers given as keyword arguments, by dtype.

    python3 tests/golden/scalars.py

Each case is {"op": Go name, "dtype", "opts": {name: {"i"} or {"f"} or {"b"} or {"c": [re, im]}}, "out"} or {..., "error"}; out is
{"dtype", "data"}, data a list of [real, imaginary]. The operands are made from [[1, 0], [2, 3]], [[1, 1], [0, 2]] and
[1, 2], of the dtype; tensor/scalars_test.go says how.
"""
import json
import os
import warnings

import torch

warnings.simplefilter("ignore")
here = os.path.dirname(os.path.abspath(__file__))
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
NUMBERS = [2, -1, 0, 1.5, 2.0, True, 1 + 2j, 2**40]
F = torch.nn.functional
OPS = {
    "Add": (["alpha"], lambda a, b, v, **k: torch.add(a, b, **k)),
    "Add_": (["alpha"], lambda a, b, v, **k: a.clone().add_(b, **k)),
    "Sub": (["alpha"], lambda a, b, v, **k: torch.sub(a, b, **k)),
    "RSub": (["alpha"], lambda a, b, v, **k: torch.rsub(a, b, **k)),
    "AddNumber": (["alpha"], lambda a, b, v, **k: torch.add(a, 3, **k)),
    "AddMM": (["alpha", "beta"], lambda a, b, v, **k: torch.addmm(a, a, b, **k)),
    "AddMV": (["alpha", "beta"], lambda a, b, v, **k: torch.addmv(v, a, v, **k)),
    "AddR": (["alpha", "beta"], lambda a, b, v, **k: torch.addr(a, v, v, **k)),
    "BAddBMM": (["alpha", "beta"], lambda a, b, v, **k: torch.baddbmm(a[None], a[None], b[None], **k)),
    "AddBMM": (["alpha", "beta"], lambda a, b, v, **k: torch.addbmm(a, a[None], b[None], **k)),
    "AddCMul": (["value"], lambda a, b, v, **k: torch.addcmul(a, a, b, **k)),
    "IndexAdd": (["alpha"], lambda a, b, v, **k: torch.index_add(a, 0, torch.tensor([1, 0]), b, **k)),
    "LeakyReLU": (["negative_slope"], lambda a, b, v, **k: F.leaky_relu(a, **k)),
    "Hardtanh": (["min_val", "max_val"], lambda a, b, v, **k: F.hardtanh(a, **k)),
    "SmoothL1Loss": (["beta"], lambda a, b, v, **k: torch.nn.functional.smooth_l1_loss(a, b, **k)),
    "ConstantPadNd": (["value"], lambda a, b, v, **k: torch.constant_pad_nd(v, [1, 0], **k)),
    "Dist": (["p"], lambda a, b, v, **k: torch.dist(a, b, **k)),
}


def encode(n):
    if isinstance(n, bool):
        return {"b": n}
    if isinstance(n, complex):
        return {"c": [n.real, n.imag]}
    return {"i": n} if isinstance(n, int) else {"f": n}


cases = []
for dtype in DTYPES:
    a, b, v = torch.tensor([[1, 0], [2, 3]]).to(dtype), torch.tensor([[1, 1], [0, 2]]).to(dtype), torch.tensor([1, 2]).to(dtype)
    for op, (names, f) in OPS.items():
        for name in names:
            for n in NUMBERS:
                if n is True and op == "SmoothL1Loss":
                    continue  # a float argument; Go takes no bool for one
                c = {"op": op, "dtype": str(dtype)[6:], "opts": {name: encode(n)}}
                try:
                    out = f(a, b, v, **{name: n})
                    parts = torch.view_as_real(out.to(torch.complex128).contiguous()).reshape(-1, 2)
                    if not torch.isfinite(parts).all():
                        continue
                    c["out"] = {"dtype": str(out.dtype)[6:], "data": parts.tolist()}
                except (RuntimeError, ValueError, TypeError, NotImplementedError) as e:
                    c["error"] = str(e).split("\n")[0][:90]
                cases.append(c)
path = os.path.join(here, "scalars.json")
with open(path, "w") as out:
    out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
print("%d cases, %d errors, %d bytes, PyTorch %s" % (len(cases), sum("error" in c for c in cases), os.path.getsize(path), torch.__version__))
