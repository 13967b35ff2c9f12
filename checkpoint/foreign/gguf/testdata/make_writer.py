#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_writer.py DIRECTORY: source.gguf in F32, and model.gguf with the same tensors in the types that are
written. By gguf-py 0.19.0."""
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import quantize

OUT = pathlib.Path(sys.argv[1])
rng = np.random.default_rng(45)


def awkward(rows, cols):
    x = rng.normal(0, 1, (rows, cols)) * 10.0 ** rng.uniform(-6, 4, (rows, 1))
    x[0] = 0
    x[1] = -0.0
    x[2, 0] = 127  # scale 1: halves are exact
    x[2, 1:32] = np.arange(31) - 15.5
    for i in range(3, 11):  # next to powers of two, above and below
        x[i, :32] = np.float32(2.0) ** (4 * i - 20) * (1 - rng.integers(-3, 4, 32) * 2.0**-24)
    x[11, :32] = np.array([0.25, -0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5, 6, 7, 7.99] + [0.1] * 20)  # ties of e2m1
    x[12] *= 1e-30
    return x.astype(np.float32)


def write(path, types):
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_name("written")
    w.add_block_count(1)
    w.add_tokenizer_model("llama")
    w.add_token_list(["<s>", "a", "b\u00e9"])
    w.add_token_scores([0.0, -1.5, -2.25])
    w.add_quantization_version(2)
    for name, x in tensors.items():
        t = types(name)
        if t == T.F32:
            w.add_tensor(name, x)
        elif t == T.F16:
            w.add_tensor(name, x.astype(np.float16))
        else:
            w.add_tensor(name, quantize(x, t), raw_dtype=t)
    w.write_header_to_file(path)
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


tensors = {"token_embd.weight": awkward(14, 64), "blk.0.attn_norm.weight": rng.normal(1, 0.1, 64).astype(np.float32),
           "blk.0.attn_q.weight": awkward(13, 64), "blk.0.ffn_up.weight": awkward(14, 64),
           "output.weight": awkward(13, 96)}
small = np.clip(tensors["blk.0.attn_q.weight"], -60000, 60000)
tensors["blk.0.attn_q.weight"] = small
TYPES = {"token_embd.weight": T.Q8_0, "blk.0.attn_norm.weight": T.F32, "blk.0.attn_q.weight": T.F16,
         "blk.0.ffn_up.weight": T.MXFP4, "output.weight": T.BF16}
OUT.mkdir(parents=True, exist_ok=True)
write(OUT / "source.gguf", lambda name: T.F32)
write(OUT / "model.gguf", TYPES.__getitem__)
