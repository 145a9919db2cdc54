import torch
import torch.nn.functional as F
from torch import nn

from numbers_ import training


def layers(*sizes):
    m = nn.Sequential()
    for i in range(len(sizes) - 1):
        if i > 0:
            m.append(nn.ReLU())
        m.append(nn.Linear(sizes[i], sizes[i + 1]))
    return m


def classify(n, how, rows, *sizes):
    m, x, y = layers(*sizes), n.floats(rows, sizes[0]), n.ints(10, rows)
    return training(n, m, how, lambda: F.cross_entropy(m(x), y))


def tiny_mlp(n, how):
    return classify(n, how, 32, 32, 64, 64, 10)


def deep_mlp(n, how):
    return classify(n, how, 64, *[64] * 24, 10)


def mlp(n, how):
    return classify(n, how, 128, 784, 256, 128, 64, 10)


class ResidualTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(256), layers(256, 256, 256)) for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def residual_tower(n, how):
    m, x, y = ResidualTower(), n.floats(64, 256), n.floats(64, 256)
    return training(n, m, how, lambda: F.mse_loss(m(x), y))


class Refinement(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.norm = nn.Linear(64, 128), nn.LayerNorm(128)
        self.refine = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128))
        self.out = nn.Linear(128, 64)

    def forward(self, x):
        h = self.enter(x)
        for _ in range(5):
            h = h + self.refine(self.norm(h))
        return self.out(h)


def refinement(n, how):
    m, x, y = Refinement(), n.floats(128, 64), n.floats(128, 64)
    return training(n, m, how, lambda: F.mse_loss(m(x), y))


class Feedback(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(64 + 128, 128), nn.Linear(128, 64)

    def forward(self, x):
        h = torch.zeros(128, 128)
        for _ in range(10):
            h = torch.tanh(self.body(torch.cat([x, h], 1)))
        return self.out(h)


def feedback(n, how):
    m, x, y = Feedback(), n.floats(128, 64), n.floats(128, 64)
    return training(n, m, how, lambda: F.mse_loss(m(x), y))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(128, 3), nn.ModuleList(layers(128, 512, 128) for _ in range(3))

    def forward(self, x):
        gate = self.gate(x).softmax(1)
        total = torch.zeros(512, 128)
        for i, expert in enumerate(self.experts):
            total = total + expert(x) * gate[:, i : i + 1]
        return total


def gated(n, how):
    m, x, y = Gated(), n.floats(512, 128), n.floats(512, 128)
    return training(n, m, how, lambda: F.mse_loss(m(x), y))
