"""The sequence of numbers.go, and what the workloads share."""
import math

import torch


class Numbers:
    def __init__(self):
        self.i = 0

    def _next(self, count):
        z = torch.arange(self.i + 1, self.i + 1 + count)  # 32 bits in 64: products stay below 2**63
        self.i += count
        z ^= z >> 16
        z = (z * 0x7FEB352D) & 0xFFFFFFFF
        z ^= z >> 15
        z = (z * 0x2C1B3C6D) & 0xFFFFFFFF
        z ^= z >> 16
        return z

    def floats(self, *shape, bound=1.0):
        z = self._next(math.prod(shape))
        return (((z >> 8).float() / (1 << 23) - 1) * bound).view(shape)

    def ints(self, below, *shape):
        return (self._next(math.prod(shape)) % below).view(shape)

    @torch.no_grad()
    def fill(self, model):
        """As fill in numbers.go."""
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(self.floats(*p.shape, bound=1 / math.sqrt(p.numel() // p.size(0))))
            elif p[0] != 1:
                p.copy_(self.floats(*p.shape, bound=0.1))


# How an optimizer is run; the first is PyTorch's default on a CPU.
OPTIMIZERS = {"default": {}, "fused": {"fused": True}, "foreach": {"foreach": True}}


def training(n, model, how, loss, optimizer=torch.optim.Adam, **settings):
    """Fills the model's parameters and returns a step that trains them."""
    n.fill(model)
    opt = optimizer(model.parameters(), **({"lr": 1e-3} | settings), **OPTIMIZERS[how])

    def step():
        l = loss()
        opt.zero_grad()
        l.backward()
        opt.step()
        return l

    return step
