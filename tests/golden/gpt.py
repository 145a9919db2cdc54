#!/usr/bin/env python3
"""Writes gpt.json and gpt.safetensors: twenty steps of training a small GPT in PyTorch.

    python3 tests/golden/gpt.py

gpt.safetensors holds the weights before the first step under PyTorch's names. gpt.json holds

    "config":     the model's sizes and the optimizer's settings
    "batches":    20 batches of token ids, (4, context+1): inputs are all but the last, targets all but the first
    "losses":     the mean cross entropy of each step, float32 values printed as float64
    "grad_norms": the 2-norm of each parameter's gradient in the first step
    "norms":      the 2-norm of each parameter after the last step

The model is the usual pre-norm one: token and position embeddings, blocks of attention (fused
query, key and value projection, causal) and a multilayer perceptron with the exact GELU, each
added to its input, a last layer norm and a head without bias.
"""
import json
import os

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

here = os.path.dirname(os.path.abspath(__file__))
config = {"layers": 2, "width": 32, "heads": 4, "context": 16, "vocab": 65, "batch": 4, "steps": 20,
          "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c["vocab"], c["width"])
        self.pos = nn.Embedding(c["context"], c["width"])
        self.blocks = nn.ModuleList(Block(c["width"], c["heads"]) for _ in range(c["layers"]))
        self.ln = nn.LayerNorm(c["width"])
        self.head = nn.Linear(c["width"], c["vocab"], bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def norms(named):
    return {name: float(x.detach().double().norm()) for name, x in named}


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = GPT(config)
    save_file({k: v.contiguous().clone() for k, v in model.state_dict().items()}, os.path.join(here, "gpt.safetensors"))
    opt = torch.optim.AdamW(model.parameters(), lr=config["lr"], betas=(config["beta1"], config["beta2"]),
                            eps=config["eps"], weight_decay=config["weight_decay"], fused=True)
    batches, losses, grads = [], [], {}
    for step in range(config["steps"]):
        # A rule that can be learned: each token follows from the one before it.
        ids = torch.randint(0, config["vocab"], (config["batch"], 1))
        for _ in range(config["context"]):
            ids = torch.cat([ids, (ids[:, -1:] * 4 + 3) % config["vocab"]], 1)
        batches.append(ids.tolist())
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, config["vocab"]), ids[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        if step == 0:
            grads = norms((k, p.grad) for k, p in model.named_parameters())
        opt.step()
        losses.append(loss.item())
    with open(os.path.join(here, "gpt.json"), "w") as out:
        json.dump({"config": config, "batches": batches, "losses": losses, "grad_norms": grads,
                   "norms": norms(model.named_parameters())}, out, separators=(",", ":"))
        out.write("\n")
    print("losses", losses[0], "to", losses[-1])


if __name__ == "__main__":
    main()
