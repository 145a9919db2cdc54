"""The PyTorch twin of this example: python examples/translate/twin.py writes twin.json, which the test reads."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

DIGITS, START, LENGTH, WIDTH, HIDDEN, BATCH, STEPS, LR = 10, 10, 5, 16, 64, 64, 150, 1e-2


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(DIGITS + 1, WIDTH)
        self.encoder = nn.GRU(WIDTH, HIDDEN, batch_first=True)
        self.decoder = nn.GRU(WIDTH, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, DIGITS)

    def forward(self, source, shifted):
        _, h = self.encoder(self.embedding(source))
        y, _ = self.decoder(self.embedding(shifted), h)
        return self.head(y)

    def greedy(self, source):
        _, h = self.encoder(self.embedding(source))
        token = torch.full((source.size(0), 1), START)
        out = []
        for _ in range(source.size(1)):
            y, h = self.decoder(self.embedding(token), h)
            token = self.head(y).argmax(2)
            out.append(token)
        return torch.cat(out, 1)


twin.start()
model = EncoderDecoder()
opt = torch.optim.Adam(model.parameters(), lr=LR, fused=True)
losses = []
for step in range(STEPS):
    source = torch.randint(0, DIGITS, (BATCH, LENGTH))
    target = source.flip(1)
    shifted = torch.cat([torch.full((BATCH, 1), START), target.narrow(1, 0, LENGTH - 1)], 1)
    loss = F.cross_entropy(model(source, shifted).flatten(0, 1), target.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
with torch.no_grad():
    source = torch.randint(0, DIGITS, (20, LENGTH))
    decoded = model.greedy(source)
twin.save(losses=losses[:20], decoded=decoded.flatten().tolist(), correct=[decoded.eq(source.flip(1)).float().mean().item()])
