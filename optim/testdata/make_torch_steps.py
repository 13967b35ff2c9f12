#!/usr/bin/env python3
"""Writes torch_steps.json with the real PyTorch: python3 make_torch_steps.py > torch_steps.json (torch 2.15, CPU).

Steps of torch.optim.AdamW and torch.optim.SGD, single-tensor (foreach and fused off), amsgrad off, float32: for each
case the options, the parameter before the first step, and gradient, parameter and optimizer state after each. Numbers are
written so that they read back as the same float32.
"""

import json

import torch

STEPS = 6
GRADIENTS = [1.0, 1e-3, 30.0, 0.0, 1e-9]  # the sizes of gradients, element by element in turn

ADAMW = [
    {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 1e-2},
    {"lr": 0.1, "betas": [0.3, 0.95], "eps": 1e-3, "weight_decay": 0.2},
    {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0},
]
SGD = [
    {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01, "nesterov": False},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": True},
]


def numbers(tensor):
    return tensor.detach().double().tolist()


def run(name, make, options, states):
    torch.manual_seed(len(name) + len(options))
    numel = 4 * len(GRADIENTS) + 3  # no whole number of vectors
    parameter = torch.nn.Parameter(torch.randn(numel))
    optimizer = make([parameter], foreach=False, **options)
    size = torch.tensor([GRADIENTS[i % len(GRADIENTS)] for i in range(numel)])
    case = {"optimizer": name, "options": options, "before": numbers(parameter), "steps": []}
    for _ in range(STEPS):
        parameter.grad = torch.randn(numel) * size
        gradient = numbers(parameter.grad)
        optimizer.step()
        step = {"gradient": gradient, "parameter": numbers(parameter)}
        for state in states:
            if optimizer.state[parameter].get(state) is not None:
                step[state] = numbers(optimizer.state[parameter][state])
        case["steps"].append(step)
    return case


cases = [run("AdamW", torch.optim.AdamW, {**o, "betas": tuple(o["betas"]), "amsgrad": False, "fused": False},
             ["exp_avg", "exp_avg_sq"]) for o in ADAMW]
cases += [run("SGD", torch.optim.SGD, {**o, "fused": False}, ["momentum_buffer"]) for o in SGD]
lines = ",\n".join("  " + json.dumps(case) for case in cases)
print('{"torch": "%s", "cases": [\n%s\n]}' % (torch.__version__.split("+")[0], lines))
