#!/usr/bin/env python3
"""Steps that the real PyTorch (2.15, CPU) took with parameters of 16 bits, for low_precision_steps_test.cc:

    python3 make_torch_low_precision.py > torch_low_precision.json

PyTorch keeps the states in the parameter's dtype. Adam, AdamW and SGD are its fused ones, which compute in float32 and
round each result once (its fused SGD of 16 bits is wrong in 2.11); Adafactor and Muon have none, and round every
operation. Lion is the published formula, computed in float32 and rounded once.
"""

import json

import torch

STEPS = 4
SIZES = [1.0, 1e-3, 30.0, 0.0, 1e-2]  # of gradients, element by element in turn
VECTOR, MATRIX, TALL = [23], [5, 7], [9, 4]

ADAM = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-4, "weight_decay": 0.1}
SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.01, "nesterov": False}
CASES = [
    ("AdamW", VECTOR, ADAM),
    ("AdamW", MATRIX, {**ADAM, "amsgrad": True}),
    ("Adam", VECTOR, {**ADAM, "amsgrad": True}),
    ("Adam", VECTOR, ADAM),
    ("SGD", VECTOR, SGD),
    ("SGD", MATRIX, {**SGD, "dampening": 0.0, "nesterov": True}),
    ("SGD", VECTOR, {**SGD, "momentum": 0.0, "dampening": 0.0}),
    ("Lion", VECTOR, {"lr": 1e-2, "betas": (0.95, 0.98), "weight_decay": 0.3}),
    ("Adafactor", MATRIX, {"lr": 0.1, "weight_decay": 0.1}),
    ("Adafactor", VECTOR, {"lr": 0.1}),
    ("Muon", TALL, {"lr": 0.05}),
]


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m, g, value = state["exp_avg"].float(), p.grad.float(), p.float()
                p.copy_(value * (1 - lr * decay) - lr * (m * beta1 + g * (1 - beta1)).sign())
                state["exp_avg"].copy_(m * beta2 + g * (1 - beta2))


def numbers(tensor):
    return tensor.detach().double().flatten().tolist()


def run(index, name, shape, options, dtype):
    torch.manual_seed(300 + index)
    parameter = torch.nn.Parameter(torch.randn(shape).to(dtype))
    extra = {"Lion": {}, "Muon": {}, "Adafactor": {"foreach": False}}.get(name, {"fused": True})
    optimizer = {"Lion": Lion}.get(name, getattr(torch.optim, name, None))([parameter], **extra, **options)
    # Small ones are below the dtype's epsilon, Adafactor's least variance.
    sizes = {"Muon": [1.0], "Adafactor": [1e-3 if shape == VECTOR else 1.0]}.get(name, SIZES)
    size = torch.tensor([sizes[i % len(sizes)] for i in range(parameter.numel())]).reshape(shape)
    kept = ("lr", "betas", "eps", "weight_decay", "amsgrad", "beta2_decay", "d", "momentum", "dampening", "nesterov",
            "ns_steps", "ns_coefficients")
    group = {key: value for key, value in optimizer.param_groups[0].items() if key in kept}
    case = {"optimizer": name, "dtype": str(dtype).removeprefix("torch."), "shape": shape, "options": group,
            "before": numbers(parameter), "steps": []}
    for _ in range(STEPS):
        parameter.grad = (torch.randn(shape) * size).to(dtype)
        step = {"gradient": numbers(parameter.grad)}
        optimizer.step()
        step["parameter"] = numbers(parameter)
        for key, value in optimizer.state[parameter].items():
            if key != "step" and value is not None:
                assert value.dtype == dtype, (name, key, value.dtype)
                step[key] = numbers(value)
        case["steps"].append(step)
    return case


cases = [
    run(index, *case, dtype) for dtype in (torch.bfloat16, torch.float16) for index, case in enumerate(CASES)
]
lines = ",\n".join("  " + json.dumps(case) for case in cases)
print('{"torch": "%s", "cases": [\n%s\n]}' % (torch.__version__.split("+")[0], lines))
