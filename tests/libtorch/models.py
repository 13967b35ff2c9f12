# SPDX-License-Identifier: Apache-2.0
"""The models of models.h in Python: the same names, the same operators in the same order, the same data of each step."""
import numpy
import torch
from torch import nn
from torch.nn import functional as F


def hashes(seed, count):
    """`count` numbers below 2^32 that C++ makes too."""
    h = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(seed * 1000003)) * numpy.uint64(2654435761)
    h &= numpy.uint64(0xFFFFFFFF)
    h ^= h >> numpy.uint64(15)
    h = (h * numpy.uint64(2246822519)) & numpy.uint64(0xFFFFFFFF)
    return h ^ (h >> numpy.uint64(13))


def uniform(seed, *shape):
    """Numbers in [-0.5, 0.5), exactly representable."""
    h = hashes(seed, int(numpy.prod(shape))) >> numpy.uint64(8)
    return torch.from_numpy((h / 2.0**24 - 0.5).astype(numpy.float32).reshape(shape))


def integers(seed, below, *shape):
    h = hashes(seed, int(numpy.prod(shape))) % numpy.uint64(below)
    return torch.from_numpy(h.astype(numpy.int64).reshape(shape))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(24, 61), nn.Linear(61, 61), nn.Linear(61, 10)

    def units(self):
        return [self.fc1, self.fc2, self.fc3]

    def forward(self, x):
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))))

    def batch(self, step):
        return uniform(2 * step, 8, 24), integers(2 * step + 1, 10, 8)

    def loss(self, step, x, y):
        return F.cross_entropy(self(x), y)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (p.view(b, t, self.heads, w // self.heads).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """The head's weight is the token embedding's."""

    def __init__(self, vocab=97, width=32, heads=4, blocks=2, length=12, rows=8):
        super().__init__()
        self.vocab, self.length, self.rows = vocab, length, rows
        self.token, self.position = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.token.weight, std=0.1)
        self.head.weight = self.token.weight

    def units(self):
        return list(self.blocks)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(self.length))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def batch(self, step):
        tokens = integers(step, self.vocab, self.rows, self.length + 1)
        return tokens[:, :-1], tokens[:, 1:]

    def loss(self, step, x, y):
        return F.cross_entropy(self(x).reshape(-1, self.vocab), y.reshape(-1))


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 13, 3, padding=1), nn.BatchNorm2d(13)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body, self.head = Stem(), nn.Conv2d(13, 17, 3, stride=2), nn.Linear(17, 5)

    def units(self):
        return [self.stem, self.body]

    def low_units(self):
        return [self.stem.conv, self.body]

    def full_units(self):
        """Batch norm takes no bfloat16 weights together with float32 buffers, and FSDP2 casts no buffers."""
        return [self.stem.norm]

    def forward(self, x):
        return self.head(F.relu(self.body(self.stem(x))).mean([2, 3]))

    def batch(self, step):
        return uniform(2 * step, 8, 3, 11, 11), integers(2 * step + 1, 5, 8)

    def loss(self, step, x, y):
        return F.cross_entropy(self(x), y)


class LstmModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.lstm, self.head = nn.Embedding(29, 16), nn.LSTM(16, 23, 2, batch_first=True), nn.Linear(23, 29)

    def units(self):
        return [self.lstm]

    def forward(self, tokens):
        return self.head(self.lstm(self.token(tokens))[0])

    def batch(self, step):
        tokens = integers(step, 29, 8, 10)
        return tokens[:, :-1], tokens[:, 1:]

    def loss(self, step, x, y):
        return F.cross_entropy(self(x).reshape(-1, 29), y.reshape(-1))


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    """Each row goes to one of two experts, determined by the step; never to the last expert. FSDP2 requires that the
    same parameters have gradients on all ranks, so the router does not choose the experts."""

    def __init__(self, width, experts):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList([Expert(width) for _ in range(experts)])

    def forward(self, x, step):
        usable = len(self.experts) - 1
        gates = self.router(x).softmax(-1)
        y = x
        for i, e in enumerate((step % usable, (step + 1) % usable)):
            rows = torch.arange(i, len(x), 2)
            gate = gates.index_select(0, rows)[:, e].unsqueeze(1)
            y = y.index_add(0, rows, self.experts[e](x.index_select(0, rows)) * gate)
        return y


class MixtureModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 24)
        self.layers = nn.ModuleList([Mixture(24, 5) for _ in range(2)])
        self.head = nn.Linear(24, 7)

    def units(self):
        return list(self.layers)

    def forward(self, x, step):
        x = self.inner(x)
        for layer in self.layers:
            x = layer(x, step)
        return self.head(x)

    def batch(self, step):
        return uniform(2 * step, 16, 16), integers(2 * step + 1, 7, 16)

    def loss(self, step, x, y):
        return F.cross_entropy(self(x, step), y)


MODELS = {"mlp": Mlp, "transformer": Transformer, "conv_net": ConvNet, "lstm": LstmModel, "mixture": MixtureModel}
