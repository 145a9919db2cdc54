"""Reads a snapshot with PyTorch's own viewer and checks that its CUDA history has Go lines. Prints rows as JSON objects."""
import importlib.util
import json
import os
import pickle
import sys

path = os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "cuda", "_memory_viz.py")
spec = importlib.util.spec_from_file_location("viz", path)
viz = importlib.util.module_from_spec(spec)
spec.loader.exec_module(viz)
with open(sys.argv[1], "rb") as f:
    data = pickle.load(f)


def row(name, ok, **columns):
    print(json.dumps({"row": name, "ok": bool(ok), **columns}), flush=True)


def go(frames):
    return any(frame["filename"].endswith(".go") for frame in frames)


events = data["device_traces"][0]
allocs = [e for e in events if e["action"] == "alloc"]
frees = [e for e in events if e["action"] == "free_completed"]
named = {"alloc": sum(go(e["frames"]) for e in allocs), "free": sum(go(e["frames"]) for e in frees)}
row("allocations with Go lines", allocs and named["alloc"] >= 0.99 * len(allocs), got=f"{named['alloc']} of {len(allocs)}")
row("frees with Go lines", frees and named["free"] >= 0.9 * len(frees), got=f"{named['free']} of {len(frees)}")
ooms = [e for e in events if e["action"] == "oom"]
row("out-of-memory errors with Go lines", len(ooms) == 1 and go(ooms[0]["frames"]), got=str(len(ooms)))
blocks = [b for s in data["segments"] if s["device"] == 0 for b in s["blocks"] if b["state"] == "active_allocated"]
row("live blocks with Go lines", blocks and all(go(b["frames"]) for b in blocks), got=f"{sum(go(b['frames']) for b in blocks)} of {len(blocks)}")
for name, view in (("trace_plot", lambda: viz.trace_plot(data)), ("segment_plot", lambda: viz.segment_plot(data)),
                   ("trace", lambda: viz.trace(data)), ("segsum", lambda: viz.segsum(data)),
                   ("memory", lambda: viz.memory(data, format_flamegraph=str))):
    try:
        row(f"PyTorch's viewer: {name}", True, got=f"{len(view())} characters")
    except Exception as e:
        row(f"PyTorch's viewer: {name}", False, note=f"{type(e).__name__}: {e}")
