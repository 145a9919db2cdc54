#!/usr/bin/env python3
"""Writes torch_nn.json: what each module of torch.nn gives under a seed.

    python3 tests/golden/torch_nn.py

By name: "seed" and "in", the inputs, drawn after the module was made ("n:2,3" torch.randn, "u:2,3" torch.rand,
"i:7:2,3" torch.randint below 7, "s:2,3" signs, "z:2,3" zeros and ones, all with requires_grad if floating);
"state" before; "out", the outputs with shape, strides and elements; "in_grads" and "grads" for the loss that is the sum
of each floating output times linspace(-1, 1); "after", what the forward pass changed in the state; "eval", the outputs
in evaluation where they differ; "str", what print shows.

Floats have the 9 digits that tell float32 values apart.
"""
import json
import math
import os
import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils import rnn as packed

here = os.path.dirname(os.path.abspath(__file__))
torch.set_num_threads(1)


def flat(t):
    t = t.detach().reshape(-1)
    return [float(f"{v:.9g}") for v in t.tolist()] if t.is_floating_point() else [int(v) for v in t.tolist()]


def draw(spec):
    kind, _, rest = spec.partition(":")
    if kind == "i":
        high, _, rest = rest.partition(":")
    shape = [int(n) for n in rest.split(",") if n]
    if kind == "n":
        return torch.randn(shape).requires_grad_()
    if kind == "u":
        return torch.rand(shape).requires_grad_()
    if kind == "i":
        return torch.randint(0, int(high), shape)
    signs = torch.randn(shape)
    return torch.where(signs > 0, 1.0, -1.0) if kind == "s" else (signs > 0).float()


def run(seed, make, specs, call=None):
    torch.manual_seed(seed)
    m = make()
    state = {k: v.clone() for k, v in m.state_dict().items()}
    xs = [draw(s) for s in specs]
    call = call or (lambda m, *xs: m(*xs))

    def outputs():
        out = []

        def add(y):
            if isinstance(y, (tuple, list)):
                for e in y:
                    add(e)
            elif y is not None:
                out.append(y)
        add(call(m, *xs))
        return out

    ys = outputs()
    loss = sum((y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum() for y in ys if y.is_floating_point())
    if getattr(loss, "requires_grad", False):
        loss.backward()
    out = {"seed": seed, "in": specs, "state": [{"name": k, "shape": list(v.shape), "data": flat(v)} for k, v in state.items()],
           "out": [{"shape": list(y.shape), "stride": list(y.stride()), "data": flat(y)} for y in ys],
           "in_grads": [flat(x.grad) if x.grad is not None else None for x in xs],
           "grads": {k: flat(p.grad.to_dense()) for k, p in m.named_parameters() if p.grad is not None}}
    after = {k: flat(v) for k, v in m.state_dict().items() if not torch.equal(v, state[k])}
    if after:
        out["after"] = after
    m.eval()
    with torch.no_grad():
        es = outputs()
    if any(not torch.equal(e, y) for e, y in zip(es, ys)):
        out["eval"] = [flat(e) for e in es]
    if any(e.stride() != y.stride() for e, y in zip(es, ys)):
        out["eval_stride"] = [list(e.stride()) for e in es]
    out["str"] = str(m)
    return out


CASES = {}


def case(name, make, *specs, call=None):
    assert name not in CASES, name
    CASES[name] = (make, list(specs), call)


# Activations.
for name, make in {
    "ReLU": nn.ReLU, "ReLU6": nn.ReLU6, "SELU": nn.SELU, "SiLU": nn.SiLU, "Mish": nn.Mish, "Hardsigmoid": nn.Hardsigmoid, "Hardswish": nn.Hardswish,
    "Tanh": nn.Tanh, "Sigmoid": nn.Sigmoid, "LogSigmoid": nn.LogSigmoid, "Softsign": nn.Softsign, "Tanhshrink": nn.Tanhshrink, "GELU": nn.GELU,
    "GELU_tanh": lambda: nn.GELU("tanh"), "LeakyReLU": lambda: nn.LeakyReLU(0.2), "ELU": lambda: nn.ELU(0.7), "CELU": lambda: nn.CELU(1.3),
    "Hardtanh": lambda: nn.Hardtanh(-0.5, 0.7), "Softplus": lambda: nn.Softplus(2, 1.5), "Hardshrink": nn.Hardshrink, "Softshrink": lambda: nn.Softshrink(0.3),
    "Threshold": lambda: nn.Threshold(0.1, -2), "RReLU": lambda: nn.RReLU(0.1, 0.3), "PReLU": nn.PReLU, "PReLU_channels": lambda: nn.PReLU(4, 0.1),
    "GLU": nn.GLU, "Softmax": lambda: nn.Softmax(1), "LogSoftmax": lambda: nn.LogSoftmax(-1), "Softmin": lambda: nn.Softmin(0),
}.items():
    case(name, make, "n:3,4")
case("Softmax2d", nn.Softmax2d, "n:2,3,2,2")
# In place, behind an operator, because a leaf cannot be overwritten.
for name in ("ReLU", "ELU", "Hardswish", "LeakyReLU", "CELU", "Threshold"):
    args = {"LeakyReLU": (0.2,), "Threshold": (0.1, -2)}.get(name, ())
    case(name + "_inplace", lambda name=name, args=args: nn.Sequential(nn.Identity(), getattr(nn, name)(*args, inplace=True)), "n:3,4",
         call=lambda m, x: m(x * 2))

# Convolutions.
for d, size in ((1, "7"), (2, "5,6"), (3, "3,4,3")):
    conv, back = getattr(nn, f"Conv{d}d"), getattr(nn, f"ConvTranspose{d}d")
    case(f"Conv{d}d", lambda conv=conv: conv(2, 4, 3, padding=1), f"n:2,2,{size}")
    case(f"Conv{d}d_options", lambda conv=conv: conv(2, 4, 2, stride=2, padding=1, dilation=2, groups=2, bias=False), f"n:2,2,{size}")
    case(f"Conv{d}d_unbatched", lambda conv=conv: conv(2, 2, 2), f"n:2,{size}")
    case(f"Conv{d}d_same", lambda conv=conv: conv(2, 2, 2, padding="same", dilation=1), f"n:1,2,{size}")
    for mode in ("reflect", "replicate", "circular"):
        case(f"Conv{d}d_{mode}", lambda conv=conv, mode=mode: conv(2, 2, 3, padding=1, padding_mode=mode), f"n:1,2,{size}")
    case(f"Conv{d}d_same_reflect", lambda conv=conv: conv(2, 2, 2, padding="same", padding_mode="reflect"), f"n:1,2,{size}")
    case(f"ConvTranspose{d}d", lambda back=back: back(2, 3, 2), f"n:1,2,{size}")
    case(f"ConvTranspose{d}d_options", lambda back=back: back(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False), f"n:1,2,{size}")
    wide = [2 * int(n) for n in size.split(",")]
    case(f"ConvTranspose{d}d_size", lambda back=back: back(2, 2, 3, stride=2, padding=1), f"n:1,2,{size}", call=lambda m, x, wide=wide: m(x, output_size=wide))
case("Conv2d_window", lambda: nn.Conv2d(2, 2, (3, 2), stride=(2, 1), padding=(1, 2)), "n:1,2,5,6")

# Pools.
for d, size, norm in ((1, "8", 1), (2, "6,5", 2), (3, "4,5,4", 3)):
    n = lambda name, d=d: getattr(nn, f"{name}{d}d")
    case(f"MaxPool{d}d", lambda n=n: n("MaxPool")(2), f"n:2,2,{size}")
    case(f"MaxPool{d}d_options", lambda n=n: n("MaxPool")(3, stride=2, padding=1, dilation=1, ceil_mode=True), f"n:2,2,{size}")
    case(f"MaxPool{d}d_indices", lambda n=n: n("MaxPool")(2, return_indices=True), f"n:2,{size}")
    case(f"MaxUnpool{d}d", lambda n=n: nn.ModuleList([n("MaxPool")(2, return_indices=True), n("MaxUnpool")(2)]),
         "n:1,2," + {1: "8", 2: "6,4", 3: "4,4,2"}[d], call=lambda m, x: m[1](*m[0](x)))
    whole = [int(k) for k in size.split(",")]
    case(f"MaxUnpool{d}d_size", lambda n=n: nn.ModuleList([n("MaxPool")(2, return_indices=True), n("MaxUnpool")(2)]), f"n:1,2,{size}",
         call=lambda m, x, whole=whole: m[1](*m[0](x), output_size=whole))
    case(f"AvgPool{d}d", lambda n=n: n("AvgPool")(2), f"n:2,2,{size}")
    case(f"AvgPool{d}d_options", lambda n=n: n("AvgPool")(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False), f"n:2,2,{size}")
    if d > 1:
        case(f"AvgPool{d}d_divisor", lambda n=n: n("AvgPool")(2, divisor_override=3), f"n:2,{size}")
    case(f"LPPool{d}d", lambda n=n: n("LPPool")(2, 2), f"u:1,2,{size}")
    case(f"LPPool{d}d_inf", lambda n=n: n("LPPool")(math.inf, 3, stride=1, ceil_mode=True), f"n:1,2,{size}")
    case(f"AdaptiveAvgPool{d}d", lambda n=n: n("AdaptiveAvgPool")(3), f"n:1,2,{size}")
    case(f"AdaptiveMaxPool{d}d", lambda n=n: n("AdaptiveMaxPool")(3), f"n:1,2,{size}")
    case(f"AdaptiveMaxPool{d}d_indices", lambda n=n: n("AdaptiveMaxPool")(2, return_indices=True), f"n:2,{size}")
    if d > 1:
        keep = (2, None) if d == 2 else (2, None, 3)
        case(f"AdaptiveAvgPool{d}d_keep", lambda n=n, keep=keep: n("AdaptiveAvgPool")(keep), f"n:2,{size}")
        case(f"FractionalMaxPool{d}d", lambda n=n: n("FractionalMaxPool")(2, output_size=2), f"n:1,2,{size}")
        case(f"FractionalMaxPool{d}d_ratio", lambda n=n: n("FractionalMaxPool")(2, output_ratio=0.6, return_indices=True), f"n:2,{size}")

# Padding.
for d, size, amounts in ((1, "4", (2, 1)), (2, "3,4", (1, 2, 1, 0)), (3, "3,3,2", (1, 0, 1, 2, 0, 1))):
    for kind in ("ReflectionPad", "ReplicationPad", "ZeroPad", "CircularPad", "ConstantPad"):
        value = (2.5,) if kind == "ConstantPad" else ()
        make = getattr(nn, f"{kind}{d}d")
        case(f"{kind}{d}d", lambda make=make, value=value: make(1, *value), f"n:1,2,{size}")
        case(f"{kind}{d}d_sides", lambda make=make, value=value, amounts=amounts: make(amounts, *value), f"n:2,{size}")

# Normalisation.
for d, size in ((1, "5"), (2, "3,2"), (3, "2,2,3")):
    bn, inorm = getattr(nn, f"BatchNorm{d}d"), getattr(nn, f"InstanceNorm{d}d")
    case(f"BatchNorm{d}d", lambda bn=bn: bn(3), f"n:2,3,{size}")
    case(f"BatchNorm{d}d_options", lambda bn=bn: bn(3, eps=1e-3, momentum=None, bias=False), f"n:2,3,{size}")
    case(f"BatchNorm{d}d_plain", lambda bn=bn: bn(3, affine=False, track_running_stats=False), f"n:2,3,{size}")
    case(f"InstanceNorm{d}d", lambda inorm=inorm: inorm(3), f"n:2,3,{size}")
    case(f"InstanceNorm{d}d_options", lambda inorm=inorm: inorm(3, affine=True, track_running_stats=True, momentum=0.3), f"n:2,3,{size}")
    case(f"InstanceNorm{d}d_unbatched", lambda inorm=inorm: inorm(3), f"n:3,{size}")
case("BatchNorm1d_features", lambda: nn.BatchNorm1d(3), "n:4,3")
case("GroupNorm", lambda: nn.GroupNorm(2, 4), "n:2,4,3")
case("GroupNorm_plain", lambda: nn.GroupNorm(2, 4, eps=1e-3, affine=False), "n:2,4,3,2")
case("LayerNorm", lambda: nn.LayerNorm([3, 4], bias=False), "n:2,3,4")
case("RMSNorm", lambda: nn.RMSNorm([3, 4]), "n:2,3,4")
case("LocalResponseNorm", lambda: nn.LocalResponseNorm(2), "n:2,5,3")
case("LocalResponseNorm_2d", lambda: nn.LocalResponseNorm(3, alpha=1e-2, beta=0.5, k=2), "n:2,5,2,3")

# Dropout.
for name, spec in (("Dropout", "n:4,5"), ("Dropout1d", "n:2,4,3"), ("Dropout2d", "n:2,4,2,2"), ("Dropout3d", "n:2,4,1,2,2"), ("AlphaDropout", "n:4,5"),
                   ("FeatureAlphaDropout", "n:2,4,3")):
    case(name, lambda name=name: getattr(nn, name)(0.4), spec)
case("Dropout1d_unbatched", lambda: nn.Dropout1d(0.4), "n:4,3")
case("Dropout3d_unbatched", lambda: nn.Dropout3d(0.4), "n:4,1,2,2")
case("Dropout_inplace", lambda: nn.Dropout(0.4, inplace=True), "n:4,5", call=lambda m, x: m(x * 2))
case("Dropout1d_inplace", lambda: nn.Dropout1d(0.4, inplace=True), "n:4,5", call=lambda m, x: m(x * 2))


# Recurrent modules.
def pack(m, x, lengths, *states):
    p = packed.pack_padded_sequence(x, torch.tensor(lengths), batch_first=m.batch_first, enforce_sorted=False)
    y, h = m(p, *states)
    y, lengths = packed.pad_packed_sequence(y, batch_first=m.batch_first, padding_value=0.5, total_length=5)
    return y, lengths, h


for name in ("RNN", "GRU", "LSTM"):
    make = getattr(nn, name)
    two = name == "LSTM"
    both = (lambda m, x, h, c: m(x, (h, c))) if two else (lambda m, x, h: m(x, h))
    case(name, lambda make=make: make(3, 4), "n:5,2,3")
    case(f"{name}_deep", lambda make=make: make(3, 2, num_layers=2, bidirectional=True, batch_first=True, dropout=0.4), "n:2,4,3")
    case(f"{name}_states", lambda make=make: make(3, 2, num_layers=2, bias=False), "n:4,2,3", *["n:2,2,2"] * (1 + two), call=both)
    case(f"{name}_unbatched", lambda make=make: make(3, 2, bidirectional=True), "n:4,3", *["n:2,2"] * (1 + two), call=both)
    case(f"{name}_packed", lambda make=make: make(3, 2, num_layers=2, bidirectional=True), "n:4,3,3", call=lambda m, x: pack(m, x, [2, 4, 1]))
    case(f"{name}_packed_states", lambda make=make: make(3, 2, batch_first=True), "n:3,4,3", *["n:1,3,2"] * (1 + two),
         call=lambda m, x, *s: pack(m, x, [1, 4, 4], tuple(s) if len(s) == 2 else s[0]))
case("RNN_relu", lambda: nn.RNN(3, 4, nonlinearity="relu"), "n:5,2,3")
case("LSTM_projection", lambda: nn.LSTM(3, 4, num_layers=2, proj_size=2, bidirectional=True), "n:4,2,3")
case("LSTM_projection_states", lambda: nn.LSTM(3, 4, proj_size=2), "n:4,2,3", "n:1,2,2", "n:1,2,4", call=lambda m, x, h, c: m(x, (h, c)))
case("LSTM_projection_packed", lambda: nn.LSTM(3, 4, proj_size=2), "n:4,3,3", call=lambda m, x: pack(m, x, [4, 2, 3]))
for name, make in {"RNNCell": lambda **o: nn.RNNCell(3, 4, **o), "RNNCell_relu": lambda **o: nn.RNNCell(3, 4, nonlinearity="relu", **o),
                   "GRUCell": lambda **o: nn.GRUCell(3, 4, **o), "LSTMCell": lambda **o: nn.LSTMCell(3, 4, **o)}.items():
    two = name == "LSTMCell"
    both = (lambda m, x, h, c: m(x, (h, c))) if two else (lambda m, x, h: m(x, h))
    case(name, make, "n:2,3")
    case(f"{name}_states", lambda make=make: make(bias=False), "n:2,3", *["n:2,4"] * (1 + two), call=both)
    case(f"{name}_unbatched", make, "n:3", *["n:4"] * (1 + two), call=both)

# Shapes and distances.
case("Unflatten", lambda: nn.Unflatten(1, (2, 3)), "n:2,6,2")
case("Flatten", lambda: nn.Flatten(0, 1), "n:2,3,2")
case("PixelShuffle", lambda: nn.PixelShuffle(2), "n:1,8,2,3")
case("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), "n:1,2,4,6")
case("ChannelShuffle", lambda: nn.ChannelShuffle(2), "n:1,6,2,2")
case("CosineSimilarity", lambda: nn.CosineSimilarity(), "n:4,3", "n:4,3")
case("PairwiseDistance", lambda: nn.PairwiseDistance(p=1.5, keepdim=True), "n:4,3", "n:4,3")
case("Bilinear", lambda: nn.Bilinear(3, 2, 4), "n:5,3", "n:5,2")
case("Bilinear_plain", lambda: nn.Bilinear(3, 2, 4, bias=False), "n:2,2,3", "n:2,2,2")
case("Unfold", lambda: nn.Unfold((2, 3), dilation=1, padding=1, stride=(2, 1)), "n:1,2,4,5")
case("Fold", lambda: nn.Fold((4, 5), 2, stride=2, padding=1), "n:1,8,9")
case("Identity", nn.Identity, "n:2,2")
for mode, d in (("nearest", 1), ("nearest", 2), ("nearest", 3), ("nearest-exact", 2), ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3), ("area", 2)):
    size = {1: "5", 2: "3,4", 3: "2,3,2"}[d]
    case(f"Upsample_{mode}_{d}d_scale", lambda mode=mode: nn.Upsample(scale_factor=1.7, mode=mode), f"n:1,2,{size}")
    case(f"Upsample_{mode}_{d}d_size", lambda mode=mode: nn.Upsample(size=4, mode=mode), f"n:1,2,{size}")
for mode, d in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)):
    size = {1: "5", 2: "3,4", 3: "2,3,2"}[d]
    case(f"Upsample_{mode}_corners", lambda mode=mode: nn.Upsample(scale_factor=1.7, mode=mode, align_corners=True, recompute_scale_factor=True), f"n:1,2,{size}")
case("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), "n:1,2,2,3")
case("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(size=(5, 4)), "n:1,2,2,3")
for mode in ("bilinear", "bicubic"):
    case(f"interpolate_{mode}_antialias", nn.Identity, "n:1,2,6,7", call=lambda m, x, mode=mode: nn.functional.interpolate(x, size=(3, 4), mode=mode, antialias=True))

# Embeddings.
case("Embedding", lambda: nn.Embedding(5, 3, padding_idx=1, max_norm=1.5, scale_grad_by_freq=True), "i:5:2,4")
case("Embedding_norm", lambda: nn.Embedding(5, 3, max_norm=1.0, norm_type=1.0), "i:5:2,4")
case("Embedding_sparse", lambda: nn.Embedding(5, 3, sparse=True), "i:5:2,4")
case("Embedding_pretrained", lambda: nn.Embedding.from_pretrained(torch.arange(6.0).reshape(3, 2), freeze=False, padding_idx=2), "i:3:4")
for mode in ("mean", "sum", "max"):
    case(f"EmbeddingBag_{mode}", lambda mode=mode: nn.EmbeddingBag(5, 3, mode=mode, padding_idx=1), "i:5:3,4")
    case(f"EmbeddingBag_{mode}_offsets", lambda mode=mode: nn.EmbeddingBag(5, 3, mode=mode, include_last_offset=True), "i:5:7",
         call=lambda m, x: m(x, torch.tensor([0, 3, 3, 7])))
case("EmbeddingBag_weights", lambda: nn.EmbeddingBag(5, 3, mode="sum", max_norm=1.0), "i:5:3,4", "n:3,4", call=lambda m, x, w: m(x, per_sample_weights=w))
case("EmbeddingBag_sparse", lambda: nn.EmbeddingBag(5, 3, sparse=True), "i:5:3,4")

# Attention and transformers.
for name, options in {"": {}, "_batch_first": {"batch_first": True}, "_plain": {"bias": False}, "_widths": {"kdim": 3, "vdim": 5}, "_bias_kv": {"add_bias_kv": True},
                      "_zero": {"add_zero_attn": True, "batch_first": True}, "_dropout": {"dropout": 0.3}}.items():
    shapes = ("n:2,3,8", "n:2,4,3" if options.get("kdim") else "n:2,4,8", "n:2,4,5" if options.get("vdim") else "n:2,4,8")
    if not options.get("batch_first"):
        shapes = ("n:3,2,8",) + tuple(s.replace("2,4", "4,2") for s in shapes[1:])
    make = lambda options=options: nn.MultiheadAttention(8, 2, **options)
    case("MultiheadAttention" + name, make, *shapes, call=lambda m, *x: m(*x, need_weights=False))
    case(f"MultiheadAttention{name}_weights", make, *shapes)
    case(f"MultiheadAttention{name}_masks", make, *shapes, "z:3,4", "z:2,4", call=lambda m, q, k, v, a, p: m(
        q, k, v, attn_mask=a * torch.tensor([0, 1.0, 1, 1]) > 0, key_padding_mask=(p * torch.tensor([0, 1.0, 1, 1])) > 0, average_attn_weights=False))
    case(f"MultiheadAttention{name}_float_mask", make, *shapes, "n:4,3,4", call=lambda m, q, k, v, a: m(q, k, v, attn_mask=a, need_weights=False))
case("MultiheadAttention_unbatched", lambda: nn.MultiheadAttention(8, 2), "n:3,8", "n:4,8", "n:4,8", "z:4", call=lambda m, q, k, v, p: m(q, k, v, key_padding_mask=(p * torch.tensor([0, 1.0, 1, 1])) > 0))
for name, options in {"": {}, "_batch_first": {"batch_first": True, "activation": "gelu"}, "_norm_first": {"norm_first": True, "bias": False, "layer_norm_eps": 1e-3}}.items():
    first = options.get("batch_first")
    enc = lambda options=options: nn.TransformerEncoderLayer(8, 2, 12, 0.2, **options)
    dec = lambda options=options: nn.TransformerDecoderLayer(8, 2, 12, 0.2, **options)
    x, y = ("n:2,3,8", "n:2,4,8") if first else ("n:3,2,8", "n:4,2,8")
    case("TransformerEncoderLayer" + name, enc, x)
    case(f"TransformerEncoderLayer{name}_masks", enc, x, "z:2,3", call=lambda m, x, p: m(
        x, src_mask=nn.Transformer.generate_square_subsequent_mask(3), src_key_padding_mask=p * torch.tensor([0, -1e9, -1e9])))
    case("TransformerDecoderLayer" + name, dec, x, y)
    case(f"TransformerDecoderLayer{name}_masks", dec, x, y, "z:2,3", "z:2,4", call=lambda m, x, y, p, q: m(
        x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3), tgt_key_padding_mask=p * torch.tensor([0, -1e9, -1e9]), memory_key_padding_mask=q * torch.tensor([0, -1e9, -1e9, -1e9])))
    case("TransformerEncoder" + name, lambda enc=enc: nn.TransformerEncoder(enc(), 2, nn.LayerNorm(8), enable_nested_tensor=False), x)
    case("TransformerDecoder" + name, lambda dec=dec: nn.TransformerDecoder(dec(), 2), x, y)
    case("Transformer" + name, lambda options=options: nn.Transformer(8, 2, 2, 1, 12, 0.2, **options), y, x, call=lambda m, s, t: m(
        s, t, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3)))
case("TransformerEncoderLayer_unbatched", lambda: nn.TransformerEncoderLayer(8, 2, 12), "n:3,8")

# Functions and initializers.
for name, f in {"normalize": lambda x: nn.functional.normalize(x), "normalize_1": lambda x: nn.functional.normalize(x, p=1, dim=0, eps=3.0),
                "gumbel_softmax": lambda x: nn.functional.gumbel_softmax(x, tau=0.7), "gumbel_softmax_hard": lambda x: nn.functional.gumbel_softmax(x, hard=True, dim=0)}.items():
    case(name, nn.Identity, "n:3,4", call=lambda m, x, f=f: f(x))
for name, f in {"ones_": nn.init.ones_, "zeros_": nn.init.zeros_, "eye_": nn.init.eye_, "sparse_": lambda t: nn.init.sparse_(t, 0.3, 0.5)}.items():
    case(name, nn.Identity, "n:4,3", call=lambda m, x, f=f: f(x.detach().clone()))
case("dirac_", nn.Identity, "n:4,3,2,3", call=lambda m, x: nn.init.dirac_(x.detach().clone()))
case("dirac_groups", nn.Identity, "n:4,1,3", call=lambda m, x: nn.init.dirac_(x.detach().clone(), 2))

# Losses.
W = torch.tensor([0.5, 1.0, 2.0])
case("L1Loss", nn.L1Loss, "n:4,3", "n:4,3")
case("MSELoss", lambda: nn.MSELoss(reduction="sum"), "n:4,3", "n:4,3")
case("CrossEntropyLoss", lambda: nn.CrossEntropyLoss(W, ignore_index=1, label_smoothing=0.1), "n:4,3", "i:3:4")
case("CrossEntropyLoss_probabilities", lambda: nn.CrossEntropyLoss(reduction="none"), "n:4,3,2", "u:4,3,2")
case("NLLLoss", lambda: nn.NLLLoss(W), "n:4,3", "i:3:4")
case("CTCLoss", lambda: nn.CTCLoss(zero_infinity=True), "n:6,2,4", call=lambda m, x: m(
    x.log_softmax(2), torch.tensor([[1, 2, 1], [3, 1, 0]]), torch.tensor([6, 5]), torch.tensor([3, 2])))
case("PoissonNLLLoss", lambda: nn.PoissonNLLLoss(full=True), "n:4,3", "u:4,3", call=lambda m, x, t: m(x, 5 * t))
case("PoissonNLLLoss_plain", lambda: nn.PoissonNLLLoss(log_input=False, eps=1e-3, reduction="none"), "u:4,3", "u:4,3")
case("GaussianNLLLoss", lambda: nn.GaussianNLLLoss(full=True), "n:4,3", "n:4,3", "u:4,3")
case("GaussianNLLLoss_row", lambda: nn.GaussianNLLLoss(eps=0.3, reduction="sum"), "n:4,3", "n:4,3", "u:4")
case("KLDivLoss", lambda: nn.KLDivLoss(log_target=True, reduction="sum"), "n:4,3", "n:4,3", call=lambda m, x, t: m(x.log_softmax(1), t.log_softmax(1)))
case("BCELoss", lambda: nn.BCELoss(W), "u:4,3", "u:4,3")
case("BCEWithLogitsLoss", lambda: nn.BCEWithLogitsLoss(pos_weight=W), "n:4,3", "u:4,3")
case("MarginRankingLoss", lambda: nn.MarginRankingLoss(0.3), "n:5", "n:5", "s:5")
case("HingeEmbeddingLoss", lambda: nn.HingeEmbeddingLoss(0.8), "n:4,3", "s:4,3")
case("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, "n:2,4", call=lambda m, x: m(x, torch.tensor([[3, 0, -1, 1], [1, -1, 2, 3]])))
case("HuberLoss", lambda: nn.HuberLoss(delta=0.7), "n:4,3", "n:4,3")
case("SmoothL1Loss", lambda: nn.SmoothL1Loss(beta=0.5), "n:4,3", "n:4,3")
case("SoftMarginLoss", nn.SoftMarginLoss, "n:4,3", "s:4,3")
case("MultiLabelSoftMarginLoss", lambda: nn.MultiLabelSoftMarginLoss(W), "n:4,3", "z:4,3")
case("MultiLabelSoftMarginLoss_none", lambda: nn.MultiLabelSoftMarginLoss(reduction="none"), "n:4,3", "z:4,3")
case("CosineEmbeddingLoss", lambda: nn.CosineEmbeddingLoss(0.2), "n:4,3", "n:4,3", "s:4")
case("MultiMarginLoss", lambda: nn.MultiMarginLoss(p=2, margin=0.7, weight=W), "n:4,3", "i:3:4")
case("TripletMarginLoss", lambda: nn.TripletMarginLoss(margin=0.7, swap=True), "n:4,3", "n:4,3", "n:4,3")
case("TripletMarginWithDistanceLoss", nn.TripletMarginWithDistanceLoss, "n:4,3", "n:4,3", "n:4,3")
case("TripletMarginWithDistanceLoss_own", lambda: nn.TripletMarginWithDistanceLoss(
    distance_function=lambda a, b: (a - b).abs().sum(-1), margin=2, swap=True, reduction="sum"), "n:4,3", "n:4,3", "n:4,3")

# Parametrizations in both forms, and pruning.
warnings.filterwarnings("ignore", category=FutureWarning)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT

    def right_inverse(self, x):
        return x.triu()


class Scaled(nn.Module):
    def forward(self, x):
        return 2 * x


def chained():
    m = nn.Linear(3, 3)
    parametrize.register_parametrization(m, "weight", Symmetric())
    parametrize.register_parametrization(m, "weight", Scaled())
    return parametrizations.weight_norm(m, "bias")


def ordered(m):
    """Puts the bias behind the weight again, where a Go struct has it."""
    bias = m.bias
    del m.bias
    m.bias = bias
    return m


def removed(m, leave=True):
    parametrize.remove_parametrizations(m, "weight", leave_parametrized=leave)
    return ordered(m)


case("weight_norm", lambda: parametrizations.weight_norm(nn.Linear(3, 4)), "n:2,3")
case("weight_norm_whole", lambda: parametrizations.weight_norm(nn.Conv1d(2, 3, 2), dim=None), "n:1,2,4")
case("weight_norm_dim", lambda: parametrizations.weight_norm(nn.Conv2d(2, 3, 2, bias=False), dim=1), "n:1,2,4,3")
case("weight_norm_lstm", lambda: parametrizations.weight_norm(nn.LSTM(3, 2), "weight_hh_l0"), "n:4,2,3")
case("weight_norm_old", lambda: nn.utils.weight_norm(nn.Linear(3, 4)), "n:2,3")
case("spectral_norm", lambda: parametrizations.spectral_norm(nn.Linear(3, 4)), "n:2,3")
case("spectral_norm_conv", lambda: parametrizations.spectral_norm(nn.Conv2d(2, 3, 2), n_power_iterations=2, eps=1e-6), "n:1,2,4,3")
case("spectral_norm_transposed", lambda: parametrizations.spectral_norm(nn.ConvTranspose1d(2, 3, 2)), "n:1,2,4")
case("spectral_norm_dim", lambda: parametrizations.spectral_norm(nn.Linear(3, 4), dim=-1), "n:2,3")
case("spectral_norm_vector", lambda: parametrizations.spectral_norm(nn.Linear(3, 4), "bias"), "n:2,3")
case("spectral_norm_old", lambda: nn.utils.spectral_norm(nn.Conv2d(2, 3, 2), n_power_iterations=2), "n:1,2,4,3")
case("spectral_norm_removed", lambda: removed(parametrizations.spectral_norm(nn.Linear(3, 4))), "n:2,3")
case("spectral_norm_old_removed", lambda: ordered(nn.utils.remove_spectral_norm(nn.utils.spectral_norm(nn.Linear(3, 4)))), "n:2,3")
case("weight_norm_removed", lambda: removed(parametrizations.weight_norm(nn.Linear(3, 4))), "n:2,3")
case("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(3, 3)), "n:2,3")
case("orthogonal_wide", lambda: parametrizations.orthogonal(nn.Linear(5, 3)), "n:2,5")
case("orthogonal_tall", lambda: parametrizations.orthogonal(nn.Linear(3, 5), orthogonal_map="matrix_exp"), "n:2,3")
case("orthogonal_cayley", lambda: parametrizations.orthogonal(nn.Linear(3, 5), orthogonal_map="cayley"), "n:2,3")
case("orthogonal_plain", lambda: parametrizations.orthogonal(nn.Linear(5, 3), use_trivialization=False), "n:2,5")
case("orthogonal_plain_exp", lambda: parametrizations.orthogonal(nn.Linear(3, 3), use_trivialization=False), "n:2,3")
case("orthogonal_removed", lambda: removed(parametrizations.orthogonal(nn.Linear(3, 3)), False), "n:2,3")
case("parametrize_chain", chained, "n:2,3")


def twice(first, second):
    m = nn.Linear(6, 5)
    first(m)
    second(m)
    return m


case("prune_identity", lambda: prune.identity(nn.Linear(3, 4), "weight"), "n:2,3")
case("prune_random", lambda: prune.random_unstructured(nn.Linear(6, 5), "weight", 0.3), "n:2,6")
case("prune_l1", lambda: prune.l1_unstructured(nn.Linear(6, 5), "weight", 7), "n:2,6")
case("prune_random_structured", lambda: prune.random_structured(nn.Linear(6, 5), "weight", 2, 0), "n:2,6")
case("prune_ln_structured", lambda: prune.ln_structured(nn.Conv1d(3, 4, 2), "weight", 0.5, 2, 1), "n:1,3,4")
case("prune_twice", lambda: twice(lambda m: prune.l1_unstructured(m, "weight", 0.25), lambda m: prune.l1_unstructured(m, "weight", 0.25)), "n:2,6")
case("prune_twice_structured", lambda: twice(lambda m: prune.ln_structured(m, "weight", 2, 1, 0), lambda m: prune.random_structured(m, "weight", 0.5, -2)), "n:2,6")
case("prune_mask", lambda: prune.custom_from_mask(nn.Linear(3, 3), "weight", torch.eye(3)), "n:2,3")


def pruned_globally():
    m = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    prune.global_unstructured([(m[0], "weight"), (m[1], "weight"), (m[0], "bias")], prune.L1Unstructured, amount=0.4)
    return m


case("prune_global", pruned_globally, "n:2,3")


def unpruned():
    m = prune.l1_unstructured(nn.Linear(6, 5), "weight", 0.5)
    return ordered(prune.remove(m, "weight"))


case("prune_removed", unpruned, "n:2,6")


# Lazy modules, after a dry run.
def dry(make, *shape):
    m = make()
    m(torch.zeros(shape))
    return m


warnings.filterwarnings("ignore", message="Lazy modules")
case("LazyLinear", lambda: dry(lambda: nn.LazyLinear(4), 1, 3), "n:2,3")
for d, size in ((1, (5,)), (2, (4, 5)), (3, (3, 4, 3))):
    spec = "n:2,4," + ",".join(str(n) for n in size)
    conv, back = getattr(nn, f"LazyConv{d}d"), getattr(nn, f"LazyConvTranspose{d}d")
    bn, inorm = getattr(nn, f"LazyBatchNorm{d}d"), getattr(nn, f"LazyInstanceNorm{d}d")
    case(f"LazyConv{d}d", lambda conv=conv, size=size: dry(lambda: conv(2, 2, groups=2), 1, 4, *size), spec)
    case(f"LazyConvTranspose{d}d", lambda back=back, size=size: dry(lambda: back(2, 2, stride=2, bias=False), 1, 4, *size), spec)
    case(f"LazyBatchNorm{d}d", lambda bn=bn, size=size: dry(lambda: bn(momentum=0.3), 2, 4, *size), spec)
    case(f"LazyInstanceNorm{d}d", lambda inorm=inorm, size=size: dry(lambda: inorm(), 2, 4, *size), spec)

# Softmax over many classes.
targets = torch.tensor([0, 5, 2, 9, 3])
case("AdaptiveLogSoftmaxWithLoss", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], div_value=2.0, head_bias=True), "n:5,8", call=lambda m, x: m(x, targets))
case("AdaptiveLogSoftmaxWithLoss_unbatched", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [4]), "n:8", call=lambda m, x: m(x, torch.tensor(7)))
case("AdaptiveLogSoftmaxWithLoss_prob", lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], div_value=2.0), "n:5,8", call=lambda m, x: [m.log_prob(x), m.predict(x)])
case("LinearCrossEntropyLoss", lambda: nn.LinearCrossEntropyLoss(4, 3, bias=True, weight=W, ignore_index=1, label_smoothing=0.1), "n:5,4", "i:3:5")
case("LinearCrossEntropyLoss_sum", lambda: nn.LinearCrossEntropyLoss(4, 3, reduction="sum"), "n:5,4", "i:3:5")
case("LinearCrossEntropyLoss_probabilities", lambda: nn.LinearCrossEntropyLoss(4, 3, label_smoothing=0.1), "n:5,4", "u:5,3")


# Parts that PyTorch does not have, as other libraries write them.
class RotaryEmbedding(nn.Module):
    """Llama's in transformers, and GPT-J's."""

    def __init__(self, width, base=10000.0, interleaved=False):
        super().__init__()
        self.width, self.interleaved = width, interleaved
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)), persistent=False)

    def forward(self, x, first=0, positions=None):
        if positions is None:
            positions = torch.arange(first, first + x.shape[-2])
        angles = positions[..., None].float() * self.inv_freq
        rest = x[..., self.width:]
        x = x[..., :self.width]
        if self.interleaved:
            angles = angles.repeat_interleave(2, -1)
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        else:
            angles = torch.cat((angles, angles), -1)
            turned = torch.cat((-x[..., self.width // 2:], x[..., :self.width // 2]), -1)
        return torch.cat((x * angles.cos() + turned * angles.sin(), rest), -1)


class SwiGLU(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.7).div_(0.7)


class LoRALinear(nn.Module):
    def __init__(self, width, out, rank, alpha, dropout=0.0):
        super().__init__()
        self.base_layer = nn.Linear(width, out).requires_grad_(False)
        self.lora_A = nn.Linear(width, rank, bias=False)
        self.lora_B = nn.Linear(rank, out, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scale, self.dropout = alpha / rank, dropout

    def forward(self, x):
        inner = nn.functional.dropout(x, self.dropout, self.training) if self.dropout else x
        return self.base_layer(x) + self.lora_B(self.lora_A(inner)) * self.scale


class Int8Linear(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        linear = nn.Linear(width, out)
        self.bias = linear.bias
        w = linear.weight.detach()
        self.register_buffer("weight", None)
        self.scales = nn.Buffer(w.abs().amax(1).div(127.5).clamp_min(torch.finfo(torch.float32).eps))
        self.weight = w.div(self.scales.unsqueeze(1)).round().clamp(-128, 127).to(torch.int8)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scales + self.bias


def trained(m):
    nn.init.normal_(m.lora_B.weight)
    return m


case("RotaryEmbedding", lambda: RotaryEmbedding(4), "n:2,2,3,4")
case("RotaryEmbedding_part", lambda: RotaryEmbedding(4, base=500.0), "n:2,2,3,6", call=lambda m, x: m(x, 5))
case("RotaryEmbedding_interleaved", lambda: RotaryEmbedding(6, interleaved=True), "n:2,2,3,6", call=lambda m, x: m(x, positions=torch.tensor([[[3, 0, 7]], [[1, 1, 2]]])))
case("SwiGLU", lambda: SwiGLU(4, 6), "n:2,3,4")
case("DropPath", DropPath, "n:6,2,3")
case("LoRALinear", lambda: LoRALinear(4, 3, 2, 2), "n:5,4")
case("LinearCrossEntropyLoss_rows", lambda: nn.LinearCrossEntropyLoss(4, 3, bias=True, weight=W, ignore_index=1, label_smoothing=0.1), "n:5,4", "i:3:5")
case("LoRALinear_trained", lambda: trained(LoRALinear(4, 3, 2, 6, 0.3)), "n:5,4")
case("Int8Linear", lambda: Int8Linear(4, 3), "n:5,4")


# Weights of elements, outputs of several dimensions, and the shape of a pool's input.
for name, f, options in (("mse_loss", nn.functional.mse_loss, {}), ("l1_loss", nn.functional.l1_loss, {}), ("huber_loss", nn.functional.huber_loss, {"delta": 0.7})):
    for reduction in ("none", "mean", "sum"):
        case(f"{name}_weight_{reduction}", nn.Identity, "n:4,3", "n:4,3", "u:4,3",
             call=lambda m, x, t, w, f=f, options=options, reduction=reduction: f(x, t, weight=w, reduction=reduction, **options))
for rows in ("", "_rows"):
    case("linear_cross_entropy_dims" + rows, nn.Identity, "n:5,4", "n:3,2,4", "n:3,2", "i:3:5,2",
         call=lambda m, x, w, b, t: nn.functional.linear_cross_entropy(x, w, t, linear_bias=b, weight=W, ignore_index=1))
    case("linear_cross_entropy_dims_probabilities" + rows, nn.Identity, "n:5,4", "n:3,2,4", "u:5,3,2",
         call=lambda m, x, w, t: nn.functional.linear_cross_entropy(x, w, t.detach()))
case("MaxUnpool2d_shape", lambda: nn.MaxUnpool2d(2), "n:2,3,6,5",
     call=lambda m, x: m(*nn.functional.max_pool2d(x, 2, return_indices=True), output_size=x.size()))


def main():
    data = {name: run(i, *c) for i, (name, c) in enumerate(CASES.items())}
    with open(os.path.join(here, "torch_nn.json"), "w") as out:
        json.dump(data, out, separators=(",", ":"))
        out.write("\n")


if __name__ == "__main__":
    main()
