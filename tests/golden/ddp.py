"""Writes ddp.json: losses of ranks that train with DistributedDataParallel, as the bits of float32.

    python3 tests/golden/ddp.py
"""

import contextlib
import json
import os
import struct
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gpt import GPT
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

WORLD, BATCH, STEPS = 2, 8, 10

# The arguments of DistributedDataParallel, and what else differs: the number of ranks and steps, the model, …
VARIANTS = {
    "plain": {},
    "buckets": {"bucket_cap_mb": 0.01},
    "find unused": {"find_unused_parameters": True, "unused": True},
    "static": {"static_graph": True},
    "static unused": {"static_graph": True, "unused": True},
    "views": {"gradient_as_bucket_view": True},
    "views 3": {"world": 3, "gradient_as_bucket_view": True, "bucket_cap_mb": 1e-4, "accumulate": 3},
    "fp16": {"hook": default_hooks.fp16_compress_hook},
    "bf16": {"hook": default_hooks.bf16_compress_hook},
    "power": {"hook": powerSGD_hook.powerSGD_hook, "power": {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}},
    "power qr": {
        "hook": powerSGD_hook.powerSGD_hook,
        "power": {
            "matrix_approximation_rank": 4,
            "start_powerSGD_iter": 3,
            "orthogonalization_epsilon": 1e-8,
            "min_compression_rate": 0.5,
        },
    },
    "no sync": {"accumulate": 3},
    "own buffers": {"broadcast_buffers": False},
    "join": {"join": True},
    "join unused": {"join": True, "unused": True, "find_unused_parameters": True},
    **{f"mlp {n}": {"world": n, "steps": 50} for n in (1, 2, 4)},
    **{f"gpt {n}": {"world": n, "steps": 50, "gpt": True} for n in (1, 2, 4)},
}
SIZES = {"layers": 1, "width": 12, "heads": 3, "context": 8, "vocab": 11}  # of the GPT


class Net(nn.Module):
    def __init__(self, unused):
        super().__init__()
        self.l1, self.norm, self.l2 = nn.Linear(12, 48), nn.BatchNorm1d(48), nn.Linear(48, 48)
        self.unused, self.l3 = nn.Linear(48, 48), nn.Linear(48, 5)
        self.skip = unused

    def forward(self, x):
        x = torch.relu(self.norm(self.l1(x)))
        if not self.skip:
            x = self.unused(x)
        return self.l3(torch.relu(self.l2(x)))


def wave(shape, phase):
    n = 1
    for s in shape:
        n *= s
    return (torch.arange(n, dtype=torch.float32) * 0.7 + phase).sin().reshape(shape)


def batch(gpt, rank, step, k):
    if gpt:
        n = torch.arange(4 * 9)
        ids = ((3 * n * n + 7 * step + rank) % 11).reshape(4, 9)
        return ids[:, :-1], ids[:, 1:].flatten()
    return wave((BATCH, 12), 100 * step + 10 * k + rank), (torch.arange(BATCH) * 7 + step + rank) % 5


def train(rank, variant, store):
    options = dict(VARIANTS[variant])
    world, steps, gpt = options.pop("world", WORLD), options.pop("steps", STEPS), options.pop("gpt", False)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=world)
    torch.set_num_threads(1)
    unused, hook = options.pop("unused", False), options.pop("hook", None)
    power = options.pop("power", None)
    accumulate, join = options.pop("accumulate", 1), options.pop("join", False)
    net = GPT(SIZES) if gpt else Net(unused)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(wave(p.shape, i + rank) / 4)  # rank 0's are those of all
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    ddp = nn.parallel.DistributedDataParallel(net, **options)
    if hook:
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, **power) if power else None, hook)
    losses = []
    with ddp.join() if join else contextlib.nullcontext():
        for step in range(steps - 4 * rank if join else steps):
            opt.zero_grad()
            for k in range(accumulate):
                with ddp.no_sync() if k < accumulate - 1 else contextlib.nullcontext():
                    x, y = batch(gpt, rank, step, k)
                    loss = nn.functional.cross_entropy(ddp(x).flatten(0, -2), y)
                    losses.append(struct.unpack("I", struct.pack("f", loss.item()))[0])
                    loss.backward()
            opt.step()
    last = torch.stack([p.detach().double().sum() for p in net.state_dict().values()]).sum().item()
    with open(f"{store}.{rank}", "w") as f:
        json.dump({"losses": losses, "sum": last}, f)
    dist.barrier()  # a process that ends while another still uses its connection can abort that one
    dist.destroy_process_group()


def write(name, train, variants):
    """Writes what the ranks return for each variant to a file beside this one."""
    results = {}
    for variant, options in variants.items():
        world = options.get("world", WORLD)
        with tempfile.TemporaryDirectory() as d:
            store = os.path.join(d, "store")
            mp.spawn(train, (variant, store), world)
            results[variant] = [json.load(open(f"{store}.{r}")) for r in range(world)]
    with open(os.path.join(os.path.dirname(__file__), name), "w") as f:
        json.dump(results, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    write("ddp.json", train, VARIANTS)
