#!/usr/bin/env python3
"""Writes index.json: what Python's PyTorch gives for x[index] and x[index] = value.

    python3 tests/golden/index.py

x is torch.arange(numel).reshape(shape). A case is {"shape", "idx", "text", "out", "view"} or
{"shape", "idx", "text", "set", "out"}. Elements of idx: {"i": 1}, {"s": [start, stop, step]}
with nulls, "..." , "None", true, false, [1, 2], [true, false], {"t": {"dtype", "shape", "data"}}.
text is the index in Python's syntax, where it has no tensors. out is {"shape", "data"} (after an
assignment: of x), or {"error": Python's class}. set is a number or {"t"}; view says whether the
result shares x's storage.
"""
import json
import os
import random
import warnings

import torch

warnings.simplefilter("ignore")
here = os.path.dirname(os.path.abspath(__file__))
rng = random.Random(20)
DTYPES = {"int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool, "float32": torch.float32}


def t(data, dtype="int64", shape=None):
    x = torch.tensor(data, dtype=DTYPES[dtype])
    return x.reshape(shape) if shape is not None else x


def encode(e):
    if isinstance(e, torch.Tensor):
        return {"t": {"dtype": str(e.dtype)[6:], "shape": list(e.shape), "data": [float(v) for v in e.reshape(-1).tolist()]}}
    if isinstance(e, bool) or isinstance(e, list):
        return e
    if isinstance(e, int):
        return {"i": e}
    if isinstance(e, slice):
        return {"s": [e.start, e.stop, e.step]}
    return "..." if e is Ellipsis else "None"


def text(e):
    if isinstance(e, slice):
        def part(v):
            return "" if v is None else str(v)
        return part(e.start) + ":" + part(e.stop) + ("" if e.step is None else ":" + str(e.step))
    return "..." if e is Ellipsis else str(e)


def base(shape):
    n = 1
    for s in shape:
        n *= s
    return torch.arange(n).reshape(shape)


def case(shape, idx, value=None):
    c = {"shape": list(shape), "idx": [encode(e) for e in idx]}
    if not any(isinstance(e, torch.Tensor) for e in idx) and idx:
        c["text"] = ", ".join(text(e) for e in idx)
    x = base(shape)
    try:
        if value is None:
            out = x[tuple(idx)]
            c["view"] = out.numel() > 0 and out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        else:
            c["set"] = encode(value) if isinstance(value, torch.Tensor) else value
            x[tuple(idx)] = value
            out = x
        c["out"] = {"shape": list(out.shape), "data": out.reshape(-1).tolist()}
    except (IndexError, RuntimeError, ValueError, TypeError) as e:
        c["out"] = {"error": type(e).__name__}
    return c


def number():
    return rng.choice([None, 0, 1, 2, 3, 5, -1, -2, -3, -7, 10**9, -(10**9)])


def element(size):
    kind = rng.random()
    if kind < 0.25:
        return rng.randint(-size, size - 1) if size and rng.random() < 0.9 else rng.randint(-5, 5)
    if kind < 0.5:
        return slice(number(), number(), rng.choice([None, None, 1, 2, 3, 100]))
    if kind < 0.58:
        return None
    if kind < 0.63:
        return rng.random() < 0.6
    if kind < 0.73 and size:
        return [rng.randint(-size, size - 1) for _ in range(rng.choice([0, 1, 2, 2, 2, 3]))]
    if kind < 0.78:
        return [rng.random() < 0.5 for _ in range(size)] or [True]
    if kind < 0.85 and size:
        shape = rng.choice([[], [1], [2], [2], [2, 1], [1, 2]])
        n = 1
        for s in shape:
            n *= s
        return t([rng.randint(-size, size - 1) for _ in range(n)], rng.choice(["int64", "int64", "int32"]), shape)
    if kind < 0.9:
        return t([rng.randint(0, 1) for _ in range(size)], rng.choice(["bool", "uint8"]), [size])
    return Ellipsis


def drawn():
    shape = [rng.choice([0, 1, 2, 2, 3, 3, 4]) for _ in range(rng.choice([0, 1, 2, 2, 3, 3, 4]))]
    idx, dims, dots = [], list(shape), False
    for _ in range(rng.randint(0, len(shape) + 1)):
        e = element(dims[0] if dims else 2)
        if e is Ellipsis:
            if dots:
                continue
            dots = True
            if dims and rng.random() < 0.5:
                dims = dims[-1:]
        elif not (e is None or isinstance(e, bool)) and dims:
            dims.pop(0)
        idx.append(e)
    return shape, idx


cases = [
    case([3], []), case([], []), case([], [0]), case([], [None]), case([], [True]), case([], [False]), case([], [...]),
    case([2, 3], [1.0 and slice(None, None, 0)]), case([2, 3], [slice(None, None, -1)]),
    case([2, 3], [slice(2**62, None)]), case([2, 3], [slice(-(2**63), 2**63 - 1)]), case([2, 3], [slice(None, None, 2**62)]),
    case([2, 3], [2]), case([2, 3], [-3]), case([2, 3], [0, 3]), case([2, 3], [0, 0, 0]), case([2, 3], [2**63 - 1]), case([2, 3], [-(2**63)]),
    case([2, 3], [[2]]), case([2, 3], [[0, -2]]), case([2, 3], [[-3]]),
    case([2, 3], [t([1.0], "float32")]), case([2, 3], [t(1.0, "float32")]),
    case([2, 3], [t([1, 0, 1, 0, 1, 1], "bool", [2, 3])]), case([2, 3], [t([1, 0, 1, 0, 1, 1], "uint8", [2, 3])]),
    case([2, 3], [t([1, 0, 1], "bool")]), case([2, 3], [t([1, 0, 1, 0, 1, 1], "bool", [2, 3]), 0]),
    case([2, 3], [t(1)]), case([2, 3], [t(1, "uint8")]), case([2, 3], [t(True, "bool")]), case([2, 3], [t(False, "bool")]),
    case([2, 3, 4], [slice(None), [0, 1], slice(None)]), case([2, 3, 4], [[0, 1], slice(None), [0, 1]]),
    case([2, 3, 4], [slice(None), [0, 1], [0, 1]]), case([2, 3, 4], [[0, 1], ..., [0, 1]]), case([2, 3, 4], [[0, 1], [0, 1, 2]]),
    case([2, 3, 4], [0, slice(None), [0, 1]]), case([2, 3, 4], [[0, 1], slice(None), 0]), case([2, 3, 4], [..., None, [3, 1], None]),
    case([2, 3, 4], [t([0, 1, 1, 0], shape=[2, 2]), slice(None, None, 2), t([3, 2], shape=[2, 1])]),
    case([2, 3], [1], 7), case([2, 3], [slice(None), 1], t([7, 8])), case([2, 3], [slice(None), 1], t([7, 8, 9])),
    case([2, 3], [...], t([[[7, 8, 9]]])), case([2, 3], [0], t([[[7, 8, 9]]])), case([2, 3], [0], t([7.5, 8, 9], "float32")),
    case([2, 3], [[0, 1], [2, 0]], t([7, 8])), case([2, 3], [[0, 1], [2, 0]], t([7.0, 8.0], "float32")), case([2, 3], [[0, 1], [2, 0]], 9),
    case([2, 3], [t([1, 0, 1, 0, 1, 1], "bool", [2, 3])], 9), case([2, 3], [t([1, 0, 1, 0, 1, 1], "bool", [2, 3])], t([1, 2, 3, 4])),
    case([2, 3], [t([1, 0, 1, 0, 1, 1], "bool", [2, 3])], t([1, 2, 3])), case([2, 3], [True], 5), case([2, 3], [False], 5),
    case([2, 3], [0], 2.75), case([2, 3], [True, 0], 5), case([], [], 5), case([], [None], 5), case([], [True], 5), case([], [...], t([5])),
    case([2, 3], [5], 1), case([2, 3], [[5]], 1), case([4], [[0, 0, 1]], t([1, 2, 3])), case([0, 3], [slice(None)], 1), case([0, 3], [slice(None), 0], 1),
]
while len(cases) < 560:
    cases.append(case(*drawn()))
while len(cases) < 760:
    shape, idx = drawn()
    try:
        size = list(base(shape)[tuple(idx)].shape)
    except (IndexError, RuntimeError, ValueError, TypeError):
        size = [2]
    kind = rng.random()
    if kind < 0.3:
        value = rng.choice([-1, -2.5, True, 100])
    else:
        size = [1 if rng.random() < 0.2 else s for s in size[rng.choice([0, 0, 0, 1]):]]
        if rng.random() < 0.2:
            size = [1] + size
        if rng.random() < 0.1:
            size = size + [5]
        value = -1 - base(size)
    if any(isinstance(e, list) for e in idx) and any(e in ([], [True], [False]) for e in idx if isinstance(e, list)):
        continue
    cases.append(case(shape, idx, value))



def masked():
    """An index with a mask of two or three dimensions among other elements."""
    shape = [rng.choice([1, 2, 2, 3, 3]) for _ in range(rng.choice([2, 3, 3, 4]))]
    idx, dims, free = [], list(shape), True
    while True:
        if free and len(dims) > 1 and rng.random() < 0.5:
            n = rng.choice([2, 2, 3]) if len(dims) > 2 else 2
            size, dims, free = dims[:n], dims[n:], False
            idx.append(t([rng.randint(0, 1) for _ in range(base(size).numel())], "bool", size))
        elif rng.random() < 0.25:
            return shape, idx
        else:
            e = element(dims[0] if dims else 2)
            if e is Ellipsis or isinstance(e, list) or not dims and not (e is None or isinstance(e, bool)):
                continue
            if not (e is None or isinstance(e, bool)):
                dims.pop(0)
            idx.append(e)


while len(cases) < 960:
    shape, idx = masked()
    if any(isinstance(e, torch.Tensor) and e.dim() > 1 for e in idx):
        cases.append(case(shape, idx) if rng.random() < 0.6 else case(shape, idx, rng.choice([-1, -2])))

# Ellipses after an index tensor.
cases += [
    case([2, 3], [[1, 0], ..., ...]), case([2, 3], [False, ..., ...]), case([2, 3], [t([1, 0], "bool"), ..., ...]), case([2, 3], [[1, 0], ..., ..., ...], 7),
    case([2, 3, 4], [[0], ..., ..., [1]]), case([2, 3, 4], [[0, 1], ..., ..., 1]), case([2, 3], [[0, 1], ..., [1, 2], ...]), case([2, 3], [0, [1, 0], ..., ...]),
    case([2, 3, 4], [t([1, 0, 1, 0, 1, 1], "bool", [2, 3]), ..., ...]), case([2, 3], [True, ..., ...], -1), case([2, 3, 4], [[1, 0], ..., ..., None]),
]

path = os.path.join(here, "index.json")
with open(path, "w") as out:
    out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
errors = sum("error" in c["out"] for c in cases)
print("%d cases, %d of them errors, %d assignments, %d bytes, PyTorch %s" % (len(cases), errors, sum("set" in c for c in cases), os.path.getsize(path), torch.__version__))
