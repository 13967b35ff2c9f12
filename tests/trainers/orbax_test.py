# SPDX-License-Identifier: Apache-2.0
"""Orbax and TensorStore: what they write is read."""

import unittest

import ml_dtypes
import numpy
import orbax.checkpoint as ocp
import tensorstore

import trainers

DTYPES = (numpy.float32, numpy.float16, ml_dtypes.bfloat16, numpy.int32, numpy.uint8, numpy.bool_)


class OrbaxTest(trainers.TrainerCase):
    def setUp(self):
        super().setUp()
        random = numpy.random.default_rng(4)
        params = {}
        for i, dtype in enumerate(DTYPES):
            params[f"layer_{i}"] = {"kernel": random.integers(0, 2, (5 + i, 11)).astype(dtype), "bias": numpy.ones(3, dtype)}
        self.tree = {"params": params, "opt_state": {"count": numpy.asarray(7, numpy.int32)}}
        self.model = {
            f"params.{layer}.{name}": value for layer, values in params.items() for name, value in values.items()
        }

    def check(self, path):
        self.assertEqual(self.inspect(path)["format"], "orbax")
        read = self.read(path)
        found = read.get("model", read)
        prefix = "" if next(iter(found)).startswith("params.") else "params."
        self.assert_all_same({prefix + name: value for name, value in found.items()}, self.model)

    def test_a_tree_with_and_without_ocdbt_and_zarr3(self):
        for ocdbt in (True, False):
            for zarr3 in (True, False):
                with self.subTest(ocdbt=ocdbt, zarr3=zarr3):
                    path = self.path(f"{ocdbt}{zarr3}")
                    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
                    with ocp.Checkpointer(handler) as checkpointer:
                        checkpointer.save(path, self.tree)
                    self.check(path)

    def test_a_manager_and_its_newest_step(self):
        path = self.path("run")
        with ocp.CheckpointManager(path) as manager:
            for step in (3, 12):
                manager.save(step, args=ocp.args.StandardSave(self.tree))
            manager.wait_until_finished()
        self.assertEqual(self.inspect(path)["step"], 12)
        self.check(path)

    def test_integers_of_four_bits_become_bytes(self):
        values = numpy.arange(-8, 8).reshape(4, 4)
        for zarr3 in (True, False):
            with self.subTest(zarr3=zarr3):
                path = self.path(f"int4{zarr3}")
                with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=zarr3)) as checkpointer:
                    checkpointer.save(path, {"params": {"w": values.astype(ml_dtypes.int4)}})
                read = self.read(path)
                self.assert_same(read.get("model", read)["w"], values.astype(numpy.int8), "w")

    def test_chunks_of_tensorstore(self):
        """A chunk shape that does not divide the array, and each compressor."""
        values = numpy.arange(7 * 13, dtype=numpy.float32).reshape(7, 13)
        for name, metadata in {
            "zstd": {"compressor": {"id": "zstd", "level": 3}},
            "gzip": {"compressor": {"id": "gzip", "level": 5}},
            "blosc": {"compressor": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 1}},
            "none": {"compressor": None},
        }.items():
            with self.subTest(compressor=name):
                path = self.path(name)
                spec = {
                    "driver": "zarr",
                    "kvstore": {"driver": "ocdbt", "base": f"file://{path}/", "path": "params.w/"},
                    "metadata": {"shape": [7, 13], "chunks": [3, 5], "dtype": "<f4", **metadata},
                    "create": True,
                }
                tensorstore.open(spec).result().write(values).result()
                read = self.read(path)
                found = read.get("model", read)
                self.assertEqual(len(found), 1)
                self.assert_same(next(iter(found.values())), values, name)


if __name__ == "__main__":
    unittest.main()
