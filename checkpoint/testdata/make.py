#!/usr/bin/env python3
"""Writes python.safetensors, a tensor of each dtype, and model.safetensors, a model's state_dict, with the reference
implementation:

    python3 checkpoint/testdata/make.py

and, with arguments, checks files that Go wrote against the same values:

    python3 checkpoint/testdata/make.py FILE
    python3 checkpoint/testdata/make.py --model FILE
    python3 checkpoint/testdata/make.py --training FILE
"""
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
          "float32", "float64", "complex64", "float8_e5m2", "float8_e4m3fn"]


def tensors():
    base = torch.arange(6).reshape(2, 3)
    all = {f"ramp.{d}": (base % 2 == 1 if d == "bool" else base.to(torch.float32).to(getattr(torch, d)) if "float8" in d
                         else base.to(getattr(torch, d))) for d in DTYPES}
    all["scalar"] = torch.tensor(2.5)
    all["empty"] = torch.zeros(0, 4)
    all['näme "quoted"\n'] = torch.tensor([1, 2, 3], dtype=torch.int8)
    return all


def model():
    m = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.3),
                            torch.nn.Flatten(), torch.nn.Linear(64, 3))
    with torch.no_grad():
        for k, (_, t) in enumerate(sorted(m.state_dict().items())):
            t.copy_(torch.arange(t.numel()).reshape(t.shape) + 1000 * k)
    return m


if sys.argv[1:2] == ["--model"]:
    fresh = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.3),
                                torch.nn.Flatten(), torch.nn.Linear(64, 3))
    fresh.load_state_dict(load_file(sys.argv[2]), strict=True)
    got = fresh.state_dict()
    for k, w in model().state_dict().items():
        assert got[k].dtype == w.dtype and torch.equal(got[k], w), k
elif sys.argv[1:2] == ["--training"]:
    got = load_file(sys.argv[2])
    losses = got["value.losses"]
    assert losses.dtype == torch.float64 and losses[:2].tolist() == [2.5, 1.25] and losses[2].isnan(), losses
    assert got["value.done"].tolist() == [True, False], got["value.done"]
    assert bytes(got["value.step"].tolist()) == b"\x03", got["value.step"]
elif len(sys.argv) > 1:
    got, want = load_file(sys.argv[1]), tensors()
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    for k, w in want.items():
        g = got[k]
        assert g.dtype == w.dtype and g.shape == w.shape, (k, g, w)
        assert torch.equal(g.flatten().view(torch.uint8) if g.numel() else g.view(-1).float(), w.flatten().view(torch.uint8) if w.numel() else w.view(-1).float()), k
    with safe_open(sys.argv[1], "pt") as f:
        assert f.metadata() == {"made": "by test", "json": '{"step": 3}'}, f.metadata()
    print("same")
else:
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(tensors(), os.path.join(here, "python.safetensors"), metadata={"made": "by test", "json": '{"step": 3}'})
    save_file(model().state_dict(), os.path.join(here, "model.safetensors"))
