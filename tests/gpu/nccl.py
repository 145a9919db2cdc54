"""NCCL as far as one device goes: one rank, then two ranks on the same device, and two that NCCL takes for ranks on two hosts.
The row reports whether NCCL refuses the second. A Go process that trains beside the ranks is the step's other half."""
import datetime
import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

dry = os.environ.get("LINSTOCK_GPU_DRY") == "1"
REFUSAL = "Duplicate GPU"  # NCCL's words for two ranks on one device


def rank():
    start = time.perf_counter()
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=30), device_id=torch.device("cuda:0"))
    world = dist.get_world_size()
    x = torch.full((1 << (10 if dry else 26),), dist.get_rank() + 1.0, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    want, got = world * (world + 1) / 2, x[0].item()
    if got != want and not dry:
        sys.exit("all_reduce gives %s, not %s" % (got, want))
    times = []
    for _ in range(5 if dry else 20):
        torch.cuda.synchronize()
        at = time.perf_counter()
        dist.all_reduce(x)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - at)
    dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        print("%.1f %.3f" % (1e3 * first, 1e3 * sorted(times)[len(times) // 2]))


def run(world, hosts, port):
    env = dict(os.environ, WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_SOCKET_IFNAME="lo")
    ranks = [subprocess.Popen([sys.executable, __file__, "rank"], env=dict(env, RANK=str(r), NCCL_HOSTID="host%d" % (r % hosts)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for r in range(world)]
    said, error = "", ""
    for p in ranks:
        try:
            out, err = p.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            err += "\nstopped after a minute"
        said += out
        if p.returncode != 0:
            sys.stderr.write(err)
            lines = [line for line in err.strip().splitlines() if line.strip()]
            refusal = next((line[line.index(REFUSAL):] for line in lines if REFUSAL in line), "")
            error = refusal or error or next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "exit %d" % p.returncode)
    return said.split(), error[:200]


def main():
    for world, hosts in ((1, 1), (2, 1), (2, 2)):
        words, error = run(world, hosts, 29400 + os.getpid() % 500 + world + hosts)
        row = {"row": "%d rank%s on one device%s" % (world, "s" * (world > 1), ", as if on two hosts" * (hosts > 1))}
        if len(words) == 2 and not error:
            row.update({"allowed": "yes", "ms to begin": float(words[0]), "ms an all_reduce of 256 MiB": float(words[1]), "ok": True})
        else:
            # By default NCCL refuses two ranks on one device. That is a result, not a failure; any other error is one.
            row.update({"allowed": "no", "ok": world > hosts and REFUSAL in error, "note": error})
        print(json.dumps(row))


if sys.argv[1:] == ["rank"]:
    rank()
else:
    main()
