#!/usr/bin/env python3
"""Writes files of torch.save and NumPy beside itself:

    build/pytorch/bin/python checkpoint/testdata/pytorch.py

and, with arguments, checks files that Go wrote:

    python pytorch.py --object FILE     of TestPyTorchRoundTrip
    python pytorch.py --numpy NPY NPZ
    python pytorch.py --sharded INDEX
"""
import argparse
import datetime
import json
import os
import sys
from collections import OrderedDict, defaultdict

import numpy

DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32",
          "float64", "complex64", "complex128", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"]


def check_numpy(npy, npz):
    a = numpy.load(npy)
    assert a.dtype == numpy.float32 and a.tolist() == [[0, 1, 2], [3, 4, 5]] and not a.flags.f_contiguous
    z = numpy.load(npz)
    for d in DTYPES:
        if "float8" not in d and d != "bfloat16":
            base = numpy.arange(6).reshape(2, 3)
            assert z[d].dtype == numpy.dtype(d) and numpy.array_equal(z[d], (base % 2 if d == "bool" else base).astype(d)), d
    assert z["scalar"].shape == () and z["vector"].shape == (3,) and z["empty"].shape == (0, 4)


def check_sharded(path):
    from safetensors import safe_open
    with open(path) as f:
        index = json.load(f)
    assert set(index) == {"metadata", "weight_map"} and index["metadata"]["total_size"] == 48, index
    assert sorted(set(index["weight_map"].values())) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], index
    for name, base in index["weight_map"].items():
        with safe_open(os.path.join(os.path.dirname(path), base), framework="numpy") as f:
            assert f.metadata()["format"] == "pt", f.metadata()  # transformers refuses others
            assert f.get_tensor(name).tolist() == [float(ord(name))] * 4, name


if sys.argv[1:2] == ["--numpy"]:
    check_numpy(*sys.argv[2:])
    sys.exit()
if sys.argv[1:2] == ["--sharded"]:
    check_sharded(sys.argv[2])
    sys.exit()

import torch  # takes seconds


def ramp(d):
    base = torch.arange(6).reshape(2, 3)
    return base % 2 == 1 if d == "bool" else base.to(torch.float32).to(getattr(torch, d))


def nested():
    base = torch.arange(12.0).reshape(3, 4)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.ones(4, 2)).sum().backward()
    opt.step()
    return {
        "ramps": {d: ramp(d) for d in DTYPES},
        "shared": [base, base[1], base.t(), base[:, 1::2]],
        "expanded": torch.ones(1, 3).expand(2, 3),
        "conj": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "neg": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "channels": torch.arange(16.0).reshape(1, 2, 2, 4).contiguous(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.tensor([1.0, 2.0])),
        "model": model.state_dict(),
        "optimizer": opt.state_dict(),
        "values": {"int": 3, "big": 1 << 70, "minus": -5, "long": -(1 << 40), "float": 0.5, "text": "ä", "none": None, "true": True,
                   "bytes": b"\x00\xff", "list": [1, [2, "x"]], "tuple": (1, 2), "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
                   "device": torch.device("cpu"), "complex": 1 - 2j, "set": {7}, "ordered": OrderedDict(b=1, a=2)},
    }


class Config(dict):
    pass


class Names(list):
    pass


class Image(torch.Tensor):
    pass


class Pair:
    def __new__(cls, first, *, second):
        return super().__new__(cls)

    def __init__(self, first, *, second):
        pass

    def __getnewargs_ex__(self):
        return (1,), {"second": 2}


def objects():
    config, names = Config(lr=0.1, scale=torch.ones(3)), Names(["a", "b"])
    config.path = names
    return {"w": torch.arange(3.0), "args": argparse.Namespace(lr=0.1, layers=[1, 2]), "config": config, "names": names, "score": numpy.float64(0.5),
            "counts": defaultdict(int, a=1), "callbacks": {Net: {"best": torch.tensor(2.0)}}, "state": OrderedDict(b=torch.ones(2)),
            "run": {"epoch": 3, "args": argparse.Namespace()}, "pair": Pair(1, second=2),
            "optimizer": torch.optim.SGD([torch.ones(1)], lr=numpy.float64(0.5)).state_dict(), "image": torch.ones(2).as_subclass(Image), "date": datetime.date(2026, 11, 30), "steps": 7}


class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2


def train(model, opt, steps):
    losses = []
    for k in range(steps):
        x = torch.arange(8.0).reshape(4, 2) * 0.1 + 0.05 * k
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def two_layers():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    args = sys.argv[1:]
    if args[:1] == ["--object"]:
        for options in ({"mmap": True, "map_location": "meta"}, {"mmap": True}, {}):
            got = torch.load(args[1], weights_only=True, **options)
            if options.get("map_location"):
                continue
            for d in DTYPES:
                g, w = got["ramps"][d], ramp(d)
                assert g.dtype == w.dtype and g.shape == w.shape and bytes(g.untyped_storage()) == bytes(w.untyped_storage()), d
                assert g.data_ptr() % 64 == 0 or not options, (d, g.data_ptr())
            assert isinstance(got["ramps"], OrderedDict)
            base, row, t = got["shared"]
            assert base.untyped_storage().data_ptr() == row.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
            assert torch.equal(base, torch.arange(12.0).reshape(3, 4)) and torch.equal(row, base[1]) and torch.equal(t, base.t())
            assert got["row"].untyped_storage().nbytes() == 16 and got["row"].tolist() == [4, 5, 6, 7]
            assert got["expanded"].untyped_storage().nbytes() == 4 and got["expanded"].stride() == (0,) and torch.all(got["expanded"] == 7)
            expanded, part = got["part"]
            assert expanded.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() and part.tolist() == [[2, 3], [4, 5]]
            assert torch.equal(expanded, part.expand(100, 2, 2))
            assert got["channels"].is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(got["conj"], torch.tensor([1 - 2j, 3 + 4j]))
            assert got["scalar"].item() == 2.5 and got["empty"].shape == (0, 4)
            v = got["values"]
            assert v.pop("dtypes") == [torch.bfloat16, torch.complex32]
            assert v == {"int": 3, "big": 1 << 63, "huge": 1 << 70, "long": -(1 << 40), "float": 0.5, "text": "ä", "none": None, "true": True, "bytes": b"\x00\xff",
                         "list": [1, [2, "x"]], "ints": {-1: "a", 300: "b"}, "complex": 1 - 2j, "long list": list(range(2500))}, v
        model = two_layers()
        model.load_state_dict(got["model"])
        opt = torch.optim.AdamW(model.parameters(), lr=1.0)
        opt.load_state_dict(got["optimizer"])
        assert opt.param_groups[0]["lr"] == 1e-2 and float(opt.state[model[0].weight]["step"]) == 3
        print(json.dumps(train(model, opt, 3)))
    else:
        put = lambda name: os.path.join(here, name)
        torch.save(nested(), put("nested.pt"))
        torch.save(nested(), put("legacy.pt"), _use_new_zipfile_serialization=False)
        torch.save({"x": torch.arange(3), "text": "x" * 300, "set": {1}, "bytes": b"\x01"}, put("protocol4.pt"), pickle_protocol=4)
        torch.save(torch.arange(3.0), put("tensor.pt"))
        torch.save(Net(), put("module.pt"))
        torch.jit.save(torch.jit.script(Net()), put("script.pt"))
        torch.export.save(torch.export.export(Net(), (torch.ones(1),)), put("exported.pt2"))
        torch.save({"ok": torch.ones(1), "sparse": torch.eye(2).to_sparse(), "csr": torch.eye(2).to_sparse_csr(), "meta": torch.empty(2, device="meta"),
                    "e8m0": torch.ones(2).to(torch.float8_e8m0fnu), "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                    "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "d": {"": 7},
                    "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, put("refused.pt"))
        for name, zipped in ("objects.pt", True), ("objects_legacy.pt", False):
            torch.save(objects(), put(name), pickle_protocol=4 if zipped else 2, _use_new_zipfile_serialization=zipped)
        torch.manual_seed(1)
        model = two_layers()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        first = train(model, opt, 3)
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "first": first}, put("run.pt"))
        state = torch.load(put("run.pt"))
        state["next"] = train(model, opt, 3)
        torch.save(state, put("run.pt"))
        numpy.save(put("array.npy"), numpy.arange(6, dtype=numpy.float32).reshape(2, 3))
        numpy.save(put("fortran.npy"), numpy.asfortranarray(numpy.arange(6, dtype=numpy.int64).reshape(2, 3)))
        arrays = {d: ramp(d).numpy() for d in DTYPES if "float8" not in d and d != "bfloat16"}
        arrays |= {"scalar": numpy.array(2.5), "vector": numpy.arange(3), "empty": numpy.zeros((0, 4)), "big": numpy.arange(3, dtype=">i4"), "text": numpy.array(["a"])}
        numpy.savez(put("arrays.npz"), **arrays)
        numpy.savez_compressed(put("compressed.npz"), **arrays, zeros=numpy.zeros(100_000))
        with open(put("object.npy"), "wb") as f:
            numpy.save(f, numpy.array([{}]), allow_pickle=True)


main()
