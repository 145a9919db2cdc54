import torch

from dense import layers


def request(n, how):
    m, x = layers(32, 64, 64, 10).eval(), n.floats(32).tolist()
    n.fill(m)

    @torch.no_grad()
    def step():
        return sum(m(torch.tensor([x])).tolist()[0])

    return step


def add(n, how):
    a, b = n.floats(16), n.floats(16)

    def step():
        for _ in range(64):
            c = a.add(b)
        return c

    return step
