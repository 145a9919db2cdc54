"""The PyTorch twin of this example: python examples/pipeline/twin.py writes twin.json, which the test reads."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

REQUESTS, FEATURES, CLASSES = 50, 16, 5

twin.start()
model = nn.Sequential(nn.Linear(FEATURES, 32), nn.GELU(), nn.Linear(32, CLASSES)).eval()
classes, scores = [], []
for i in range(REQUESTS):
    x = torch.tensor([float((i * 7 + j * 3) % 11) for j in range(FEATURES)])
    x = x.sub(x.mean()).div(x.std())
    with torch.no_grad():
        p = model(x.unsqueeze(0)).softmax(1)
    score, label = p.max(1)
    classes.append(label.item())
    scores.append(score.item())
twin.save(classes=classes, scores=scores)
