import torch
import torch.nn.functional as F
from torch import nn

from dense import layers
from numbers_ import training


def conv3(inward, out):
    return nn.Conv2d(inward, out, 3, padding=1)


def convnet(n, how):
    m = nn.Sequential(
        conv3(3, 16), nn.ReLU(), nn.MaxPool2d(2),
        conv3(16, 32), nn.ReLU(), nn.MaxPool2d(2),
        conv3(32, 64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), layers(64 * 4 * 4, 128, 10))
    x, y = n.floats(32, 3, 32, 32), n.ints(10, 32)
    return training(n, m, how, lambda: F.cross_entropy(m(x), y))


def autoencoder(n, how):
    m = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh())
    x = n.floats(32, 1, 32, 32)
    return training(n, m, how, lambda: F.mse_loss(m(x), x))


class BasicBlock(nn.Module):
    def __init__(self, inward, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inward, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.down = None
        if stride != 1:
            self.down = nn.Sequential(nn.Conv2d(inward, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.down is not None:
            x = self.down(x)
        return F.relu(y + x)


def resnet18(n, how):
    blocks = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    m = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        *(BasicBlock(*b) for b in blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))
    x, y = n.floats(8, 3, 64, 64), n.ints(1000, 8)
    return training(n, m, how, lambda: F.cross_entropy(m(x), y), torch.optim.SGD, lr=0.01, momentum=0.9)


def cnn256(n, how):
    m = nn.Sequential(
        conv3(3, 16), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        conv3(16, 32), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        conv3(32, 64), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    x, y = n.floats(4, 3, 256, 256), n.ints(10, 4)
    return training(n, m, how, lambda: F.cross_entropy(m(x), y))
