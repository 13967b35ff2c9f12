# SPDX-License-Identifier: Apache-2.0
"""ONNX: initializers that its own library writes are read."""

import unittest

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

import trainers

NAMES = (
    "FLOAT FLOAT16 BFLOAT16 DOUBLE FLOAT8E4M3FN FLOAT8E5M2 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8 BOOL "
    "COMPLEX64 INT4 UINT4"
).split()


class OnnxTest(trainers.TrainerCase):
    def setUp(self):
        super().setUp()
        random = numpy.random.default_rng(2)
        self.arrays = {}
        for i, name in enumerate(NAMES):
            dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
            self.arrays[f"layer.{name}"] = random.integers(0, 2, (5, 3 + i)).astype(dtype)

    def model(self):
        tensors = [numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        return helper.make_model(helper.make_graph([], "main", [], [], initializer=tensors), producer_name="fresh")

    def check(self, path):
        self.assertEqual(self.inspect(path)["format"], "onnx")
        read = self.read(path)
        expected = dict(self.arrays)
        for name, dtype in {"layer.INT4": numpy.int8, "layer.UINT4": numpy.uint8}.items():
            expected[name] = expected[name].astype(dtype)
        self.assert_all_same(read.get("model", read), expected)

    def test_initializers_in_the_file(self):
        path = self.path("fresh.onnx")
        onnx.save(self.model(), path)
        self.check(path)

    def test_a_model_without_a_producer(self):
        """Its ninth byte is a line end, as a safetensors header may begin with one."""
        path = self.path("bare.onnx")
        node = helper.make_node("Identity", ["x" * 100], ["y" * 100])
        tensor = numpy_helper.from_array(numpy.arange(64, dtype=numpy.float32), "w")
        onnx.save(helper.make_model(helper.make_graph([node], "g", [], [], initializer=[tensor])), path)
        with open(path, "rb") as file:
            self.assertEqual(file.read(9)[8:], b"\n")
        self.assertEqual(self.inspect(path)["format"], "onnx")

    def test_external_data_in_one_file_or_in_a_file_of_each(self):
        for one in (True, False):
            with self.subTest(one=one):
                path = self.path(f"external_{one}.onnx")
                onnx.save_model(
                    self.model(),
                    path,
                    save_as_external_data=True,
                    all_tensors_to_one_file=one,
                    location=f"all_{one}.data" if one else None,
                    size_threshold=16,
                )
                self.check(path)


if __name__ == "__main__":
    unittest.main()
