"""The PyTorch twin of this example: python examples/autocast/twin.py writes twin.json, which the test reads."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

IN, HIDDEN, BATCH, STEPS, LR = 16, 64, 64, 30, 3e-3

twin.start()
teacher = torch.randn(IN, 1)
model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 1))
opt = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
losses = []
for step in range(STEPS):
    x = torch.randn(BATCH, IN)
    y = x.mm(teacher).mul(0.25).tanh()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
twin.save(losses=losses)
