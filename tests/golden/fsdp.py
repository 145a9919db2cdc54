"""Writes fsdp.json: losses of two ranks that train with fully_shard (FSDP2), as the bits of float32.

    python3 tests/golden/fsdp.py
"""

import json
import struct

import torch
import torch.distributed as dist
from ddp import BATCH, WORLD, Net, wave, write
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

STEPS = 15

# The arguments of fully_shard, and what else differs.
VARIANTS = {
    "zero3": {"reshard_after_forward": True},
    "zero2": {"reshard_after_forward": False},
    "bf16": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, None, torch.float32)},
    "bf16 reduced": {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.float32)},
    "no sync": {"accumulate": 3},
    "tied": {"tied": True},
    "unused": {"unused": True},
    "checkpoint": {"checkpoint": True},
}


class Checkpointed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(lambda x: torch.tanh(self.layer(x)), x, use_reentrant=False)


def train(rank, variant, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    options = dict(VARIANTS[variant])
    accumulate, tied = options.pop("accumulate", 1), options.pop("tied", False)
    net, checkpointed = Net(options.pop("unused", False)), options.pop("checkpoint", False)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(wave(p.shape, i) / 4)
    if tied:
        net.unused.weight = net.l2.weight
    if checkpointed:
        net.l2 = Checkpointed(net.l2)
    mesh = init_device_mesh("cpu", (WORLD,))
    for part in [net.l1] + ([] if tied else [net.l2]):
        fully_shard(part, mesh=mesh, **options)
    options.pop("mp_policy", None)
    fully_shard(net, mesh=mesh, **options)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    losses = []
    for step in range(STEPS):
        opt.zero_grad()
        for k in range(accumulate):
            net.set_requires_gradient_sync(k == accumulate - 1)
            x = wave((BATCH, 12), 100 * step + 10 * k + rank)
            y = (torch.arange(BATCH) * 7 + step + rank) % 5
            loss = nn.functional.cross_entropy(net(x), y)
            losses.append(struct.unpack("I", struct.pack("f", loss.item()))[0])
            loss.backward()
        opt.step()
    sums = [p.full_tensor().double().sum().item() for p in net.parameters()]
    dist.barrier()
    with open(f"{store}.{rank}", "w") as f:
        json.dump({"losses": losses, "sum": sum(sums)}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    write("fsdp.json", train, VARIANTS)
