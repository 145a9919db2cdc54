#!/usr/bin/env python3
"""Writes print.json: how Python's PyTorch prints tensors.

    python3 tests/golden/print.py

A case is {"dtype", "shape", "data", "fn", "want"}: data row-major as in ops.jsonl, or absent for
arange(numel) cast to dtype; fn is what is done to the tensor first ("", "grad": it requires
gradients, or one of the functions below, after "grad+" on a leaf). "options" are those of
set_printoptions; a threshold of -1 is none.
"""
import json
import math
import os
import random

import torch

here = os.path.dirname(os.path.abspath(__file__))
rng = random.Random(30)
nan, inf = math.nan, math.inf

FN = {"": lambda x: x, "mul": lambda x: x * 2, "sum": lambda x: x.sum(dim=tuple(range(x.dim()))), "t": lambda x: x.t(), "conj": lambda x: x.conj(),
      "imag": lambda x: x.conj().imag, "meta": lambda x: x.to("meta"), "view": lambda x: x.view(-1), "exp": lambda x: x.exp(),
      "softmax": lambda x: x.softmax(-1), "expand": lambda x: x.expand(*([30] + list(x.shape))), "index": lambda x: x[0]}


def plain(v):
    if isinstance(v, complex):
        return [plain(v.real), plain(v.imag)]
    if isinstance(v, float) and not math.isfinite(v):
        return "nan" if v != v else "inf" if v > 0 else "-inf"
    return v


cases = []


def case(dtype, shape, data=None, fn="", **options):
    d = getattr(torch, dtype)
    n = math.prod(shape)
    x = (torch.arange(n).to(d) if data is None else torch.tensor(data, dtype=torch.float64).to(d) if d.is_floating_point else torch.tensor(data, dtype=d)).reshape(shape)
    y = x
    for f in fn.split("+"):
        y = y.requires_grad_() if f == "grad" else FN[f](y)
    with torch._tensor_str.printoptions(**{k: inf if k == "threshold" and v < 0 else v for k, v in options.items()}):
        c = {"dtype": dtype, "shape": list(shape), "fn": fn, "want": str(y)}
    if options:
        c["options"] = options
    if data is not None:
        c["data"] = [plain(v) for v in data]
    cases.append(c)


FLOATS = [1.0, 0.5, -2.0, 0.0, -0.0, nan, inf, -inf, 1e-5, 1e-4, 1e-3, 123.456, 1000.0, 1001.0, 99999.0, 1e8, 1.1e8, 1e10, 3.14159265, 2.5, 1e-30, 1e30, 7.0, 65504.0, 1 / 3]
for v in FLOATS:
    case("float32", [], [v])
    case("float64", [1], [v])
for dtype in "float32 float64 float16 bfloat16".split():
    case(dtype, [0]), case(dtype, [3], [1.0, 2.0, 3.0]), case(dtype, [2, 2], [1.5, -2.25, nan, inf]), case(dtype, [3], [0.0, 0.0, 0.0])
    case(dtype, [4], [1.0, inf, -inf, nan]), case(dtype, [3], [nan, nan, inf]), case(dtype, [2], [-0.0, 1.0]), case(dtype, [2], [1e-3, 10.0])
    case(dtype, [3], [0.001, 1.0, 1.001]), case(dtype, [30]), case(dtype, [3, 4, 5]), case(dtype, [1001]), case(dtype, [40, 40]), case(dtype, [2, 600])
for dtype in "int64 int32 int16 int8 uint8 bool uint16 uint32 uint64".split():
    case(dtype, [], [1]), case(dtype, [0]), case(dtype, [0, 3]), case(dtype, [4], [1, 0, 1, 1]), case(dtype, [2, 3], [1, 0, 100 if dtype != "bool" else 1, 1, 0, 1])
    case(dtype, [50], [k % 2 for k in range(50)])
case("int64", [3], [-(2**63), 2**63 - 1, 0]), case("uint64", [2], [2**64 - 1, 0]), case("int64", [2000]), case("int64", [100, 100]), case("int64", [7, 7, 7, 7]), case("int64", [3, 500, 2])
case("int64", [1, 1, 1, 1, 1], [5]), case("int64", [2, 1, 3]), case("int64", [0, 2, 3]), case("int64", [2, 0]), case("int64", [6, 200]), case("int64", [7, 200]), case("int64", [1000]), case("int64", [10, 1, 200])
for dtype in "complex64 complex128".split():
    case(dtype, [], [1 + 2j]), case(dtype, [], [complex(-1.5, -0.0)]), case(dtype, [0]), case(dtype, [3], [1 + 1j, -2.5 - 1j, complex(nan, inf)])
    case(dtype, [2, 2], [1e-6 + 1j, 3 - 1e9j, 0j, complex(0, -2)]), case(dtype, [20]), case(dtype, [1200]), case(dtype, [2], [1 + 1j, 2 - 3j], "conj"), case(dtype, [2], [1 + 1.5j, 2 - 3j], "imag")
    case(dtype, [2], [1 + 1j, 2 - 3j], "grad+conj")
for dtype in "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz".split():
    case(dtype, [4], [1.0, 0.5, 3.0, -2.0]), case(dtype, [0])
for fn in ["grad", "grad+mul", "grad+sum", "grad+t", "grad+view", "grad+exp", "grad+softmax", "grad+index", "t", "meta", "expand", "grad+expand", "grad+mul+sum+exp"]:
    for dtype in ["float32", "float64"]:
        case(dtype, [2, 3], [1.0, 2.0, 3.5, -1.0, 0.0, 0.25], fn)
        if "t" not in fn.split("+"):
            case(dtype, [8], [1.0, 2.0, 3.5, -1.0, 0.0, 0.25, 1234.5, -7.125], fn)
for dtype in "int64 bool float32 bfloat16".split():
    case(dtype, [2, 3], None if dtype != "bool" else [1, 0, 1, 1, 0, 0], "meta"), case(dtype, [3], [1, 0, 1], "meta"), case(dtype, [], [1], "meta")
case("float32", [0, 3], None, "grad"), case("float64", [2, 0], None, "grad"), case("float16", [0], None, "grad")
for n in range(1, 30):  # where lines break, and where suffixes do
    case("float32", [n], [k + 0.5 for k in range(n)], "grad+mul"), case("float64", [n], [float(10**6 + k) for k in range(n)], "grad"), case("int32", [n])
for _ in range(150):
    shape = [rng.choice([1, 2, 3, 4, 7, 12]) for _ in range(rng.randint(0, 4))]
    if math.prod(shape) > 60:
        continue
    scale = rng.choice([1e-6, 1e-3, 1, 1, 1, 100, 1e5, 1e9])
    data = [rng.choice([float(round(rng.gauss(0, 1) * scale)), round(rng.gauss(0, 1) * scale, 5)] if rng.random() < 0.5 else [round(rng.gauss(0, 1) * scale, 7)]) for _ in range(math.prod(shape))]
    if rng.random() < 0.3:
        data = [float(round(v)) for v in data]
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] = rng.choice([nan, inf, -inf])
    case(rng.choice(["float32", "float32", "float64", "bfloat16"]), shape, data, rng.choice(["", "", "grad", "grad+mul"]))

for options in [{"precision": 2}, {"precision": 0}, {"precision": 10, "linewidth": 120}, {"sci_mode": True}, {"sci_mode": False}, {"threshold": 5, "edgeitems": 1},
                {"threshold": 0, "edgeitems": 2}, {"threshold": -1}, {"linewidth": 30}, {"linewidth": 0}, {"edgeitems": 7, "threshold": 10, "precision": 1}]:
    case("float32", [20], [k + 0.25 for k in range(20)], "grad+mul", **options), case("float64", [6], [1.5, nan, -2e-7, inf, 0.0, 3e9], **options)
    case("float32", [3], [1.0, 2.0, 3.0], **options), case("float32", [2], [0.0, nan], **options), case("complex64", [8], [complex(k, -0.5) for k in range(8)], **options)
    case("int64", [5, 40], **options), case("bool", [12], [k % 2 for k in range(12)], **options), case("float32", [], [123.456], **options)
case("float32", [1001], None, "", threshold=-1)

path = os.path.join(here, "print.json")
with open(path, "w") as out:
    out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases) + "\n]\n")
print("%d cases, %d bytes, PyTorch %s" % (len(cases), os.path.getsize(path), torch.__version__))
