"""The Python arm of the suite.

    main.py WORKLOAD THREADS

answers the lines of standard input as arm.go says. The word after the number of steps names the optimizer: default,
fused or foreach; each has a model of its own in this process."""
import resource
import sys
import time

import torch

torch.set_num_threads(int(sys.argv[2]))


def rss_kb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4


import conv
import dense
import recurrent
import small
import text
from numbers_ import Numbers

WORKLOADS = {
    "tinymlp": dense.tiny_mlp,
    "deepmlp": dense.deep_mlp,
    "mlp": dense.mlp,
    "residual tower": dense.residual_tower,
    "iterative refinement": dense.refinement,
    "feedback loop": dense.feedback,
    "gated routing": dense.gated,
    "gru": recurrent.gru,
    "lstm": recurrent.lstm,
    "recurrent attention": recurrent.recurrent_attention,
    "convnet": conv.convnet,
    "autoencoder": conv.autoencoder,
    "resnet18 at 64": conv.resnet18,
    "cnn at 256": conv.cnn256,
    "transformer encoder": text.encoder,
    "embedding 20000x64": text.embedding,
    "gpt step": text.gpt_step,
    "gpt evaluation": text.gpt_evaluation,
    "gpt generation": text.gpt_generation,
    "request": small.request,
    "add": small.add,
}

if sys.argv[1] not in ("gpt evaluation", "gpt generation", "request", "add"):
    torch.optim.Adam([torch.zeros(())])  # loads what PyTorch leaves out until a program trains
LIBRARY = rss_kb()


def value(x):
    return x.sum().item() if torch.is_tensor(x) else x


def main():
    steps = {}  # by optimizer
    for line in iter(sys.stdin.readline, ""):
        command, count, how = (line.split() + ["0", "default"][len(line.split()) - 1 :])[:3]
        if command == "memory":
            print(LIBRARY, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
            continue
        if how not in steps:
            steps[how] = WORKLOADS[sys.argv[1]](Numbers(), how)
        step = steps[how]
        if command == "steps":
            print(*(f"{value(step()):.9g}" for _ in range(int(count))), flush=True)
        elif command == "time":
            start = time.perf_counter()
            while time.perf_counter() - start < 0.020:
                step()
            start = time.perf_counter()
            for _ in range(int(count)):
                step()
            print(f"{(time.perf_counter() - start) / int(count) * 1e9:.1f}", flush=True)
        else:
            sys.exit(f"no command {command!r}")


main()
