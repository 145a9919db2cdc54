"""The PyTorch twin of this example: python examples/lastuse/twin.py writes twin.json, which the test reads."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import twin

WIDTH, LAYERS, OUT, ROWS = 64, 8, 4, 512


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.gate = nn.ModuleList(), nn.ModuleList()
        for _ in range(LAYERS):
            self.value.append(nn.Linear(WIDTH, WIDTH))
            self.gate.append(nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, OUT)

    def block(self, i, x, total):
        value = self.value[i](x)
        gate = self.gate[i](x).sigmoid()
        y = value.tanh() * gate
        return x + y, total + y

    def forward(self, x):
        x, total = x * 0.5, x * 2
        for i in range(LAYERS):
            x, total = self.block(i, x, total)
        return self.head(total)


twin.start()
model = Model()
with torch.no_grad():
    y = model(torch.randn(ROWS, WIDTH))
    twin.save(means=y.mean(0).tolist())
