#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_testdata.py OUT: makes the archives and arrays of this folder with NumPy and ml_dtypes, and for each a JSON file with the
dtype, the shape and the SHA-256 of every array as NumPy reads it back. Made with NumPy 2.4.6."""
import hashlib
import json
import pathlib
import sys

import ml_dtypes
import numpy as np

CASES = {
    "stored": {"seed": 71, "size": (5, 7)},
    "deflated": {"seed": 72, "size": (6, 4)},
    "bfloat16_void": {"seed": 73, "size": (3, 4)},
    "object_refuse": {"seed": 74, "size": (3, 4)},
}
TEXTS = ['"text" (texts)', '"bytes" (texts)']
LEFT_OUT = {"stored.npz": TEXTS, "deflated.npz": TEXTS, "bfloat16_void.npz": [*TEXTS, '"fp8"']}


def arrays_of(name, seed, size):
    rng = np.random.default_rng(seed)
    a, b = size
    arrays = {
        "embed/weight": rng.normal(0, 1, (a, b)).astype("f4"),
        "layers.0.kernel": rng.normal(0, 1, (b, a)).astype("f8"),
        "half": rng.normal(0, 1, (a,)).astype("f2"),
        "ints": rng.integers(-9, 9, (2, 3)).astype("i8"),
        "i4": np.arange(a, dtype="i4"), "i2": np.arange(3, dtype="i2"), "i1": np.arange(3, dtype="i1"),
        "u1": np.arange(5, dtype="u1"), "u2": np.arange(5, dtype="u2"),
        "u4": np.arange(5, dtype="u4"), "u8": np.arange(5, dtype="u8"),
        "flags": rng.integers(0, 2, (a,)).astype("?"),
        "c8": (rng.normal(0, 1, (2, 2)) + 1j).astype("c8"),
        "c16": (rng.normal(0, 1, (2,)) + 1j).astype("c16"),
        "scalar": np.float32(2.5), "empty": np.zeros((0, 3), "f4"),
        "fortran": np.asfortranarray(rng.normal(0, 1, (a, b)).astype("f4")),
        "fortran3": np.asfortranarray(rng.normal(0, 1, (2, a, b)).astype("f2")),
        "big_endian": rng.normal(0, 1, (3, 2)).astype(">f4"),
        "text": np.array(["ab", "c\u00e9"]), "bytes": np.array([b"ab", b"c"]),
        "strided": rng.normal(0, 1, (a, 2 * b)).astype("f4")[:, ::2],
    }
    if name == "bfloat16_void":
        arrays["bf16"] = rng.normal(0, 1, (a, b)).astype(ml_dtypes.bfloat16)
        arrays["fp8"] = rng.normal(0, 1, (a,)).astype(ml_dtypes.float8_e4m3fn)
    if name == "object_refuse":
        arrays["structured"] = np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
        arrays["object"] = np.array([{"a": 1}, None], dtype=object)
    return arrays


def expected(array):
    little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
    return {"dtype": array.dtype.newbyteorder("=").name, "shape": list(array.shape),
            "sha256": hashlib.sha256(np.ascontiguousarray(little).tobytes()).hexdigest()}


def write_case(out, path, tensors):
    case = {"path": path, "format": "npz", "step": -1, "world_size": 1,
            "tensors": {"model/" + n: t for n, t in tensors.items()}, "left_out": LEFT_OUT.get(path, [])}
    (out / path).with_suffix(".json").write_text(json.dumps(case, indent=1) + "\n")


def main(out):
    for name, case in CASES.items():
        arrays = arrays_of(name, **case)
        (np.savez_compressed if name == "deflated" else np.savez)(out / f"{name}.npz", **arrays)
        back = np.load(out / f"{name}.npz", allow_pickle=name == "object_refuse")
        if name != "object_refuse":
            tensors = {n: expected(back[n]) for n in back.files if back[n].dtype.kind in "fiub?cV" and n != "fp8"}
            write_case(out, f"{name}.npz", tensors)
        if name == "stored":
            for version, of in ((2, "fortran"), (3, "ints")):
                with open(out / f"v{version}.npy", "wb") as file:
                    np.lib.format.write_array(file, arrays[of], version=(version, 0))
                write_case(out, f"v{version}.npy", {f"v{version}": expected(arrays[of])})


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
