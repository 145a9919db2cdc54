"""The PyTorch twin of this example: python examples/checkpointing/twin.py writes twin.json, which the test reads."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS, BATCH, STEPS, LR = 32, 12, 512, 20, 1e-3


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH),
                          nn.Dropout(0.1))
            for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(lambda x, b=block: x + b(x), x, use_reentrant=False)
        return self.head(x)


twin.start()
teacher = torch.randn(WIDTH, 1)
model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
losses = []
for step in range(STEPS):
    x = torch.randn(BATCH, WIDTH)
    y = x.mm(teacher).mul(0.25).tanh()
    loss = F.mse_loss(model(x), y)
    model.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
twin.save(losses=losses)
