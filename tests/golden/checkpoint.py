#!/usr/bin/env python3
"""Writes checkpoint.json: gradient checkpointing in PyTorch (use_reentrant=False).

    python3 tests/golden/checkpoint.py

    "mlp":   three blocks of tanh(x @ w + b) with dropout, each checkpointed, the first on data that requires no gradient
    "gpt":   a block of a GPT with dropout, checkpointed, with a checkpoint of its multilayer perceptron inside
    "peak":  the peak of CPU bytes of a 16-layer model's training step above those before it, checkpointed and not

"mlp" and "gpt" hold the tensors under "tensors" by name, the seed that is set before the forward pass, the loss, the
gradients and the first numbers that the generator gives after backward.
"""
import json
import os
import tempfile

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

here = os.path.dirname(os.path.abspath(__file__))


def flat(t):
    return {"shape": list(t.shape), "data": t.detach().flatten().tolist()}


def case(tensors, data, seed, forward):
    for name, t in tensors.items():
        t.requires_grad_(name not in data)
    torch.manual_seed(seed)
    loss = forward()
    loss.backward()
    return {"tensors": {k: flat(t) for k, t in tensors.items()}, "seed": seed, "loss": loss.item(),
            "grads": {k: flat(t.grad) for k, t in tensors.items() if k not in data}, "next": torch.rand(4).tolist()}


def mlp():
    ts = {"x": torch.randn(16, 8)}
    for i in range(3):
        ts[f"w{i}"], ts[f"b{i}"] = torch.randn(8, 8) * 0.5, torch.randn(8)

    def forward():
        x = ts["x"]
        for i in range(3):
            def layer(x, w=ts[f"w{i}"], b=ts[f"b{i}"]):
                return F.dropout(torch.tanh(x @ w + b), 0.25)
            x = checkpoint(layer, x, use_reentrant=False)
        return x.pow(2).sum()

    return case(ts, {"x"}, 7, forward)


def gpt():
    width, heads, time = 16, 4, 6
    ts = {"x": torch.randn(2, time, width), "g1": torch.rand(width) + 0.5, "g2": torch.rand(width) + 0.5,
          "qkv": torch.randn(3 * width, width) * 0.3, "proj": torch.randn(width, width) * 0.3,
          "up": torch.randn(4 * width, width) * 0.3, "down": torch.randn(width, 4 * width) * 0.3}

    def block(x):
        q, k, v = (y.view(2, time, heads, width // heads).transpose(1, 2)
                   for y in (F.layer_norm(x, [width], ts["g1"]) @ ts["qkv"].t()).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(y.transpose(1, 2).reshape(2, time, width) @ ts["proj"].t(), 0.1)
        return x + checkpoint(lambda h: F.dropout(F.gelu(h @ ts["up"].t()) @ ts["down"].t(), 0.1),
                              F.layer_norm(x, [width], ts["g2"]), use_reentrant=False)

    return case(ts, set(), 11, lambda: checkpoint(block, ts["x"], use_reentrant=False).pow(2).mean())


def peak(checkpointed):
    layers, rows, width = 16, 8192, 64
    ws = [(torch.randn(width, 4 * width, requires_grad=True), torch.randn(4 * width, width, requires_grad=True))
          for _ in range(layers)]
    x = torch.randn(rows, width)

    def step():
        h = x
        for w1, w2 in ws:
            def layer(h, w1=w1, w2=w2):
                return F.gelu(h @ w1) @ w2
            h = checkpoint(layer, h, use_reentrant=False) if checkpointed else layer(h)
        h.sum().backward()

    step()
    for w1, w2 in ws:
        w1.grad = w2.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        step()
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "trace.json")
        p.export_chrome_trace(path)
        with open(path) as f:
            events = [e for e in json.load(f)["traceEvents"] if e.get("name") == "[memory]"]
    live = most = 0
    for e in sorted(events, key=lambda e: e["ts"]):
        live += e["args"]["Bytes"]
        most = max(most, live)
    return most


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    out = {"mlp": mlp(), "gpt": gpt(), "peak": {"plain": peak(False), "checkpointed": peak(True)}}
    with open(os.path.join(here, "checkpoint.json"), "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")
    print(out["peak"], out["mlp"]["loss"], out["gpt"]["loss"])


main()
