#!/usr/bin/env python3
"""Writes layouts.json: how Python's PyTorch prints tensors that are sparse, nested or quantised.

    python3 tests/golden/layouts.py

A case is {"make", "dtype", "want"}; print_test.go makes the same tensors.
"""
import json
import os
import warnings

import torch

warnings.simplefilter("ignore")
here = os.path.dirname(os.path.abspath(__file__))


def base(dtype, n=4, m=6):
    x = torch.arange(n * m).reshape(n, m)
    return torch.where(x % 3 == 0, x, torch.zeros_like(x)).to(dtype)


def nested(*shapes, dtype=torch.float32):
    return torch.nested.nested_tensor([torch.arange(torch.Size(s).numel()).to(dtype).reshape(s) for s in shapes])


MAKE = {
    "coo": lambda d: base(d).to_sparse(),
    "coo of zeros": lambda d: torch.zeros(2, 3, dtype=d).to_sparse(),
    "hybrid coo": lambda d: base(d).to_sparse(1),
    "large coo": lambda d: base(d, 60, 60).to_sparse(),
    "coo with a gradient": lambda d: base(d).to_sparse().requires_grad_() if d.is_floating_point else base(d).to_sparse(),
    "csr": lambda d: base(d).to_sparse_csr(),
    "csc": lambda d: base(d).to_sparse_csc(),
    "bsr": lambda d: base(d).to_sparse_bsr((2, 3)),
    "bsc": lambda d: base(d).to_sparse_bsc((2, 3)),
    "csr of zeros": lambda d: torch.zeros(2, 3, dtype=d).to_sparse_csr(),
    "batched csr": lambda d: torch.stack([base(d), base(d)]).to_sparse_csr(),
    "large csr": lambda d: base(d, 60, 60).to_sparse_csr(),
    "coo on meta": lambda d: base(d).to_sparse().to("meta"),
    "hybrid coo on meta": lambda d: base(d).to_sparse(1).to("meta"),
    "csr on meta": lambda d: base(d).to_sparse_csr().to("meta"),
    "bsc on meta": lambda d: base(d).to_sparse_bsc((2, 3)).to("meta"),
    "nested": lambda d: nested((2, 3), (1, 2), dtype=d),
    "nested rows": lambda d: nested((2,), (3,), dtype=d),
    "nested square": lambda d: nested((2, 2), (2, 2), dtype=d),
    "nested computed": lambda d: nested((2,), (3,), dtype=d).requires_grad_() * 2 if d.is_floating_point else nested((2,), dtype=d),
}
cases = []
for name, f in MAKE.items():
    for d in "float32 float64 int64 int32 complex64".split():
        if name.startswith("nested") and d == "complex64":
            continue
        cases.append({"make": name, "dtype": d, "want": str(f(getattr(torch, d)))})
x = torch.arange(6.0).reshape(2, 3) / 4.1  # no ties, which versions of libtorch round in different ways
for d in "qint8 quint8 qint32".split():
    q = getattr(torch, d)
    cases.append({"make": "per tensor", "dtype": d, "want": str(torch.quantize_per_tensor(x, 0.1, 3, q))})
    cases.append({"make": "per tensor, small scale", "dtype": d, "want": str(torch.quantize_per_tensor(x, 1e-5, 0, q))})
    cases.append({"make": "per channel", "dtype": d, "want": str(torch.quantize_per_channel(x, torch.tensor([0.1, 0.25]), torch.tensor([0, 2]), 0, q))})
cases.append({"make": "mkldnn", "dtype": "float32", "want": str(base(torch.float32).to_mkldnn())})
path = os.path.join(here, "layouts.json")
with open(path, "w") as out:
    out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")
print("%d cases, %d bytes, PyTorch %s" % (len(cases), os.path.getsize(path), torch.__version__))
