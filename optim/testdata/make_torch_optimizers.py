#!/usr/bin/env python3
"""Steps that the real PyTorch took (2.11, CPU), for torch_optimizers_test.cc:

    for NAME in Adam Lion Adafactor Muon; do python3 make_torch_optimizers.py $NAME > torch_$NAME.json; done

For each case the options, the shape, the parameter before the first step, and gradient, parameter and state after each
step, float32, single-tensor. Numbers read back as the same float32. PyTorch has no Lion: it is the published formula
(Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023) on tensors, as in lucidrains' lion-pytorch.
"""

import json
import sys

import torch

STEPS = 5
SIZES = [1.0, 1e-3, 30.0, 0.0, 1e-9]  # of gradients, element by element in turn
VECTOR, MATRIX, TALL, BATCH = [23], [5, 7], [9, 4], [2, 3, 5]


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
                p.mul_(1 - lr * decay)
                update = state["exp_avg"].clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-lr)
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


ADAM = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}
FAMILIES = {
    "Adam": [
        ("Adam", VECTOR, {**ADAM, "weight_decay": 0.0, "amsgrad": True}),
        ("Adam", VECTOR, {**ADAM, "weight_decay": 0.3, "amsgrad": True}),
        ("Adam", VECTOR, {**ADAM, "weight_decay": 0.3, "amsgrad": False}),
        ("AdamW", MATRIX, {**ADAM, "weight_decay": 0.3, "amsgrad": True}),
        ("AdamW", VECTOR, {"lr": 0.1, "betas": (0.3, 0.2), "eps": 1e-3, "weight_decay": 0.01, "amsgrad": True}),
    ],
    "Lion": [
        ("Lion", VECTOR, {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}),
        ("Lion", MATRIX, {"lr": 1e-2, "betas": (0.95, 0.98), "weight_decay": 0.3}),
    ],
    "Adafactor": [
        ("Adafactor", MATRIX, {}),
        ("Adafactor", VECTOR, {}),
        ("Adafactor", BATCH, {"lr": 0.3, "weight_decay": 0.1}),
        ("Adafactor", TALL, {"lr": 0.5, "beta2_decay": -0.5, "eps": (1e-4, 1e-2), "d": 2.0, "weight_decay": 0.1}),
        ("Adafactor", VECTOR, {"lr": 0.5, "beta2_decay": -0.3, "eps": (1e-4, 1e-2), "d": 1.0, "weight_decay": 0.1}),
        ("Adafactor", [6, 1], {"lr": 0.2}),
    ],
    "Muon": [
        ("Muon", MATRIX, {}),
        ("Muon", TALL, {"lr": 0.1, "weight_decay": 0.0, "nesterov": False}),
        ("Muon", TALL, {"lr": 0.02, "momentum": 0.8, "adjust_lr_fn": "match_rms_adamw"}),
        ("Muon", [12, 12], {"lr": 0.05, "ns_steps": 3, "ns_coefficients": (3.0, -3.2, 1.2), "eps": 1e-3}),
    ],
}


def numbers(tensor):
    return tensor.detach().double().flatten().tolist()


def run(index, name, shape, options):
    torch.manual_seed(100 + index)
    parameter = torch.nn.Parameter(torch.randn(shape))
    single = {} if name in ("Lion", "Muon") else {"foreach": False}
    optimizer = {"Lion": Lion}.get(name, getattr(torch.optim, name, None))([parameter], **single, **options)
    sizes = [1.0] if name == "Muon" else SIZES
    size = torch.tensor([sizes[i % len(sizes)] for i in range(parameter.numel())]).reshape(shape)
    kept = ("lr", "betas", "eps", "weight_decay", "amsgrad", "decoupled_weight_decay", "beta2_decay", "d", "momentum",
            "nesterov", "ns_steps", "ns_coefficients", "adjust_lr_fn")
    group = {key: value for key, value in optimizer.param_groups[0].items() if key in kept}
    case = {"optimizer": name, "shape": shape, "options": group, "before": numbers(parameter), "steps": []}
    for _ in range(STEPS):
        parameter.grad = torch.randn(shape) * size
        gradient = numbers(parameter.grad)
        optimizer.step()
        step = {"gradient": gradient, "parameter": numbers(parameter)}
        for key, value in optimizer.state[parameter].items():
            if key != "step":
                step[key] = {"shape": list(value.shape), "values": numbers(value)}
        case["steps"].append(step)
    return case


cases = [run(index, *case) for index, case in enumerate(FAMILIES[sys.argv[1]])]
lines = ",\n".join("  " + json.dumps(case) for case in cases)
print('{"torch": "%s", "cases": [\n%s\n]}' % (torch.__version__.split("+")[0], lines))
