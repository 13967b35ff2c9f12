# SPDX-License-Identifier: Apache-2.0
"""The safetensors package: files of every dtype that it has are read, and it reads ours."""

import unittest

import torch
from safetensors.torch import load_file, save_file

import trainers

DTYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu int64 int32 int16 int8 uint64 uint32 "
    "uint16 uint8 bool complex64 float4_e2m1fn_x2"
).split()


class SafetensorsTest(trainers.TrainerCase):
    def test_every_dtype_comes_and_goes(self):
        torch.manual_seed(8)
        tensors = {}
        for dtype in DTYPES:
            if not hasattr(torch, dtype):
                continue
            wanted = getattr(torch, dtype)
            raw = torch.randint(0, 2 if dtype == "bool" else 256, (5, 6 * wanted.itemsize), dtype=torch.uint8)
            tensors[dtype] = raw.view(wanted)
        source, torch_file, copy = self.path("a.safetensors"), self.path("a.pt"), self.path("b.safetensors")
        save_file(tensors, source, metadata={"format": "pt", "note": "fresh"})
        trainers.ckpt("convert", source, torch_file)
        trainers.ckpt("convert", torch_file, copy)
        for found in (torch.load(torch_file, weights_only=True), load_file(copy)):
            self.assertEqual(sorted(found), sorted(tensors))
            for name, tensor in tensors.items():
                self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape))
                self.assert_same(found[name].view(torch.uint8), tensor.view(torch.uint8), name)


if __name__ == "__main__":
    unittest.main()
