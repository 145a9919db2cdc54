"""The Python side of the step streams/copies, and a case that Linstock has no API for yet: a copy concurrent with kernels."""
import json
import os
import time

import torch

dry = os.environ.get("LINSTOCK_GPU_DRY") == "1"
n, side, kernels = (1 << 20, 64, 2) if dry else (256 << 20, 8192, 20)
pageable = torch.arange(n // 4, dtype=torch.int32)
locked = pageable.pin_memory()
there = torch.zeros(n // 4, dtype=torch.int32, device="cuda")
x = torch.randn(side, side, device="cuda", dtype=torch.bfloat16)
other = torch.cuda.Stream()


def measure(what, copy, before=lambda: None, rate=True):
    calls, totals = [], []
    for i in range(11):
        torch.cuda.synchronize()
        before()
        start = time.perf_counter()
        copy()
        call = time.perf_counter() - start
        torch.cuda.synchronize()
        if i >= 2:
            calls.append(call), totals.append(time.perf_counter() - start)
    call, total = (1e3 * sorted(v)[len(v) // 2] for v in (calls, totals))
    print(json.dumps({"row": what, "GB/s": n / 1e6 / total if rate else None, "ms until the call returns": call, "ms until all is done": total}))
    return total


def busy():
    for _ in range(kernels):
        x @ x


def beside():
    busy()
    with torch.cuda.stream(other):
        there.copy_(locked, non_blocking=True)


measure("to the device, pageable", lambda: there.copy_(pageable))
measure("to the device, pinned", lambda: there.copy_(locked))
copy = measure("to the device, pinned, non-blocking", lambda: there.copy_(locked, non_blocking=True))
measure("to the host, pageable", lambda: pageable.copy_(there))
measure("to the host, pinned", lambda: locked.copy_(there))
measure("to the host, pinned, non-blocking", lambda: locked.copy_(there, non_blocking=True))
compute = measure("%d products of %d×%d" % (kernels, side, side), busy, rate=False)
both = measure("the products, and a copy on another stream", beside, rate=False)
hidden = (compute + copy - both) / max(min(compute, copy), 1e-9)
print(json.dumps({"row": "share of the copy that the products hide: %.2f" % hidden}))
