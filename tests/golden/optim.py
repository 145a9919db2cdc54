#!/usr/bin/env python3
"""Writes optim.json: PyTorch's optimizers, schedules and averages.

    python3 tests/golden/optim.py

    "optimizers"  by case, the parameters after each of 30 steps, as base64 of their bytes one after another
    "states"      by case, the state dict after the last step: tensors and lists as nested lists
    "loaded"      by case, the first parameters after that state is loaded and the first step taken, as base64
    "schedules"   by case, the learning rate of the first group and then of the second before each of 1,000 steps, as
                  zlib-compressed base64 of float64; "momentum" is the first group's momentum, where the schedule sets it
    "schedule_states"  by case, state_dict() after 500 steps
    "complex"     by case, the complex parameters after 8 steps, as real numbers, and the state dict
    "converted"   by case and dtype, the parameters after two steps, their conversion and three further steps
    "averages"    by case, the averaged parameters after each of 6 updates
    "scaler"      the scale of a GradScaler by step, and which steps were skipped

The gradients are computed element by element, (p - target) * weight, so that they have the same bits on every machine.
"""
import base64
import json
import math
import os
import warnings
import zlib

import torch

here = os.path.dirname(os.path.abspath(__file__))
O = torch.optim
S = torch.optim.lr_scheduler
STEPS = 30


def params(kind):
    a = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    if kind == "matrix":
        return [a, torch.linspace(2, 3, 8).reshape(4, 2).requires_grad_(), torch.linspace(-2, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()]
    if kind == "half":
        return [p.detach().to(torch.bfloat16).requires_grad_() for p in params("")]
    return [a, torch.linspace(2, 3, 5).requires_grad_(), torch.linspace(-3, 1, 4, dtype=torch.float64).requires_grad_()]


def gradient(p, step):
    n = p.numel()
    at = torch.arange(n, dtype=p.dtype).reshape(p.shape)
    return (p.detach() - (at * 0.25 - 0.5)) * (at * 0.5 + 1) / 8 + (step % 3) / 16


def sparse_gradient(p, step):
    rows = torch.tensor([step % p.shape[0], (step * 2 + 1) % p.shape[0], step % p.shape[0]])
    at = torch.arange(3 * p[0].numel(), dtype=p.dtype).reshape(3, *p.shape[1:])
    return torch.sparse_coo_tensor(rows.unsqueeze(0), (at - 3) / 8 + p.detach()[rows] / 4, p.shape)


def raw(ps):
    return base64.b64encode(b"".join(p.detach().contiguous().view(torch.uint8).numpy().tobytes() for p in ps)).decode()


def groups(ps, lr, **second):
    return [{"params": [ps[0], ps[2]]}, {"params": [ps[1]], "lr": lr / 2, **second}]


OPTIMIZERS = {
    "sgd": ("", O.SGD, dict(lr=0.1, fused=True)),
    "sgd_momentum": ("", O.SGD, dict(lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.05, fused=True)),
    "sgd_nesterov": ("", O.SGD, dict(lr=0.1, momentum=0.8, nesterov=True, maximize=True, fused=True)),
    "sgd_sparse": ("sparse", O.SGD, dict(lr=0.1, maximize=True)),
    "adam": ("", O.Adam, dict(lr=0.01, fused=True)),
    "adam_amsgrad": ("", O.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, amsgrad=True, fused=True)),
    "adam_decoupled": ("", O.Adam, dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True, fused=True)),
    "adamw": ("", O.AdamW, dict(lr=0.01, fused=True)),
    "adamw_options": ("", O.AdamW, dict(lr=0.02, betas=(0.7, 0.9), eps=1e-5, weight_decay=0.3, amsgrad=True, maximize=True, fused=True)),
    "adadelta": ("", O.Adadelta, dict(lr=1.0)),
    "adadelta_options": ("", O.Adadelta, dict(lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.1)),
    "adadelta_maximize": ("", O.Adadelta, dict(lr=0.5, weight_decay=0.1, maximize=True)),
    "adagrad": ("", O.Adagrad, dict(lr=0.01, fused=True)),
    "adagrad_options": ("", O.Adagrad, dict(lr=0.1, lr_decay=0.01, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-6, maximize=True, fused=True)),
    "adagrad_sparse": ("sparse", O.Adagrad, dict(lr=0.1, lr_decay=0.01)),
    "adamax": ("", O.Adamax, dict(lr=0.002)),
    "adamax_options": ("", O.Adamax, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)),
    "adamax_maximize": ("", O.Adamax, dict(lr=0.02, maximize=True)),
    "asgd": ("", O.ASGD, dict(lr=0.01)),
    "asgd_options": ("", O.ASGD, dict(lr=0.05, lambd=1e-2, alpha=0.6, t0=10, weight_decay=0.1)),
    "asgd_maximize": ("", O.ASGD, dict(lr=0.05, t0=10, weight_decay=0.1, maximize=True)),
    "nadam": ("", O.NAdam, dict(lr=0.002)),
    "nadam_options": ("", O.NAdam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, momentum_decay=0.01)),
    "nadam_decoupled": ("", O.NAdam, dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
    "radam": ("", O.RAdam, dict(lr=0.001)),
    "radam_options": ("", O.RAdam, dict(lr=0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)),
    "radam_decoupled": ("", O.RAdam, dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True, maximize=True)),
    "rmsprop": ("", O.RMSprop, dict(lr=0.01)),
    "rmsprop_centered": ("", O.RMSprop, dict(lr=0.01, alpha=0.9, eps=1e-4, weight_decay=0.1, momentum=0.9, centered=True)),
    "rmsprop_maximize": ("", O.RMSprop, dict(lr=0.01, momentum=0.5, weight_decay=0.1, maximize=True)),
    "rprop": ("", O.Rprop, dict(lr=0.01)),
    "rprop_options": ("", O.Rprop, dict(lr=0.05, etas=(0.4, 1.3), step_sizes=(1e-3, 0.2), maximize=True)),
    "adafactor": ("", O.Adafactor, dict(lr=0.01)),
    "adafactor_options": ("", O.Adafactor, dict(lr=0.1, beta2_decay=-0.5, eps=(1e-5, 1e-2), d=2.0, weight_decay=0.1, maximize=True)),
    "muon": ("matrix", O.Muon, dict(lr=0.01)),
    "muon_options": ("matrix", O.Muon, dict(lr=0.02, weight_decay=0.05, momentum=0.8, nesterov=False, ns_coefficients=(3.0, -3.2, 1.2), eps=1e-5,
                                           ns_steps=3, adjust_lr_fn="match_rms_adamw")),
    "muon_unclamped": ("matrix", O.Muon, dict(lr=0.02, adjust_lr_fn="spectral_unclamped")),
    "sparse_adam": ("sparse", O.SparseAdam, dict(lr=0.01)),
    "sparse_adam_options": ("sparse", O.SparseAdam, dict(lr=0.05, betas=(0.8, 0.95), eps=1e-5, maximize=True)),
    "lbfgs": ("closure", O.LBFGS, dict(lr=0.5, max_iter=4)),
    "lbfgs_wolfe": ("closure", O.LBFGS, dict(lr=1, max_iter=5, history_size=3, line_search_fn="strong_wolfe")),
    "lbfgs_maximize": ("closure", O.LBFGS, dict(lr=0.1, max_iter=3, max_eval=3, tolerance_grad=1e-5, tolerance_change=1e-7, maximize=True)),
}
FOREACH = {O.Adadelta, O.Adamax, O.ASGD, O.NAdam, O.RAdam, O.RMSprop, O.Rprop}


def start(kind, make, options):
    """Returns the parameters, the optimizer, and the function that takes a step."""
    options = dict(options)
    if kind == "sparse":
        ps = [torch.linspace(-1, 1, 18).reshape(6, 3).requires_grad_(), torch.linspace(1, 2, 8, dtype=torch.float64).reshape(4, 2).requires_grad_()]
        opt = make(ps, **options)

        def step(n):
            for p in ps:
                p.grad = sparse_gradient(p, n)
            opt.step()
        return ps, opt, step
    ps = params("" if kind == "closure" else kind)
    if kind == "closure":
        ps = ps[:2]
        opt = make(ps, **options)
        sign = -1 if options.get("maximize") else 1

        def closure():
            opt.zero_grad()
            x, y = ps[0], ps[1]
            loss = sign * (((x - 0.3) ** 4).sum() + 0.5 * ((y - 1) ** 2).sum() + (x[0, 0] * y).cos().sum())
            loss.backward()
            return loss
        return ps, opt, lambda n: opt.step(closure)
    if make in FOREACH:
        options["foreach"] = True
    second = {"weight_decay": 0.02} if make is not O.Rprop else {}
    opt = make(groups(ps, options["lr"], **second), **options)

    def step(n):
        opt.zero_grad()
        for i, p in enumerate(ps):
            # The second parameter has no gradient in the third step.
            if not (i == 1 and n == 2):
                p.grad = gradient(p, n)
        opt.step()
    return ps, opt, step


def complex_optimizers():
    """The optimizers that take complex parameters, without the fused kernels, which do not."""
    out = {}
    for name, (kind, make, options) in OPTIMIZERS.items():
        if kind not in ("", "closure") or make is O.Adafactor:
            continue
        options = {k: v for k, v in options.items() if k != "fused"}
        ps = [torch.view_as_complex(torch.linspace(-1, 1, 24).reshape(3, 4, 2)).requires_grad_(),
              torch.view_as_complex(torch.linspace(2, 3, 10, dtype=torch.float64).reshape(5, 2)).requires_grad_()]
        if make is not O.LBFGS:
            options["foreach"] = True
        opt = make(ps, **options)
        sign = -1 if options.get("maximize") else 1

        def closure():
            opt.zero_grad()
            loss = sign * sum(((p - (0.3 + 0.5j)).abs() ** 2).sum() + (p * (1 + 2j)).real.sin().sum() for p in ps)
            loss.backward()
            return loss
        for _ in range(8):
            opt.step(closure)
        state = opt.state_dict()
        for s in state["state"].values():
            s.pop("al", None)
        out[name] = {"params": [torch.view_as_real(p.detach()).double().flatten().tolist() for p in ps], "state": plain(state)}
    return out


def plain(v):
    if isinstance(v, torch.Tensor) and v.is_complex():
        return {"dtype": str(v.dtype).replace("torch.", ""), "shape": list(v.shape), "data": torch.view_as_real(v.detach()).double().flatten().tolist()}
    if isinstance(v, torch.Tensor):
        return {"dtype": str(v.dtype).replace("torch.", ""), "shape": list(v.shape), "data": v.detach().double().flatten().tolist()}
    if isinstance(v, dict):
        return {str(k): plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, float) and math.isinf(v):
        return "+Inf" if v > 0 else "-Inf"  # as Go prints them
    return v


def optimizers():
    out, states, loaded = {}, {}, {}
    for name, case in OPTIMIZERS.items():
        ps, opt, step = start(*case)
        out[name] = []
        for n in range(STEPS):
            step(n)
            out[name].append(raw(ps))
        state = opt.state_dict()
        for s in state["state"].values():
            s.pop("al", None)  # a scratch list
        states[name] = plain(state)
        ps, opt, step = start(*case)
        opt.load_state_dict(state)
        step(0)
        loaded[name] = raw(ps)
    return out, states, loaded


def converted():
    """The optimizers whose kernels promote, with state of another dtype than the parameters."""
    out = {}
    for name in ("adadelta", "adadelta_options", "adadelta_maximize", "asgd", "asgd_options", "asgd_maximize", "rmsprop", "rmsprop_maximize"):
        out[name] = {}
        for dtype in (torch.bfloat16, torch.float64):
            ps, opt, step = start(*OPTIMIZERS[name])
            for n in range(5):
                if n == 2:
                    opt.zero_grad()
                    for p in ps:
                        p.data = p.data.to(dtype)
                step(n)
            out[name][str(dtype).replace("torch.", "")] = [p.detach().double().flatten().tolist() for p in ps]
    return out


LR = [0.4, 0.8]
SCHEDULES = {
    "lambda": lambda o: S.LambdaLR(o, lambda i: 1 / (1 + i)),
    "lambda_each": lambda o: S.LambdaLR(o, [lambda i: 1 / (1 + i), lambda i: 0.95 ** i]),
    "multiplicative": lambda o: S.MultiplicativeLR(o, lambda i: 1 - 1 / (10 + i)),
    "step": lambda o: S.StepLR(o, 7, 0.97),
    "multistep": lambda o: S.MultiStepLR(o, [3, 30, 30, 400, 900], 0.3),
    "constant": lambda o: S.ConstantLR(o, 0.3, 40),
    "linear": lambda o: S.LinearLR(o, start_factor=0.25, total_iters=90),
    "linear_down": lambda o: S.LinearLR(o, start_factor=1, end_factor=0.1, total_iters=700),
    "exponential": lambda o: S.ExponentialLR(o, 0.997),
    "sequential": lambda o: S.SequentialLR(o, [S.LinearLR(o, start_factor=0.1, total_iters=50), S.StepLR(o, 40, 0.5)], [50]),
    "sequential_cosine": lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 20), S.CosineAnnealingLR(o, 100, 0.001), S.ExponentialLR(o, 0.99)], [20, 300]),
    "sequential_nested": lambda o: S.SequentialLR(o, [S.SequentialLR(o, [S.ConstantLR(o, 0.1, 2), S.ExponentialLR(o, 0.99)], [30]), S.StepLR(o, 40, 0.5)], [60]),
    "sequential_nested_twice": lambda o: S.SequentialLR(o, [S.SequentialLR(o, [S.SequentialLR(o, [S.ConstantLR(o, 0.1, 2), S.ExponentialLR(o, 0.99)], [1]), S.StepLR(o, 9, 0.5)], [60]), S.LinearLR(o, total_iters=50)], [90]),
    "sequential_of_chained": lambda o: S.SequentialLR(o, [S.ChainedScheduler([S.ConstantLR(o, 0.1, 20), S.ExponentialLR(o, 0.99)]), S.StepLR(o, 40, 0.5)], [60]),
    "sequential_at_once": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 5), S.StepLR(o, 3, 0.5), S.ConstantLR(o, 0.5, 9), S.LinearLR(o, 0.2, 1, 5), S.ExponentialLR(o, 0.99), S.StepLR(o, 40, 0.5)], [0, 0, 40, 40, 90]),
    "sequential_nested_at_once": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 5), S.SequentialLR(o, [S.StepLR(o, 3, 0.5), S.ConstantLR(o, 0.5, 9), S.ExponentialLR(o, 0.99)], [0, 60])], [0]),
    "sequential_of_chained_at_once": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, 1, 5), S.ChainedScheduler([S.ConstantLR(o, 0.1, 20), S.ExponentialLR(o, 0.99)]), S.StepLR(o, 40, 0.5)], [0, 70]),
    "sequential_without_chained": lambda o: S.SequentialLR(o, [S.ExponentialLR(o, 0.99), S.ChainedScheduler([S.ConstantLR(o, 0.1, 20), S.ExponentialLR(o, 0.99)]), S.StepLR(o, 40, 0.5)], [60, 60]),
    "chained_sequential": lambda o: S.ChainedScheduler([S.SequentialLR(o, [S.ConstantLR(o, 0.1, 3), S.ExponentialLR(o, 0.99)], [30]), S.StepLR(o, 40, 0.5)]),
    "polynomial": lambda o: S.PolynomialLR(o, 800, 0.9),
    "cosine": lambda o: S.CosineAnnealingLR(o, 120, 0.01),
    "chained": lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.1, 20), S.ExponentialLR(o, 0.995), S.CosineAnnealingLR(o, 200)]),
    "cyclic": lambda o: S.CyclicLR(o, 0.01, 0.1, 30, 50),
    "cyclic2": lambda o: S.CyclicLR(o, [0.01, 0.02], [0.1, 0.3], 40, mode="triangular2", base_momentum=0.7, max_momentum=0.95),
    "cyclic_exp": lambda o: S.CyclicLR(o, 0.01, 0.1, 25, mode="exp_range", gamma=0.999, cycle_momentum=False),
    "cyclic_fn": lambda o: S.CyclicLR(o, 0.01, 0.1, 25, scale_fn=lambda x: 1 / (5 ** (x * 0.0001)), scale_mode="iterations"),
    "warm_restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 50, eta_min=0.001),
    "warm_restarts_mult": lambda o: S.CosineAnnealingWarmRestarts(o, 30, 2),
    "onecycle": lambda o: S.OneCycleLR(o, 0.5, total_steps=1000),
    "onecycle_options": lambda o: S.OneCycleLR(o, [0.5, 0.7], epochs=10, steps_per_epoch=101, pct_start=0.25, anneal_strategy="linear", base_momentum=0.8,
                                               max_momentum=0.9, div_factor=10, final_div_factor=100, three_phase=True),
    "plateau": lambda o: S.ReduceLROnPlateau(o, factor=0.7, patience=3, cooldown=2, min_lr=[1e-3, 1e-2]),
    "plateau_max": lambda o: S.ReduceLROnPlateau(o, mode="max", factor=0.5, patience=0, threshold=0.2, threshold_mode="abs", eps=1e-3),
    "swa": lambda o: S_SWA(o, swa_lr=0.05, anneal_epochs=30),
    "swa_linear": lambda o: S_SWA(o, swa_lr=[0.05, 0.9], anneal_epochs=500, anneal_strategy="linear"),
}
S_SWA = torch.optim.swa_utils.SWALR


def metric(i):
    return round(math.fmod(i * 0.37, 1) + 100 / (i + 1), 6)


def schedules():
    out, states = {}, {}
    for name, make in SCHEDULES.items():
        opt = O.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": LR[0]}, {"params": [torch.zeros(1, requires_grad=True)], "lr": LR[1]}], momentum=0.9)
        sched = make(opt)
        first, second, momentum = [], [], []
        for i in range(1000):
            first.append(opt.param_groups[0]["lr"])
            second.append(opt.param_groups[1]["lr"])
            momentum.append(opt.param_groups[0]["momentum"])
            opt.step()
            if i == 500:
                states[name] = plain({k: v for k, v in sched.state_dict().items()})
            sched.step(metric(i)) if name.startswith("plateau") else sched.step()
        values = torch.tensor(first + second + (momentum if len(set(momentum)) > 1 else []), dtype=torch.float64)
        out[name] = base64.b64encode(zlib.compress(values.numpy().tobytes(), 9)).decode()
    return out, states


def averages():
    su = torch.optim.swa_utils
    out = {}
    for name, options in {"swa": {}, "swa_lerp": dict(multi_avg_fn=su.get_swa_multi_avg_fn()), "ema": dict(multi_avg_fn=su.get_ema_multi_avg_fn(0.9)), "fn": dict(avg_fn=lambda a, m, n: 0.1 * a + 0.9 * m),
                          "buffers": dict(use_buffers=True)}.items():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))
        averaged = su.AveragedModel(model, **options)
        steps = []
        for i in range(6):
            with torch.no_grad():
                for p in model.parameters():
                    p.add_((torch.arange(p.numel(), dtype=p.dtype).reshape(p.shape) - 2) / 8 * (i + 1))
                model[1].running_mean.fill_(i)
            averaged.update_parameters(model)
            steps.append([p.flatten().tolist() for p in list(averaged.module.parameters()) + [averaged.module[1].running_mean]])
        out[name] = steps
    torch.manual_seed(0)
    bn = torch.nn.Sequential(torch.nn.BatchNorm1d(2))
    data = [torch.linspace(-1, 2, 8).reshape(4, 2) * (i + 1) for i in range(3)]
    su.update_bn(data, bn)
    out["update_bn"] = [[bn[0].running_mean.tolist(), bn[0].running_var.tolist()]]
    return out


def scaler():
    s = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    p = torch.zeros(3, requires_grad=True)
    opt = O.SGD([p], lr=0.1)
    out = {"scales": [], "values": []}
    for i in range(12):
        opt.zero_grad()
        loss = (p * (i + 1)).sum()
        s.scale(loss).backward()
        if i in (4, 5, 9):
            p.grad[1] = math.inf if i != 5 else math.nan
        s.step(opt)
        s.update()
        out["scales"].append(s.get_scale())
        out["values"].append(p.tolist())
    out["state"] = s.state_dict()
    return out


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data = {}
    data["optimizers"], data["states"], data["loaded"] = optimizers()
    data["complex"] = complex_optimizers()
    data["schedules"], data["schedule_states"] = schedules()
    data["averages"], data["scaler"] = averages(), scaler()
    data["converted"] = converted()
    with open(os.path.join(here, "optim.json"), "w") as out:
        json.dump(data, out, separators=(",", ":"))
        out.write("\n")


main()
