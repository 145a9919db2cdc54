#!/usr/bin/env python3
"""Writes names/names.json: every public name of the namespaces of PyTorch that names/*.txt account for.

    python3 tests/golden/names.py

A namespace's public names are those of its __all__, or else its functions and classes that torch defines.
"""
import importlib
import json
import os
import types

import torch

here = os.path.dirname(os.path.abspath(__file__))

NAMESPACES = ["torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.nn.utils.rnn", "torch.nn.utils.parametrize",
              "torch.nn.utils.parametrizations", "torch.nn.utils.prune", "torch.optim", "torch.optim.lr_scheduler",
              "torch.optim.swa_utils", "torch.amp", "torch.autograd", "torch.autograd.forward_ad", "torch.autograd.functional", "torch.distributions",
              "torch.distributions.constraints", "torch.utils.data", "torch.utils.checkpoint",
              "torch.profiler", "torch.distributed", "torch.distributed.tensor.parallel", "torch.nn.parallel"]


def public(module):
    for name in getattr(module, "__all__", None) or dir(module):
        value = getattr(module, name, None)
        if name.startswith("_") or isinstance(value, types.ModuleType) or not (callable(value) or isinstance(value, torch.distributions.constraints.Constraint)):
            continue
        home = getattr(value, "__module__", None) or ""
        if home.split(".")[0] in ("typing", "abc", "collections", "enum"):
            continue
        yield name


def main():
    data = {n: sorted(set(public(importlib.import_module(n)))) for n in NAMESPACES}
    with open(os.path.join(here, "names", "names.json"), "w") as out:
        json.dump(data, out, indent=1)
        out.write("\n")


main()
