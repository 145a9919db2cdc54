"""The PyTorch twin of this example: python examples/gan/twin.py writes twin.json, which the test reads."""
import gzip
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

NOISE, SIZE, BATCH, STEPS, LR = 32, 16, 16, 12, 2e-3


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.up1 = nn.ConvTranspose2d(NOISE, 64, 4, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.up2 = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.up3 = nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1, bias=False)

    def forward(self, z):
        x = F.relu(self.bn1(self.up1(z)))
        x = F.relu(self.bn2(self.up2(x)))
        return torch.tanh(self.up3(x))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 4, stride=2, padding=1, bias=False)
        self.conv2 = nn.Conv2d(32, 64, 4, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(64)
        self.conv3 = nn.Conv2d(64, 1, 4, bias=False)

    def forward(self, x):
        x = F.leaky_relu(self.conv1(x), 0.2)
        x = F.leaky_relu(self.bn2(self.conv2(x)), 0.2)
        return self.conv3(x).flatten()


def initialize(m):
    for name, p in m.named_parameters():
        if "bn" not in name:
            nn.init.normal_(p, 0, 0.02)
        elif "weight" in name:
            nn.init.normal_(p, 1, 0.02)


def digits():
    here = os.path.dirname(os.path.abspath(__file__))
    with gzip.open(os.path.join(here, "..", "mnist", "digits", "images.idx3.gz")) as f:
        pixels = f.read()[16:]
    small = torch.tensor(list(pixels)).view(-1, 1, 8, 8).float()
    return F.interpolate(small.mul(2 / 16).sub(1), (SIZE, SIZE), mode="bilinear")


twin.start()
g, d = Generator(), Discriminator()
torch.manual_seed(2)
initialize(g)
initialize(d)
optg = torch.optim.Adam(g.parameters(), lr=LR, betas=(0.5, 0.999), fused=True)
optd = torch.optim.Adam(d.parameters(), lr=LR, betas=(0.5, 0.999), fused=True)
real, fake = torch.ones(BATCH), torch.zeros(BATCH)
pictures = digits()
dlosses, glosses = [], []
for step in range(STEPS):
    images = g(torch.randn(BATCH, NOISE, 1, 1))
    dloss = F.binary_cross_entropy_with_logits(d(pictures[step * BATCH : (step + 1) * BATCH]), real).add(
        F.binary_cross_entropy_with_logits(d(images.detach()), fake)
    )
    optd.zero_grad()
    dloss.backward()
    optd.step()
    gloss = F.binary_cross_entropy_with_logits(d(images), real)
    optg.zero_grad()
    gloss.backward()
    optg.step()
    dlosses.append(dloss.item())
    glosses.append(gloss.item())
twin.save(discriminator=dlosses, generator=glosses)
