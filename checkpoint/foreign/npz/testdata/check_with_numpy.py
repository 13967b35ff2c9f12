#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_with_numpy.py FILE.npz EXPECTED.json: whether np.load gives every array of EXPECTED, and no other, with its shape
and the SHA-256 of its bytes. Exits with 77 if NumPy is missing."""
import hashlib
import json
import sys

try:
    import numpy
except ImportError:
    sys.exit(77)

expected = json.load(open(sys.argv[2]))
arrays = numpy.load(sys.argv[1], allow_pickle=False)
assert sorted(arrays.files) == sorted(expected), (arrays.files, sorted(expected))
for name, want in expected.items():
    array = arrays[name]
    assert list(array.shape) == want["shape"], (name, array.shape)
    assert hashlib.sha256(array.tobytes()).hexdigest() == want["sha256"], name
