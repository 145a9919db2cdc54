"""The PyTorch twin of this example: python examples/vae/twin.py writes twin.json, which the test reads."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

SIZE, HIDDEN, LATENT, BATCH, STEPS, LR = 8, 64, 4, 64, 60, 3e-3


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIZE * SIZE, HIDDEN), nn.ReLU())
        self.mean = nn.Linear(HIDDEN, LATENT)
        self.log_var = nn.Linear(HIDDEN, LATENT)
        self.decoder = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, SIZE * SIZE))

    def forward(self, x):
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean.add(torch.randn_like(mean).mul(log_var.mul(0.5).exp()))
        return self.decoder(z), mean, log_var


def bars(n):
    row = torch.randint(0, SIZE, (n, 1))
    column = torch.randint(0, SIZE, (n, 1))
    axis = torch.arange(SIZE).view(1, SIZE)
    return axis.eq(row).unsqueeze(2).logical_or(axis.eq(column).unsqueeze(1)).float().flatten(1)


twin.start()
model = VAE()
opt = torch.optim.Adam(model.parameters(), lr=LR, fused=True)
losses = []
for step in range(STEPS):
    x = bars(BATCH)
    y, mean, log_var = model(x)
    rebuilt = F.binary_cross_entropy_with_logits(y, x, reduction="sum")
    divergence = log_var.add(1).sub(mean.square()).sub(log_var.exp()).sum().mul(-0.5)
    loss = rebuilt.add(divergence).div(BATCH)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
with torch.no_grad():
    sample = torch.sigmoid(model.decoder(torch.randn(2, LATENT)))
twin.save(losses=losses, sample=sample.flatten().tolist())
