#!/usr/bin/env python3
"""Writes setitem.json: what Python's PyTorch makes of index texts and of assignments.

    python3 tests/golden/setitem.py

texts: {"text", "shape", "data"} or {"text", "error"}: x[text] of torch.arange(24).reshape(2, 3, 4).
sets: {"dtype", "idx", "value", "data"} or {..., "error"}: x[idx] = value of torch.zeros(3, dtype=dtype). value is
{"i"}, {"f"}, {"b"} or {"t", "dtype"}, idx a key of INDICES, data a list of floats (of complex numbers: their real parts).
shared: {"name", "data"} or {"name", "error"}: assignments to and from memory that is shared, which a test repeats.
"""
import json
import os
import warnings

import torch

warnings.simplefilter("ignore")
here = os.path.dirname(os.path.abspath(__file__))

TEXTS = """..., ...|..., 0, ...|0, ..., ...|..., ..., ...|0, ..., 0, ..., 0|..., 0, ..., 0|0x1|~0|-~0|--1|+1|- 1|0b1|0o1|0X1|01|00|1_0|0_1|0x|
~ 0, 1|0x1:0x3|:, 0x1:~0|[0x1, ~0]|[0x1, ~0],|[[0,1],[1,0]]|[[0,1],[1,0]],|[[0,1],[1,0]], 0|0, [[0,1],[1,0]]|[1, True]|[[0,1],[1]]|[[0,1],[1]],|
[[True,False,True],[False,True,False]]|[[True,False,True],[False,True,False]],|[[0],[1]]|[[0,1],[1,0]], ...|[]|[[]]|[[],[]]|[[],[]],|[None, 1]|
[..., 0]|[None, 1],|[..., 0],|[0:1]|[[0,1]]|[[0,1]],|[[[0,1]]]|[[[0,1]]],|[[0,1],[2,3],]|True, False|True|False|True,|False,|[True, False]|[[0, True], [1, False]],|
[0,1],[1]|1.0|[1|1]|[[1]|1 2|[1 2]|[1][2]|,|, 1|1,,2|0,1,2,3|[0,,1]|[,]|[0,]|0x1g|:0x2:0x1, ~1""".replace("\n", "").split("|")
x = torch.arange(24).reshape(2, 3, 4)
texts = []
for s in TEXTS:
    c = {"text": s}
    try:
        out = eval("x[%s]" % s)
        c["shape"], c["data"] = list(out.shape), out.reshape(-1).tolist()
    except (IndexError, RuntimeError, ValueError, TypeError, SyntaxError) as e:
        c["error"] = type(e).__name__
    texts.append(c)

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.float32, torch.float64, torch.complex64]
VALUES = [1.5, 2, -1, 300, True, torch.tensor(1.5), torch.tensor(2), torch.tensor(True), torch.tensor([1.5]), torch.tensor([2]), torch.tensor(1.5, dtype=torch.float64), torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(1, 2), torch.ones(2, 1)]
INDICES = {
    "0": 0, "[0, 1]": [0, 1], "mask": torch.tensor([True, False, True]), "...": ..., "True": True, "False": False, "1:": slice(1, None), "None": None,
    "True, 0": (True, 0), "False, 0": (False, 0), "0-dim": torch.tensor(1), "0-dim mask": torch.tensor(True), "True,": (True,),
}


def encode(v):
    if isinstance(v, torch.Tensor):
        return {"t": v.float().reshape(-1).tolist(), "shape": list(v.shape), "dtype": str(v.dtype)[6:]}
    return {"b": v} if isinstance(v, bool) else {"i": v} if isinstance(v, int) else {"f": v}


sets = []
for dtype in DTYPES:
    for v in VALUES:
        for name, idx in INDICES.items():
            a = torch.zeros(3, dtype=dtype)
            c = {"dtype": str(dtype)[6:], "idx": name, "value": encode(v)}
            try:
                a[idx] = v
                c["data"] = [float(n.real) for n in a.tolist()]
            except (IndexError, RuntimeError, ValueError, TypeError) as e:
                c["error"] = type(e).__name__
            sets.append(c)


def wide():
    return torch.zeros(3, 1).expand(3, 4)


def six():
    return torch.arange(6.0).reshape(2, 3)


def put(a, idx, v):
    a[idx] = v
    return a


def to_self(a, idx, of):
    a[idx] = of(a)
    return a


mask, scalar = torch.tensor([True, False, True]), torch.tensor(5.0)
SHARED = {
    "0-dim into an expanded element": lambda: put(torch.zeros(1).expand(3), 0, scalar),
    "number into an expanded element": lambda: put(torch.zeros(1).expand(3), 0, 5.0),
    "0-dim into an expanded row": lambda: put(wide(), 0, scalar),
    "number into an expanded row": lambda: put(wide(), 0, 5.0),
    "number into an expanded tensor": lambda: put(wide(), ..., 5.0),
    "vector into an expanded row": lambda: put(wide(), 0, torch.ones(4)),
    "0-dim into an expanded tensor": lambda: put(wide(), ..., scalar),
    "0-dim into masked expanded rows": lambda: put(wide(), mask, scalar),
    "number into masked expanded rows": lambda: put(wide(), mask, 5.0),
    "0-dim into listed expanded rows": lambda: put(wide(), [0, 2], scalar),
    "number into listed expanded rows": lambda: put(wide(), [0, 2], 5.0),
    "one element into an expanded row": lambda: put(wide(), 0, torch.ones(1)),
    "0-dim into an element of an expanded row": lambda: put(wide(), (0, 0), scalar),
    "a row of itself": lambda: to_self(six(), 0, lambda a: a[0]),
    "all of itself": lambda: to_self(six(), ..., lambda a: a),
    "all rows of itself": lambda: to_self(six(), slice(None), lambda a: a),
    "overlapping slices": lambda: to_self(torch.arange(6.0), slice(1, None), lambda a: a[:-1]),
    "its own transpose": lambda: to_self(torch.arange(9.0).reshape(3, 3), slice(None), lambda a: a.t()),
    "overlap through a list": lambda: to_self(torch.arange(6.0), [0, 1], lambda a: a[1:3]),
    "its own row broadcast": lambda: to_self(six(), slice(None), lambda a: a[0]),
    "its own element": lambda: to_self(six(), (0, 0), lambda a: a[1, 2]),
    "its own element everywhere": lambda: to_self(six(), slice(None), lambda a: a[1, 2]),
    "its own element through a list": lambda: to_self(six(), [0], lambda a: a[1, 2]),
    "its own element through a mask": lambda: to_self(six(), torch.tensor([True, False]), lambda a: a[1, 2]),
    "overlapping steps": lambda: to_self(torch.arange(6.0), slice(None, None, 2), lambda a: a[:3]),
    "itself through a mask": lambda: to_self(six(), torch.ones(2, 3, dtype=torch.bool), lambda a: a),
}
shared = []
for name, f in SHARED.items():
    c = {"name": name}
    try:
        c["data"] = f().reshape(-1).tolist()
    except RuntimeError as e:
        c["error"] = type(e).__name__
    shared.append(c)

path = os.path.join(here, "setitem.json")
with open(path, "w") as out:
    parts = ['"%s":[\n%s\n]' % (k, ",\n".join(json.dumps(c, separators=(",", ":")) for c in v)) for k, v in (("texts", texts), ("sets", sets), ("shared", shared))]
    out.write("{" + ",\n".join(parts) + "}\n")
print("%d texts, %d sets, %d shared, %d bytes, PyTorch %s" % (len(texts), len(sets), len(shared), os.path.getsize(path), torch.__version__))
