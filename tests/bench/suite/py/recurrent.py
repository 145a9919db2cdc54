import math

import torch
import torch.nn.functional as F
from torch import nn

from numbers_ import training

LENGTH, ROWS, IN, HIDDEN = 50, 32, 64, 128


class Last(nn.Module):
    """A recurrent network and a head on its last output."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(HIDDEN, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0][-1])


def recurrent(n, how, rnn):
    m, x, y = Last(rnn), n.floats(LENGTH, ROWS, IN), n.ints(10, ROWS)
    return training(n, m, how, lambda: F.cross_entropy(m(x), y))


def gru(n, how):
    return recurrent(n, how, nn.GRU(IN, HIDDEN))


def lstm(n, how):
    return recurrent(n, how, nn.LSTM(IN, HIDDEN, 2))


class RecurrentAttention(nn.Module):
    LOOKS, WIDTH, HIDDEN = 8, 32, 128

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, self.WIDTH, 3, 2, 1), nn.ReLU())
        self.query = nn.Linear(self.HIDDEN, self.WIDTH)
        self.cell = nn.GRUCell(self.WIDTH, self.HIDDEN)
        self.head = nn.Linear(self.HIDDEN, 10)
        self.expand = nn.Linear(self.HIDDEN, self.WIDTH * 8 * 8)
        self.up1 = nn.ConvTranspose2d(self.WIDTH, 16, 4, 2, 1, bias=False)
        self.up2 = nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False)

    def forward(self, x, y):
        """The sum of nine losses: eight of the class, one of the image."""
        features = self.encoder(x).flatten(2)
        h = torch.zeros(x.size(0), self.HIDDEN)
        loss = torch.zeros(())
        for _ in range(self.LOOKS):
            score = self.query(h).unsqueeze(1).bmm(features) * (1 / math.sqrt(self.WIDTH))
            seen = score.softmax(-1).bmm(features.transpose(1, 2)).squeeze(1)
            h = self.cell(seen, h)
            loss = loss + F.cross_entropy(self.head(h), y)
        d = F.relu(self.up1(self.expand(h).view(-1, self.WIDTH, 8, 8)))
        return loss + F.mse_loss(torch.tanh(self.up2(d)), x)


def recurrent_attention(n, how):
    m, x, y = RecurrentAttention(), n.floats(16, 1, 32, 32), n.ints(10, 16)
    return training(n, m, how, lambda: m(x, y))
