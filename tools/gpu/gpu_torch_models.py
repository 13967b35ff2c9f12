# SPDX-License-Identifier: Apache-2.0
"""GPT-2 and Llama in plain torch.nn, as users write them for speed: for gpu_torch_peer.py."""

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {
    "gpt2-124m": dict(seq_len=1024, vocabulary=50257, layers=12, width=768, inner=3072, heads=12),
    "llama-3.2-1b": dict(seq_len=2048, vocabulary=128256, layers=16, width=2048, inner=8192, heads=32, kv_heads=8),
}
TINY_SIZES = {
    "gpt2-124m": dict(seq_len=16, vocabulary=211, layers=2, width=32, inner=128, heads=2),
    "llama-3.2-1b": dict(seq_len=16, vocabulary=307, layers=2, width=32, inner=64, heads=2, kv_heads=1),
}


class Gpt2Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        width, inner = size["width"], size["inner"]
        self.heads = size["heads"]
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.ln_1(x)).split(width, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.wte = nn.Embedding(size["vocabulary"], size["width"])
        self.wpe = nn.Embedding(size["seq_len"], size["width"])
        self.h = nn.ModuleList(Gpt2Block(size) for _ in range(size["layers"]))
        self.ln_f = nn.LayerNorm(size["width"])

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)  # a tied head


def rotate(x, cos, sin):
    """x [B, H, T, D], whose halves are rotated by the angle of each position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class LlamaBlock(nn.Module):
    def __init__(self, size):
        super().__init__()
        width, inner = size["width"], size["inner"]
        self.heads, self.kv_heads = size["heads"], size["kv_heads"]
        kv_width = width // self.heads * self.kv_heads
        self.ln_1, self.ln_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, kv_width, bias=False), nn.Linear(width, kv_width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, cos, sin):
        rows, length, width = x.shape
        h = self.ln_1(x)
        q = rotate(self.q(h).view(rows, length, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(self.k(h).view(rows, length, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.v(h).view(rows, length, self.kv_heads, -1).transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(rows, length, width))
        h = self.ln_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.wte = nn.Embedding(size["vocabulary"], size["width"])
        self.h = nn.ModuleList(LlamaBlock(size) for _ in range(size["layers"]))
        self.ln_f = nn.RMSNorm(size["width"], eps=1e-5)
        head_dim = size["width"] // size["heads"]
        frequencies = 500000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.arange(size["seq_len"], dtype=torch.float32)[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.wte(tokens)
        cos, sin = (table[: tokens.shape[1]].to(x.dtype) for table in (self.cos, self.sin))
        for block in self.h:
            x = block(x, cos, sin)
        return F.linear(self.ln_f(x), self.wte.weight)


def build(name, size, device):
    """The model with normally distributed float32 parameters of deviation 0.02, as in both papers."""
    torch.manual_seed(0)
    with torch.device(device):
        model = (Gpt2 if name.startswith("gpt2") else Llama)(size)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    return model
