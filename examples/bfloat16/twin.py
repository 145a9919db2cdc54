"""The PyTorch twin of this example: python examples/bfloat16/twin.py writes twin.json, which the test reads."""
import math
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
model = nn.Sequential(nn.Linear(IN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1))
model.to(torch.bfloat16)
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
opt = torch.optim.AdamW(masters, lr=LR, fused=True)
losses = []
for step in range(STEPS):
    x = torch.randn(BATCH, IN)
    y = x.mm(teacher).mul(0.25).tanh()
    loss = F.mse_loss(model(x.bfloat16()).float(), y)
    model.zero_grad()
    loss.backward()
    for m, p in zip(masters, model.parameters()):
        m.grad = p.grad.float()
    opt.step()
    with torch.no_grad():
        for m, p in zip(masters, model.parameters()):
            p.copy_(m)
    losses.append(loss.item())
twin.save(losses=losses)
