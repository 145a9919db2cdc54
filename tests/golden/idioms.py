"""Runs the Python halves of docs/from-pytorch.md and writes idioms.json: each snippet and what it assigns to y.

    python3 tests/golden/idioms.py
"""

import json
import os
import re
import tempfile

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
PRELUDE = """
import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
x = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 8
w = torch.arange(8, dtype=torch.float32).reshape(4, 2) / 8 - 0.5
i = torch.tensor([0, 1, 1])
device = torch.device("cpu")
"""


def plain(y):
    """Returns y in a form that JSON has."""
    if isinstance(y, torch.Tensor):
        y = y.detach()
        return {"dtype": str(y.dtype).removeprefix("torch."), "shape": list(y.shape), "values": y.double().flatten().tolist()}
    if isinstance(y, (bool, str)):
        return y
    if isinstance(y, (int, float)):
        return float(y)
    if isinstance(y, torch.device):
        return str(y)
    return [plain(v) for v in y]


def main():
    with open(os.path.join(HERE, "../../docs/from-pytorch.md")) as f:
        snippets = re.findall(r"^```python\n(.*?)^```$", f.read(), re.M | re.S)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for s in snippets:
            scope = {"path": os.path.join(folder, "model")}
            exec(PRELUDE, scope)
            exec(s, scope)
            results.append({"python": s, "y": plain(scope["y"])})
    with open(os.path.join(HERE, "idioms.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")


main()
