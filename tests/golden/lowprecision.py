"""Writes lowprecision.json: linear layers in 8 bits, by the formulas of torchao 0.18, which gives the same int8 results; and
products.json: products of groups with their gradients, and of matrices with scales; and float8training.json: results and
gradients of torchao's Float8Linear, if torchao 0.18 is installed (pip install --no-deps torchao==0.18.0).

    python3 tests/golden/lowprecision.py
"""

import json
import os

import torch
import torch.nn.functional as F

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


def lists(**tensors):
    return {name: {"shape": list(t.shape), "data": t.detach().flatten().tolist()} for name, t in tensors.items()}


def grouped(dtype):
    for a, b, ends in ((5, 8), (2, 8, 16), [2, 5]), ((7, 8), (3, 8, 16), [0, 4, 4]), ((3, 8), (8, 16), [4, 8]), ((2, 3, 8), (8, 8), [4, 8]), ((2, 3, 8), (2, 8, 16), None):
        a, b = torch.randn(a).to(dtype).requires_grad_(), torch.randn(b).to(dtype).requires_grad_()
        offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
        y = F.grouped_mm(a, b, offs=offs)
        used = y.size(0) if y.dim() == 3 or a.dim() == 3 else ends[-1]
        g = torch.randn(y.shape).to(dtype)
        g[used:] = 0
        y.backward(g)
        # Gradients of rows that are in no group are undefined, as the rows of the result.
        rows = a.size(0) if a.dim() == 3 or b.dim() == 2 else ends[-1]
        yield {"ends": ends, "dtype": str(dtype).removeprefix("torch.")} | lists(a=a, b=b, g=g, y=y[:used], aGrad=a.grad[:rows], bGrad=b.grad)


def scaled(recipe, dtype):
    m, k, n = 5, 32, 16
    a, b, bias = torch.randn(m, k).to(F8), torch.randn(n, k).to(F8), torch.randn(n).to(dtype)
    sa, sb = (torch.rand(1) + 0.5, torch.rand(1) + 0.5) if recipe == F.ScalingType.TensorWise else (torch.rand(m, 1) + 0.5, torch.rand(1, n) + 0.5)
    y = F.scaled_mm(a, b.t(), sa, recipe, sb, recipe, bias=bias, output_dtype=dtype)
    return {"type": recipe.value, "dtype": str(dtype).removeprefix("torch.")} | lists(a=a.float(), b=b.float(), scaleA=sa, scaleB=sb, bias=bias, y=y)


def training():
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    for recipe in "tensorwise", "rowwise", "rowwise_with_gw_hp":
        for dtype in torch.float32, torch.bfloat16, torch.float16:
            for rows in (16,), (2, 5):
                m = torch.nn.Sequential(torch.nn.Linear(16, 8, dtype=dtype))
                weight, bias = m[0].weight.detach().clone(), m[0].bias.detach().clone()
                convert_to_float8_training(m, config=Float8LinearConfig.from_recipe_name(recipe))
                x = torch.randn(*rows, 16, dtype=dtype)
                x[0] *= 50
                x[-1] = 0
                x.requires_grad_()
                y = m(x)
                g = torch.randn_like(y)
                y.backward(g)
                yield {"recipe": recipe, "dtype": str(dtype).removeprefix("torch.")} | lists(
                    x=x, weight=weight, bias=bias, g=g, y=y, xGrad=x.grad, weightGrad=m[0].weight.grad, biasGrad=m[0].bias.grad)


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
    products = {
        "grouped": [c for dtype in (torch.float32, torch.bfloat16) for c in grouped(dtype)],
        "scaled": [scaled(t, dtype) for t in (F.ScalingType.TensorWise, F.ScalingType.RowWise) for dtype in (torch.float32, torch.bfloat16)],
    }
    torch.manual_seed(1)
    files = {"lowprecision": cases, "products": products}
    try:
        files["float8training"] = list(training())
    except ImportError as e:
        print(f"float8training.json is as it was: {e}")
    for name, data in files.items():
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".json"), "w") as out:
            json.dump(data, out, separators=(",", ":"))
            out.write("\n")


main()
