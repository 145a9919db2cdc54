"""The Python arm: the tasks of arm.go and arm.cpp with PyTorch as its users write them.

    arm.py THREADS DEVICE [HOW]

HOW is eager, graphs (a step is captured as a CUDA graph once, then replayed) or compile (torch.compile). A task that
cannot be run so is answered by "-" and why."""
import os
import resource
import socket
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


DEVICE, HOW = "cpu", "eager"
CAPTURABLE = {}  # for optimizers


def finish():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def graphed(step):
    """Captures a step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compiled(model):
    return torch.compile(model) if HOW == "compile" else model


def repeat(f):
    if HOW == "graphs":
        f = graphed(f)

    def run(n):
        for _ in range(n):
            f()

    return run


def operator(task):
    name, _, grad = task.partition("+")
    a, b = torch.randn(16, requires_grad=bool(grad)), torch.randn(16)
    m, w = torch.randn(16, 16, requires_grad=bool(grad)), torch.randn(16, 16)

    # Written out, since a call through a lambda would be timed too.
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
    model = compiled(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, **CAPTURABLE)
    x, y = torch.randn(32, 32), torch.randint(10, (32,))

    def step():
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    return 400, repeat(step)


LAYERS, WIDTH, HEADS, CONTEXT, VOCAB = 4, 128, 4, 64, 97


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
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
    def __init__(self, vocab=VOCAB, width=WIDTH, layers=LAYERS, heads=HEADS, context=CONTEXT):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Trainer:
    def __init__(self, model=None, vocab=VOCAB, rows=16, context=CONTEXT):
        self.model, self.vocab = compiled(model or GPT()), vocab
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01, fused=True, **CAPTURABLE)
        self.x, self.y = torch.randint(vocab, (rows, context)), torch.randint(vocab, (rows, context))

    def loss(self):
        return F.cross_entropy(self.model(self.x).view(-1, self.vocab), self.y.view(-1))

    def step(self):
        loss = self.loss()
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


LARGE = {  # vocabulary, width, layers, heads, context; rows of a batch
    "gpt10m": ((65, 384, 6, 6, 256), 64),
    "gpt350m": ((24576, 1024, 24, 16, 1024), 4),
}


def large(task):
    """Trains a GPT with its weights in bfloat16."""
    sizes, rows = LARGE[task]
    return 5, repeat(Trainer(GPT(*sizes).to(torch.bfloat16), sizes[0], rows, sizes[4]).step)


class Bottleneck(nn.Module):
    def __init__(self, n, mid, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, 4 * mid, 1, bias=False), nn.BatchNorm2d(4 * mid)
        self.down = None
        if stride != 1 or n != 4 * mid:
            self.down = nn.Sequential(nn.Conv2d(n, 4 * mid, 1, stride, bias=False), nn.BatchNorm2d(4 * mid))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        if self.down is not None:
            x = self.down(x)
        return F.relu(y + x)


def resnet50():
    layers, n = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(n, 64 << stage, 2 if i == 0 and stage > 0 else 1))
            n = 256 << stage
    model = compiled(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 1000)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=DEVICE != "cpu")
    x, y = torch.randn(64, 3, 224, 224), torch.randint(1000, (64,))

    def step():
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    return 5, repeat(step)


def lstm():
    model = nn.LSTM(1024, 1024, 2)
    run, x = compiled(model), torch.randn(64, 64, 1024)

    def step():
        model.zero_grad()
        run(x)[0].sum().backward()

    return 5, repeat(step)


def attention():
    q, k, v = (torch.randn(8, 16, 2048, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    run = compiled(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True).sum())

    def step():
        q.grad = k.grad = v.grad = None
        run().backward()

    return 5, repeat(step)


class CastTrainer(Trainer):
    def loss(self):
        with torch.autocast(DEVICE.partition(":")[0], torch.bfloat16):
            return super().loss()


OPTIMIZERS = {name.lower(): getattr(torch.optim, name) for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)}
FUSED = ("adagrad", "adam", "adamw", "sgd")


def optimizer_step(name):
    """The step of an optimizer with 10 million parameters, in its fastest implementation."""
    params = [torch.randn(512, 512, requires_grad=True) for _ in range(40)]
    for p in params:
        g = torch.randn(512, 512)
        p.grad = g.to_sparse() if name == "sparseadam" else g
    options = {"fused": True} if name in FUSED else {} if name in ("muon", "sparseadam") else {"foreach": True}
    return 1, repeat(OPTIMIZERS[name](params, lr=1e-3, **options).step)


def load(file):
    """Loads the weights of a model of 1 GiB."""
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(256)))
    path = os.path.join(os.environ["LINSTOCK_BENCH_FILES"], "model." + file)
    if file == "pt":
        return 1, repeat(lambda: model.load_state_dict(torch.load(path, weights_only=True, mmap=True)))
    import safetensors.torch

    return 1, repeat(lambda: model.load_state_dict(safetensors.torch.load_file(path)))


def ddp(name):
    """Trains with DistributedDataParallel on two ranks. This process is rank 0 and gives rank 1 the same task for each turn."""
    port, rank, peer = os.environ.get("LINSTOCK_BENCH_PEER"), 1, None
    if port is None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port, rank = str(s.getsockname()[1]), 0
        environment = {**os.environ, "LINSTOCK_BENCH_PEER": port}
        peer = subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, text=True)
        print("ddp/" + name, file=peer.stdin, flush=True)
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:" + port, rank=rank, world_size=2)
    if name == "mlp":
        model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
        x, y, classes = torch.randn(64, 784), torch.randint(10, (64,)), 10
    else:
        model, classes = GPT(), VOCAB
        x, y = torch.randint(VOCAB, (16, CONTEXT)), torch.randint(VOCAB, (16, CONTEXT))
    replica = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    first = True  # the task that the peer has got already

    def run(n):
        nonlocal first
        if peer and not first:
            print("ddp/" + name, file=peer.stdin, flush=True)
        first = False
        for _ in range(n):
            loss = F.cross_entropy(replica(x).view(-1, classes), y.view(-1))
            opt.zero_grad()
            loss.backward()
            opt.step()

    return 10, run


def rss_kb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4


def library_kb(trains):
    """Loads PyTorch whole, and returns the RSS."""
    torch.ones(4).add(1)
    if trains:
        torch.optim.Adam([torch.zeros(())])  # loads what PyTorch leaves out until a program trains: torch._dynamo, 150 MB
    return rss_kb()


def memory(steps):
    base = library_kb(True)
    t = Trainer()
    at = []  # the RSS at the end of each quarter
    for i in range(steps):
        t.step()
        if (i + 1) % (steps // 4) == 0:
            at.append(rss_kb() - base)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(peak - base, *at, flush=True)


def peak(task):
    base = library_kb(not task.startswith("load/"))
    n, run = make(task)
    run(n)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base, flush=True)


TASKS = {"resnet50": resnet50, "lstm": lstm, "attention": attention}


def make(task):
    if task.endswith("/release"):  # there is but one way to free
        task = task.removesuffix("/release")
    if task == "mlp":
        return mlp()
    if task == "gpt":
        return 2, repeat(Trainer().step)
    if task == "gpteval":
        return gpteval()
    if task == "amp":
        return 2, repeat(CastTrainer().step)
    if task.startswith("step/"):
        return optimizer_step(task.removeprefix("step/"))
    if task.startswith("load/"):
        return load(task.removeprefix("load/"))
    if task.startswith("ddp/"):
        return ddp(task.removeprefix("ddp/"))
    if task in LARGE:
        return large(task)
    if task in TASKS:
        return TASKS[task]()
    if HOW != "eager":
        raise NotImplementedError("only steps of training")
    return operator(task)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(0)
    DEVICE, HOW = (sys.argv[2:] + ["cpu", "eager"][len(sys.argv) - 2:])[:2]
    if HOW == "graphs":
        CAPTURABLE = {"capturable": True}
    if os.environ.get("LINSTOCK_CUDNN") == "0":
        torch.backends.cudnn.enabled = False
    made = {}
    for line in iter(sys.stdin.readline, ""):
        task, _, steps = line.strip().partition(" ")
        if task == "memory":
            memory(int(steps))
            continue
        if task == "peak":
            peak(steps)
            continue
        if task == "add/shim":
            print("-", flush=True)  # Python has no shim
            continue
        try:
            if task not in made:
                with torch.device(DEVICE):  # no default device, which would slow each call
                    n, f = make(task)
                if HOW != "eager":
                    f(1)  # compiles
                made[task] = n, f
            n, f = made[task]
            finish()
            start = time.perf_counter()
            f(n)
            finish()
        except Exception as e:
            if HOW == "eager":
                raise
            made[task] = 1, lambda n, e=e: (_ for _ in ()).throw(e)
            lines = [line for line in str(e).splitlines() if line.strip()] or [type(e).__name__]
            print("-", type(e).__name__ + ":", lines[0][:200], flush=True)
            continue
        print(f"{(time.perf_counter() - start) / n * 1e9:.1f}", flush=True)
