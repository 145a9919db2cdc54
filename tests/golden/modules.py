#!/usr/bin/env python3
"""Writes modules.json: what torch.nn's modules, losses and initializers give under a seed.

    python3 tests/golden/modules.py

"modules"     by name: "seed"; "shape" of the input, drawn with torch.randn (or for ids with torch.randint) after
              the module was made; "state" before, "after" (what changed in it), "output", "grad_input" and "grads"
              for the loss (output * linspace(-1, 1)).sum(), "eval" where evaluation differs, and the strides of both
"losses"      by name: value and gradient
"init"        by name: the first elements of a float32 (6, 5, 2)
"clip"        norm before and gradients after

Floats are printed with the 9 digits that tell float32 values apart.
"""
import json
import os

import torch
from torch import nn
from torch.nn import functional as F

here = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)


def flat(t):
    if t.dtype == torch.float64:
        return [float(v) for v in t.detach().reshape(-1)]
    return [float(f"{v:.9g}") for v in t.detach().reshape(-1).tolist()]


def both(t):
    return {"shape": list(t.shape), "data": flat(t)}


class Attention(nn.Module):
    def __init__(self, width, heads, **options):
        super().__init__()
        self.mha = nn.MultiheadAttention(width, heads, **options)
        self.causal = False

    def forward(self, x):
        t = x.shape[1] if self.mha.batch_first else x.shape[0]
        mask = nn.Transformer.generate_square_subsequent_mask(t) if self.causal else None
        return self.mha(x, x, x, need_weights=False, attn_mask=mask, is_causal=self.causal)[0]


def causal():
    a = Attention(8, 2, batch_first=True)
    a.causal = True
    return a


class Fused(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))


MODULES = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear_no_bias": (lambda: nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "linear_float64": (lambda: nn.Linear(5, 3, dtype=torch.float64), (4, 5)),
    "embedding": (lambda: nn.Embedding(7, 4), ("ids", 7, 3, 5)),
    "embedding_pad": (lambda: nn.Embedding(7, 4, padding_idx=-5), ("ids", 7, 3, 5)),
    "layer_norm": (lambda: nn.LayerNorm(6), (2, 3, 6)),
    "layer_norm_shape": (lambda: nn.LayerNorm([3, 6], eps=1e-3), (2, 3, 6)),
    "rms_norm": (lambda: nn.RMSNorm(6), (2, 3, 6)),
    "rms_norm_eps": (lambda: nn.RMSNorm(6, eps=1e-2), (2, 3, 6)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 5, 6)),
    "conv2d_options": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, bias=False), (1, 4, 7, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 8)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "batch_norm2d_options": (lambda: nn.BatchNorm2d(3, eps=1e-3, momentum=None, affine=False), (2, 3, 4, 4)),
    "batch_norm2d_no_stats": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (2, 3, 4, 4)),
    "max_pool2d": (lambda: nn.MaxPool2d(2), (1, 2, 6, 5)),
    "max_pool2d_options": (lambda: nn.MaxPool2d((3, 2), stride=2, padding=1, dilation=1, ceil_mode=True), (1, 2, 6, 5)),
    "avg_pool2d": (lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (1, 2, 6, 5)),
    "adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (1, 2, 6, 5)),
    "dropout": (lambda: nn.Dropout(0.3), (4, 10)),
    "relu": (nn.ReLU, (3, 4)), "gelu": (nn.GELU, (3, 4)), "gelu_tanh": (lambda: nn.GELU(approximate="tanh"), (3, 4)),
    "silu": (nn.SiLU, (3, 4)), "tanh": (nn.Tanh, (3, 4)), "sigmoid": (nn.Sigmoid, (3, 4)),
    "softmax": (lambda: nn.Softmax(dim=-1), (3, 4)), "log_softmax": (lambda: nn.LogSoftmax(dim=1), (3, 4)),
    "flatten": (nn.Flatten, (2, 3, 4)), "flatten_01": (lambda: nn.Flatten(0, 1), (2, 3, 4)), "identity": (nn.Identity, (3, 4)),
    "attention": (lambda: Attention(8, 2), (5, 2, 8)), "attention_causal": (causal, (2, 5, 8)),
    "attention_no_bias": (lambda: Attention(8, 4, bias=False, batch_first=True), (2, 5, 8)),
    "causal_self_attention": (lambda: Fused(8, 2), (2, 5, 8)),
    "sequential": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 2)), (3, 6)),
    "convnet": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)), (2, 1, 6, 6)),
    "attention_batch_first": (lambda: Attention(8, 2, batch_first=True), (3, 5, 8)),
    "attention_unbatched": (lambda: Attention(8, 2), (5, 8)),
    "attention_unbatched_batch_first": (lambda: Attention(8, 2, batch_first=True), (5, 8)),
}


def run_module(seed, make, shape):
    torch.manual_seed(seed)
    m = make()
    state = {k: v.clone() for k, v in m.state_dict().items()}
    dtype = next((p.dtype for p in m.parameters()), torch.float32)
    if shape[0] == "ids":
        x = torch.randint(0, shape[1], shape[2:])
    else:
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = m(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
    out = {"seed": seed, "shape": list(shape[2:] if shape[0] == "ids" else shape), "dtype": str(dtype).removeprefix("torch."),
           "state": {k: both(v) for k, v in state.items()}, "order": list(state), "output": both(y) | {"stride": list(y.stride())}}
    if shape[0] == "ids":
        out["ids"] = shape[1]
    else:
        out["grad_input"] = flat(x.grad)
    out["grads"] = {k: flat(p.grad) for k, p in m.named_parameters()}
    out["after"] = {k: flat(v) for k, v in m.state_dict().items() if not torch.equal(v, state[k])}
    m.eval()
    with torch.no_grad():
        e = m(x)
    if not torch.equal(e, y):
        out["eval"] = flat(e)
    out["eval_stride"] = list(e.stride())
    return out


def losses():
    out = {}
    x = torch.linspace(-2, 2, 12).reshape(4, 3)
    p = torch.sigmoid(x)
    t = torch.linspace(0.9, 0.1, 12).reshape(4, 3)
    c = torch.tensor([0, 2, 1, 2])
    w = torch.tensor([0.5, 1.0, 2.0])
    cases = {
        "cross_entropy": (x, lambda x: F.cross_entropy(x, c)),
        "cross_entropy_options": (x, lambda x: F.cross_entropy(x, c, weight=w, ignore_index=1, reduction="sum", label_smoothing=0.1)),
        "nll_loss": (x, lambda x: F.nll_loss(F.log_softmax(x, 1), c)),
        "mse_loss": (x, lambda x: F.mse_loss(x, t)), "l1_loss": (x, lambda x: F.l1_loss(x, t, reduction="sum")),
        "smooth_l1_loss": (x, lambda x: F.smooth_l1_loss(x, t, beta=0.5)),
        "bce_loss": (p, lambda p: F.binary_cross_entropy(p, t)),
        "bce_with_logits_loss": (x, lambda x: F.binary_cross_entropy_with_logits(x, t, pos_weight=w)),
        "kl_div_loss": (x, lambda x: F.kl_div(F.log_softmax(x, 1), t, reduction="sum")),
    }
    for name, (v, f) in cases.items():
        v = v.clone().requires_grad_()
        y = f(v)
        y.backward()
        out[name] = {"value": flat(y)[0], "grad": flat(v.grad)}
    return out


def inits():
    out = {}
    cases = {
        "uniform": lambda t: nn.init.uniform_(t, -2, 3), "normal": lambda t: nn.init.normal_(t, 1, 2), "constant": lambda t: nn.init.constant_(t, 0.3),
        "kaiming_uniform": nn.init.kaiming_uniform_,
        "kaiming_uniform_options": lambda t: nn.init.kaiming_uniform_(t, a=0.2, mode="fan_out"),
        "kaiming_normal": lambda t: nn.init.kaiming_normal_(t, nonlinearity="relu"),
        "xavier_uniform": lambda t: nn.init.xavier_uniform_(t, gain=1.5), "xavier_normal": nn.init.xavier_normal_,
        "orthogonal": lambda t: nn.init.orthogonal_(t, gain=2), "trunc_normal": lambda t: nn.init.trunc_normal_(t, 0, 1, -0.7, 0.9),
        "trunc_normal_tail": lambda t: nn.init.trunc_normal_(t, 0, 1, 1.5, 2.5),
    }
    for i, (name, f) in enumerate(cases.items()):
        torch.manual_seed(100 + i)
        out[name] = flat(f(torch.empty(6, 5, 2)))
    return out


def clip():
    ps = [torch.zeros(3, 4, requires_grad=True), torch.zeros(2, requires_grad=True), torch.zeros(5, requires_grad=True)]
    ps[0].grad = torch.linspace(-3, 4, 12).reshape(3, 4)
    ps[2].grad = torch.linspace(1, 2, 5)
    norm = nn.utils.clip_grad_norm_(ps, 2.5)
    out = {"norm": flat(norm)[0], "grads": [flat(ps[0].grad), flat(ps[2].grad)]}
    nn.utils.clip_grad_value_(ps, 0.4)
    out["values"] = [flat(ps[0].grad), flat(ps[2].grad)]
    return out


def main():
    data = {"modules": {name: run_module(i, *case) for i, (name, case) in enumerate(MODULES.items())}, "losses": losses(),
            "init": inits(), "clip": clip()}
    with open(os.path.join(here, "modules.json"), "w") as out:
        json.dump(data, out, separators=(",", ":"))
        out.write("\n")


main()
