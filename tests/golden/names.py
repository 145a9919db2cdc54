#!/usr/bin/env python3
"""Writes names/names.json: every public name of the namespaces of PyTorch that names/*.txt account for.

    python3 tests/golden/names.py

A namespace's public names are those of its __all__, or else its functions and classes that torch defines. Those of torch are
the functions in it, with the classes that one uses as functions, and those of torch.Tensor its attributes; OTHERS and INTERNAL
are what is not counted.
"""
import importlib
import json
import os
import re
import types

import torch

here = os.path.dirname(os.path.abspath(__file__))

NAMESPACES = ["torch", "torch.Tensor", "torch.linalg", "torch.fft", "torch.special", "torch.sparse", "torch.signal.windows", "torch.masked",
              "torch.random", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.nn.utils.rnn", "torch.nn.utils.parametrize",
              "torch.nn.utils.parametrizations", "torch.nn.utils.prune", "torch.optim", "torch.optim.lr_scheduler",
              "torch.optim.swa_utils", "torch.amp", "torch.autograd", "torch.autograd.forward_ad", "torch.autograd.functional", "torch.distributions",
              "torch.distributions.constraints", "torch.utils.data", "torch.utils.checkpoint",
              "torch.profiler", "torch.distributed", "torch.distributed.tensor.parallel", "torch.nn.parallel"]

# Names of torch and torch.Tensor that are not operators and documented functions: kernels of one backend, those of symbolic
# sizes, copies of views for compilers, TorchScript, settings by device of autocast, which torch.amp has, and flags of backends.
INTERNAL = re.compile("^(cudnn|mkldnn|miopen|quantized|fbgemm|sym|native)_|^batch_norm_(backward|elemt|gather|stats|update)|_copy$|"
                      "^(import_ir|parse_|merge_type|unify_type|(get|set|is)_autocast|autocast_(in|de)crement|is_(cpu|cuda|ipu|maia|meta|mkldnn|mps|mtia|vulkan|xla|xpu)$)|"
                      "^(q_|int_repr|quantize_|choose_qparams|fake_quantize|fused_moving|dequantize|empty_quantized|qscheme|is_quantized)")
OTHERS = ("classproperty compiled_with_cxx11_abi fork get_file_path init_num_threads is_vulkan_available prepare_multiprocessing_environment "
          "profiler_allow_cudagraph_cupti_lazy_reinit_cuda12 typename wait clear_autocast_cache is_anomaly_check_nan_enabled").split()
CLASSES = "Generator Size autocast enable_grad finfo iinfo inference_mode no_grad set_grad_enabled".split()


def public(module):
    whole = module in (torch, torch.Tensor)
    for name in dir(module) if whole else getattr(module, "__all__", None) or dir(module):
        if whole and (INTERNAL.search(name) or name in OTHERS or isinstance(getattr(module, name), type) and name not in CLASSES):
            continue
        if module is torch.Tensor and not name.startswith("_"):
            yield name
            continue
        value = getattr(module, name, None)
        if name.startswith("_") or isinstance(value, types.ModuleType) or not (callable(value) or isinstance(value, torch.distributions.constraints.Constraint)):
            continue
        home = getattr(value, "__module__", None) or ""
        if home.split(".")[0] in ("typing", "abc", "collections", "enum"):
            continue
        yield name


def main():
    data = {n: sorted(set(public(torch.Tensor if n == "torch.Tensor" else importlib.import_module(n)))) for n in NAMESPACES}
    with open(os.path.join(here, "names", "names.json"), "w") as out:
        json.dump(data, out, indent=1)
        out.write("\n")


main()
