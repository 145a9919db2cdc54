"""The GPT of examples/chargpt and its adapters in PyTorch, under the same names: twin.py and load.py use it."""
import torch
import torch.nn as nn
import torch.nn.functional as F


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
    def __init__(self, vocab, width, layers, heads, context):
        super().__init__()
        self.context = context
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))

    def loss(self, inputs, targets):
        return F.cross_entropy(self(inputs).flatten(0, 1), targets.flatten())


class LoRA(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.scale = alpha / rank
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scale

    @torch.no_grad()
    def merge(self):
        """Returns the linear layer with the update added to its weight."""
        self.base_layer.weight += self.lora_B.weight @ self.lora_A.weight * self.scale
        return self.base_layer


def insert(model, rank, alpha):
    """Freezes the model and puts an adapter around each linear layer of its multilayer perceptrons."""
    model.requires_grad_(False)
    for block in model.blocks:
        for i, layer in enumerate(block.mlp):
            if isinstance(layer, nn.Linear):
                block.mlp[i] = LoRA(layer, rank, alpha)


def merge(model):
    """Puts the linear layers back, with the updates added to their weights."""
    for block in model.blocks:
        for i, layer in enumerate(block.mlp):
            if isinstance(layer, LoRA):
                block.mlp[i] = layer.merge()
