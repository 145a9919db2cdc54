"""The Python arm: the tasks of arm.go and arm.cpp with PyTorch as its users write them."""
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


def repeat(f):
    def run(n):
        for _ in range(n):
            f()

    return run


def operator(task):
    name, _, grad = task.partition("+")
    a, b = torch.randn(16, requires_grad=bool(grad)), torch.randn(16)
    m, w = torch.randn(16, 16, requires_grad=bool(grad)), torch.randn(16, 16)

    # Written out: a call through a lambda would be part of what is timed.
    def add(n):
        for _ in range(n):
            a.add(b)

    def view(n):
        for _ in range(n):
            a.view(4, 4)

    def matmul(n):
        for _ in range(n):
            m.matmul(w)

    return 20480, {"add": add, "view": view, "matmul": matmul}[name]


def mlp():
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x, y = torch.randn(32, 32), torch.randint(10, (32,))

    def step():
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    return 400, repeat(step)


LAYERS, WIDTH, HEADS, CONTEXT, VOCAB = 4, 128, 4, 64, 97


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(n, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Trainer:
    def __init__(self):
        self.model = GPT()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        self.x, self.y = torch.randint(VOCAB, (16, CONTEXT)), torch.randint(VOCAB, (16, CONTEXT))

    def step(self):
        loss = F.cross_entropy(self.model(self.x).view(-1, VOCAB), self.y.view(-1))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


def gpteval():
    model, x = GPT(), torch.randint(VOCAB, (64, CONTEXT))

    @torch.no_grad()
    def run(n):
        for _ in range(n):
            model(x)

    return 1, run


def rss_kb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4


def memory(steps):
    torch.ones(4).add(1)
    base = rss_kb()
    t = Trainer()
    at = []  # the RSS at the end of each quarter
    for i in range(steps):
        t.step()
        if (i + 1) % (steps // 4) == 0:
            at.append(rss_kb() - base)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak - base, *at, flush=True)


def make(task):
    if task.endswith("/release"):  # there is but one way to free
        task = task.removesuffix("/release")
    if task == "mlp":
        return mlp()
    if task == "gpt":
        return 2, repeat(Trainer().step)
    if task == "gpteval":
        return gpteval()
    return operator(task)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    made = {}
    for line in iter(sys.stdin.readline, ""):
        task, _, steps = line.strip().partition(" ")
        if task == "memory":
            memory(int(steps))
            continue
        if task not in made:
            made[task] = make(task)
        n, f = made[task]
        start = time.perf_counter()
        f(n)
        print(f"{(time.perf_counter() - start) / n * 1e9:.1f}", flush=True)
