#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of this folder: python make_testdata.py (onnx 1.23.2, ml_dtypes 0.6.0, numpy).

    raw.onnx, typed.onnx   every type, with its elements in raw_data and in the typed fields
    external/              elements in two other files, one of them in a folder
    nested.onnx            graphs in nodes; constants; texts, a sparse initializer

The digests are of what onnx.numpy_helper makes of the files, with int4 and int2 as int8, uint4 and uint2 as uint8, and two
numbers of float4 in a byte.
"""
import hashlib
import json
import pathlib
import shutil

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data, write_external_data_tensors

HERE = pathlib.Path(__file__).resolve().parent
SMALL = {"INT4": np.int8, "UINT4": np.uint8, "INT2": np.int8, "UINT2": np.uint8}
NAMES = ["FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "BOOL", "FLOAT16", "DOUBLE", "UINT32", "UINT64",
         "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4",
         "INT4", "FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2"]


def digest(tensor, base=""):
    array = numpy_helper.to_array(tensor, base)
    name = TensorProto.DataType.Name(tensor.data_type)
    if name in SMALL:
        array = array.astype(SMALL[name])
    dtype, shape, data = array.dtype.name, list(array.shape), array.tobytes()
    if name == "FLOAT4E2M1":
        codes = np.frombuffer(data, np.uint8) & 15
        dtype, shape[-1], data = "float4_e2m1fn_x2", shape[-1] // 2, (codes[::2] | codes[1::2] << 4).tobytes()
    return {"dtype": dtype, "shape": shape, "sha256": hashlib.sha256(data).hexdigest()}


def write_case(name, path, tensors, left_out=()):
    case = {"path": path, "format": "onnx", "step": -1, "world_size": 1, "tensors": tensors, "left_out": list(left_out)}
    (HERE / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")


def values(rng, name, shape):
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name))
    if name == "BOOL":
        return rng.normal(0, 1, shape) > 0
    low, high = {"INT4": (-8, 8), "UINT4": (0, 16), "INT2": (-2, 2), "UINT2": (0, 4)}.get(name, (0, 0))
    if high:
        return rng.integers(low, high, shape).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "c":
        return (rng.normal(0, 3, shape) + 1j * rng.normal(0, 3, shape)).astype(dtype)
    return (np.abs(rng.normal(0, 2, shape)) if name == "FLOAT8E8M0" else rng.normal(0, 2, shape)).astype(dtype)


def model_of(initializers, nodes=(), **fields):
    graph = helper.make_graph(list(nodes), "main_graph", [], [], initializer=initializers)
    return helper.make_model(graph, producer_name="make_testdata", producer_version="1.0", **fields)


def save(model, path):
    path.write_bytes(model.SerializeToString())


def make_types(raw):
    rng = np.random.default_rng(11 if raw else 12)
    initializers = []
    for name in NAMES:
        array = values(rng, name, (3, 5, 6) if name != "FLOAT4E2M1" else (3, 10))
        if raw:
            initializers.append(numpy_helper.from_array(array, f"w.{name}"))
        elif array.dtype.kind == "c":
            initializers.append(helper.make_tensor(f"w.{name}", getattr(TensorProto, name), array.shape, array.ravel()))
        else:
            initializers.append(helper.make_tensor(f"w.{name}", getattr(TensorProto, name), array.shape,
                                                   array.ravel().tolist() if array.dtype.kind in "iub" else array.ravel()))
        initializers[-1].name = f"w.{name}"
    # An odd number of elements in rows that are packed, and none.
    initializers.append(numpy_helper.from_array(values(rng, "INT4", (3, 5)), "odd.INT4"))
    initializers.append(numpy_helper.from_array(values(rng, "UINT2", (7,)), "odd.UINT2"))
    initializers.append(numpy_helper.from_array(np.zeros((0, 3), np.float32), "empty"))
    initializers.append(numpy_helper.from_array(np.array(2.5, np.float32), "zero_dims"))
    if not raw:  # numbers of all lengths, so many that places of some are kept
        many = rng.integers(-2**62, 2**62, 9000) >> rng.integers(0, 62, 9000)
        initializers.append(helper.make_tensor("many", TensorProto.INT64, (9000,), many.tolist()))
    model = model_of(initializers)
    helper.set_model_props(model, {"note": "gr\u00fc\u00df"})
    case = "raw" if raw else "typed"
    save(model, HERE / f"{case}.onnx")
    write_case(case, f"{case}.onnx", {"model/" + t.name: digest(t) for t in initializers})


def make_external():
    rng = np.random.default_rng(13)
    folder = HERE / "external"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "folder").mkdir(parents=True)
    initializers = [numpy_helper.from_array(values(rng, name, (4, 6)), f"layer.{name}")
                    for name in ("FLOAT", "BFLOAT16", "INT4", "INT64")]
    initializers.append(numpy_helper.from_array(values(rng, "FLOAT16", (33,)), "whole_file"))
    initializers.append(numpy_helper.from_array(values(rng, "FLOAT", (3,)), "inside"))
    tensors = {"model/" + t.name: digest(t) for t in initializers}
    for tensor in initializers[:4]:
        set_external_data(tensor, "model.onnx.data")
    set_external_data(initializers[4], "folder/whole_file.bin")
    model = write_external_data_tensors(model_of(initializers), str(folder))
    for tensor in model.graph.initializer:
        if tensor.name == "whole_file":  # offset and length may be left out
            del tensor.external_data[1:]
    save(model, folder / "model.onnx")
    write_case("external", "external", tensors)


def make_nested():
    rng = np.random.default_rng(14)

    def tensor(name):
        return numpy_helper.from_array(values(rng, "FLOAT", (2, 3)), name)

    inner = [tensor("w"), tensor("w"), tensor("b"), tensor("deep")]
    top = [tensor("w"), helper.make_tensor("texts", TensorProto.STRING, (2,), [b"a", b"b"])]
    deep = helper.make_node("Loop", [], ["y"], body=helper.make_graph([], "g", [], [], initializer=[inner[3]]))
    then = helper.make_graph([deep], "g", [], [], initializer=[inner[0]])
    other = helper.make_graph([], "g", [], [], initializer=[inner[1], inner[2]])
    nodes = [helper.make_node("Constant", [], ["c"], value=tensor("c")),
             helper.make_node("If", ["c"], ["x"], name="if_1", then_branch=then, else_branch=other)]
    model = model_of(top, nodes)
    sparse = onnx.SparseTensorProto(dims=[9])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([1.5], np.float32), "sparse"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([4], np.int64), ""))
    model.graph.sparse_initializer.append(sparse)
    save(model, HERE / "nested.onnx")
    names = {"w": top[0], "if_1.then_branch.w": inner[0], "if_1.else_branch.w": inner[1], "if_1.else_branch.b": inner[2],
             "if_1.then_branch.node_2.body.deep": inner[3]}
    write_case("nested", "nested.onnx", {"model/" + name: digest(t) for name, t in names.items()},
               ['"texts" (texts)', '"sparse" (sparse)'])


if __name__ == "__main__":
    make_types(True)
    make_types(False)
    make_external()
    make_nested()
