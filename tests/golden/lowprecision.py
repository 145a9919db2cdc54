"""Writes lowprecision.json: linear layers in 8 bits, by the formulas of torchao 0.18, which gives the same int8 results.

    python3 tests/golden/lowprecision.py
"""

import json
import os

import torch

F8 = torch.float8_e4m3fn


def int8(x, w, b):
    ws = w.float().abs().amax(1).div(127.5).clamp_min(torch.finfo(torch.float32).eps).to(w.dtype)
    wq = w.float().div(ws.float()[:, None]).round().clamp(-128, 127).to(torch.int8)
    xs = x.float().abs().amax(1, keepdim=True).div(127.5).clamp_min(torch.finfo(torch.float32).eps)
    xq = (x.float() * (1 / xs)).round().clamp(-128, 127).to(torch.int8)
    return (torch._int_mm(xq, wq.t()).float() * xs * ws.float()).to(x.dtype) + b


def float8(rows):
    def scale(x):
        x = x.float().abs()
        return (x.amax(1, keepdim=True) if rows else x.amax()).clamp_min(1e-12) / 448

    def linear(x, w, b):
        sx, sw = scale(x), scale(w)
        xq, wq = (x.float() / sx).clamp(-448, 448).to(F8), (w.float() / sw).clamp(-448, 448).to(F8)
        return torch._scaled_mm(xq, wq.t(), sx, sw.t(), out_dtype=x.dtype) + b

    return linear


def main():
    torch.manual_seed(0)
    cases = []
    for kind, f in {"int8": int8, "float8": float8(False), "float8 rows": float8(True)}.items():
        for dtype in torch.float32, torch.bfloat16, torch.float16:
            for m, k, n in (3, 16, 5), (20, 7, 4):
                x, w, b = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype), torch.randn(n).to(dtype)
                x[1] = 0
                cases.append({"kind": kind, "dtype": str(dtype).removeprefix("torch."), "sizes": [m, k, n]}
                             | {name: t.flatten().tolist() for name, t in {"x": x, "weight": w, "bias": b, "y": f(x, w, b)}.items()})
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lowprecision.json"), "w") as out:
        json.dump(cases, out, separators=(",", ":"))
        out.write("\n")


main()
