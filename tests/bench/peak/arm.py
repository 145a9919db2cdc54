"""The Python arm: the models of models.go with PyTorch as its users write them.

    arm.py MODEL MODE THREADS STEPS ROWS DEVICE SCALE [liblinstock.so]

With a library the process's tensors go through Linstock's counting allocator, and the peak is its own; on a device the
peak is that of PyTorch's caching allocator."""
import ctypes
import math
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


class Up(nn.Module):
    def __init__(self, inward, out):
        super().__init__()
        bound = 1 / math.sqrt(4 * inward)
        self.weight = nn.Parameter(torch.empty(inward, out, 2, 2).uniform_(-bound, bound))

    def forward(self, x):
        return F.conv_transpose2d(x, self.weight, stride=2)


def conv(inward, out, kernel, stride):
    return nn.Conv2d(inward, out, kernel, stride=stride, padding=kernel // 2)


class Double(nn.Module):
    def __init__(self, inward, out):
        super().__init__()
        self.a, self.b = conv(inward, out, 3, 1), conv(out, out, 3, 1)

    def forward(self, x):
        x = F.relu(self.a(x))
        return F.relu(self.b(x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([Double(1, 16), Double(16, 32)])
        self.mid = Double(32, 64)
        self.ups = nn.ModuleList([Up(64, 32), Up(32, 16)])
        self.up = nn.ModuleList([Double(64, 32), Double(32, 16)])
        self.head = conv(16, 2, 1, 1)

    def forward(self, x):
        skips = []
        for d in self.down:
            x = d(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for i, u in enumerate(self.ups):
            x = u(x)
            x = torch.cat([x, skips[-1 - i]], 1)
            x = self.up[i](x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self, inward, out, stride):
        super().__init__()
        self.conv1, self.conv2, self.down = conv(inward, out, 3, stride), conv(out, out, 3, 1), conv(inward, out, 1, stride)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.down(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv(3, 32, 3, 1)
        self.blocks = nn.ModuleList([Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 64, 1)])
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Attend(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    @staticmethod
    def split(x):
        n, t, c = x.shape
        return x.view(n, t, 4, c // 4).transpose(1, 2)

    def forward(self, x, memory=None, causal=False):
        y = self.norm(x)
        if memory is None:
            memory = y
        q, k, v = self.split(self.q(y)), self.split(self.k(memory)), self.split(self.v(memory))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x + self.o(y.transpose(1, 2).reshape(x.shape))


class Feed(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = F.gelu(self.a(self.norm(x)))
        return x + self.b(y)


class EncoderDecoder(nn.Module):
    def __init__(self, width=128, vocab=97):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.encode, self.self_, self.cross = (nn.ModuleList([Attend(), Attend()]) for _ in range(3))
        self.encode_feed, self.feed = (nn.ModuleList([Feed(), Feed()]) for _ in range(2))

    def forward(self, ids):
        t = ids.size(1) // 2
        memory = self.embedding(ids[:, :t])
        for a, f in zip(self.encode, self.encode_feed):
            memory = a(memory)
            memory = f(memory)
        x = self.embedding(ids[:, t:])
        for a, c, f in zip(self.self_, self.cross, self.feed):
            x = a(x, causal=True)
            x = c(x, memory)
            x = f(x)
        logits = self.head(x)
        return logits.view(-1, logits.size(2))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_, self.bn = nn.Linear(64, 64 * 7 * 7), nn.BatchNorm2d(64)
        self.up1, self.up2 = Up(64, 32), Up(32, 1)

    def forward(self, z):
        x = self.in_(z).view(-1, 64, 7, 7)
        x = F.relu(self.bn(x))
        x = F.relu(self.up1(x))
        return torch.tanh(self.up2(x))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.head = conv(1, 32, 3, 2), conv(32, 64, 3, 2), nn.Linear(64 * 7 * 7, 1)

    def forward(self, x):
        x = F.leaky_relu(self.conv1(x), 0.2)
        x = F.leaky_relu(self.conv2(x), 0.2)
        return self.head(x.flatten(1)).view(-1)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def learn(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()
        self.opt_g, self.opt_d = adam(self.generator), adam(self.discriminator)

    def forward(self, z):
        return self.generator(z)

    def train_step(self, real, _):
        n = real.size(0)
        drawn = self.generator(torch.randn(n, 64, device=real.device))
        ones, zeros = torch.ones(n, device=real.device), torch.zeros(n, device=real.device)
        loss_real = F.binary_cross_entropy_with_logits(self.discriminator(real), ones)
        loss_fake = F.binary_cross_entropy_with_logits(self.discriminator(drawn.detach()), zeros)
        learn(self.opt_d, loss_real + loss_fake)
        learn(self.opt_g, F.binary_cross_entropy_with_logits(self.discriminator(drawn), ones))


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(128, 512), nn.Linear(512, 512), nn.Linear(512, 16)

    def forward(self, x):
        x = F.relu(self.a(x))
        x = F.relu(self.b(x))
        return self.c(x)


class DQN(nn.Module):
    CAPACITY = 32768

    def __init__(self, n):
        super().__init__()
        self.q, self.target, self.n, self.at = QNet(), QNet(), n, 0
        self.opt = adam(self.q)
        self.states, self.nexts = torch.randn(self.CAPACITY, 128), torch.randn(self.CAPACITY, 128)
        self.actions, self.rewards = torch.randint(16, (self.CAPACITY,)), torch.randn(self.CAPACITY)

    def forward(self, x):
        return self.q(x).argmax(1)

    def sample(self):
        i = torch.randint(self.CAPACITY, (self.n,), device=self.states.device)
        return self.states[i], self.actions[i], self.rewards[i], self.nexts[i]

    def play(self, n):
        with torch.no_grad():
            rows = slice(self.at, self.at + n)
            s = self.nexts[rows]
            a = self.q(s).argmax(1)
            following = s + torch.randn(n, 128, device=s.device)
            reward = following.mean(1)
            self.states[rows], self.actions[rows], self.rewards[rows], self.nexts[rows] = s, a, reward, following
            self.at = (self.at + n) % self.CAPACITY

    def train_step(self, *_):
        self.play(1024)
        states, actions, rewards, nexts = self.sample()
        with torch.no_grad():
            best = self.target(nexts).amax(1)
            want = rewards + 0.9 * best
        values = self.q(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        learn(self.opt, F.smooth_l1_loss(values, want))


class Beam(nn.Module):
    def __init__(self, width=256, vocab=4096, beams=8, steps=16):
        super().__init__()
        self.width, self.vocab, self.beams, self.steps = width, vocab, beams, steps
        self.embedding, self.in_, self.state = nn.Embedding(vocab, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocab)

    def step(self, token, h):
        h = torch.tanh(self.in_(self.embedding(token)) + self.state(h))
        return self.head(h), h

    def forward(self, ids):
        h = torch.zeros(ids.size(0), self.width, device=ids.device)
        out = []
        for t in range(ids.size(1)):
            logits, h = self.step(ids[:, t], h)
            out.append(logits)
        return torch.stack(out, 1).view(-1, self.vocab)

    def evaluate(self, ids):
        first = ids[:, 0]
        n, beams, device = first.size(0), self.beams, ids.device
        h = torch.zeros(n * beams, self.width, device=device)
        token = first.unsqueeze(1).expand(n, beams).reshape(-1)
        score = torch.zeros(n, beams, device=device)
        offset = (torch.arange(n, device=device) * beams).unsqueeze(1)
        history = torch.zeros(n * beams, 0, dtype=torch.int64, device=device)
        for _ in range(self.steps):
            logits, h = self.step(token, h)
            total = logits.log_softmax(-1).view(n, beams, self.vocab) + score.unsqueeze(2)
            score, index = total.view(n, -1).topk(beams)
            rows = (index // self.vocab + offset).view(-1)
            token = (index % self.vocab).view(-1)
            h = h[rows]
            history = torch.cat([history[rows], token.unsqueeze(1)], 1)
        return history.view(n, beams, self.steps)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.head = nn.LSTM(256, 256), nn.GRU(256, 256), nn.Linear(256, 10)

    def forward(self, x):
        x, _ = self.lstm(x)
        _, h = self.gru(x)
        return self.head(h[-1])


class Classifier(nn.Module):
    def __init__(self, width=128, vocab=97):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.embedding, self.encoder = nn.Embedding(vocab, width), nn.TransformerEncoder(layer, 3)
        self.decoder = nn.TransformerDecoderLayer(width, 4, 4 * width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, ids):
        x = self.embedding(ids)
        x = self.encoder(x)
        query = x.mean(1, keepdim=True)
        x = self.decoder(query, x)
        return self.head(x.squeeze(1))


def make(name, evaluate, rows, scale):
    """Returns the model, its input and its target."""
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
    if name == "unet":
        n = size(32, 96)
        return UNet(), torch.randn(n, 1, 64, 64), torch.randint(2, (n, 64, 64))
    if name == "resnet":
        n = size(128, 384)
        return ResNet(), *classes(n, n, 3, 32, 32)
    if name == "encdec":
        n = size(128, 512)
        return EncoderDecoder(), torch.randint(97, (n, 128)), torch.randint(97, (n * 64,))
    if name == "gan":
        n = size(512, 1024)
        return GAN(), torch.randn(n, 64) if evaluate else torch.randn(n, 1, 28, 28), None
    if name == "dqn":
        n = size(16384, 65536)
        return DQN(n), torch.randn(n, 128), None
    if name == "beam":
        n = size(256, 256)
        return Beam(), torch.randint(4096, (n, 16)), torch.randint(4096, (n * 16,))
    if name == "lstm":
        n = size(512, 2048)
        return LSTM(), *classes(n, 24, n, 256)
    if name == "transformer":
        n = size(128, 512)
        return Classifier(), torch.randint(97, (n, 64)), torch.randint(10, (n,))
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
        if mode == "train":
            torch.optim.Adam([torch.zeros(())])  # loads what PyTorch leaves out until a program trains
        start_rss = status("VmRSS")
        model, x, y = make(name, mode == "eval", int(rows), int(scale))
    if mode == "eval":
        model.eval()

        forward = getattr(model, "evaluate", model)

        def step():
            with torch.no_grad():
                forward(x)
    elif hasattr(model, "train_step"):
        def step():
            model.train_step(x, y)
    else:
        opt = adam(model)

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
    model.zero_grad()  # also those of a model's own optimizers
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
