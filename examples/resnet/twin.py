"""The PyTorch twin of this example: python examples/resnet/twin.py writes twin.json, which the test reads."""
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "internal", "twin"))
import torch
import torch.nn as nn
import torch.nn.functional as F
import twin

SIZE, CLASSES, BATCH, LR, EPOCHS, IMAGES = 16, 4, 32, 0.1, 2, 160


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride=stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.ModuleList([Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)])
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def stripes(n):
    labels = torch.arange(n).remainder(CLASSES)
    angle = labels.float().mul(math.pi / CLASSES).view(n, 1, 1)
    axis = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    phase = torch.rand(n, 1, 1).mul(2 * math.pi)
    wave = x.mul(angle.cos()).add(y.mul(angle.sin())).mul(8).add(phase).sin().unsqueeze(1)
    return torch.randn(n, 3, SIZE, SIZE).mul(0.5).add(wave), labels


def augment(x):
    flipped = torch.rand(x.size(0), 1, 1, 1).lt(0.5)
    x = torch.where(flipped, x.flip(2, 3), x)
    shift = torch.randint(0, 5, (2,)).tolist()
    x = F.pad(x, (2, 2, 2, 2))
    return x.narrow(2, shift[0], SIZE).narrow(3, shift[1], SIZE)


twin.start()
images, labels = stripes(IMAGES)
unseen, answers = stripes(IMAGES // 2)
model = ResNet()
opt = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
steps = EPOCHS * IMAGES // BATCH
warmup = steps // 5
schedule = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: s / warmup if s < warmup else (1 + math.cos(math.pi * (s - warmup) / (steps - warmup))) / 2
)
losses, rates = [], []
for epoch in range(EPOCHS):
    model.train()
    for i in range(0, IMAGES, BATCH):
        loss = F.cross_entropy(model(augment(images[i : i + BATCH])), labels[i : i + BATCH], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
        losses.append(loss.item())
model.eval()
with torch.no_grad():
    accuracy = model(unseen).argmax(1).eq(answers).float().mean().item()
twin.save(losses=losses, rates=rates, accuracy=[accuracy])
