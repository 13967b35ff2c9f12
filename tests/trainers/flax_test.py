# SPDX-License-Identifier: Apache-2.0
"""Flax: what flax.serialization writes is read."""

import unittest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy
import optax
from flax import linen, serialization, traverse_util
from flax.training.train_state import TrainState

import trainers

DTYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint32 uint8 bool complex64"
).split()


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Embed(13, 6, name="embed")(x)
        x = linen.LayerNorm(name="norm")(x)
        return linen.Dense(9, name="head", param_dtype=jnp.bfloat16, use_bias=False)(x)


class FlaxTest(trainers.TrainerCase):
    def write(self, name, tree):
        path = self.path(name)
        with open(path, "wb") as file:
            file.write(serialization.to_bytes(tree))
        return path

    def test_a_train_state_and_its_optimizer(self):
        tokens = jnp.arange(10).reshape(2, 5)
        net = Net()
        params = net.init(jax.random.PRNGKey(1), tokens)["params"]
        for name, optimizer in {"adamw": optax.adamw(1e-2), "momentum": optax.sgd(1e-2, momentum=0.9)}.items():
            with self.subTest(optimizer=name):
                state = TrainState.create(apply_fn=net.apply, params=params, tx=optimizer)
                for _ in range(4):
                    grads = jax.grad(lambda p: jnp.square(net.apply({"params": p}, tokens)).sum().astype(jnp.float32))(
                        state.params
                    )
                    state = state.apply_gradients(grads=grads)
                path = self.write(name + ".msgpack", state)
                summary = self.inspect(path)
                self.assertEqual((summary["format"], summary["step"]), ("flax", 4))
                read = self.read(path)
                leaves = traverse_util.flatten_dict(serialization.to_state_dict(state.params), sep=".")
                self.assert_all_same(read["model"], leaves)
                slots = {"adamw": ("mu", "nu"), "momentum": ("trace",)}[name]
                for slot in slots:
                    expected = traverse_util.flatten_dict(
                        serialization.to_state_dict(getattr(state.opt_state[0], slot)), sep="."
                    )
                    self.assert_all_same({n: s[slot] for n, s in read["optim"]["state"].items()}, expected)

    def test_every_dtype_and_arrays_in_chunks(self):
        random = numpy.random.default_rng(9)
        tree = {}
        for i, name in enumerate(DTYPES):
            dtype = numpy.dtype(getattr(ml_dtypes, name, name))
            tree[name] = {"w": random.integers(0, 2, (3 + i, 7)).astype(dtype), "none": numpy.zeros((0, 2), dtype)}
        whole = serialization.MAX_CHUNK_SIZE
        for chunk in (whole, 64):
            with self.subTest(chunk=chunk):
                serialization.MAX_CHUNK_SIZE = chunk
                try:
                    path = self.write("dtypes.msgpack", tree)
                finally:
                    serialization.MAX_CHUNK_SIZE = whole
                read = self.read(path)
                self.assert_all_same(read.get("model", read), traverse_util.flatten_dict(tree, sep="."))

    def test_integers_of_fewer_bits_become_bytes(self):
        tree, expected = {}, {}
        for name, least, most in [("int4", -8, 7), ("uint4", 0, 15), ("int2", -2, 1), ("uint2", 0, 3)]:
            values = numpy.arange(least, most + 1)
            tree[name] = values.astype(getattr(ml_dtypes, name))
            expected[name] = values.astype(numpy.int8 if least < 0 else numpy.uint8)
        read = self.read(self.write("narrow.msgpack", tree))
        self.assert_all_same(read.get("model", read), expected)


if __name__ == "__main__":
    unittest.main()
