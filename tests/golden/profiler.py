"""Writes profiler.json: what PyTorch's profiler records of one training step.

    python3 tests/golden/profiler.py
"""

import json
import os

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

HERE = os.path.dirname(os.path.abspath(__file__))


def step(x, w, b, g):
    with record_function("forward"):
        h = F.linear(x, w, b).relu()
        loss = torch.cat([h, h]).square().mean(dim=(0, 1))
    loss.backward(g)


def depth(e):
    return 0 if e.cpu_parent is None else 1 + depth(e.cpu_parent)


def main():
    x = torch.ones(8, 4)
    w = torch.ones(3, 4, requires_grad=True)
    b = torch.ones(3, requires_grad=True)
    g = torch.ones(())
    step(x, w, b, g)  # later steps accumulate into the same gradients
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as p:
        step(x, w, b, g)
    events = [{"name": e.name, "depth": depth(e), "shapes": str(e.input_shapes or ""), "memory": e.cpu_memory_usage}
              for e in p.events() if e.name != "[memory]"]
    rows = {a.key: a.count for a in p.key_averages() if a.key != "[memory]"}
    with open(os.path.join(HERE, "profiler.json"), "w") as f:
        json.dump({"torch": torch.__version__.split("+")[0], "events": events, "counts": rows}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
