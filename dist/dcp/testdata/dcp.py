# PyTorch's torch.distributed.checkpoint beside package dcp. "write DIR" writes a checkpoint with two ranks, as the one in
# this directory, and "read DIR" compares one that Linstock has written:
#   build/pytorch/bin/python dist/dcp/testdata/dcp.py write dist/dcp/testdata/python
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

WANT = {
    "rows": torch.arange(70.0).view(7, 10),
    "columns": torch.arange(48, dtype=torch.int64).view(6, 8),
    "whole": torch.arange(5.0).bfloat16(),
    "few": torch.arange(3.0).view(1, 3),
    "number": torch.tensor(3),
}


def write(rank, path, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = dict(WANT)
    state["rows"] = distribute_tensor(state["rows"], mesh, [Shard(0)])
    state["columns"] = distribute_tensor(state["columns"], mesh, [Shard(1)])
    state["few"] = distribute_tensor(state["few"], mesh, [Shard(0)])
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        mp.spawn(write, args=(sys.argv[2], 29517), nprocs=2)
    else:
        state = {name: torch.zeros_like(t) for name, t in WANT.items()}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(sys.argv[2]), no_dist=True)
        for name, t in WANT.items():
            assert torch.equal(state[name], t), name
        print("equal")
