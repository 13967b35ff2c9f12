#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of this folder: python make_testdata.py (flax 0.12.8, jax 0.10.2, optax, ml_dtypes 0.6.0, numpy).

    train_state.msgpack   to_bytes of a TrainState after a step of AdamW: params, opt_state, step
    dtypes.msgpack        every dtype, scalars of NumPy and Python, arrays in chunks
    whole/, parts/        flax_model.msgpack as transformers saves it, whole and in parts with an index

The digests are of what msgpack_restore makes of the files.
"""
import hashlib
import json
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from flax import serialization, traverse_util
from flax.training.train_state import TrainState

HERE = pathlib.Path(__file__).resolve().parent


def digest(array):
    array = np.asarray(array)
    return {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": hashlib.sha256(array.tobytes()).hexdigest()}


def leaves(path):
    """The leaves of a file, by their keys joined with dots."""
    restored = serialization.msgpack_restore(path.read_bytes())
    return traverse_util.flatten_dict(restored, sep=".")


def write_case(name, path, step, tensors, left_out=()):
    case = {"path": path, "format": "flax", "step": step, "world_size": 1, "tensors": tensors, "left_out": list(left_out)}
    (HERE / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(5, name="hidden")(x))
        return nn.Dense(3, name="out", param_dtype=jnp.bfloat16)(x)


def make_train_state():
    x = jnp.arange(14.0).reshape(2, 7) / 14
    net = Net()
    params = net.init(jax.random.PRNGKey(3), x)["params"]
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(1e-2))
    for _ in range(3):
        grads = jax.grad(lambda p: jnp.sum(net.apply({"params": p}, x).astype(jnp.float32) ** 2))(state.params)
        state = state.apply_gradients(grads=grads)
    path = HERE / "train_state.msgpack"
    path.write_bytes(serialization.to_bytes(state))
    tensors = {}
    for name, value in leaves(path).items():
        if not hasattr(value, "dtype"):
            continue
        if name.startswith("params."):
            tensors["model/" + name.removeprefix("params.")] = digest(value)
        elif name.endswith("count"):
            tensors["extra/" + name] = digest(value)
        else:
            _, _, slot, fqn = name.split(".", 3)  # opt_state.0.mu.hidden.kernel
            tensors[f"optim/state/{fqn}/{slot}"] = digest(value)
    write_case("train_state", path.name, 3, tensors)


def make_dtypes():
    rng = np.random.default_rng(5)
    tree = {"w": {}, "chunked": {}}
    names = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
             "complex64", "complex128", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
             "float8_e5m2fnuz", "float8_e8m0fnu"]
    for name in names:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        tree["w"][name] = (rng.normal(0, 3, (3, 5)) > 0 if name == "bool" else np.abs(rng.normal(0, 9, (3, 5)))).astype(dtype)
    tree["w"]["int4"] = np.array([1, -2, 3], dtype=ml_dtypes.int4)
    tree["w"]["none"] = np.zeros((0, 4), np.float32)
    tree["w"]["zero_dims"] = np.array(2.5, np.float32)
    tree["w"]["fortran"] = np.asfortranarray(rng.normal(0, 1, (4, 6)).astype(np.float32))
    tree["w"]["numpy_scalar"] = np.float32(1.5)
    tree["w"]["python"] = {"an_int": -3, "a_float": 0.1, "nan": float("nan"), "yes": True, "text": "gr\u00fc\u00df",
                           "nothing": None, "complex": 1 - 2j}
    tree["w"]["empty"] = {}
    tree["chunked"]["matrix"] = rng.normal(0, 1, (13, 11)).astype(np.float32)
    tree["chunked"]["half"] = rng.normal(0, 1, (7, 3, 5)).astype(ml_dtypes.bfloat16)
    whole = serialization.MAX_CHUNK_SIZE
    serialization.MAX_CHUNK_SIZE = 130  # bytes, in place of 1 GiB
    try:
        path = HERE / "dtypes.msgpack"
        path.write_bytes(serialization.msgpack_serialize(tree))
    finally:
        serialization.MAX_CHUNK_SIZE = whole
    tensors = {"model/" + name: digest(value.astype(np.int8) if name == "w.int4" else value)
               for name, value in leaves(path).items() if hasattr(value, "dtype")}
    write_case("dtypes", path.name, -1, tensors)


def make_transformers():
    rng = np.random.default_rng(6)
    flat = {f"transformer/h/{i}/{part}": rng.normal(0, 1, shape).astype(np.float32)
            for i in range(3) for part, shape in (("attn/kernel", (8, 8)), ("ln_1/scale", (8,)))}
    flat["transformer/wte/embedding"] = rng.normal(0, 1, (17, 8)).astype(ml_dtypes.bfloat16)
    tensors = {"model/" + name.replace("/", "."): digest(value) for name, value in flat.items()}
    (HERE / "whole").mkdir(exist_ok=True)
    (HERE / "whole" / "flax_model.msgpack").write_bytes(
        serialization.to_bytes(traverse_util.unflatten_dict(flat, sep="/")))
    write_case("whole", "whole", -1, tensors)
    (HERE / "parts").mkdir(exist_ok=True)
    names, weight_map = list(flat), {}
    for number, part in enumerate((names[:4], names[4:]), 1):
        file = f"flax_model-{number:05}-of-00002.msgpack"
        tree = traverse_util.unflatten_dict({name: flat[name] for name in part}, sep="/")
        (HERE / "parts" / file).write_bytes(serialization.to_bytes(tree))
        weight_map.update({name: file for name in part})
    index = {"metadata": {"total_size": sum(v.nbytes for v in flat.values())}, "weight_map": weight_map}
    (HERE / "parts" / "flax_model.msgpack.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    write_case("parts", "parts", -1, tensors)


if __name__ == "__main__":
    make_train_state()
    make_dtypes()
    make_transformers()
