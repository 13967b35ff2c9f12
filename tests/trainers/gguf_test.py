# SPDX-License-Identifier: Apache-2.0
"""gguf-py: its files are read, with its own dequantised values, and it reads ours."""

import unittest

import gguf
import numpy
import safetensors.numpy
import safetensors.torch
import torch
from gguf.quants import dequantize, quantize

import trainers

Q = gguf.GGMLQuantizationType
PLAIN = {"F32": numpy.float32, "F16": numpy.float16, "F64": numpy.float64, "I8": numpy.int8, "I32": numpy.int32}
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "TQ1_0", "TQ2_0", "MXFP4")
RANDOM_BLOCKS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")  # gguf-py cannot make these


class GgufTest(trainers.TrainerCase):
    def setUp(self):
        super().setUp()
        self.random = numpy.random.default_rng(3)

    def write(self, path, tensors, alignment=32):
        """`tensors`: raw arrays and their types, by name."""
        writer = gguf.GGUFWriter(path, "llama")
        if alignment != 32:
            writer.add_custom_alignment(alignment)
        writer.add_block_count(2)
        writer.add_string("general.name", "fresh")
        writer.add_array("tokenizer.ggml.tokens", ["a", "\u00e4", "<s>"])
        for name, (data, kind) in tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def blocks(self, kind, rows, columns):
        """Blocks of random bits whose scales are finite."""
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = self.random.integers(0, 256, (rows * columns // elements, nbytes), dtype=numpy.uint8)
        while True:
            bad = ~numpy.isfinite(dequantize(blocks.reshape(-1, nbytes), kind)).all(axis=-1)
            if not bad.any():
                return blocks.reshape(rows, -1)
            blocks[bad] = self.random.integers(0, 256, (bad.sum(), nbytes), dtype=numpy.uint8)

    def test_fresh_files_are_read_as_gguf_py_dequantises_them(self):
        tensors = {}
        expected = {}
        for name, dtype in PLAIN.items():
            values = self.random.integers(-9, 9, (5, 7)).astype(dtype)
            tensors[name] = (values, None)
            expected[name] = values
        for name in QUANTIZED:
            values = self.random.standard_normal((3, 512)).astype(numpy.float32)
            kind = Q[name]
            data = quantize(values, kind)
            tensors[name] = (data, kind)
            expected[name] = dequantize(data, kind)
            if name == "BF16":
                expected[name] = torch.from_numpy(expected[name]).bfloat16()
        for name in RANDOM_BLOCKS:
            kind = Q[name]
            data = self.blocks(kind, 3, 512)
            tensors[name] = (data, kind)
            expected[name] = dequantize(data, kind)
        for alignment in (32, 128):
            with self.subTest(alignment=alignment):
                path = self.path("fresh.gguf")
                self.write(path, tensors, alignment)
                converted = self.path("fresh.safetensors")
                trainers.ckpt("convert", path, converted, "--force")
                found = safetensors.torch.load_file(converted)
                for name, values in expected.items():
                    self.assert_same(found[name], values, name)
                self.assertEqual(sorted(found), sorted(tensors))

    def test_gguf_py_reads_what_is_written(self):
        values = {
            "token_embd.weight": self.random.standard_normal((11, 64)).astype(numpy.float32),
            "blk.0.attn_q.weight": self.random.standard_normal((64, 96)).astype(numpy.float32),
            "output_norm.weight": self.random.standard_normal(64).astype(numpy.float32),
        }
        source = self.path("model.safetensors")
        safetensors.numpy.save_file(values, source)
        template = self.path("template.gguf")
        # As converters have it: matrices in float16, vectors in float32.
        halves = {name: (value.astype(numpy.float16) if value.ndim > 1 else value) for name, value in values.items()}
        self.write(template, {name: (value, None) for name, value in halves.items()})
        for kind in ("F32", "F16", "BF16", "Q8_0", "MXFP4"):
            with self.subTest(kind=kind):
                path = self.path(f"{kind}.gguf")
                trainers.ckpt("convert", source, path, f"--outtype={kind}", f"--template={template}")
                reader = gguf.GGUFReader(path)
                self.assertEqual(reader.get_field("general.name").contents(), "fresh")
                self.assertEqual(reader.get_field("tokenizer.ggml.tokens").contents(), ["a", "\u00e4", "<s>"])
                found = {tensor.name: tensor for tensor in reader.tensors}
                self.assertEqual(sorted(found), sorted(values))
                for name, value in values.items():
                    tensor = found[name]
                    expected = value if value.ndim == 1 else dequantize(quantize(value, Q[kind]), Q[kind])
                    read = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
                    self.assert_same(read.reshape(value.shape), expected.astype(numpy.float32), name)


if __name__ == "__main__":
    unittest.main()
