"""Prints a description of this machine as a JSON object of strings, for the beginning of results.md."""
import json
import os
import platform
import subprocess
import sys

import torch


def first(command, default=""):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return default


found = {"torch": torch.__version__, "python": sys.version.split()[0], "cuda": str(torch.version.cuda)}
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    found["device"] = f"{p.name} ({torch.cuda.device_count()} of them), compute capability {p.major}.{p.minor}, {p.multi_processor_count} multiprocessors"
    found["memory"] = f"{p.total_memory / 2**30:.1f} GiB"
else:
    found["device"] = "none that PyTorch can use"
found["driver"] = first(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
if torch.backends.cudnn.is_available():
    found["cudnn"] = str(torch.backends.cudnn.version())
if hasattr(torch.cuda, "nccl") and torch.distributed.is_available():
    try:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as e:  # a torch without NCCL
        found["nccl"] = f"none: {e}"
model = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
found["processor"] = f"{model[0] if model else platform.machine()}, {os.cpu_count()} threads"
found["kernel"] = platform.release()
found["glibc"] = platform.libc_ver()[1]
print(json.dumps(found))
