"""Writes graph.json: what hooks of several tensors receive, and the errors of detect_anomaly.

    python3 tests/golden/graph.py
"""

import json
import os
import warnings

import torch
from torch.autograd.graph import register_multi_grad_hook

warnings.simplefilter("ignore")


def leaves():
    x = ((torch.arange(3, dtype=torch.float64) - 1) / 2).requires_grad_()
    y = ((torch.arange(3, dtype=torch.float64) + 1) / 4).requires_grad_()
    return x, y


def graph():
    x, y = leaves()
    a = x * y
    return x, y, a, a.sin(), y.exp()


def received(mode, choose, run):
    """The calls of a hook: for each, the gradients as lists, None where there is none."""
    calls = []

    def hook(grads):
        grads = [grads] if mode == "any" else grads
        calls.append([None if g is None else g.tolist() for g in grads])

    x, y, a, b, c = graph()
    handle = register_multi_grad_hook(choose(x, y, a, b, c), hook, mode=mode)
    run(x, y, a, b, c)
    handle.remove()
    (x * y).sum().backward()
    return calls


hooks = {
    "all": received("all", lambda x, y, a, b, c: [x, y, a, b], lambda x, y, a, b, c: (b + c).sum().backward()),
    "unreached": received("all", lambda x, y, a, b, c: [c, a], lambda x, y, a, b, c: b.sum().backward()),
    "any": received("any", lambda x, y, a, b, c: [x, a], lambda x, y, a, b, c: b.sum().backward()),
    "any without": received("any", lambda x, y, a, b, c: [x.detach(), a], lambda x, y, a, b, c: b.sum().backward()),
    "inputs": received("all", lambda x, y, a, b, c: [x, y], lambda x, y, a, b, c: b.sum().backward(inputs=[x])),
    "twice": received("all", lambda x, y, a, b, c: [a, x], lambda x, y, a, b, c: (b.sum().backward(retain_graph=True), (2 * b).sum().backward())),
    "grad": received("all", lambda x, y, a, b, c: [a, b], lambda x, y, a, b, c: torch.autograd.grad(b.sum(), [a])),
}


def failure(f, **options):
    try:
        with torch.autograd.detect_anomaly(**options):
            f(torch.zeros(2, dtype=torch.float64, requires_grad=True)).sum().backward()
    except RuntimeError as e:
        return str(e)
    return ""


anomalies = {
    "sqrt": failure(lambda x: x.sqrt() * 0),
    "div": failure(lambda x: x / x.detach() * 0),
    "none": failure(lambda x: x.exp()),
    "unchecked": failure(lambda x: x.sqrt() * 0, check_nan=False),
}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "graph.json"), "w") as out:
    json.dump({"hooks": hooks, "anomalies": anomalies}, out, indent=1)
    out.write("\n")
