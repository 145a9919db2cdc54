#!/usr/bin/env python3
"""Writes ops.jsonl: what PyTorch computes for every operator of internal/opgen/ops.txt.

Run with the PyTorch that the golden values are to come from; the result is a pure
function of that PyTorch, so a second run changes nothing:

    python3 tests/golden/golden.py

With a device and a file, it writes there what PyTorch computes for the same cases on that device; a case that PyTorch
refuses there has "error" in place of its results. The kit for GPUs compares Linstock with it (docs/gpu-kit.md):

    python3 tests/golden/golden.py cuda:0 FILE

A line is a case:

    {"op": Go name, "name": what is special, "seed": manual seed before the call,
     "args": the Go call's positional arguments, receiver first,
     "opts": its options by schema name,
     "out": the results, "cot": a cotangent for each result,
     "grads": a gradient for each entry of args, "rtol": .., "atol": ..}

An argument is {"T": tensor}, {"Ts": [tensor or null]}, {"i": 1}, {"f": 0.5}, {"b": true},
{"c": [re, im]}, {"is": [1]}, {"fs": [0.5]}, {"s": "text"}, {"dtype": "float64"} or
{"null": true}. A tensor is {"dtype", "shape", "data", "grad"}, its data row-major: complex
numbers as pairs, numbers that are not finite as strings; no data where the contents are
undefined; with "layout" ("sparse_coo", …) it is a sparse tensor of those elements. Reductions and modes are the schema's integers (none 0, mean 1, sum 2). An entry
of out is {"T"}, {"Ts"}, {"b"}, {"i"} or {"f"}.

cot and grads are there when something is differentiable: cot[k] is the flat cotangent of
out[k] (a list of them where out[k] is a list of tensors), null where no gradient flows;
grads[k] is the gradient of sum(out*cot) (for complex results: of the real part of
sum(conj(cot)*out)) by args[k] (a list where args[k] is a list), null where there is none.
"optgrads" has the gradients of tensors among the options, by schema name. An in-place operator
runs on a clone of its first argument. "after" maps the index of an
argument that the call changed besides the result (running statistics) to its new value.
"""
import json
import math
import os
import re
import sys
import warnings
import zlib

import numpy as np
import torch

here = os.path.dirname(os.path.abspath(__file__))
table = os.path.join(here, "..", "..", "internal", "opgen", "ops.txt")
device = torch.device(sys.argv[1]) if len(sys.argv) > 1 else torch.device("cpu")
torch.set_num_threads(1)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
if device.type == "cuda":
    torch.cuda.init()  # else the first seeds would not reach its generators
warnings.simplefilter("ignore")

f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
c64, c128 = torch.complex64, torch.complex128
i32, i64, u8, boolean = torch.int32, torch.int64, torch.uint8, torch.bool


# --- the table ---------------------------------------------------------------

def split_args(text):
    """Splits an argument list at the commas outside brackets."""
    out, depth, word = [], 0, ""
    for ch in text:
        depth += (ch in "([") - (ch in ")]")
        if ch == "," and depth == 0:
            out.append(word.strip())
            word = ""
        else:
            word += ch
    return out + [word.strip()] if word.strip() else out


def literal(text):
    """Reads a default in schema syntax."""
    named = {"None": None, "True": True, "False": False, "Mean": 1, "Sum": 2, "None_": 0}
    return named[text] if text in named else json.loads(text)


class Arg:
    def __init__(self, text):
        left, eq, _ = text.partition("=")
        self.type, self.name = left.rsplit(" ", 1)
        self.default = bool(eq)


class Op:
    def __init__(self, go, flags, schema, base=None):
        self.go, self.base = go, base
        words = flags.split()

        def value(key):
            return [x for w in words if w.startswith(key + "=") for x in re.split("[,;]" if key != "opt" else ";", w[len(key) + 1:])]

        opt = dict(x.split("=", 1) for x in value("opt"))
        req, hide = value("req"), value("hide")
        self.num = value("num")
        self.inplace = "+_" in words
        name, rest = re.match(r"([\w.]+)\((.*)\) -> ", schema).groups()
        packet, _, overload = name.partition(".")
        if base is not None:
            packet += "_"
        self.mutates = packet.endswith("_")
        self.packet = getattr(torch.ops.aten, packet)
        self.overload = getattr(self.packet, overload or "default")
        kwonly = False
        self.args, self.positional, self.options, self.given, self.kwonly = [], [], [], {}, set()
        for text in split_args(rest):
            if text == "*":
                kwonly = True
                continue
            a = Arg(text)
            self.args.append(a)
            if kwonly:
                self.kwonly.add(a.name)
            if a.name in opt:
                self.given[a.name] = literal(opt[a.name])
            if a.type.startswith(("Generator", "Layout", "MemoryFormat")) or a.name in hide or a.name == "pin_memory":
                continue
            if (a.default or a.name in opt or kwonly and a.type.endswith("?")) and a.name not in req:
                self.options.append(a.name)
            else:
                self.positional.append(a)

    def bind(self, args, opts):
        """Sorts a case's arguments into positional ones and options, as in the current table."""
        default = {a.name: a.default_value for a in self.overload._schema.arguments if a.has_default_value()}
        rest, bound = list(args), []
        opts = dict(opts)
        for a in self.positional:
            if a.name in opts:
                bound.append(opts.pop(a.name))
            elif rest:
                bound.append(rest.pop(0))
            else:
                bound.append(self.given[a.name] if a.name in self.given else default[a.name])
        assert not rest and set(opts) <= set(self.options), (self.go, len(args), opts, [a.name for a in self.positional], self.options)
        return bound, opts


ops = {}
for line in open(table):
    if line.strip() and not line.startswith("#"):
        go, flags, schema, _ = line.rstrip("\n").split(" | ")
        ops[go] = Op(go, flags, schema)
        if ops[go].inplace:
            ops[go + "_"] = Op(go + "_", flags, schema, go)


# --- inputs ------------------------------------------------------------------

class NoGrad:
    """Marks a floating-point input that is not differentiated."""

    def __init__(self, t):
        self.t = t


rng = np.random.RandomState(0)


def f(*shape, lo=None, hi=None, d=f32):
    """Floating numbers of three decimals: normal, or uniform in [lo, hi]."""
    if d.is_complex:
        part = f64 if d == c128 else f32
        return torch.complex(f(*shape, lo=lo, hi=hi, d=part), f(*shape, lo=lo, hi=hi, d=part))
    v = rng.standard_normal(shape) if lo is None else rng.uniform(lo, hi, shape)
    return torch.tensor(np.round(v, 3), dtype=d).reshape(shape)


def i(*shape, lo=-4, hi=5, d=i64):
    return torch.tensor(rng.randint(lo, hi, shape), dtype=d).reshape(shape)


def b(*shape):
    return torch.tensor(rng.randint(0, 2, shape), dtype=boolean).reshape(shape)


def t(data, d=f32):
    return torch.tensor(data, dtype=d)


def spd(n, d=f32):
    """A well-conditioned symmetric positive definite matrix."""
    a = f(n, n, d=f64)
    return torch.round((a @ a.T + n * torch.eye(n, dtype=f64)) * 1000).div(1000).to(d)


def square(n, d=f32, batch=()):
    """A well-conditioned square matrix."""
    return f(*batch, n, n, lo=-1, hi=1, d=d) + torch.eye(n, dtype=d) * 3


nan, inf = math.nan, math.inf

cases = []


def c(op, *args, _n="", _seed=0, _g=True, _rtol=None, _atol=None, _try=False, **opts):
    cases.append((op, _n, _seed, _g, _rtol, _atol, _try, args, opts))


# PyTorch has no derivative for these, or one that fails for them.
UNDIFFERENTIABLE = {"FloorDivide", "SpecialZeta", "Vander", "Asinh_", "Acosh_", "Atanh_"}


def start(op):
    """Inputs depend only on the operator, so that a new case does not change others."""
    global rng
    assert op in ops, op
    rng = np.random.RandomState(zlib.crc32(op.encode()) & 0x7FFFFFFF)


def unary(names, lo=None, hi=None, ints=True, dtypes=(f64,), special=False):
    for op in names.split():
        start(op)
        c(op, f(2, 3, lo=lo, hi=hi), _n="float32")
        for d in dtypes:
            c(op, f(4, lo=lo, hi=hi, d=d), _n=str(d)[6:], _try=True)
        if ints:
            c(op, i(3, lo=1 if lo is not None and lo >= 0 else -4), _n="int64", _try=True)
        if special:
            c(op, t([0.0, -0.0, inf, -inf, nan]), _n="special", _g=False)
        c(op, f(0, 2, lo=lo if lo is not None else None, hi=hi), _n="empty", _try=True)


def binary(names, lo=None, hi=None, number=0.5, ints=True, floats=True, other=f):
    for op in names.split():
        start(op)
        if floats:
            c(op, f(2, 3, lo=lo, hi=hi), f(2, 3, lo=lo, hi=hi), _n="same shape")
            c(op, f(2, 3, lo=lo, hi=hi), f(3, lo=lo, hi=hi), _n="broadcast")
            c(op, f(2, 1, lo=lo, hi=hi, d=f64), f(1, 2, lo=lo, hi=hi, d=f64), _n="float64")
        numeric = bool(ops[op].num)
        if floats and numeric:
            c(op, f(2, 2, lo=lo, hi=hi), number, _n="number")
        if ints:
            a, e = i(2, 2, lo=1, hi=9), i(2, 2, lo=1, hi=4)
            c(op, a, e, _n="int64", _try=True)
            if numeric:
                c(op, a, 2, _n="int64 and int", _try=True)
                if floats:
                    c(op, a, 1.5, _n="int64 and float", _try=True)
            if floats:
                c(op, a, f(2, 2, lo=1, hi=2), _n="promotion", _try=True)
        if floats:
            c(op, f(0, 3, lo=lo, hi=hi), f(3, lo=lo, hi=hi), _n="empty")


# --- cases: creation ---------------------------------------------------------

for op in "Zeros Ones Empty Rand Randn".split():
    start(op)
    c(op, [2, 3], _seed=7)
    c(op, [4], dtype=f64, _seed=7, _n="float64")
    c(op, [2, 0], _n="empty")
    if op in ("Zeros", "Ones"):
        c(op, [3], dtype=boolean, _n="bool")
        c(op, [], _n="scalar")
    if op in ("Rand", "Randn"):
        c(op, [20], _seed=11, _n="20")
        c(op, [3], dtype=c64 if op == "Randn" else f32, _seed=12, _n="seed 12")
start("Full")
c("Full", [2, 2], 2.5), c("Full", [3], 7, _n="int"), c("Full", [2], True, _n="bool"), c("Full", [2], 3, dtype=f64, _n="float64")
c("EmptyStrided", [2, 3], [1, 2])
c("ScalarTensor", 2.5), c("ScalarTensor", 3, dtype=i64, _n="int64")
c("RandInt", -3, 10, [2, 5], _seed=3), c("RandInt", 0, 5, [4], dtype=f32, _seed=3, _n="float32")
c("RandPerm", 9, _seed=5), c("RandPerm", 0, _n="empty")
c("Arange", 0, 5), c("Arange", 1, 2, step=0.25, _n="float"), c("Arange", 5, 0, step=-2, _n="falling"), c("Arange", 0, 3, dtype=f64, _n="float64")
c("Linspace", 0, 1, 5), c("Linspace", -2.0, 2.0, 4, dtype=f64, _n="float64"), c("Linspace", 3, 9, 1, _n="one")
c("Logspace", 0, 2, 3), c("Logspace", 0, 3, 4, base=2.0, _n="base 2")
c("Eye", 3), c("Eye", 2, dtype=i64, _n="int64"), c("EyeM", 2, 3)
for op in "ZerosLike OnesLike EmptyLike RandLike RandnLike".split():
    start(op)
    c(op, NoGrad(f(2, 3)), _seed=9)
    c(op, NoGrad(f(3)), dtype=f64, _seed=9, _n="float64")
start("FullLike")
c("FullLike", NoGrad(f(2, 2)), 1.5), c("FullLike", i(3), 4, _n="int64")
c("RandIntLike", NoGrad(f(2, 4)), 2, 9, _seed=4), c("RandIntLike", i(3), 0, 100, _seed=4, _n="int64")
for op in "NewZeros NewOnes NewEmpty".split():
    start(op)
    c(op, NoGrad(f(2, d=f64)), [2, 2]), c(op, i(2), [3], dtype=f32, _n="float32")
c("NewFull", NoGrad(f(2, d=f64)), [2, 2], 0.5), c("NewFull", i(2), [3], 7, _n="int64")
start("NewEmptyStrided")
c("NewEmptyStrided", NoGrad(f(2, d=f64)), [2, 3], [1, 2]), c("NewEmptyStrided", i(2), [3], [2], dtype=f32, _n="float32")
for op in "TrilIndices TriuIndices".split():
    c(op, 3, 4), c(op, 3, 3, offset=-1, _n="offset")
start("MeshGrid")
c("MeshGrid", [f(2), f(3)]), c("MeshGrid", [f(2), f(3)], indexing="xy", _n="xy")
c("CartesianProd", [f(2), f(3)]), c("CartesianProd", [i(3)], _n="one")
c("Combinations", f(4)), c("Combinations", f(3), r=2, with_replacement=True, _n="with replacement")
c("OneHot", t([0, 2, 1], i64)), c("OneHot", t([[0], [1]], i64), num_classes=4, _n="num_classes")
start("Complex")
c("Complex", f(2, 2), f(2, 2)), c("Complex", f(3, d=f64), f(3, d=f64), _n="float64")
c("Polar", f(3, lo=0.5, hi=2), f(3)), c("Polar", f(2, lo=0.5, hi=2, d=f64), f(2, d=f64), _n="float64")
c("Vander", f(3)), c("Vander", f(3), increasing=True, _n="increasing"), c("Vander", f(3), N=2, _n="N")
for op in "BartlettWindow BlackmanWindow HammingWindow HannWindow KaiserWindow".split():
    c(op, 7), c(op, 4, dtype=f64, _n="float64")

# --- arithmetic --------------------------------------------------------------

binary("Add Sub RSub Mul Maximum Minimum FMax FMin Hypot LogAddExp LogAddExp2 CopySign Atan2")
binary("Div FloorDivide Remainder FMod XLogY SpecialXLog1pY SpecialZeta", lo=1.1, hi=4)
binary("FloatPower", lo=0.3, hi=2)
binary("PowTensor", lo=0.3, hi=2, number=2)
for op in "Add Sub RSub".split():
    start(op)
    c(op, f(2, 2), f(2, 2), alpha=2, _n="alpha"), c(op, f(3), 2, alpha=0.5, _n="alpha and number")
    c(op, f(4, d=bf16), f(4, d=bf16), _n="bfloat16"), c(op, f(2, d=c64), f(2, d=c64), _n="complex64")
start("Add")
c("Add", b(3), True, _n="bool", _try=True), c("Add", f(), f(2), _n="0-dim")
start("Mul")
c("Mul", f(4, d=bf16), f(4, d=bf16), _n="bfloat16"), c("Mul", f(4, d=f16), f(4, d=f16), _n="float16")
c("Mul", f(2, d=c64), f(2, d=c64), _n="complex64"), c("Mul", b(4), b(4), _n="bool"), c("Mul", f(3), complex(0.5, 2.0), _n="complex number")
c("Div", i(3, lo=1), i(3, lo=1), _n="true division"), c("Div", t([1.0, -1.0, 0.0]), t([0.0, 0.0, 0.0]), _n="by zero", _g=False)
start("DivMode")
c("DivMode", f(2, 3), f(2, 3, lo=0.5, hi=1), rounding_mode="floor"), c("DivMode", f(2, 3), 0.4, rounding_mode="trunc", _n="number")
c("DivMode", i(6), 2, rounding_mode="floor", _n="int64"), c("DivMode", i(6), 3, rounding_mode="trunc", _n="int64 trunc"), c("DivMode", f(3), f(3, lo=1, hi=2), _n="no mode")
start("FloorDivide_")
c("FloorDivide_", f(2, 3), f(3, lo=0.5, hi=1), _g=False), c("FloorDivide_", i(4), 2, _n="int64")
start("Pow")
c("Pow", f(2, 3, lo=0.2, hi=2), 2), c("Pow", f(3), 3, _n="cube"), c("Pow", f(3, lo=0.2, hi=2), 0.5, _n="root"), c("Pow", i(4), 2, _n="int64"), c("Pow", f(3, lo=1, hi=2, d=f64), -1.5, _n="float64")
c("Pow_", f(2, 3, lo=0.2, hi=2), 2), c("Pow_", f(3, lo=1, hi=2), -0.5, _n="negative")
start("PowTensor_")
c("PowTensor_", f(2, 3, lo=0.2, hi=2), f(3)), c("PowTensor_", f(3, lo=0.2, hi=2), 2, _n="number")
c("PowScalar", 2, f(2, 3)), c("PowScalar", 1.5, i(3), _n="int64")
unary("Neg Abs Sgn Sin Cos Exp Square Tanh Sigmoid Sinh Cosh Asinh Atan", dtypes=(f64, c64, bf16))
unary("Sign Exp2 Expm1 Erf Erfc Sinc Deg2Rad Rad2Deg Floor Ceil Trunc Frac Round", dtypes=(f64, bf16))
unary("Tan Asin Acos Atanh ErfInv", lo=-0.9, hi=0.9, ints=False)
unary("Acosh", lo=1.2, hi=4)
unary("Log Log2 Log10 Log1p Sqrt RSqrt", lo=0.2, hi=3, dtypes=(f64, c64, bf16))
unary("Reciprocal LGamma Digamma", lo=0.3, hi=3)
unary("SignBit IsFinite IsNaN IsInf IsPosInf IsNegInf LogicalNot", special=True)
unary("IsReal", dtypes=(f64, c64))
unary("I0 SpecialI0e SpecialI1 SpecialI1e SpecialBesselJ0 SpecialBesselJ1 SpecialErfcx SpecialNdtr SpecialLogNdtr")
unary("SpecialEntr Logit SpecialNdtri", lo=0.1, hi=0.9, ints=False)
c("Log", t([0.0, -1.0, inf, nan]), _n="special", _g=False), c("Sqrt", t([0.0, -1.0, inf, nan]), _n="special", _g=False)
c("Round", t([0.5, 1.5, 2.5, -0.5, -1.5]), _n="halves")
start("Logit")
c("Logit", f(4, lo=0.0, hi=1.0), eps=0.1, _n="eps")
start("Polygamma")
c("Polygamma", 1, f(3, lo=0.5, hi=3)), c("Polygamma", 2, f(3, lo=0.5, hi=3, d=f64), _n="float64")
c("MVLGamma", f(3, lo=2, hi=4), 2)
for op in "IGamma IGammac".split():
    start(op)
    c(op, NoGrad(f(2, 3, lo=0.5, hi=3)), f(3, lo=0.5, hi=3))
start("Lerp")
c("Lerp", f(2, 3), f(2, 3), 0.3), c("Lerp", f(2, d=f64), f(2, d=f64), 0.7, _n="float64")
start("LerpTensor")
c("LerpTensor", f(2, 3), f(2, 3), f(2, 3)), c("LerpTensor", f(2, 3), f(3), f(2, 1), _n="broadcast")
for op in "AddCMul AddCDiv".split():
    start(op)
    c(op, f(2, 3), f(2, 3), f(2, 3, lo=0.5, hi=2)), c(op, f(2, 3), f(3), f(2, 1, lo=0.5, hi=2), value=0.5, _n="value")
start("Clamp")
c("Clamp", f(2, 3), -0.5, 0.5), c("Clamp", f(4), 0, None, _n="min"), c("Clamp", i(5), None, 2, _n="int64 max"), c("Clamp", f(3, d=f64), -0.1, 0.2, _n="float64")
start("ClampTensor")
c("ClampTensor", f(2, 3), f(3, lo=-1, hi=0), f(3, lo=0, hi=1)), c("ClampTensor", f(4), None, f(4), _n="max")
binary("ClampMin ClampMax", number=0.1)
start("RoundDecimals")
c("RoundDecimals", f(2, 3), 1), c("RoundDecimals", t([123.4, 155.0]), -1, _n="negative")
start("Heaviside")
c("Heaviside", t([-1.0, 0.0, 2.0]), NoGrad(t([0.5])), _g=False), c("Heaviside", t([-1, 0, 2], i64), t([5, 6, 7], i64), _n="int64")
c("NextAfter", t([1.0, -1.0, 0.0]), t([2.0, -2.0, 1.0]), _g=False), c("NextAfter", t([1.0], f64), t([0.0], f64), _n="float64", _g=False)
start("Ldexp")
c("Ldexp", f(3), i(3)), c("Ldexp", f(2, 2), 3, _n="number")
c("Frexp", f(2, 3)), c("Frexp", t([0.0, 8.0, -0.3], f64), _n="float64")
for op in "GCD LCM".split():
    start(op)
    c(op, i(2, 3, lo=1, hi=40), i(3, lo=1, hi=40)), c(op, i(4, lo=-20, hi=20), 12, _n="number"), c(op, i(3, lo=1, hi=30, d=i32), i(3, lo=1, hi=30, d=i32), _n="int32")
start("NaNToNum")
c("NaNToNum", t([nan, inf, -inf, 1.5])), c("NaNToNum", t([nan, inf, -inf, 1.5], f64), nan=0.5, posinf=9.0, neginf=-9.0, _n="options"), c("NaNToNum", i(3), _n="int64")
for op in "BitwiseAnd BitwiseOr BitwiseXor".split():
    start(op)
    c(op, i(2, 3, lo=0, hi=100), i(3, lo=0, hi=100)), c(op, i(4, d=i32), 5, _n="number"), c(op, b(4), b(4), _n="bool")
start("BitwiseNot")
c("BitwiseNot", i(4)), c("BitwiseNot", b(4), _n="bool"), c("BitwiseNot", i(3, lo=0, d=u8), _n="uint8")
for op in "BitwiseLeftShift BitwiseRightShift".split():
    start(op)
    c(op, i(2, 3, lo=1, hi=50), i(3, lo=0, hi=4)), c(op, i(3, lo=1, hi=50), 2, _n="number")
for op in "LogicalAnd LogicalOr LogicalXor".split():
    start(op)
    c(op, b(2, 3), b(3)), c(op, i(4), i(4), _n="int64"), c(op, f(3), t([0.0, 1.0, 0.0]), _n="float32"), c(op, b(3), True, _n="number")
start("Ldexp_")
c("Ldexp_", f(3), i(3, lo=0)), c("Ldexp_", f(2, 2), 3, _n="number")
unary("Positive", dtypes=(f64, c64, bf16))
start("FloatPower_")
c("FloatPower_", f(2, 3, lo=0.3, hi=2, d=f64), f(3, d=f64)), c("FloatPower_", f(3, lo=0.3, hi=2, d=f64), 2, _n="number")
start("Polygamma_")
c("Polygamma_", f(3, lo=0.5, hi=3), 1), c("Polygamma_", f(3, lo=0.5, hi=3, d=f64), 2, _n="float64")
unary("SpecialBesselY0 SpecialBesselY1 SpecialModifiedBesselK0 SpecialModifiedBesselK1 SpecialScaledModifiedBesselK0 SpecialScaledModifiedBesselK1", lo=0.3, hi=4, special=True)
unary("SpecialModifiedBesselI0 SpecialModifiedBesselI1 SpecialSphericalBesselJ0 SpecialAiryAi", special=True)
for op in ("SpecialChebyshevPolynomialT SpecialChebyshevPolynomialU SpecialChebyshevPolynomialV SpecialChebyshevPolynomialW SpecialShiftedChebyshevPolynomialT "
           "SpecialShiftedChebyshevPolynomialU SpecialShiftedChebyshevPolynomialV SpecialShiftedChebyshevPolynomialW SpecialHermitePolynomialH "
           "SpecialHermitePolynomialHe SpecialLaguerrePolynomialL SpecialLegendrePolynomialP").split():
    start(op)
    c(op, f(2, 4, lo=-0.9, hi=0.9), i(2, 4, lo=0, hi=7), _n="same shape"), c(op, f(2, 1, lo=-0.9, hi=0.9, d=f64), i(3, lo=-1, hi=9), _n="broadcast, float64")
    c(op, f(2, 2, lo=-0.9, hi=0.9), 3, _n="number"), c(op, i(3), 2, _n="int64 and int"), c(op, t([1.0, -1.0, 1.5, -1.5, 0.0]), 8, _n="edges")

# --- comparison --------------------------------------------------------------

for op in "Eq Ne Lt Le Gt Ge".split():
    start(op)
    x = i(2, 3, lo=0, hi=3, d=f32)
    c(op, x, i(2, 3, lo=0, hi=3, d=f32)), c(op, x, i(3, lo=0, hi=3), _n="broadcast, promotion"), c(op, x, 1, _n="number")
    c(op, i(4, lo=0, hi=3), 1.5, _n="int64 and float"), c(op, t([nan, 1.0], f64), t([nan, 2.0], f64), _n="nan"), c(op, b(4), b(4), _n="bool"), c(op, f(0), f(0), _n="empty")
for op in "IsClose AllClose".split():
    c(op, t([1.0, 2.0]), t([1.0, 2.00001])), c(op, t([1.0, nan]), t([1.1, nan]), rtol=0.2, equal_nan=True, _n="options"), c(op, t([1.0], f64), t([1.001], f64), atol=1e-6, _n="float64")
start("Equal")
x = f(2, 2)
c("Equal", x, x.clone()), c("Equal", x, f(2, 2), _n="values"), c("Equal", x, f(3), _n="shapes")
c("IsIn", t([[1, 2], [3, 4]], i64), t([2, 4], i64)), c("IsIn", t([1.0, 2.0]), t([2.0]), invert=True, _n="invert")

# --- reductions --------------------------------------------------------------

for op in "Sum Mean NanSum NanMean".split():
    start(op)
    c(op, f(2, 3)), c(op, f(2, 3), dim=[1], _n="dim"), c(op, f(2, 3, 2), dim=[0, -1], keepdim=True, _n="dims, keepdim"), c(op, f(2, 3), dtype=f64, _n="dtype")
    c(op, f(0, 3), dim=[0], _n="empty"), c(op, f(8, d=bf16), _n="bfloat16")
    if op == "Sum":
        c(op, i(4), _n="int64"), c(op, b(5), _n="bool"), c(op, f(3, d=c64), _n="complex64")
    else:
        c(op, i(4), dtype=f32, _n="int64", _try=True)
    if op[0] == "N":
        c(op, t([1.0, nan, 2.0]), _n="nan")
start("Prod")
c("Prod", f(2, 3)), c("Prod", i(4, lo=1), _n="int64"), c("Prod", f(3), dtype=f64, _n="dtype"), c("Prod", f(0), _n="empty")
c("ProdDim", f(2, 3), 1), c("ProdDim", f(2, 3), 0, keepdim=True, _n="keepdim")
for op in "Std Var StdMean VarMean".split():
    start(op)
    c(op, f(2, 3)), c(op, f(2, 4), dim=[1], correction=0, keepdim=True, _n="options"), c(op, f(3, 2, d=f64), dim=[0], _n="float64")
for op in "Max Min Median NanMedian".split():
    start(op)
    c(op, f(2, 3)), c(op, i(5), _n="int64"), c(op, f(4, d=f64), _n="float64"), c(op, t([1.0, nan, 3.0]), _n="nan")
for op in "MaxDim MinDim MedianDim NanMedianDim".split():
    start(op)
    c(op, f(2, 3), 1), c(op, f(2, 3), 0, keepdim=True, _n="keepdim"), c(op, t([[3, 1], [0, 2]], i64), -1, _n="int64")
for op in "AMax AMin".split():
    start(op)
    c(op, f(2, 3)), c(op, f(2, 3, 2), dim=[0, 2], keepdim=True, _n="dims"), c(op, t([1.0, 2.0, 2.0, 1.0]), _n="ties")
c("AMinMax", f(2, 3)), c("AMinMax", f(2, 3), dim=1, keepdim=True, _n="dim")
for op in "ArgMax ArgMin".split():
    start(op)
    c(op, f(2, 3)), c(op, f(2, 3), dim=1, keepdim=True, _n="dim"), c(op, t([3, 1, 2], i64), _n="int64")
for op in "Any All".split():
    start(op)
    c(op, b(2, 3)), c(op, b(2, 3), dim=[1], keepdim=True, _n="dim"), c(op, t([0.0, 1.0]), _n="float32"), c(op, i(2, 2, lo=0, hi=2, d=u8), dim=[0], _n="uint8"), c(op, b(0), _n="empty")
start("LogSumExp")
c("LogSumExp", f(2, 3), [1]), c("LogSumExp", f(2, 3) * 100, [0, 1], keepdim=True, _n="large")
for op in "CumSum CumProd".split():
    start(op)
    c(op, f(2, 3), 1), c(op, i(4, lo=1, hi=4), 0, _n="int64"), c(op, f(3), 0, dtype=f64, _n="dtype")
for op in "CumMax CumMin LogCumSumExp".split():
    start(op)
    c(op, f(2, 4), 1), c(op, f(3, d=f64), 0, _n="float64")
start("Quantile")
c("Quantile", f(7), 0.3), c("Quantile", f(2, 4), 0.5, dim=1, keepdim=True, _n="dim"), c("Quantile", f(6, d=f64), 0.35, interpolation="lower", _n="lower")
c("QuantileTensor", f(2, 5), NoGrad(t([0.1, 0.6])), dim=1), c("QuantileTensor", f(5), NoGrad(t([0.25])), interpolation="midpoint", _n="midpoint")
c("NanQuantile", t([1.0, nan, 3.0, 2.0]), 0.5), c("NanQuantile", f(2, 3), 0.4, dim=0, _n="dim")
c("NanQuantileTensor", t([[1.0, nan, 3.0], [2.0, 0.5, 4.0]]), NoGrad(t([0.1, 0.6])), dim=1)
c("Mode", t([[1, 2, 2], [3, 3, 1]], i64)), c("Mode", t([[1.0, 2.0], [1.0, 5.0]]), dim=0, keepdim=True, _n="keepdim")
start("KthValue")
c("KthValue", f(2, 4), 2), c("KthValue", f(3, 2), 1, dim=0, keepdim=True, _n="dim")
c("CountNonzero", i(2, 3, lo=0, hi=2)), c("CountNonzero", b(2, 3), dim=1, _n="dim")
c("CountNonzeroDims", i(2, 3, 2, lo=0, hi=2), [0, 2])
start("Norm")
c("Norm", f(2, 3)), c("Norm", f(2, 3), p=1, dim=[1], _n="p 1"), c("Norm", f(2, 3), p=inf, dim=[0], keepdim=True, _n="inf")
c("Dist", f(2, 3), f(2, 3)), c("Dist", f(2, 3), f(3), p=1, _n="p 1")
start("Renorm")
c("Renorm", f(3, 4), 2, 0, 1.0), c("Renorm", f(2, 3), 1, 1, 0.5, _n="p 1")
start("Cov")
c("Cov", f(2, 5)), c("Cov", f(2, 4), correction=0, fweights=t([1, 2, 1, 3], i64), aweights=NoGrad(f(4, lo=0.5, hi=1)), _n="weights")
c("CorrCoef", f(3, 5))
start("Trapezoid")
c("Trapezoid", f(2, 4)), c("Trapezoid", f(4), dx=0.5, dim=0, _n="dx"), c("TrapezoidX", f(2, 4), f(4)), c("CumulativeTrapezoid", f(2, 4), dx=2)
start("CumulativeTrapezoidX")
c("CumulativeTrapezoidX", f(2, 4), f(4)), c("CumulativeTrapezoidX", f(3, 2), f(3, 2), dim=0, _n="dim")
start("Gradient")
c("Gradient", f(3, 4)), c("Gradient", f(5, d=f64), spacing=0.5, edge_order=2, _n="options"), c("Gradient", f(3, 4), dim=1, _n="dim")
start("Diff")
c("Diff", f(2, 4)), c("Diff", f(5), n=2, prepend=NoGrad(f(1)), append=NoGrad(f(2)), _n="options"), c("Diff", i(3, 2), dim=0, _n="int64")
c("BinCount", t([0, 2, 2, 5], i64)), c("BinCount", t([0, 1, 1], i64), weights=NoGrad(t([0.5, 1.0, 2.0])), minlength=4, _n="weights")
start("HistC")
c("HistC", f(12), 4, -2, 2), c("HistC", f(6), 3, 0, 0, _n="own range")
start("Histogram")
c("Histogram", NoGrad(f(12)), 4, None), c("Histogram", NoGrad(f(8, d=f64)), 3, [-1.0, 1.0], weight=NoGrad(f(8, lo=0, hi=1, d=f64)), density=True, _n="options")
start("HistogramTensor")
c("HistogramTensor", NoGrad(f(12)), NoGrad(t([-2.0, -0.5, 0.0, 1.5]))), c("HistogramTensor", NoGrad(f(2, 4)), NoGrad(t([-1.0, 0.0, 1.0])), weight=NoGrad(f(2, 4, lo=0, hi=1)), density=True, _n="options")

# --- linear algebra ----------------------------------------------------------

start("MatMul")
c("MatMul", f(2, 3), f(3, 4)), c("MatMul", f(3), f(3), _n="vectors"), c("MatMul", f(2, 3), f(3), _n="matrix and vector"), c("MatMul", f(2, 1, 2, 3), f(3, 3, 2), _n="batches")
c("MatMul", f(3, 2, d=f64), f(2, 2, d=f64), _n="float64"), c("MatMul", i(2, 2), i(2, 3), _n="int64"), c("MatMul", f(2, 3, d=bf16), f(3, 2, d=bf16), _n="bfloat16"), c("MatMul", f(0, 3), f(3, 2), _n="empty"), c("MatMul", f(2, 2, d=c64), f(2, 2, d=c64), _n="complex64")
start("MM")
c("MM", f(2, 3), f(3, 4)), c("MM", f(2, 2, d=f64), f(2, 1, d=f64), _n="float64")
start("BMM")
c("BMM", f(2, 2, 3), f(2, 3, 2)), c("BMM", f(0, 2, 3), f(0, 3, 1), _n="empty")
c("MV", f(2, 3), f(3)), c("Dot", f(4), f(4)), c("Dot", i(3), i(3), _n="int64"), c("VDot", f(3), f(3)), c("VDot", f(2, d=c64), f(2, d=c64), _n="complex64")
start("Inner")
c("Inner", f(2, 3), f(4, 3)), c("Outer", f(2), f(3)), c("Outer", i(2), i(2), _n="int64")
start("AddMM")
c("AddMM", f(2, 4), f(2, 3), f(3, 4)), c("AddMM", f(4), f(2, 3), f(3, 4), beta=0.5, alpha=2, _n="broadcast")
c("AddMV", f(2), f(2, 3), f(3)), c("AddMV", f(2), f(2, 3), f(3), beta=2, alpha=0.5, _n="options")
c("AddR", f(2, 3), f(2), f(3)), c("AddR", f(2, 3), f(2), f(3), beta=2, alpha=0.5, _n="options")
start("BAddBMM")
c("BAddBMM", f(2, 2, 2), f(2, 2, 3), f(2, 3, 2)), c("BAddBMM", f(1, 2), f(2, 2, 3), f(2, 3, 2), beta=0.5, alpha=2, _n="broadcast")
c("AddBMM", f(2, 2), f(2, 2, 3), f(2, 3, 2)), c("AddBMM", f(2, 2), f(2, 2, 3), f(2, 3, 2), beta=0.5, alpha=2, _n="options")
start("Linear")
c("Linear", f(2, 3), f(4, 3)), c("Linear", f(2, 2, 3), f(4, 3), bias=f(4), _n="bias"), c("Linear", f(3, d=f64), f(2, 3, d=f64), bias=f(2, d=f64), _n="vector, float64"), c("Linear", f(2, 4, d=bf16), f(2, 4, d=bf16), _n="bfloat16")
c("Bilinear", f(2, 3), f(2, 2), f(2, 3, 2), bias=f(2)), c("Bilinear", f(2, 2), f(2, 2), f(1, 2, 2), _n="no bias")
start("Einsum")
c("Einsum", "bij,bjk->bik", [f(2, 2, 3), f(2, 3, 2)]), c("Einsum", "ii->i", [f(3, 3)], _n="diagonal"), c("Einsum", "...i,i->...", [f(2, 2, 3), f(3)], _n="ellipsis")
c("TensorDot", f(2, 3, 2), f(3, 2, 2), [1, 2], [0, 1]), c("Kron", f(2, 2), f(2, 3)), c("Trace", f(3, 3)), c("Trace", i(2, 3), _n="int64")
start("LogDet")
c("LogDet", spd(3)), c("LogDet", spd(2, f64), _n="float64")
start("LinalgNorm")
c("LinalgNorm", f(2, 3)), c("LinalgNorm", f(2, 3), ord=1, dim=[1], _n="vector"), c("LinalgNorm", f(2, 3, d=f64), ord=2, dim=[0, 1], keepdim=True, _n="matrix")
start("LinalgNormStr")
c("LinalgNormStr", f(2, 3), "fro"), c("LinalgNormStr", f(2, 3, 2), "nuc", dim=[0, 1], keepdim=True, _n="nuclear")
start("LinalgVectorNorm")
c("LinalgVectorNorm", f(2, 3)), c("LinalgVectorNorm", f(2, 3), ord=3.5, dim=[-1], keepdim=True, _n="options"), c("LinalgVectorNorm", f(2, 3), ord=inf, dtype=f64, _n="inf")
start("LinalgMatrixNorm")
c("LinalgMatrixNorm", f(2, 3), 1), c("LinalgMatrixNorm", f(2, 2, 3), inf, keepdim=True, _n="inf"), c("LinalgMatrixNorm", f(3, 2, d=f64), 2, _n="spectral")
start("LinalgMatrixNormStr")
c("LinalgMatrixNormStr", f(2, 3), "fro"), c("LinalgMatrixNormStr", f(2, 2, 3, d=f64), "nuc", dim=[0, 1], keepdim=True, _n="nuclear")
for op in "LinalgInv LinalgDet LinalgSlogdet LinalgMatrixExp".split():
    start(op)
    x = square(3) / (4 if op == "LinalgMatrixExp" else 1)
    c(op, x), c(op, square(2, f64, (2,)), _n="batch, float64")
start("LinalgSolve")
c("LinalgSolve", square(3), f(3, 2)), c("LinalgSolve", square(2, f64), f(2, d=f64), _n="vector"), c("LinalgSolve", square(2), f(3, 2), left=False, _n="right")
c("LinalgSolveTriangular", square(3).tril(), f(3, 2)), c("LinalgSolveTriangular", square(2).triu(), f(2, 2), upper=True, _n="upper"), c("LinalgSolveTriangular", square(2, f64).tril(), f(3, 2, d=f64), left=False, unitriangular=True, _n="options")
start("LinalgLstsq")
c("LinalgLstsq", f(4, 2), f(4, 1)), c("LinalgLstsq", f(3, 2, d=f64), f(3, 2, d=f64), driver="gelsd", _n="gelsd")
start("LinalgCholesky")
c("LinalgCholesky", spd(3)), c("LinalgCholesky", spd(2, f64), upper=True, _n="upper")
x = spd(3)
c("CholeskySolve", f(3, 2), torch.linalg.cholesky(x)), c("CholeskyInverse", torch.linalg.cholesky(x)), c("CholeskyInverse", torch.linalg.cholesky(x).T.contiguous(), upper=True, _n="upper")
start("LinalgCholeskyEx")
c("LinalgCholeskyEx", spd(3)), c("LinalgCholeskyEx", NoGrad(t([[1.0, 2.0], [2.0, 1.0]])), _n="not definite", _g=False)
start("LinalgVander")
c("LinalgVander", f(3)), c("LinalgVander", f(2, 3, d=f64), N=2, _n="N")
start("LinalgQR")
c("LinalgQR", f(3, 2)), c("LinalgQR", f(3, 2, d=f64), mode="complete", _n="complete", _g=False), c("LinalgQR", f(2, 2), mode="r", _n="r", _g=False)
start("LinalgSVD")
c("LinalgSVD", f(3, 2), full_matrices=False, _g=False), c("LinalgSVD", f(2, 3, d=f64), _n="full", _g=False)
c("LinalgSVDVals", f(3, 2)), c("LinalgSVDVals", f(2, 2, 3, d=f64), _n="batch, float64")
for op in "LinalgEigh LinalgEigvalsh".split():
    start(op)
    c(op, spd(3), _g=op != "LinalgEigh"), c(op, spd(2, f64), UPLO="U", _n="upper", _g=False)
start("LinalgEig")
c("LinalgEig", t([[2.0, 1.0], [0.5, -1.0]]), _g=False), c("LinalgEigvals", t([[2.0, 1.0], [0.5, -1.0]])), c("LinalgEigvals", t([[0.0, 1.0], [-1.0, 0.0]], f64), _n="complex", _g=False)
start("LinalgLU")
x = square(3)
c("LinalgLU", x), c("LinalgLU", f(2, 3, d=f64), _n="wide"), c("LinalgLUFactor", x), c("LinalgLUFactor", square(2, f64), _n="float64")
lu, piv = torch.linalg.lu_factor(x)
c("LinalgLUSolve", lu, piv, f(3, 2)), c("LinalgLUSolve", lu, piv, f(2, 3), left=False, _n="right"), c("LinalgLUSolve", lu, piv, f(3, 1), adjoint=True, _n="adjoint")
c("LinalgMatrixRank", t([[1.0, 2.0], [2.0, 4.0]])), c("LinalgMatrixRank", spd(3), hermitian=True, rtol=1e-3, _n="options")
c("LinalgPinv", f(3, 2)), c("LinalgPinv", spd(2, f64), hermitian=True, rtol=1e-6, _n="options", _g=False)
start("LinalgMatrixPower")
c("LinalgMatrixPower", f(2, 2), 3), c("LinalgMatrixPower", square(2, f64), -2, _n="negative"), c("LinalgMatrixPower", f(2, 2), 0, _n="zero")
c("LinalgCross", f(2, 3), f(2, 3)), c("LinalgCross", f(3, 2), f(3, 1), dim=0, _n="broadcast"), c("LinalgVecdot", f(2, 3), f(2, 3)), c("LinalgVecdot", f(2, 3, d=c64), f(3, d=c64), _n="complex64")
c("LinalgMultiDot", [f(2, 3), f(3, 4), f(4, 1)]), c("LinalgCond", square(3)), c("LinalgCond", square(2, f64), p=1, _n="p 1", _g=False)
start("LinalgCondStr")
c("LinalgCondStr", square(3), "fro", _g=False), c("LinalgCondStr", square(2, f64), "nuc", _n="nuclear", _g=False)
start("CDist")
c("CDist", f(3, 2), f(2, 2)), c("CDist", f(2, 2, 3), f(2, 1, 3), p=1, _n="p 1"), c("PDist", f(4, 2)), c("PDist", f(3, 2), p=1, _n="p 1")
c("PairwiseDistance", f(2, 3), f(2, 3)), c("PairwiseDistance", f(2, 3), f(3), p=1, keepdim=True, _n="options")
c("CosineSimilarity", f(2, 3), f(2, 3)), c("CosineSimilarity", f(2, 3), f(2, 3), dim=0, _n="dim")
start("LinalgInvEx")
c("LinalgInvEx", square(3)), c("LinalgInvEx", square(2, f64, (2,)), check_errors=True, _n="batch, float64")
start("LinalgSolveEx")
c("LinalgSolveEx", square(3), f(3, 2)), c("LinalgSolveEx", square(2, f64), f(3, 2, d=f64), left=False, _n="right, float64")
start("LinalgTensorInv")
c("LinalgTensorInv", square(6).reshape(6, 2, 3), ind=1), c("LinalgTensorInv", square(4, f64).reshape(2, 2, 4, 1), _n="float64")
start("LinalgTensorSolve")
c("LinalgTensorSolve", square(6).reshape(2, 3, 6), f(2, 3)), c("LinalgTensorSolve", square(4, f64).reshape(2, 4, 2), f(2, 2, d=f64), dims=[1], _n="dims, float64")
start("Geqrf")
x, tau = torch.geqrf(f(4, 3))
c("Geqrf", f(4, 3), _g=False), c("Geqrf", f(2, 2, 3, d=f64), _n="batch, float64", _g=False)
c("LinalgHouseholderProduct", x, tau), c("LinalgHouseholderProduct", *torch.geqrf(f(2, 3, 2, d=f64)), _n="batch, float64")
c("Ormqr", x, tau, f(4, 2)), c("Ormqr", x, tau, f(2, 4), left=False, transpose=True, _n="options"), c("Ormqr", *torch.geqrf(f(3, 3, d=f64)), f(3, 1, d=f64), _n="float64", _g=False)
start("LinalgLUFactorEx")
x = square(3)
c("LinalgLUFactorEx", x), c("LinalgLUFactorEx", f(2, 3, d=f64), _n="wide"), c("LinalgLUFactorEx", NoGrad(t([[1.0, 2.0], [2.0, 4.0]])), _n="singular", _g=False)
c("LUUnpack", *torch.linalg.lu_factor(x)), c("LUUnpack", *torch.linalg.lu_factor(f(2, 2, 3, d=f64)), unpack_pivots=False, _n="without pivots")
start("LinalgLDLFactor")
x = spd(3)
c("LinalgLDLFactor", x, _g=False), c("LinalgLDLFactor", NoGrad(t([[1.0, 2.0], [2.0, -1.0]], f64)), hermitian=True, _n="indefinite, float64", _g=False)
c("LinalgLDLFactorEx", x, _g=False), c("LinalgLDLFactorEx", NoGrad(t([[0.0, 0.0], [0.0, 0.0]])), _n="singular", _g=False)
ld, piv = torch.linalg.ldl_factor(x)
c("LinalgLDLSolve", NoGrad(ld), piv, NoGrad(f(3, 2)))

# --- shape and indexing ------------------------------------------------------

start("View")
c("View", f(2, 3), [3, -1]), c("View", i(2, 3), [6], _n="int64"), c("View", f(0, 2), [2, 0], _n="empty")
c("ViewAs", f(2, 3), NoGrad(f(3, 2))), c("ViewDType", f(3), i32), c("ViewDType", i(2, lo=0, hi=9), f32, _n="smaller")
start("Reshape")
c("Reshape", f(2, 3), [-1]), c("Reshape", f(4), [2, 1, 2], _n="more"), c("ReshapeAs", f(2, 3), NoGrad(f(6)))
c("Flatten", f(2, 2, 2)), c("Flatten", f(2, 3, 2), start_dim=1, _n="start_dim"), c("Flatten", f(2, 3, 2), end_dim=1, _n="end_dim"), c("Unflatten", f(2, 6), 1, [2, -1]), c("Ravel", f(2, 3))
c("Transpose", f(2, 3), 0, 1), c("Transpose", f(2, 1, 3), -1, 0, _n="negative"), c("SwapAxes", f(2, 3), 0, 1), c("T", f(2, 3)), c("T", f(3), _n="vector"), c("MT", f(2, 2, 3)), c("Adjoint", f(2, 3)), c("Adjoint", f(2, 2, d=c64), _n="complex64")
c("Permute", f(2, 3, 1), [2, 0, 1]), c("MoveDim", f(2, 3, 2), 0, -1)
c("Squeeze", f(1, 3, 1)), c("SqueezeDim", f(1, 3, 1), 0), c("SqueezeDim", f(2, 1), 0, _n="not 1"), c("Unsqueeze", f(3), 0), c("Unsqueeze", f(2, 2), -1, _n="last")
start("MoveDims")
c("MoveDims", f(2, 3, 2), [0, 1], [-1, 0]), c("SqueezeDims", f(1, 3, 1), [0, 1])
start("Expand")
c("Expand", f(2, 1), [3, -1, 2]), c("Expand", f(), [2], _n="scalar"), c("ExpandAs", f(1, 3), NoGrad(f(2, 3))), c("BroadcastTo", f(3), [2, 3]), c("BroadcastTensors", [f(2, 1), f(3)])
c("Repeat", f(2, 2), [2, 1, 2]), c("Tile", f(2, 2), [2]), c("RepeatInterleave", f(2, 2), 2), c("RepeatInterleave", f(2, 2), 2, dim=1, _n="dim"), c("RepeatInterleaveTensor", f(2, 2), t([1, 3], i64), dim=0), c("SumToSize", f(2, 3), [1, 3])
start("Cat")
c("Cat", [f(2, 3), f(1, 3)]), c("Cat", [f(2, 1), f(2, 2)], dim=-1, _n="dim"), c("Cat", [f(2), i(2)], _n="promotion"), c("Cat", [f(0), f(3)], _n="empty")
c("Stack", [f(2, 2), f(2, 2)]), c("Stack", [f(3), f(3)], dim=1, _n="dim"), c("HStack", [f(2), f(3)]), c("HStack", [f(2, 1), f(2, 2)], _n="matrices"), c("VStack", [f(3), f(2, 3)]), c("DStack", [f(2, 2), f(2, 2)]), c("ColumnStack", [f(3), f(3, 2)]), c("BlockDiag", [f(2, 2), f(1, 3), f()])
c("PadSequence", [f(3, 2), f(1, 2)]), c("PadSequence", [f(2), f(3)], batch_first=True, padding_value=-1.0, padding_side="left", _n="options")
start("Split")
c("Split", f(5, 2), 2), c("Split", f(2, 3), 1, dim=1, _n="dim"), c("SplitWithSizes", f(5), [1, 4]), c("SplitWithSizes", f(2, 3), [2, 1], dim=1, _n="dim"), c("TensorSplit", f(5), 3), c("TensorSplit", f(2, 4), 2, dim=1, _n="dim"), c("Chunk", f(5), 2), c("Chunk", f(2, 4), 3, dim=1, _n="dim"), c("Unbind", f(2, 3)), c("Unbind", f(2, 3), dim=1, _n="dim")
c("Narrow", f(4, 2), 0, 1, 2), c("Select", f(3, 2), 0, -1), c("Select", i(2, 3), 1, 1, _n="int64")
c("Slice", f(5, 2), 0, start=1, end=4), c("Slice", f(2, 6), 1, step=2, _n="step"), c("Slice", f(4), 0, start=-2, _n="negative"), c("Slice", f(3), 0, start=2, end=1, _n="empty")
c("AsStrided", f(6), [2, 2], [2, 1]), c("AsStrided", f(6), [2, 2], [1, 1], storage_offset=1, _n="overlap"), c("Unfold", f(5), 0, 3, 1), c("Unfold", f(2, 4), 1, 2, 2, _n="step")
c("Diag", f(3)), c("Diag", f(3, 3), diagonal=1, _n="matrix"), c("DiagEmbed", f(2, 2)), c("DiagEmbed", f(2), offset=1, dim1=0, dim2=1, _n="options"), c("DiagFlat", f(3)), c("DiagFlat", f(2), offset=-1, _n="offset")
c("Diagonal", f(3, 3)), c("Diagonal", f(2, 3, 2), offset=1, dim1=0, dim2=1, _n="options"), c("DiagonalScatter", f(3, 3), f(3)), c("DiagonalScatter", f(3, 3), f(2), offset=1, _n="offset"), c("SelectScatter", f(2, 3), f(3), 0, 1), c("SliceScatter", f(4, 2), f(2, 2), start=1, end=3), c("SliceScatter", f(2, 4), f(2, 2), dim=1, step=2, _n="step")
start("TensorSplitIndices")
c("TensorSplitIndices", f(5), [1, 4]), c("TensorSplitIndices", f(2, 4), [2], dim=1, _n="dim")
for op in "Tril Triu".split():
    start(op)
    c(op, f(3, 3)), c(op, f(2, 2, 3), diagonal=-1, _n="diagonal"), c(op, b(3, 3), diagonal=1, _n="bool")
start("Flip")
c("Flip", f(2, 3), [0, 1]), c("Flip", f(2, 2, 2), [-1], _n="last"), c("FlipLR", f(2, 3)), c("FlipUD", f(2, 3)), c("Roll", f(5), [2]), c("Roll", f(2, 3), [1, -1], dims=[0, 1], _n="dims"), c("Rot90", f(2, 3)), c("Rot90", f(2, 3), k=-1, dims=[1, 0], _n="options")
c("AtLeast1D", f()), c("AtLeast2D", f(3)), c("AtLeast3D", f(2, 2))
start("Contiguous")
c("Contiguous", f(2, 3)), c("Clone", f(2, 3)), c("Clone", b(3), _n="bool"), c("Detach", f(2, 3))
start("IndexSelect")
c("IndexSelect", f(3, 2), 0, t([2, 0, 2], i64)), c("IndexSelect", f(2, 3), 1, t([1], i32), _n="int32")
c("IndexTensors", f(3, 2), [t([2, 0], i64)]), c("IndexTensors", f(3, 2), [None, t([1, 1, 0], i64)], _n="second"), c("IndexTensors", f(3, 2), [t([2, 0], i64), t([[1], [0]], i64)], _n="broadcast"), c("IndexTensors", f(4), [t([True, False, True, True], boolean)], _n="mask")
c("IndexPut", f(3, 2), [t([2, 0], i64)], f(2, 2)), c("IndexPut", f(4), [t([1, 1, 3], i64)], f(3), accumulate=True, _n="accumulate"), c("IndexPut", f(3, 2), [t([True, False, True], boolean)], f(), _n="mask")
c("IndexAdd", f(3, 2), 0, t([2, 0, 2], i64), f(3, 2)), c("IndexAdd", f(2, 3), 1, t([1], i64), f(2, 1), alpha=2, _n="alpha")
c("IndexCopy", f(3, 2), 0, t([2, 0], i64), f(2, 2)), c("IndexFill", f(3, 2), 0, t([2], i64), 0.5), c("IndexFill", i(2, 3), 1, t([0, 2], i64), 9, _n="int64")
for how in "prod mean amax amin".split():
    c("IndexReduce", f(3, 2, lo=0.5, hi=2), 0, t([2, 0, 2], i64), f(3, 2, lo=0.5, hi=2), how, _n=how)
c("IndexReduce", f(2), 0, t([0, 0], i64), f(2), "mean", include_self=False, _n="include_self")
start("Gather")
c("Gather", f(3, 2), 0, t([[2, 0], [1, 1]], i64)), c("Gather", f(2, 3), 1, t([[2], [0]], i64), _n="dim 1")
c("Scatter", f(3, 2), 0, t([[2, 0], [1, 1]], i64), f(2, 2)), c("Scatter", f(2, 3), 1, t([[2], [0]], i64), f(2, 1), _n="dim 1"), c("ScatterValue", f(3, 2), 0, t([[2, 0]], i64), 1.5), c("ScatterAdd", f(3, 2), 0, t([[2, 0], [2, 1]], i64), f(2, 2))
for how in "sum prod mean amax amin".split():
    c("ScatterReduce", f(3, 2, lo=0.5, hi=2), 0, t([[2, 0], [2, 1]], i64), f(2, 2, lo=0.5, hi=2), how, _n=how)
c("ScatterReduce", f(3), 0, t([0, 0], i64), f(2), "amax", include_self=False, _n="include_self")
start("Take")
c("Take", f(2, 3), t([[5, 0], [2, 2]], i64)), c("TakeAlongDim", f(2, 3), t([[2, 0], [1, 1]], i64), dim=1), c("TakeAlongDim", f(2, 2), t([3, 0], i64), _n="flat"), c("Put", f(2, 3), t([5, 0], i64), f(2)), c("Put", f(2, 2), t([1, 1], i64), f(2), accumulate=True, _n="accumulate")
start("MaskedFill")
c("MaskedFill", f(2, 3), b(2, 3), 0.5), c("MaskedFill", f(2, 3), b(3), f(), _n="tensor, broadcast"), c("MaskedFill", f(3), b(3), -inf, _n="-inf"), c("MaskedFill", i(4), b(4), 7, _n="int64")
c("MaskedSelect", f(2, 3), b(2, 3)), c("MaskedSelect", f(2, 3), t([True, False, True], boolean), _n="broadcast"), c("MaskedScatter", f(2, 3), b(2, 3), f(6))
start("Where")
c("Where", b(2, 3), f(2, 3), f(3)), c("Where", b(3), f(3), 0.5, _n="number"), c("Where", b(3), 1.0, f(3, d=f64), _n="number first"), c("Where", b(3), 1.0, 0.0, _n="numbers"), c("Where", b(3), 1, 0, _n="int numbers"), c("Where", b(2), i(2), f(2), _n="promotion")
for op in "NonZero ArgWhere".split():
    start(op)
    c(op, i(2, 3, lo=0, hi=2)), c(op, b(4), _n="bool"), c(op, f(0, 2), _n="empty")
c("SearchSorted", t([1.0, 3.0, 5.0]), t([[0.0, 3.0], [4.0, 9.0]])), c("SearchSorted", t([1, 3, 3, 5], i64), t([3], i64), right=True, _n="right"), c("SearchSorted", t([5.0, 1.0, 3.0]), t([2.0, 3.0]), sorter=t([1, 2, 0], i64), side="right", out_int32=True, _n="sorter")
c("Bucketize", t([[0.0, 3.0], [4.0, 9.0]]), t([1.0, 3.0, 5.0])), c("Bucketize", t([3.0]), t([1.0, 3.0, 5.0]), right=True, out_int32=True, _n="options")
for op in "HSplit VSplit DSplit HSplitIndices VSplitIndices DSplitIndices".split():
    start(op)
    c(op, f(2, 4, 2), [1] if op.endswith("Indices") else 2)
    if op[0] != "D":
        c(op, f(4, 2, d=f64), [0, 3] if op.endswith("Indices") else 2, _n="float64")
start("HSplit")
c("HSplit", f(6), 3, _n="vector")
start("NarrowCopy")
c("NarrowCopy", f(4, 2), 0, 1, 2), c("NarrowCopy", f(2, 3, d=f64), 1, -1, 1, _n="float64")
start("AsStridedScatter")
c("AsStridedScatter", f(6), f(2, 2), [2, 2], [2, 1]), c("AsStridedScatter", f(2, 3, d=f64), f(2, d=f64), [2], [2], storage_offset=1, _n="float64")
start("NonZeroStatic")
c("NonZeroStatic", i(2, 3, lo=0, hi=2), 2), c("NonZeroStatic", b(4), 6, fill_value=9, _n="bool")
for op in "Squeeze_ SqueezeDim_ SqueezeDims_ Unsqueeze_ Transpose_ SwapAxes_ T_".split():
    start(op)
    at = {"Squeeze_": [], "SqueezeDim_": [0], "SqueezeDims_": [[0, -1]], "Unsqueeze_": [-1], "Transpose_": [0, 1], "SwapAxes_": [1, 0], "T_": []}[op]
    c(op, f(1, 3) if op == "T_" else f(1, 3, 1), *at), c(op, f(2, 1, d=f64), *at, _n="float64"), c(op, i(1, 4), *at, _n="int64")

# --- sorting -----------------------------------------------------------------

for op in "Sort ArgSort SortStable ArgSortStable".split():
    start(op)
    c(op, f(2, 4)), c(op, f(3, 2), dim=0, descending=True, _n="descending")
    if "Stable" in op:
        c(op, t([1, 0, 1, 0, 1], i64), _n="ties")
start("MSort")
c("MSort", f(3, 2)), c("TopK", f(2, 5), 2), c("TopK", f(3, 2), 1, dim=0, largest=False, _n="smallest")
c("Unique", t([3, 1, 3, 2], i64)), c("Unique", t([[1.0, 2.0], [2.0, 0.5]]), return_inverse=True, return_counts=True, _n="all", _g=False)
c("UniqueDim", t([[1, 2], [0, 1], [1, 2]], i64), 0, return_inverse=True, return_counts=True), c("UniqueConsecutive", t([1, 1, 2, 2, 1], i64), return_inverse=True, return_counts=True), c("UniqueConsecutive", t([[1, 1], [1, 1], [2, 1]], i64), dim=0, _n="dim")

# --- activations -------------------------------------------------------------

unary("ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Softplus LogSigmoid Hardtanh Hardsigmoid Hardswish Hardshrink Softshrink", ints=False, dtypes=(f64, bf16))
for op, kw in (("LeakyReLU", {"negative_slope": 0.3}), ("ELU", {"alpha": 0.7}), ("CELU", {"alpha": 0.5}), ("GELU", {"approximate": "tanh"}), ("Softplus", {"beta": 2, "threshold": 1}), ("Hardtanh", {"min_val": -0.5, "max_val": 0.7}), ("Hardshrink", {"lambd": 0.2}), ("Softshrink", {"lambd": 0.2})):
    start(op)
    c(op, f(2, 4) * 2, _n="options", **kw)
c("ReLU", i(4), _n="int64")
start("PReLU")
c("PReLU", f(2, 3), f(1)), c("PReLU", f(2, 3, 2), f(3), _n="channels")
c("RReLU", f(2, 3), 0.1, 0.3), c("RReLU", f(2, 6), 0.1, 0.3, training=True, _seed=21, _n="training")
c("Threshold", f(2, 3), 0.1, -5.0), c("GLU", f(2, 4)), c("GLU", f(4, 2), dim=0, _n="dim")
for op in "Softmax LogSoftmax".split():
    start(op)
    c(op, f(2, 3), -1), c(op, f(2, 3) * 50, 0, _n="large"), c(op, f(4), 0, dtype=f64, _n="dtype"), c(op, f(2, 3, 2, d=f64), 1, _n="float64"), c(op, f(2, 4, d=bf16), 1, _n="bfloat16"), c(op, f(0, 3), 1, _n="empty")

# --- convolution and pooling -------------------------------------------------

start("Conv1d")
c("Conv1d", f(2, 2, 5), f(3, 2, 3)), c("Conv1d", f(1, 4, 6), f(4, 2, 2), bias=f(4), stride=[2], padding=[1], dilation=[2], groups=2, _n="options")
start("Conv2d")
c("Conv2d", f(1, 2, 4, 4), f(3, 2, 3, 3)), c("Conv2d", f(2, 2, 5, 4), f(2, 1, 2, 3), bias=f(2), stride=[2, 1], padding=[1, 0], groups=2, _n="options"), c("Conv2d", f(1, 1, 5, 5), f(1, 1, 2, 2), dilation=[2, 2], _n="dilation"), c("Conv2d", f(2, 3, 3), f(1, 2, 2, 2), _n="unbatched, float32", _try=True), c("Conv2d", f(1, 1, 3, 3, d=f64), f(1, 1, 2, 2, d=f64), _n="float64")
c("Conv2dPadding", f(1, 2, 4, 4), f(2, 2, 3, 3), None, "same"), c("Conv2dPadding", f(1, 1, 3, 3), f(1, 1, 2, 2), f(1), "valid", _n="valid")
c("Conv3d", f(1, 1, 3, 3, 3), f(2, 1, 2, 2, 2), bias=f(2)), c("Conv3d", f(1, 2, 2, 3, 3), f(1, 2, 1, 2, 2), stride=[1, 1, 2], padding=[1, 0, 0], _n="options")
c("ConvTranspose1d", f(1, 2, 4), f(2, 2, 3), bias=f(2)), c("ConvTranspose1d", f(1, 2, 3), f(2, 1, 3), stride=[2], padding=[1], output_padding=[1], groups=2, _n="options")
c("ConvTranspose2d", f(1, 2, 3, 3), f(2, 2, 2, 2)), c("ConvTranspose2d", f(1, 1, 3, 3), f(1, 2, 3, 3), bias=f(2), stride=[2, 2], padding=[1, 1], output_padding=[1, 1], _n="options")
c("ConvTranspose3d", f(1, 1, 2, 2, 2), f(1, 2, 2, 2, 2), bias=f(2))
start("MaxPool1d")
c("MaxPool1d", f(1, 2, 6), [2]), c("MaxPool1d", f(2, 7), [3], stride=[2], padding=[1], ceil_mode=True, _n="options")
c("MaxPool2d", f(1, 2, 4, 4), [2, 2]), c("MaxPool2d", f(1, 1, 5, 5), [3, 3], stride=[2, 2], padding=[1, 1], ceil_mode=True, _n="options"), c("MaxPool2d", f(1, 1, 4, 4), [2, 2], dilation=[2, 2], stride=[1, 1], _n="dilation")
c("MaxPool2dWithIndices", f(1, 2, 4, 4), [2, 2]), c("MaxPool3d", f(1, 1, 2, 4, 4), [2, 2, 2])
x = f(1, 1, 4, 4)
v, k = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
c("MaxUnpool2d", v, k, [4, 4])
start("AvgPool1d")
c("AvgPool1d", f(1, 2, 6), [2]), c("AvgPool1d", f(1, 1, 5), [3], stride=[2], padding=[1], count_include_pad=False, _n="options"), c("AvgPool2d", f(1, 2, 4, 4), [2, 2]), c("AvgPool2d", f(1, 1, 5, 5), [3, 3], stride=[2, 2], padding=[1, 1], ceil_mode=True, divisor_override=2, _n="options"), c("AvgPool3d", f(1, 1, 2, 4, 4), [2, 2, 2])
c("AdaptiveAvgPool1d", f(1, 2, 5), [2]), c("AdaptiveAvgPool2d", f(1, 2, 5, 4), [2, 3]), c("AdaptiveAvgPool2d", f(1, 2, 3, 3), [1, 1], _n="global"), c("AdaptiveAvgPool3d", f(1, 1, 3, 3, 3), [1, 2, 2]), c("AdaptiveMaxPool1d", f(1, 2, 5), [2]), c("AdaptiveMaxPool2d", f(1, 2, 5, 4), [2, 2])
start("Pad")
c("Pad", f(2, 3), [1, 2]), c("Pad", f(2, 3), [0, 1, 1, 0], value=0.5, _n="value"), c("Pad", f(2, 4), [2, 1], mode="reflect", _n="reflect"), c("Pad", f(1, 2, 3), [1, 1], mode="replicate", _n="replicate"), c("Pad", f(1, 2, 3), [1, 1], mode="circular", _n="circular"), c("Pad", f(5), [-1, -1], _n="crop")
c("ConstantPadNd", f(2, 2), [1, 0]), c("ConstantPadNd", i(2, 2), [0, 1, 1, 0], value=7, _n="int64")
for op, shape, size, factor in (("UpsampleNearest1d", (1, 2, 3), [5], [2.0]), ("UpsampleNearest2d", (1, 2, 2, 3), [4, 5], [2.0, 1.5]), ("UpsampleLinear1d", (1, 2, 3), [5], [2.0]), ("UpsampleBilinear2d", (1, 2, 2, 3), [4, 5], [2.0, 1.5]), ("UpsampleBicubic2d", (1, 1, 3, 3), [4, 5], [2.0, 1.5]), ("UpsampleTrilinear3d", (1, 1, 2, 2, 2), [3, 3, 4], [1.5, 2.0, 1.0])):
    start(op)
    c(op, f(*shape), output_size=size), c(op, f(*shape), scale_factors=factor, _n="scale_factors")
    if "align_corners" in ops[op].options:
        c(op, f(*shape), output_size=size, align_corners=True, _n="align_corners")
start("GridSampler")
c("GridSampler", f(1, 2, 3, 3), f(1, 2, 2, 2, lo=-0.9, hi=0.9)), c("GridSampler", f(1, 1, 3, 3), f(1, 2, 2, 2, lo=-1.3, hi=1.3), interpolation_mode=2, padding_mode=1, align_corners=True, _n="options")
c("AffineGrid", f(1, 2, 3), [1, 1, 2, 3]), c("AffineGrid", f(1, 2, 3), [1, 1, 2, 2], align_corners=True, _n="align_corners")
c("PixelShuffle", f(1, 4, 2, 3), 2), c("PixelUnshuffle", f(1, 1, 4, 2), 2), c("ChannelShuffle", f(1, 4, 2), 2)
c("Im2Col", f(1, 2, 3, 3), [2, 2]), c("Im2Col", f(1, 1, 4, 4), [2, 2], stride=[2, 2], padding=[1, 1], _n="options"), c("Col2Im", f(1, 8, 4), [3, 3], [2, 2]), c("Col2Im", f(1, 4, 4), [4, 4], [2, 2], stride=[2, 2], _n="stride")

# --- normalisation, attention, embedding, recurrent layers --------------------

start("LayerNorm")
c("LayerNorm", f(2, 4), [4]), c("LayerNorm", f(2, 2, 3), [2, 3], weight=f(2, 3), bias=f(2, 3), eps=1e-3, _n="options"), c("LayerNorm", f(2, 4, d=f64), [4], weight=f(4, d=f64), bias=f(4, d=f64), _n="float64"), c("LayerNorm", f(2, 8, d=bf16), [8], _n="bfloat16")
start("RMSNorm")
c("RMSNorm", f(2, 4), [4]), c("RMSNorm", f(2, 4), [4], weight=f(4), eps=1e-3, _n="options")
start("BatchNorm")
c("BatchNorm", f(3, 2), NoGrad(f(2)), NoGrad(f(2, lo=0.5, hi=2)))
c("BatchNorm", f(2, 2, 3), NoGrad(f(2)), NoGrad(f(2, lo=0.5, hi=2)), weight=f(2), bias=f(2), training=True, momentum=0.2, eps=1e-3, _n="training")
c("BatchNorm", f(4, 2), None, None, training=True, _n="no running statistics")
start("InstanceNorm")
c("InstanceNorm", f(2, 2, 4)), c("InstanceNorm", f(1, 2, 3), weight=f(2), bias=f(2), eps=1e-3, _n="options"), c("InstanceNorm", f(1, 2, 3), running_mean=NoGrad(f(2)), running_var=NoGrad(f(2, lo=0.5, hi=2)), use_input_stats=False, _n="running statistics")
start("GroupNorm")
c("GroupNorm", f(2, 4, 3), 2), c("GroupNorm", f(1, 4, 2), 4, weight=f(4), bias=f(4), eps=1e-3, _n="options")
op = "ScaledDotProductAttention"
start(op)
c(op, f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4)), c(op, f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4), is_causal=True, _n="causal"), c(op, f(2, 2, 4), f(2, 3, 4), f(2, 3, 2), attn_mask=t([[True, True, False], [True, False, True]], boolean), _n="bool mask"), c(op, f(1, 1, 2, 4), f(1, 1, 3, 4), f(1, 1, 3, 4), attn_mask=NoGrad(f(2, 3)), scale=0.3, _n="float mask, scale"), c(op, f(1, 4, 2, 2, d=f64), f(1, 2, 3, 2, d=f64), f(1, 2, 3, 2, d=f64), enable_gqa=True, _n="grouped queries")
start("Embedding")
c("Embedding", f(4, 3), t([[0, 2], [3, 2]], i64)), c("Embedding", f(3, 2), t([1, 2, 1], i64), padding_idx=2, scale_grad_by_freq=True, _n="options"), c("Embedding", f(3, 2), t([0, 2], i32), _n="int32")
for mode in (0, 1, 2):
    c("EmbeddingBag", f(5, 3), t([0, 2, 4, 1, 2], i64), t([0, 2], i64), mode, _n="mode %d" % mode)
c("EmbeddingBag", f(4, 2), t([0, 2, 3], i64), t([0, 1, 3], i64), 0, per_sample_weights=NoGrad(f(3)), include_last_offset=True, _n="options")
c("EmbeddingBag", f(4, 2), t([0, 2, 3, 2], i64), t([0, 1], i64), 1, padding_idx=-2, _n="padding")
start("Dropout")
c("Dropout", f(4, 5), 0.4, _seed=13), c("Dropout", f(2, 3), 0.4, train=False, _n="eval"), c("Dropout", f(3), 0.0, _n="p 0"), c("Dropout", f(8, d=f64), 0.5, _seed=14, _n="float64")
c("Dropout_", f(4, 5), 0.4, _seed=13), c("Dropout_", f(2, 3), 0.4, train=False, _n="eval")
c("AlphaDropout", f(4, 5), 0.4, _seed=13), c("AlphaDropout", f(3), 0.4, train=False, _n="eval"), c("FeatureDropout", f(2, 4, 2), 0.5, _seed=13)
for op in "AlphaDropout_ FeatureDropout_ FeatureAlphaDropout FeatureAlphaDropout_".split():
    start(op)
    c(op, f(2, 4, 2), 0.5, _seed=13), c(op, f(2, 3), 0.4, train=False, _n="eval")


def rnn(gates, inp, hid, biases=True, count=1):
    out = []
    for _ in range(count):
        out += [f(gates * hid, inp), f(gates * hid, hid)] + ([f(gates * hid), f(gates * hid)] if biases else [])
    return out


for op, gates in (("LSTM", 4), ("GRU", 3), ("RNNTanh", 1), ("RNNReLU", 1)):
    start(op)
    h = (lambda *s: [f(*s), f(*s)]) if op == "LSTM" else f
    c(op, f(3, 2, 2), h(1, 2, 2), rnn(gates, 2, 2)), c(op, f(2, 3, 2), h(2, 2, 1), rnn(gates, 2, 1, False, 2), has_biases=False, bidirectional=True, batch_first=True, _n="options")
    c(op, f(2, 1, 2), h(2, 1, 2), rnn(gates, 2, 2) + rnn(gates, 2, 2), num_layers=2, train=True, _n="two layers")
    cell = op + "Cell"
    start(cell)
    c(cell, f(2, 3), [f(2, 2), f(2, 2)] if op == "LSTM" else f(2, 2), f(gates * 2, 3), f(gates * 2, 2)), c(cell, f(2, 3), [f(2, 2), f(2, 2)] if op == "LSTM" else f(2, 2), f(gates * 2, 3), f(gates * 2, 2), b_ih=f(gates * 2), b_hh=f(gates * 2), _n="biases")

# --- losses ------------------------------------------------------------------


def loss(op, make, **kw):
    """The three reductions, and the loss's other options."""
    start(op)
    c(op, *make()), c(op, *make(), reduction=2, _n="sum"), c(op, *make(), reduction=0, _n="none")
    if kw:
        c(op, *make(), _n="options", **kw)


cls = lambda n, k: i(n, lo=0, hi=k)
sgn = lambda *s: NoGrad(t([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])[: int(np.prod(s))].reshape(s))
loss("CrossEntropy", lambda: (f(3, 4), cls(3, 4)), weight=NoGrad(t([0.5, 1.0, 2.0, 1.5])), ignore_index=2, label_smoothing=0.1)
c("CrossEntropy", f(2, 3), f(2, 3, lo=0, hi=1), _n="probabilities"), c("CrossEntropy", f(2, 3, 2), i(2, 2, lo=0, hi=3), _n="two dimensions"), c("CrossEntropy", f(2, 3, d=f64), cls(2, 3), _n="float64")
loss("NLLLoss", lambda: (f(3, 4), cls(3, 4)), weight=NoGrad(t([0.5, 1.0, 2.0, 1.5])), ignore_index=1)
c("NLLLoss", f(2, 3, 2), i(2, 2, lo=0, hi=3), _n="two dimensions")
pair = lambda: (f(2, 3), f(2, 3))
loss("MSELoss", pair), loss("L1Loss", pair), loss("SmoothL1Loss", pair, beta=0.3), loss("HuberLoss", pair, delta=0.3)
c("MSELoss", f(2, 2, d=f64), f(2, 2, d=f64), _n="float64"), c("MSELoss", f(6, d=bf16), f(6, d=bf16), _n="bfloat16")
loss("BinaryCrossEntropy", lambda: (f(2, 3, lo=0.1, hi=0.9), NoGrad(f(2, 3, lo=0, hi=1))), weight=NoGrad(t([0.5, 1.0, 2.0])))
loss("BinaryCrossEntropyWithLogits", lambda: (f(2, 3), NoGrad(f(2, 3, lo=0, hi=1))), weight=NoGrad(t([0.5, 1.0, 2.0])), pos_weight=NoGrad(t([2.0, 1.0, 0.5])))
loss("KLDiv", lambda: (f(2, 3, lo=-3, hi=-0.1), NoGrad(f(2, 3, lo=0.1, hi=0.9))), log_target=True)
loss("PoissonNLLLoss", lambda: (f(2, 3, lo=0.1, hi=1), NoGrad(f(2, 3, lo=0, hi=3))), log_input=False, eps=1e-4)
loss("HingeEmbeddingLoss", lambda: (f(2, 3), sgn(2, 3)), margin=0.5), loss("SoftMarginLoss", lambda: (f(2, 3), sgn(2, 3)))
loss("MarginRankingLoss", lambda: (f(4), f(4), sgn(4)), margin=0.3), loss("CosineEmbeddingLoss", lambda: (f(3, 2), f(3, 2), sgn(3)), margin=0.2)
loss("TripletMarginLoss", lambda: (f(2, 3), f(2, 3), f(2, 3)), margin=2.0, p=1.0, swap=True)
loss("MultiMarginLoss", lambda: (f(2, 3), cls(2, 3)), p=2, margin=0.7, weight=NoGrad(t([0.5, 1.0, 2.0])))
loss("MultilabelMarginLoss", lambda: (f(2, 3), t([[2, 0, -1], [1, -1, 0]], i64)))
start("CTCLoss")
logits = lambda: torch.log_softmax(f(5, 2, 4), -1)
c("CTCLoss", logits(), t([[1, 2], [3, 3]], i64), [5, 4], [2, 1]), c("CTCLoss", logits(), t([[0, 1], [2, 0]], i64), [5, 5], [2, 2], blank=3, reduction=0, zero_infinity=True, _n="options")

# --- random ------------------------------------------------------------------

for seed in (0, 17):
    n = dict(_seed=seed, _n="seed %d" % seed)
    start("Bernoulli")
    c("Bernoulli", NoGrad(f(4, 5, lo=0, hi=1)), **n), c("BernoulliP", NoGrad(f(20)), 0.3, **n), c("Bernoulli_", NoGrad(f(20)), p=0.7, **n)
    c("Multinomial", NoGrad(f(5, lo=0.1, hi=1)), 3, **n), c("Multinomial", NoGrad(f(2, 4, lo=0.1, hi=1)), 6, replacement=True, _seed=seed, _n="replacement, seed %d" % seed)
    c("Poisson", NoGrad(f(8, lo=0.5, hi=5)), **n), c("Binomial", NoGrad(t([5.0, 10.0, 3.0])), NoGrad(t([0.5, 0.2, 0.9])), **n)
    c("Normal", 1.0, 2.0, [3, 3], **n), c("Normal", 0.0, 1.0, [20], dtype=f64, _seed=seed, _n="float64, seed %d" % seed), c("NormalTensor", NoGrad(f(6)), NoGrad(f(6, lo=0.5, hi=2)), **n)
    c("Normal_", NoGrad(f(5)), 0, 1, **n), c("Normal_", NoGrad(f(20)), 1.0, 0.5, _seed=seed, _n="20, seed %d" % seed), c("Uniform_", NoGrad(f(4, 4)), -1, 2, **n), c("Exponential_", NoGrad(f(6)), lambd=2.0, **n), c("LogNormal_", NoGrad(f(6)), 0.5, 0.25, **n), c("Cauchy_", NoGrad(f(6)), 0, 1, **n), c("Geometric_", NoGrad(f(6)), 0.3, **n)
    c("Random_", NoGrad(f(6)), **n), c("Random_", i(6, d=u8, lo=0), _seed=seed, _n="uint8, seed %d" % seed), c("RandomTo_", i(8), 100, **n), c("RandomFrom_", i(8), 50, 100, **n), c("BernoulliTensor_", NoGrad(f(3, 2)), NoGrad(t([0.2, 0.9])), **n)

# --- filling in place --------------------------------------------------------

start("Zero_")
c("Zero_", f(2, 3)), c("Zero_", i(3), _n="int64"), c("Fill_", f(2, 3), 1.5), c("Fill_", b(3), True, _n="bool"), c("FillDiagonal_", f(3, 3), 2.0), c("FillDiagonal_", f(5, 2), 2.0, wrap=True, _n="wrap")
c("Copy_", f(2, 3), f(2, 3)), c("Copy_", f(2, 3), f(3, d=f64), _n="float64, broadcast"), c("Copy_", i(3), NoGrad(f(3) * 3), _n="to int64")

# --- Fourier transforms ------------------------------------------------------

for op in "FFTFFT FFTIFFT FFTRFFT FFTIRFFT FFTHFFT FFTIHFFT".split():
    start(op)
    d = c64 if op in ("FFTIRFFT", "FFTHFFT") else f32
    c(op, f(2, 4, d=d)), c(op, f(3, 4, d=c128 if d.is_complex else f64), n=5, dim=0, norm="ortho", _n="options")
    if d == f32 and op in ("FFTFFT", "FFTIFFT"):
        c(op, f(4, d=c64), norm="forward", _n="complex64")
for op in "FFTFFT2 FFTIFFT2 FFTRFFT2 FFTIRFFT2 FFTFFTN FFTIFFTN FFTRFFTN FFTIRFFTN".split():
    start(op)
    d = c64 if "IRFFT" in op else f32
    c(op, f(3, 4, d=d)), c(op, f(2, 3, 2, d=d), s=[2, 3], dim=[0, 2], norm="ortho", _n="options")
for op in "FFTHFFT2 FFTIHFFT2 FFTHFFTN FFTIHFFTN".split():
    start(op)
    d = f32 if "IHFFT" in op else c64
    c(op, f(3, 4, d=d)), c(op, f(2, 3, 2, d=d), s=[2, 3], dim=[0, 2], norm="ortho", _n="options")
for op in "FFTFFTShift FFTIFFTShift".split():
    start(op)
    c(op, f(5)), c(op, f(2, 3), dim=[1], _n="dim")
c("FFTFFTFreq", 5), c("FFTFFTFreq", 4, d=0.5, dtype=f64, _n="options"), c("FFTRFFTFreq", 6), c("FFTRFFTFreq", 5, d=2.0, _n="d")

# --- complex numbers ---------------------------------------------------------

for op in "Real Imag Conj ConjPhysical ResolveConj ResolveNeg Angle ViewAsReal".split():
    start(op)
    c(op, f(2, 3, d=c64), _n="complex64"), c(op, f(2, d=c128), _n="complex128")
    if op not in ("Imag", "ViewAsReal"):
        c(op, f(3), _n="float32")
start("STFT")
c("STFT", f(16), 8, return_complex=True, window=NoGrad(torch.hann_window(8))), c("STFT", f(2, 20, d=f64), 8, hop_length=4, center=False, normalized=True, return_complex=True, window=NoGrad(torch.ones(8, dtype=f64)), _n="options")
c("STFT", f(12), 4, hop_length=2, onesided=False, return_complex=True, window=NoGrad(torch.ones(4)), _n="both sides"), c("STFT", f(12), 8, win_length=6, return_complex=True, window=NoGrad(torch.hann_window(6)), pad_mode="constant", _n="a short window")
start("ISTFT")
c("ISTFT", f(5, 9, d=c64), 8, window=NoGrad(torch.hann_window(8))), c("ISTFT", f(2, 3, 6, d=c128), 4, hop_length=2, length=9, normalized=True, window=NoGrad(torch.ones(4, dtype=f64)), _n="options")
start("ViewAsComplex")
c("ViewAsComplex", f(3, 2)), c("ViewAsComplex", f(2, 2, d=f64), _n="float64")


# --- cases: sparse tensors ----------------------------------------------------


def sparse(*shape, d=f32):
    """A matrix of which about half is zero."""
    return f(*shape, d=d) * b(*shape).to(d)


for op in "ToSparse ToSparseCSR ToSparseCSC".split():
    start(op)
    c(op, sparse(3, 4)), c(op, sparse(2, 2, d=f64), _n="float64"), c(op, f(2, 3, 2), dense_dim=1, _n="dense_dim"), c(op, i(2, 2, lo=0, hi=2), _n="int64")
start("ToSparseDim")
c("ToSparseDim", sparse(3, 4), 1), c("ToSparseDim", sparse(3, 4), 2, _n="both")
for op in "ToSparseBSR ToSparseBSC".split():
    start(op)
    c(op, sparse(4, 6), [2, 3]), c(op, sparse(2, 2, d=f64), [1, 1], _n="float64")
start("ToDense")
c("ToDense", sparse(3, 2).to_sparse()), c("ToDense", sparse(3, 2).to_sparse_csr(), _n="csr"), c("ToDense", f(2), _n="strided")
for op in "Coalesce IsCoalesced Indices Values SparseDim DenseDim".split():
    start(op)
    c(op, sparse(3, 4).to_sparse()), c(op, sparse(3, 4, d=f64).to_sparse(), _n="float64")
start("Values")
c("Values", sparse(3, 4).to_sparse_csr(), _n="csr")
c("SparseDim", f(2, 3), _n="strided"), c("DenseDim", f(2, 3), _n="strided")
for op, to in (("CRowIndices", "csr"), ("ColIndices", "csr"), ("CColIndices", "csc"), ("RowIndices", "csc")):
    start(op)
    c(op, getattr(sparse(3, 4), "to_sparse_" + to)())
start("SparseMask")
c("SparseMask", f(3, 4), sparse(3, 4).to_sparse()), c("SparseMask", sparse(3, 4).to_sparse(), sparse(3, 4).to_sparse(), _n="sparse")
for op in "SparseSoftmax SparseLogSoftmax".split():
    start(op)
    c(op, sparse(3, 4).to_sparse(), 1), c(op, sparse(3, 4).to_sparse(), 0, dtype=f64, _n="dtype")
start("SparseSampledAddMM")
c("SparseSampledAddMM", sparse(3, 4).to_sparse_csr(), NoGrad(f(3, 2)), NoGrad(f(2, 4))), c("SparseSampledAddMM", sparse(3, 4).to_sparse_csr(), NoGrad(f(3, 2)), NoGrad(f(2, 4)), beta=0.5, alpha=2.0, _n="options")
start("SparseMM")
c("SparseMM", sparse(3, 4).to_sparse(), f(4, 2)), c("SparseMM", sparse(3, 4).to_sparse_csr(), f(4, 2), _n="csr"), c("SparseMM", sparse(3, 4, d=f64).to_sparse(), f(4, 2, d=f64), _n="float64")
c("SparseMM", f(2, 3), sparse(3, 4).to_sparse(), _n="on the right"), c("SparseMM", sparse(3, 4).to_sparse(), sparse(4, 2).to_sparse(), _n="both")
start("SparseMMReduce")
for r in ("sum", "mean", "amax", "amin"):
    c("SparseMMReduce", sparse(3, 4).to_sparse_csr(), f(4, 2), r, _n=r)


# --- running -----------------------------------------------------------------

# All tensors of these must be on one device; other operators that take a number in the place of a tensor have it on the CPU.
ONE_DEVICE = {"ClampMin", "ClampMax", "GCD", "LCM", "Ldexp", "LogAddExp", "LogAddExp2"}

UNDEFINED = {"Empty", "EmptyStrided", "EmptyLike", "NewEmpty", "NewEmptyStrided"}
LOOSE = re.compile("^(Conv|Bilinear|Linalg|Cholesky|LogDet|CDist|Cov|CorrCoef|Upsample|GridSampler|LSTM|GRU|RNN|CTC|MVLGamma|Polygamma|IGamma|Special(Zeta|.*Bessel|Airy|.*Polynomial)|Geqrf|Ormqr|LUUnpack|FFT)")
# Machines and versions differ by a few units in the last place.
TOLERANCE = {f64: (1e-9, 1e-11), c128: (1e-9, 1e-11), f32: (2e-5, 2e-6), c64: (2e-5, 2e-6), bf16: (2e-2, 1e-2), f16: (2e-3, 1e-3)}


def number(v):
    if v != v:
        return "nan"
    if v in (inf, -inf):
        return "inf" if v > 0 else "-inf"
    return v


def flat(x):
    """The data of a tensor; float32 by the shortest decimals that read back the same."""
    x = x.detach()
    if x._is_zerotensor():
        x = torch.zeros(x.shape, dtype=x.dtype)
    x = x.resolve_conj().resolve_neg().contiguous().reshape(-1).cpu()
    if x.is_complex():
        pairs = flat(torch.view_as_real(x))
        return [pairs[k:k + 2] for k in range(0, len(pairs), 2)]
    if x.dtype == bf16:
        x = x.float()
    if x.dtype in (f32, f16):
        return [number(float(str(v))) for v in x.numpy()]
    return [number(v) for v in x.tolist()]


def tensor(x, grad=False, data=True):
    out = {"dtype": str(x.dtype)[6:], "shape": list(x.shape)}
    if x.layout != torch.strided:
        out["layout"] = str(x.layout)[6:]
        x = x.detach().to_dense()
    if data:
        out["data"] = flat(x)
    if grad:
        out["grad"] = True
    return out


def encode(type_, v):
    if v is None:
        return {"null": True}
    if isinstance(v, torch.Tensor):
        return {"T": tensor(v, v.requires_grad)}
    if isinstance(v, torch.dtype):
        return {"dtype": str(v)[6:]}
    if isinstance(v, (list, tuple)):
        if type_.startswith("Tensor"):
            return {"Ts": [None if x is None else tensor(x, x.requires_grad) for x in v]}
        return {"fs": [float(x) for x in v]} if type_.startswith("float") else {"is": list(v)}
    if isinstance(v, bool):
        return {"b": v}
    if isinstance(v, str):
        return {"s": v}
    if isinstance(v, complex):
        return {"c": [v.real, v.imag]}
    if type_.startswith("float"):
        return {"f": number(float(v))}
    return {"i": v} if isinstance(v, int) else {"f": number(v)}


def leaf(v, grad):
    """Returns a new leaf for an input; lists are copied, other values are returned unchanged."""
    if isinstance(v, NoGrad):
        return v.t.clone().to(device)
    if isinstance(v, torch.Tensor):
        v = v.detach().clone().to(device)
        return v.requires_grad_() if grad and v.layout == torch.strided and (v.is_floating_point() or v.is_complex()) else v
    return [leaf(x, grad) for x in v] if isinstance(v, list) else v


def wrapped(v, others):
    """A 0-dim tensor that promotes among others as Python's number v does."""
    if isinstance(v, (bool, int)):
        return torch.tensor(v)
    wide = [x for x in others if isinstance(x, torch.Tensor) and x.dim() > 0 and (x.is_floating_point() or x.is_complex())]
    double = any(x.dtype in (f64, c128) for x in wide)
    if isinstance(v, complex):
        return torch.tensor(v, dtype=c128 if double else c64)
    return torch.tensor(v, dtype=f64 if wide else f32)


def call(op, args, opts, seed):
    """Calls the table's overload and compares with Python's way to pass numbers."""
    vals = {a.name: None for a in op.args if a.name in op.kwonly and not a.default and a.type.endswith("?")}
    vals.update(op.given)
    vals.update({a.name: v for a, v in zip(op.positional, args)})
    vals.update(opts)
    made = not any(isinstance(x, torch.Tensor) for v in vals.values() for x in (v if isinstance(v, list) else [v]))
    if device.type != "cpu" and made and any(a.name == "device" for a in op.args):
        vals["device"] = device
    numbers = [n for n in op.num if not isinstance(vals[n], torch.Tensor)]
    as_tensors = dict(vals)
    for n in numbers:
        as_tensors[n] = wrapped(vals[n], [v for k, v in vals.items() if k != n])
        if op.go.rstrip("_") in ONE_DEVICE:
            as_tensors[n] = as_tensors[n].to(device)

    def go(target, v):
        pos, kw, gap = [], {}, False
        for a in op.args:
            if a.name not in v:
                gap = True
            elif a.name in op.kwonly or gap:
                kw[a.name] = v[a.name]
            else:
                pos.append(v[a.name])
        torch.manual_seed(seed)
        return target(*pos, **kw)

    if numbers and not op.mutates:
        try:
            want = go(op.packet, vals)
        except RuntimeError:
            want = None
        got = go(op.overload, as_tensors)
        if want is not None:
            assert want.dtype == got.dtype and torch.allclose(want, got, rtol=1e-6, atol=1e-7, equal_nan=True), (op.go, vals, want, got)
    return go(op.overload, as_tensors)


def differentiable(x):
    return isinstance(x, torch.Tensor) and x.requires_grad and x.layout == torch.strided and (x.is_floating_point() or x.is_complex())


def cotangent(x):
    v = torch.tensor([round(math.cos(k + 1), 3) for k in range(x.numel() * (2 if x.is_complex() else 1))], dtype=f64)
    v = torch.view_as_complex(v.reshape(-1, 2)) if x.is_complex() else v
    return v.reshape(x.shape).to(x.dtype).to(x.device)


def run(go, name, seed, grad, rtol, atol, args, opts):
    op = ops[go]
    args, opts = op.bind(args, opts)
    grad = grad and go not in UNDIFFERENTIABLE and op.base not in UNDIFFERENTIABLE
    types = {a.name: a.type for a in op.args}
    leaves = [leaf(v, grad) for v in args]
    optl = {k: leaf(v, False) for k, v in opts.items()}
    optg = {k: leaf(v, grad) for k, v in opts.items()}

    def forward(ls, os_):
        ls = list(ls)
        if op.mutates:
            ls[0] = ls[0].clone()
        return ls, call(op, ls, os_, seed)

    used, res = forward(leaves, optg)
    results = list(res) if isinstance(res, tuple) else [res]
    out, cot, outs, cots = [], [], [], []
    for r in results:
        if isinstance(r, torch.Tensor):
            out.append({"T": tensor(r, data=go not in UNDEFINED)})
            ok = grad and differentiable(r)
            cot.append(flat(cotangent(r)) if ok else None)
            if ok:
                outs.append(r), cots.append(cotangent(r))
        elif isinstance(r, (list, tuple)):
            out.append({"Ts": [tensor(x) for x in r]})
            ok = grad and any(differentiable(x) for x in r)
            cot.append([flat(cotangent(x)) if differentiable(x) else None for x in r] if ok else None)
            for x in r if ok else []:
                if differentiable(x):
                    outs.append(x), cots.append(cotangent(x))
        else:
            out.append({"b": r} if isinstance(r, bool) else {"i": r} if isinstance(r, int) else {"f": number(r)})
    if not outs:
        leaves = [leaf(v, False) for v in args]
        optg = optl
    # Encoded again, because the call may have changed its inputs.
    fresh = [leaf(v, bool(outs)) for v in args]
    freshopts = {k: leaf(v, bool(outs)) for k, v in opts.items()}
    case = {"op": go, "name": name or "basic", "seed": seed,
            "args": [encode(a.type, v) for a, v in zip(op.positional, fresh)],
            "opts": {k: encode(types[k], v) for k, v in freshopts.items()}, "out": out}
    after = {}
    for k, (u, v) in enumerate(zip(used, fresh)):
        if isinstance(u, torch.Tensor) and u.layout == torch.strided and not (op.mutates and k == 0) and not torch.equal(u.detach(), v.detach()):
            if not bool(torch.isnan(v).any()):
                after[str(k)] = tensor(u)
    if after:
        case["after"] = after
    if outs:
        torch.autograd.backward(outs, cots)
        grads = []
        for v in leaves:
            if isinstance(v, list) and any(isinstance(x, torch.Tensor) for x in v):
                grads.append([None if x is None or x.grad is None else tensor(x.grad) for x in v])
            else:
                grads.append(tensor(v.grad) if isinstance(v, torch.Tensor) and v.grad is not None else None)
        case["cot"], case["grads"] = cot, grads
        og = {k: tensor(v.grad) for k, v in optg.items() if isinstance(v, torch.Tensor) and v.grad is not None}
        if og:
            case["optgrads"] = og
    floats = [x.dtype for x in list(leaves) + results + list(optg.values()) if isinstance(x, torch.Tensor) and x.dtype in TOLERANCE]
    floats += [x.dtype for v in list(leaves) + results if isinstance(v, (list, tuple)) for x in v if isinstance(x, torch.Tensor) and x.dtype in TOLERANCE]
    r, a = max((TOLERANCE[d] for d in floats), default=(0.0, 0.0))
    if LOOSE.match(go) and floats:
        r, a = r * 10, a * 10
    case["rtol"], case["atol"] = rtol if rtol is not None else r, atol if atol is not None else a
    return case


def main():
    order = {go: k for k, go in enumerate(ops)}
    done, count, grads, failed, refused = [], {}, 0, [], {}
    for go, name, seed, g, rtol, atol, soft, args, opts in cases:
        try:
            case = run(go, name, seed, g, rtol, atol, args, opts)
        except (RuntimeError, NotImplementedError, TypeError, IndexError, AssertionError) as e:
            if device.type != "cpu":
                done.append({"op": go, "name": name or "basic", "error": str(e)[:300]})
            elif not soft:
                failed.append((go, name, str(e).split("\n")[0]))
            continue
        done.append(case)
        count[go] = count.get(go, 0) + 1
        grads += "grads" in case
        # The in-place form takes the same cases, as far as shapes and dtypes allow.
        sib = go + "_"
        if sib in ops and ops[sib].base == go and count.get(sib, 0) < 2:
            try:
                case = run(sib, name, seed, g, rtol, atol, args, opts)
            except (RuntimeError, NotImplementedError) as e:
                refused[sib] = str(e).split("\n")[0]
                if device.type != "cpu":
                    done.append({"op": sib, "name": name or "basic", "error": str(e)[:300]})
                continue
            done.append(case)
            count[sib] = count.get(sib, 0) + 1
            grads += "grads" in case
    for x in failed:
        print("failed:", *x, file=sys.stderr)
    missing = [go for go in ops if go not in count]
    assert device.type != "cpu" or not failed and not missing, {go: refused.get(go) for go in missing}
    seen = {}
    done.sort(key=lambda case: order[case["op"]])
    path = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "ops.jsonl")
    with open(path, "w") as out:
        for case in done:
            key = (case["op"], case["name"])
            seen[key] = seen.get(key, 0) + 1
            if seen[key] > 1:
                case["name"] += " %d" % seen[key]
            out.write(json.dumps(case, separators=(",", ":"), allow_nan=False) + "\n")
    print("%d operators, %d cases, %d with gradients, %d bytes, PyTorch %s" % (len(count), len(done), grads, os.path.getsize(path), torch.__version__))


main()
