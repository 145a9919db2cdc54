import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

from numbers_ import training

sys.path.append(os.path.join(os.path.dirname(__file__), "..", ".."))
from arm import CONTEXT, GPT, HEADS, VOCAB, WIDTH  # tests/bench/arm.py


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = lambda: nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.ModuleList([layer(), layer()]), nn.Linear(128, 10)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def encoder(n, how):
    m, x, y = Encoder(), n.floats(16, 32, 128), n.ints(10, 16)
    return training(n, m, how, lambda: F.cross_entropy(m(x), y))


class Texts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20000, 64), nn.Linear(64, 10)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


def embedding(n, how):
    m, x, y = Texts(), n.ints(20000, 64, 32), n.ints(10, 64)
    return training(n, m, how, lambda: F.cross_entropy(m(x), y))


def gpt_loss(m, x, y):
    return F.cross_entropy(m(x).view(-1, VOCAB), y.view(-1))


def gpt_step(n, how):
    m, x, y = GPT(), n.ints(VOCAB, 16, CONTEXT), n.ints(VOCAB, 16, CONTEXT)
    return training(n, m, how, lambda: gpt_loss(m, x, y), torch.optim.AdamW, weight_decay=0.01)


def gpt_evaluation(n, how):
    m, x, y = GPT().eval(), n.ints(VOCAB, 64, CONTEXT), n.ints(VOCAB, 64, CONTEXT)
    n.fill(m)
    return torch.no_grad()(lambda: gpt_loss(m, x, y))


class Generator:
    """Keys and values of each block, in place."""

    def __init__(self, m):
        self.m = m
        shape = (1, HEADS, CONTEXT, WIDTH // HEADS)
        self.keys, self.values = ([torch.zeros(shape) for _ in m.blocks] for _ in range(2))

    def attention(self, i, x, at):
        a = self.m.blocks[i].attn
        q, k, v = a.qkv(x).view(1, 1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys[i][:, :, at : at + 1] = k
        self.values[i][:, :, at : at + 1] = v
        y = F.scaled_dot_product_attention(q, self.keys[i][:, :, : at + 1], self.values[i][:, :, : at + 1])
        return a.proj(y.transpose(1, 2).reshape(1, 1, WIDTH))

    def next(self, token, at):
        m = self.m
        x = m.tok(torch.tensor([[token]])) + m.pos.weight[at : at + 1]
        for i, block in enumerate(m.blocks):
            x = x + self.attention(i, block.ln1(x), at)
            x = x + block.mlp(block.ln2(x))
        return m.head(m.ln(x))


def gpt_generation(n, how):
    m = GPT().eval()
    n.fill(m)
    g, first = Generator(m), 0

    @torch.no_grad()
    def step():
        nonlocal first
        token = first % VOCAB
        first += 1
        for at in range(CONTEXT):
            logits = g.next(token, at)
            token = logits.argmax().item()
        return logits.max()

    return step
