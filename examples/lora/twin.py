"""The PyTorch twin of this example: python examples/lora/twin.py writes twin.json, which the test reads."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

IN, HIDDEN, CLASSES, RANK, ALPHA, BATCH, STEPS = 8, 32, 4, 4, 8.0, 64, 40


class LoRA(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.merged = False

    def forward(self, x):
        y = self.base(x)
        if self.merged:
            return y
        return y.add(self.lora_B(self.lora_A(x)).mul(ALPHA / RANK))

    def merge(self):
        with torch.no_grad():
            self.base.weight.add_(self.lora_B.weight.mm(self.lora_A.weight).mul(ALPHA / RANK))
        self.merged = True


def task(w):
    x = torch.randn(BATCH, IN)
    return x, x.mm(w).argmax(1)


def train(model, parameters, w, lr):
    opt = torch.optim.AdamW(parameters, lr=lr, fused=True)
    losses = []
    for step in range(STEPS):
        x, y = task(w)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


twin.start()
first, second = torch.randn(IN, CLASSES), torch.randn(IN, CLASSES)
fc1, fc2 = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, CLASSES)
base = nn.Sequential(fc1, nn.ReLU(), fc2)
pretraining = train(base, base.parameters(), first, 1e-2)
base.requires_grad_(False)
model = nn.Sequential(LoRA(fc1), nn.ReLU(), LoRA(fc2))
adapted = [p for p in model.parameters() if p.requires_grad]
finetuning = train(model, adapted, second, 1e-2)
x, _ = task(second)
with torch.no_grad():
    before = model(x)
    model[0].merge()
    model[2].merge()
    after = model(x)
twin.save(pretraining=pretraining, finetuning=finetuning, before=before.flatten().tolist(), after=after.flatten().tolist())
