"""The Python arm: the models of models.go with PyTorch as its users write them.

    arm.py MODEL MODE THREADS STEPS ROWS DEVICE SCALE [liblinstock.so]

With a library the process's tensors go through Linstock's counting allocator, and the peak is its own; on a device the
peak is that of PyTorch's caching allocator."""
import ctypes
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Memory(ctypes.Structure):
    """ls_memory of linstock/memory.h."""
    _fields_ = [(n, ctypes.c_int64) for n in (
        "allocated", "peak", "requested", "reserved", "cached", "active", "largest_free", "allocations", "frees",
        "total", "limit", "largest", "handles")]


class Allocator:
    CPU = 0xFF

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for f in (self.lib.ls_init, self.lib.ls_memory_stats, self.lib.ls_memory_reset_peak):
            f.restype = ctypes.c_void_p
        self.check(self.lib.ls_init())

    @staticmethod
    def check(err):
        if err:
            raise RuntimeError("liblinstock: a call failed")

    def stats(self):
        m = Memory()
        self.check(self.lib.ls_memory_stats(self.CPU, ctypes.byref(m)))
        return m

    def reset_peak(self):
        self.check(self.lib.ls_memory_reset_peak(self.CPU))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(256, 256) for _ in range(11)] + [nn.Linear(256, 10)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x)
            x = F.relu(x)
        return self.layers[-1](x)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64)
        self.head = nn.Linear(64 * 7 * 7, 10)

    def forward(self, x):
        x = self.conv1(x)
        x = self.bn1(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.conv2(x)
        x = self.bn2(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        return self.head(x.flatten(1))


class GRULayer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.width, self.in_, self.hidden = width, nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x):
        h = torch.zeros(x.size(1), self.width, device=x.device)
        out = []
        for t in range(x.size(0)):
            h = self.step(x[t], h)
            out.append(h)
        return torch.stack(out)

    def step(self, x, h):
        i = self.in_(x).chunk(3, 1)
        g = self.hidden(h).chunk(3, 1)
        r = torch.sigmoid(i[0] + g[0])
        z = torch.sigmoid(i[1] + g[1])
        n = torch.tanh(i[2] + r * g[2])
        return n + z * (h - n)


class GRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList([GRULayer(), GRULayer()]), nn.Linear(256, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x[-1])


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, width=256, heads=8, context=128, layers=4, vocab=97):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def make(name, evaluate, rows, scale):
    """The model, its input and its target."""
    def size(train, evaluation):
        return rows or scale * (evaluation if evaluate else train)

    def classes(n, *shape):
        return torch.randn(shape), torch.randint(10, (n,))

    if name == "mlp":
        n = size(24576, 98304)
        return MLP(), *classes(n, n, 256)
    if name == "cnn":
        n = size(2048, 4096)
        return CNN(), *classes(n, n, 1, 28, 28)
    if name == "gru":
        n = size(1024, 3072)
        return GRU(), *classes(n, 24, n, 256)
    if name == "gpt":
        n = size(32, 128)
        return GPT(), torch.randint(97, (n, 128)), torch.randint(97, (n * 128,))
    if name == "gpt64":
        n = size(64, 64)
        return GPT(128, 4, 64), torch.randint(97, (n, 64)), torch.randint(97, (n * 64,))
    raise SystemExit(f"no model {name}")


def status(name):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
    return 0


def main(name, mode, threads, steps, rows, device="cpu", scale=1, library=None):
    allocator = Allocator(library) if library else None
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    finish = torch.cuda.synchronize if device != "cpu" else lambda: None
    with torch.device(device):  # no default device, which would slow each call
        torch.ones(4).add(1)
        start_rss = status("VmRSS")
        model, x, y = make(name, mode == "eval", int(rows), int(scale))
    if mode == "eval":
        model.eval()

        def step():
            with torch.no_grad():
                model(x)
    else:
        opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

        def step():
            logits = model(x)
            if logits.dim() == 3:
                logits = logits.view(-1, logits.size(2))
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    for _ in range(2):
        step()
    model.zero_grad()
    finish()
    base = 0
    if device != "cpu":
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    elif allocator:
        base = allocator.stats().allocated
        allocator.reset_peak()
    times = []
    for _ in range(int(steps)):
        start = time.perf_counter_ns()
        step()
        finish()
        times.append(time.perf_counter_ns() - start)
    times.sort()
    print(f"step {times[len(times) // 2]}\nrss {status('VmHWM') - start_rss}")
    if device != "cpu":
        print(f"base {base}\npeak {torch.cuda.max_memory_allocated() - base}")
    elif allocator:
        print(f"base {base}\npeak {allocator.stats().peak - base}")


if __name__ == "__main__":
    main(*sys.argv[1:])
