#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a golden GPT-2 case in float64 with numpy and adds its curve to the case's file, as loss_float64 and
grad_norm_float64. It tells a wrong answer from one that float32 does not determine: where a gradient norm jumps by ten
times and more, PyTorch's own float32 run is up to 12 % from this.

  /usr/bin/python3 float64_reference.py losses/gpt2_full_shard_w3.json
"""

import json
import pathlib
import struct
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
EPS = 1e-5


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"]).astype(np.float64)
    return tensors


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPS)
    normal = (x - mean) * rstd
    return normal * weight + bias, (normal, rstd, weight)


def layer_norm_backward(grad, saved):
    normal, rstd, weight = saved
    g = grad * weight
    x = rstd * (g - g.mean(-1, keepdims=True) - normal * (g * normal).mean(-1, keepdims=True))
    return x, (grad * normal).sum((0, 1)), grad.sum((0, 1))


def gelu(x):
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + t), (x, t)


def gelu_backward(grad, saved):
    x, t = saved
    slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)
    return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)


class Gpt2:
    def __init__(self, directory):
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = read_safetensors(directory / "model.safetensors")

    def gradients(self, tokens, targets):
        """Loss and gradients of one micro-batch."""
        self.grads = {name: np.zeros_like(value) for name, value in self.weights.items()}
        x = self["wte.weight"][tokens] + self["wpe.weight"][: tokens.shape[1]]
        blocks = []
        for i in range(self.config["n_layer"]):
            x, saved = self.block(f"h.{i}.", x)
            blocks.append(saved)
        out, saved_norm = layer_norm(x, self["ln_f.weight"], self["ln_f.bias"])
        logits = out @ self["wte.weight"].T
        logits -= logits.max(-1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        picked = np.eye(log_p.shape[-1])[targets]
        grad = (np.exp(log_p) - picked) / targets.size
        self.add("wte.weight", np.einsum("btv,btc->vc", grad, out))
        grad = self.norm_backward("ln_f.", grad @ self["wte.weight"], saved_norm)
        for i in reversed(range(self.config["n_layer"])):
            grad = self.block_backward(f"h.{i}.", grad, blocks[i])
        np.add.at(self.grads["transformer.wte.weight"], tokens, grad)
        self.grads["transformer.wpe.weight"][: tokens.shape[1]] += grad.sum(0)
        return -(log_p * picked).sum(-1).mean(), self.grads

    def __getitem__(self, name):
        return self.weights["transformer." + name]

    def add(self, name, value):
        self.grads["transformer." + name] += value

    def linear(self, name, x):
        return x @ self[name + "weight"] + self[name + "bias"]

    def linear_backward(self, name, x, grad):
        self.add(name + "weight", np.einsum("bti,btj->ij", x, grad))
        self.add(name + "bias", grad.sum((0, 1)))
        return grad @ self[name + "weight"].T

    def norm_backward(self, name, grad, saved):
        x, weight, bias = layer_norm_backward(grad, saved)
        self.add(name + "weight", weight)
        self.add(name + "bias", bias)
        return x

    def heads(self, x):
        return x.reshape(*x.shape[:2], self.config["n_head"], -1).transpose(0, 2, 1, 3)

    def block(self, name, x):
        a, norm_1 = layer_norm(x, self[name + "ln_1.weight"], self[name + "ln_1.bias"])
        q, k, v = (self.heads(part) for part in np.split(self.linear(name + "attn.c_attn.", a), 3, -1))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones(scores.shape[-2:])) > 0, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        o = (p @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + self.linear(name + "attn.c_proj.", o)
        b, norm_2 = layer_norm(x, self[name + "ln_2.weight"], self[name + "ln_2.bias"])
        h, saved_gelu = gelu(self.linear(name + "mlp.c_fc.", b))
        return x + self.linear(name + "mlp.c_proj.", h), (a, norm_1, q, k, v, p, o, b, norm_2, h, saved_gelu)

    def block_backward(self, name, grad, saved):
        a, norm_1, q, k, v, p, o, b, norm_2, h, saved_gelu = saved
        g = gelu_backward(self.linear_backward(name + "mlp.c_proj.", h, grad), saved_gelu)
        grad = grad + self.norm_backward(name + "ln_2.", self.linear_backward(name + "mlp.c_fc.", b, g), norm_2)
        g = self.heads(self.linear_backward(name + "attn.c_proj.", o, grad))
        g_p = g @ v.transpose(0, 1, 3, 2)
        g_s = p * (g_p - (g_p * p).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
        parts = (g_s @ k, g_s.transpose(0, 1, 3, 2) @ q, p.transpose(0, 1, 3, 2) @ g)
        g = np.concatenate([part.transpose(0, 2, 1, 3).reshape(grad.shape) for part in parts], -1)
        return grad + self.norm_backward(name + "ln_1.", self.linear_backward(name + "attn.c_attn.", a, g), norm_1)


def train(case, model, tokens):
    flags = dict(flag[2:].split("=") for flag in case["flags"] if "=" in flag)
    number = lambda name: float(flags[name])
    ranks, rows, length, micro = (int(flags[n]) for n in ("nproc", "batch_size", "seq_len", "grad_accum"))
    m = {name: np.zeros_like(w) for name, w in model.weights.items()}
    v = {name: np.zeros_like(w) for name, w in model.weights.items()}
    losses, norms = [], []
    for step, lr in enumerate(case["lr"]):
        total, loss = {name: 0 for name in m}, 0
        for part in range(ranks * micro):
            first = (step * ranks * micro + part) * rows
            begins = [(i * length) % (len(tokens) - length) for i in range(first, first + rows)]
            window = np.stack([tokens[b : b + length + 1] for b in begins])
            part_loss, grads = model.gradients(window[:, :-1], window[:, 1:])
            loss += part_loss / (ranks * micro)
            total = {name: total[name] + grad / (ranks * micro) for name, grad in grads.items()}
        norm = np.sqrt(sum((grad**2).sum() for grad in total.values()))
        limit = number("max_grad_norm")
        scale = min(1, limit / (norm + 1e-6)) if limit > 0 else 1
        for name, w in model.weights.items():
            grad = total[name] * scale
            w *= 1 - lr * (number("weight_decay") if w.ndim > 1 else 0)
            m[name] += (grad - m[name]) * (1 - number("beta1"))
            v[name] = v[name] * number("beta2") + grad * grad * (1 - number("beta2"))
            bias_1, bias_2 = 1 - number("beta1") ** (step + 1), 1 - number("beta2") ** (step + 1)
            w -= lr / bias_1 * m[name] / (np.sqrt(v[name] / bias_2) + number("eps"))
        losses.append(float(loss))
        norms.append(float(norm))
    return losses, norms


def main():
    path = pathlib.Path(sys.argv[1])
    case = json.loads(path.read_text())
    tokens = np.fromfile(HERE / "tokens.u16", "<u2").astype(int)
    case["loss_float64"], case["grad_norm_float64"] = train(case, Gpt2(HERE / case["model"]), tokens)
    path.write_text(json.dumps(case) + "\n")


if __name__ == "__main__":
    main()
