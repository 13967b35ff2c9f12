#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes grids/model.gguf and grids.json: python make_grids.py (gguf 0.19.0, numpy).

Blocks of the IQ types with grids: random bits with finite scales, so that every row of every grid, every combination of
signs and every scale occurs. The digests are of what gguf-py's dequantize makes of them.
"""
import hashlib
import json
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

HERE = pathlib.Path(__file__).resolve().parent
# Blocks of 256 elements, so many that each row of the grid occurs many times.
ROWS = {"IQ2_XXS": 40, "IQ2_XS": 80, "IQ2_S": 160, "IQ3_XXS": 20, "IQ3_S": 40, "IQ1_S": 320, "IQ1_M": 320}


def blocks(rng, name):
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    made = rng.integers(0, 256, (ROWS[name], size), dtype=np.uint8)
    scales = rng.normal(0, 0.05, (ROWS[name], 1)).astype(np.float16)
    if name != "IQ1_M":
        made[:, :2] = scales.view(np.uint8)
        return made
    # Four bits of the scale are the upper bits of each of the last four numbers.
    last = made[:, 48:].copy().view(np.uint16)
    for k in range(4):
        last[:, k] = (last[:, k] & 0x0FFF) | ((scales[:, 0].view(np.uint16) >> 4 * k & 15) << 12)
    made[:, 48:] = last.view(np.uint8)
    return made


def main():
    rng = np.random.default_rng(37)
    path = HERE / "grids" / "model.gguf"
    path.parent.mkdir(exist_ok=True)
    writer = GGUFWriter(str(path), "llama")
    tensors = {}
    for name in ROWS:
        stored = blocks(rng, name)
        value = dequantize(stored, GGMLQuantizationType[name]).astype(np.float32)
        assert np.isfinite(value).all()
        writer.add_tensor(name.lower(), stored, raw_dtype=GGMLQuantizationType[name])
        tensors["model/" + name.lower()] = {
            "dtype": "float32", "shape": list(value.shape), "sha256": hashlib.sha256(value.tobytes()).hexdigest()}
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    case = {"path": "grids/model.gguf", "format": "gguf", "step": -1, "world_size": 1, "tensors": tensors, "left_out": []}
    (HERE / "grids.json").write_text(json.dumps(case, indent=1) + "\n")


if __name__ == "__main__":
    main()
