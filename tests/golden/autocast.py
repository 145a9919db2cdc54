#!/usr/bin/env python3
"""Writes autocast.json: what PyTorch computes under torch.autocast on the CPU.

    python3 tests/golden/autocast.py

    "cpu"     the instruction sets on which the kernels of bfloat16 and float16 depend, of the machine that ran this
    "losses"  by case, the loss of each of 30 training steps. gpt: the model, weights and batches of gpt.py, AdamW.
              cnn: cnn() with its weights from seed 3, a batch of random images from seed 4, SGD with momentum.
              The float16 cases use a GradScaler.
    "dtypes"  the dtypes of results, by operator, for arguments in the order of CASES, under bfloat16 and float16
"""
import json
import os

import torch
from torch import nn
from torch.nn import functional as F

from gpt import GPT, config
from safetensors.torch import load_file

here = os.path.dirname(os.path.abspath(__file__))
STEPS = 30


def cpu():
    flags = {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"}
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("flags"):
                return sorted(flags & set(line.split()))
    return []


def cnn():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
                         nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def train(case, dtype):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=dtype == torch.float16)
    if case == "gpt":
        model = GPT(config)
        model.load_state_dict(load_file(os.path.join(here, "gpt.safetensors")))
        opt = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"], fused=True)
        with open(os.path.join(here, "gpt.json")) as f:
            batches = [torch.tensor(b) for b in json.load(f)["batches"]]
    else:
        model = cnn()
        opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
        torch.manual_seed(4)
        images, labels = torch.randn(16, 3, 16, 16), torch.arange(16) % 10
    losses = []
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=dtype):
            if case == "gpt":
                ids = batches[step % len(batches)]
                loss = F.cross_entropy(model(ids[:, :-1]).reshape(-1, config["vocab"]), ids[:, 1:].reshape(-1))
            else:
                loss = F.cross_entropy(model(images), labels)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
    return losses


# The operators of autocast's lists that Go calls by name, and some of none: by name, the arguments. A list of numbers is the
# shape of a float32 tensor of 0.5, "half" before it that of one in the dtype of autocast, "int" that of an int64 one of zeros.
CASES = {
    "aten::mm": [[4, 4], [4, 4]], "aten::bmm": [[2, 4, 4], [2, 4, 4]], "aten::addmm": [[4], [4, 4], [4, 4]],
    "aten::baddbmm": [[2, 4, 4], [2, 4, 4], [2, 4, 4]], "aten::linear": [[4, 4], [4, 4], [4]], "aten::matmul": [[4, 4], [4, 4]],
    "aten::conv1d": [[1, 2, 8], [2, 2, 3]], "aten::conv2d": [[1, 2, 8, 8], [2, 2, 3, 3]], "aten::conv3d": [[1, 2, 4, 4, 4], [2, 2, 3, 3, 3]],
    "aten::conv_transpose2d.input": [[1, 2, 8, 8], [2, 2, 3, 3]], "aten::mv": [[4, 4], [4]], "aten::addmv": [[4], [4, 4], [4]],
    "aten::scaled_dot_product_attention": [[1, 2, 4, 8], [1, 2, 4, 8], [1, 2, 4, 8]], "aten::add.Tensor": [["half", 4, 4], [4, 4]],
    "aten::mul.Tensor": [["half", 4, 4], ["half", 4, 4]], "aten::relu": [["half", 4, 4]], "aten::gelu": [["half", 4, 4]],
    "aten::exp": [["half", 4, 4]], "aten::sum": [["half", 4, 4]], "aten::mse_loss": [["half", 4, 4], ["half", 4, 4]],
    "aten::binary_cross_entropy_with_logits": [["half", 4, 4], [4, 4]], "aten::cross_entropy_loss": [["half", 4, 4], ["int", 4]],
    "aten::nll_loss": [["half", 4, 4], ["int", 4]], "aten::smooth_l1_loss": [["half", 4, 4], [4, 4]], "aten::cdist": [["half", 4, 4], ["half", 4, 4]],
    "aten::linalg_norm": [["half", 4, 4]], "aten::embedding": [[4, 4], ["int", 4]], "aten::sigmoid": [["half", 4, 4]],
    "aten::rsqrt": [["half", 4, 4]], "aten::prod": [["half", 4, 4]],
}


def argument(a, dtype):
    if a[0] == "int":
        return torch.zeros(a[1:], dtype=torch.int64)
    if a[0] == "half":
        return torch.full(a[1:], 0.5, dtype=dtype)
    return torch.full(a, 0.5)


def dtypes():
    out = {}
    for name, args in CASES.items():
        op, _, overload = name.split("::")[1].partition(".")
        call = getattr(getattr(torch.ops.aten, op), overload or "default")
        found = []
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                found.append(str(call(*(argument(a, dtype) for a in args)).dtype).removeprefix("torch."))
        out[name] = {"args": [[str(v) for v in a] for a in args], "dtypes": found}
    return out


def main():
    torch.set_num_threads(1)
    losses = {f"{case}_{str(dtype).removeprefix('torch.')}": train(case, dtype)
              for case in ("gpt", "cnn") for dtype in (torch.bfloat16, torch.float16)}
    with open(os.path.join(here, "autocast.json"), "w") as out:
        json.dump({"cpu": cpu(), "losses": losses, "dtypes": dtypes()}, out, separators=(",", ":"))
        out.write("\n")
    for name, values in losses.items():
        print(name, values[0], "to", values[-1])


main()
