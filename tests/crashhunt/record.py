#!/usr/bin/env python3
"""Writes calls.jsonl: valid calls of operators, recorded while PyTorch's own samples for its operators and modules run.

    python3 tests/crashhunt/record.py

It needs the PyTorch of make bench-setup. A line is {"op", "args"}: the arguments up to the last that is not its default. An
argument is null, a number, a string, a list, {} for the default, {"f": "nan"}, {"c": [real, imaginary]}, or a tensor
{"d": dtype, "s": sizes, "t": strides, "l": layout, "v": elements, "r": [smallest, largest element]} where t is absent for
contiguous tensors, l for strided ones, and v stands for few integers only. recorded.go changes these calls.
"""
import itertools
import json
import math
import os
import random
import sys
import warnings

if os.environ.get("PYTHONHASHSEED") != "0":  # some samples are in the order of a set
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

warnings.simplefilter("ignore")
here = os.path.dirname(os.path.abspath(__file__))
CALLS = 4  # of an operator
SAMPLES = 60  # of a module or operator in PyTorch's tests
ELEMENTS = 4096  # of a tensor
DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, torch.complex32,
          torch.complex64, torch.complex128, torch.bool]
FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]
LAYOUTS = [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]


class Skip(Exception):
    pass


def dtype(d):
    if d == torch.bfloat16:
        return 15
    if d not in DTYPES:
        raise Skip
    return DTYPES.index(d)


def number(x):
    if isinstance(x, complex):
        return {"c": [x.real, x.imag]}
    if isinstance(x, float) and not math.isfinite(x):
        return {"f": str(x)}
    return x


def tensor(x):
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.device.type != "cpu" or x.numel() > ELEMENTS or x.is_quantized or x.is_nested:
        raise Skip
    if x.layout not in LAYOUTS:
        raise Skip
    out = {"d": dtype(x.dtype), "s": list(x.shape)}
    if x.layout != torch.strided:
        out["l"] = LAYOUTS.index(x.layout)
        return out
    if not x.is_contiguous():
        out["t"] = list(x.stride())
    if x.numel() == 0 or x.is_complex():
        return out
    x = x.detach()
    if x.is_floating_point():
        x = x.double()
        if not x.isfinite().all():
            return out
        low, high = x.min().item(), x.max().item()
        if low < 0:
            return out
        out["r"] = [float(f"{low:.3g}"), float(f"{high:.3g}")]
    elif x.numel() <= 32:
        out["v"] = [int(i) for i in x.reshape(-1).tolist()]
    else:
        out["r"] = [int(x.min()), int(x.max())]
    return out


def argument(x):
    if x is None or isinstance(x, (bool, int, str)):
        return x
    if isinstance(x, (float, complex)):
        return number(x)
    if isinstance(x, torch.Tensor):
        return tensor(x)
    if isinstance(x, torch.dtype):
        return dtype(x)
    if isinstance(x, torch.memory_format):
        return FORMATS.index(x)
    if isinstance(x, torch.layout):
        return LAYOUTS.index(x) if x in LAYOUTS else 0
    if isinstance(x, (torch.device, torch.Generator)):
        return {}
    if isinstance(x, (list, tuple)):
        return [argument(i) for i in x]
    raise Skip


found = {}  # calls by operator and signature


def record(op, args, kwargs):
    if op.namespace != "aten":
        return
    values = []
    last = 0
    try:
        for i, a in enumerate(op._schema.arguments):
            if i < len(args) and not a.kwarg_only:
                values.append(argument(args[i]))
            elif a.name in kwargs:
                values.append(argument(kwargs[a.name]))
            else:
                values.append({})
                continue
            if a.alias_info is not None and a.alias_info.is_write and isinstance(values[-1], dict):
                values[-1].pop("r", None)  # memory that is not initialized yet
            last = i + 1
    except (Skip, RuntimeError, ValueError, OverflowError):
        return
    values = values[:last]
    leaves = [v for v in itertools.chain(*(v if isinstance(v, list) else [v] for v in values)) if isinstance(v, dict) and "s" in v]
    if not leaves or any(0 in t["s"] for t in leaves):
        return
    signature = str([(len(t["s"]), "l" in t) for t in leaves]) + str([type(v).__name__ for v in values])
    calls = found.setdefault(op.name(), {})
    if len(calls) < 100 and signature not in calls:
        calls[signature] = values


class Dispatched(TorchDispatchMode):
    """Records the calls that the dispatcher makes below autograd, those of backward passes too."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        record(func, args, kwargs)
        return func(*args, **kwargs)


class Called(TorchFunctionMode):
    """Records the calls of functions, those of operators composed of others too."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = getattr(torch.ops.aten, getattr(func, "__name__", ""), None)
        if packet is not None:
            try:
                record(getattr(packet, torch._C._jit_resolve_packet(f"aten::{func.__name__}", *args, **kwargs)), args, kwargs)
            except (RuntimeError, AttributeError, TypeError):
                pass
        return func(*args, **kwargs)


def run(f):
    try:
        with Called(), Dispatched():
            roots = [x for x in tree_leaves(f()) if isinstance(x, torch.Tensor) and x.requires_grad]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])
    except Exception:  # samples that this build does not support
        pass


def others():
    """Calls operators that PyTorch's samples do not reach."""
    r, i, aten = torch.rand, torch.tensor, torch.ops.aten

    def call(op, *args):
        op = op if isinstance(op, torch._ops.OpOverload) else op.default
        record(op, args, {})
        run(lambda: op(*args))

    x, m, v = r(2, 4, 6, 6), r(4, 4), r(4)
    q = (i(0.1), i(0, dtype=torch.int32))
    for f in (aten.adaptive_max_pool1d, aten.max_pool1d, aten.max_pool1d_with_indices):
        call(f, x[0], 2)
    call(aten.affine_grid_generator, r(2, 2, 3), [2, 3, 4, 5], False)
    for training in (True, False):
        call(aten.batch_norm, x, v, v, v, v, training, 0.1, 1e-5, False)
        call(aten.instance_norm, x, v, v, v, v, training, 0.1, 1e-5, False)
        call(aten.rrelu, x, 0.1, 0.3, training)
        call(aten.embedding_bag, m, i([0, 2, 1, 3]), i([0, 2]), training, 0, False, None, False)
    call(aten.batch_norm_update_stats, x, v, v, 0.1)
    call(aten.embedding_bag.padding_idx, m, i([0, 2, 1, 3]), i([0, 2]), False, 0, False, v, True, 1)
    call(aten.embedding_renorm_, m, i([0, 2]), 1.0, 2.0)
    call(aten.cdist, m, m, 2.0, None)
    call(aten.chain_matmul, [m, m, m])
    call(aten.im2col, x, [3, 2], [1, 1], [1, 0], [2, 1])
    call(aten.col2im, r(2, 24, 20), [5, 6], [3, 2], [1, 1], [0, 0], [1, 1])
    call(aten.col2im, r(2, 24, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])
    call(aten.conv_tbc, r(5, 2, 3), r(2, 3, 4), v, 1)
    call(aten.slow_conv3d, r(2, 2, 4, 4, 4), r(3, 2, 2, 2, 2), [2, 2, 2], r(3), [1, 1, 1], [0, 1, 0])
    call(aten.slow_conv3d_forward, r(2, 2, 4, 4, 4), r(3, 2, 2, 2, 2), [2, 2, 2], r(3), [1, 1, 1], [0, 1, 0])
    call(aten.slow_conv_dilated2d, x, r(3, 4, 2, 2), [2, 2], r(3), [1, 1], [0, 1], [2, 1])
    call(aten.slow_conv_dilated3d, r(2, 2, 4, 4, 4), r(3, 2, 2, 2, 2), [2, 2, 2], r(3), [1, 1, 1], [0, 1, 0], [1, 2, 1])
    call(aten.slow_conv_transpose2d, x, r(4, 3, 2, 2), [2, 2], r(3), [2, 1], [0, 1], [1, 0], [1, 1])
    call(aten.slow_conv_transpose3d, r(2, 2, 4, 4, 4), r(2, 3, 2, 2, 2), [2, 2, 2], r(3), [1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1])
    call(aten.thnn_conv2d, x, r(3, 4, 2, 2), [2, 2], r(3), [1, 1], [0, 1])
    call(aten.cross_entropy_loss, r(5, 4), i([0, 3, 2, 1, 0]), v, 1, -100, 0.1)
    call(aten.nll_loss_nd, r(5, 4), i([0, 3, 2, 1, 0]), v, 1, -100)
    call(aten.nll_loss, r(5, 4), i([0, 3, 2, 1, 0]), v, 0, 2)
    call(aten.nll_loss2d, x, torch.randint(0, 4, (2, 6, 6)), v, 1, -100)
    call(aten.multilabel_margin_loss, r(2, 4), i([[0, 2, -1, 1], [3, -1, 0, 0]]), 1)
    call(aten.ctc_loss.IntList, r(6, 2, 4), i([[1, 2], [3, 1]]), [6, 5], [2, 1], 0, 1, False)
    call(aten.ctc_loss.Tensor, r(6, 2, 4), i([1, 2, 3]), i([6, 5]), i([2, 1]), 0, 0, True)
    call(aten.dequantize.self, m)
    call(aten.fake_quantize_per_channel_affine, m, v, i([0, 0, 1, 2], dtype=torch.int32), 0, 0, 255)
    call(aten.fake_quantize_per_tensor_affine, m, 0.1, 0, 0, 255)
    call(aten.fake_quantize_per_tensor_affine.tensor_qparams, m, *q, 0, 255)
    call(aten.fake_quantize_per_tensor_affine_cachemask, m, 0.1, 0, 0, 255)
    call(aten.fake_quantize_per_channel_affine_cachemask, m, v, i([0, 0, 1, 2], dtype=torch.int32), 1, 0, 255)
    one, flag = torch.ones(1), torch.ones(1, dtype=torch.int64)
    call(aten.fused_moving_avg_obs_fake_quant, m, flag, flag, one, one.clone(), one.clone(), torch.zeros(1, dtype=torch.int32), 0.1, 0, 255, 0, False, False)
    call(aten.fused_moving_avg_obs_fake_quant, m, flag, flag, v, v.clone(), v.clone(), torch.zeros(4, dtype=torch.int32), 0.1, 0, 255, 0, True, False)
    call(aten.quantize_per_tensor, m, 0.1, 2, 13)
    call(aten.quantize_per_tensor.tensor_qparams, m, *q, 12)
    call(aten.quantize_per_tensor.tensors, [m, v], i([0.1, 0.2]), i([0, 1]), 14)
    call(aten.quantize_per_channel, m, v, torch.zeros(4, dtype=torch.int64), 1, 13)
    call(aten.choose_qparams_optimized, v, 4, 10, 0.1, 8)
    call(aten.frobenius_norm.dim, m, [0, 1], True)
    call(aten.nuclear_norm.dim, x, [2, 3], True)
    call(aten.gradient.array, m, [1.0, 2.0], [0, 1], 1)
    call(aten.gru.data, r(5, 3), i([2, 2, 1]), r(1, 2, 4), [r(12, 3), r(12, 4), r(12), r(12)], True, 1, 0.0, False, False)
    call(aten.lstm.data, r(5, 3), i([2, 2, 1]), [r(1, 2, 4), r(1, 2, 4)], [r(16, 3), r(16, 4), r(16), r(16)], True, 1, 0.0, False, False)
    call(aten.rnn_tanh.data, r(5, 3), i([2, 2, 1]), r(1, 2, 4), [r(4, 3), r(4, 4), r(4), r(4)], True, 1, 0.0, False, False)
    call(aten.grid_sampler, x, r(2, 3, 5, 2) * 2 - 1, 0, 1, False)
    call(aten.grid_sampler, x[:, :, None], r(2, 2, 3, 5, 3) * 2 - 1, 0, 0, True)
    call(aten.linalg_pinv, m, 1e-5, False)
    call(aten.linalg_matrix_rank, m, 1e-5, False)
    call(aten.max_pool2d, x, [2, 2], [1, 1], [1, 1], [2, 1], True)
    call(aten.max_pool3d, x, [2, 2, 2], [1, 1, 1], [1, 1, 0], [2, 1, 1], True)
    call(aten.native_channel_shuffle, x, 2)
    call(aten.native_dropout, x, 0.5, True)
    call(aten.norm_except_dim, x, 2, 1)
    call(aten.orgqr, m, v)
    call(aten.pad_sequence, [m, r(2, 4)], True, 0.5)
    call(aten.where, m > 0.5)
    call(aten.scatter.reduce, m, 1, i([[0, 1], [2, 3]]), m, "add")
    call(aten.scatter.value_reduce, m, 1, i([[0, 1], [2, 3]]), 2, "multiply")
    call(aten.set_.source_Tensor_storage_offset, m, x, 3, [2, 3], [3, 1])
    call(aten.set_.source_Tensor, m, x)
    call(aten.slice_scatter, m, r(4, 2), 1, 0, 4, 2)
    call(aten.slice_inverse, r(4, 2), m, 1, 0, 4, 2)
    rows, cols = i([0, 2, 3]), i([0, 1, 2])
    for f in (aten.sparse_csr_tensor.crow_col_value_size, aten.sparse_csc_tensor.ccol_row_value_size):
        call(f, rows, cols, r(3), [2, 3] if f is aten.sparse_csr_tensor.crow_col_value_size else [3, 2])
    call(aten.sparse_compressed_tensor.comp_plain_value_size, rows, cols, r(3), [2, 3], torch.float32, torch.sparse_csr)
    call(aten.sparse_bsr_tensor.crow_col_value_size, rows, cols, r(3, 2, 1), [4, 3])
    call(aten.sparse_bsc_tensor.ccol_row_value_size, rows, cols, r(3, 2, 1), [6, 2])
    call(aten.sparse_coo_tensor.indices_size, i([[0, 1, 1], [2, 0, 2]]), r(3), [2, 3])
    call(aten.sparse_coo_tensor.indices, i([[0, 1, 1], [2, 0, 2]]), r(3, 2))
    s = torch.eye(4).to_sparse()
    for f in (aten.smm, aten.hspmm):
        call(f, s, m)
    call(aten.sspaddmm, s, s, m)
    for f in (aten.coalesce, aten.indices, aten.values, aten.indices_copy, aten.values_copy, aten.to_dense, aten.to_sparse_csr, aten.to_sparse_csc):
        call(f, s)
    for f in (aten.crow_indices, aten.col_indices, aten.crow_indices_copy, aten.to_sparse_csc):
        call(f, m.to_sparse_csr())
    for f in (aten.to_sparse_bsr, aten.to_sparse_bsc):
        call(f, m, [2, 1])
    call(aten.sparse_resize_, torch.eye(4).to_sparse(), [5, 5], 2, 0)
    call(aten.sparse_resize_and_clear_, torch.eye(4).to_sparse(), [5, 5], 2, 0)
    call(aten.resize_as_sparse_, torch.eye(4).to_sparse(), s)
    call(aten.stft, r(2, 40), 16, 4, 16, r(16), False, True, True)
    call(aten.tensordot, x, x, [1, 2], [1, 2])
    call(aten.tensor_split.tensor_indices_or_sections, m, i([1, 3]), 1)
    call(aten.to_mkldnn, x)
    call(aten.triplet_margin_loss, m, m + 1, m - 1, 1.0, 2.0, 1e-6, False, 1)
    call(aten.unflatten_dense_tensors, r(20), [m, v])
    call(aten.unique_dim_consecutive, m, 0, True, True)
    call(aten.unsafe_split_with_sizes, m, [1, 3], 1)
    call(aten.vander, v, 3, True)
    call(aten.upsample_bicubic2d.vec, x, None, True, [2.0, 1.5])
    call(aten.upsample_bilinear2d.vec, x, [3, 7], False, None)
    call(aten.upsample_linear1d.vec, x[0], None, True, [1.5])
    call(aten.upsample_nearest1d.vec, x[0], [5], None)
    call(aten.upsample_nearest2d.vec, x, None, [0.5, 2.0])
    call(aten.upsample_nearest3d.vec, x[None], [2, 3, 4], None)
    call(aten.upsample_trilinear3d.vec, x[None], [2, 3, 4], True, None)
    call(aten.matrix_power, m, 3)
    call(aten.slogdet, m)
    call(aten.isin.Tensor_Scalar, m, 1)
    call(aten.fill_diagonal_, m.clone(), 1.5, True)
    call(aten.special_logsumexp, m, [1], True)
    call(aten.random_, m)
    call(aten.randint_like.Tensor, m, i(5))
    call(aten.meshgrid, [v, r(3)])
    call(aten.cartesian_prod, [v, r(3)])
    call(aten.broadcast_tensors, [v, m])
    call(aten.mm, m.bfloat16(), m.bfloat16())
    call(aten.view.dtype, m, torch.int32)


def main():
    torch.manual_seed(0)
    random.seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills memory that is not initialized
    others()
    for op in op_db:
        supported = op.supported_dtypes("cpu")
        for d in [torch.float32, torch.int64, torch.bool, torch.complex64]:
            if d not in supported:
                continue
            try:
                samples = list(itertools.islice(op.sample_inputs("cpu", d, requires_grad=op.supports_autograd and d == torch.float32), SAMPLES))
            except Exception:
                samples = []
            for s in samples:
                for f in (op, op.inplace_variant):
                    if f is not None:
                        run(lambda: f(s.input.clone() if f is not op else s.input, *s.args, **s.kwargs))
            if samples:
                break
    for info in module_db:
        try:
            samples = list(itertools.islice(info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=True), SAMPLES))
        except Exception:
            continue
        for s in samples:
            if s.forward_input is None:
                continue
            c, i = s.constructor_input, s.forward_input
            run(lambda: info.module_cls(*c.args, **c.kwargs)(*i.args, **i.kwargs))
    with open(os.path.join(here, "calls.jsonl"), "w") as out:
        for op in sorted(found):
            for values in list(found[op].values())[:CALLS]:
                out.write(json.dumps({"op": op, "args": values}, separators=(",", ":")) + "\n")


main()
