"""check_view.py VIEW.h5 EXPECTED.json NAME: whether h5py finds every tensor of NAME in the view, with its bytes.

Strided views are left out of a view. Exits with 77 if h5py is missing.
"""

import hashlib
import json
import sys

try:
    import h5py
except ImportError:
    sys.exit(77)

NOT_SHOWN = {"columns", "transposed", "every_other", "expanded", "permuted", "complex64.transposed", "real"}


def check(dataset, expected, name):
    raw = dataset.id.get_type()
    import numpy as np
    out = np.empty(dataset.shape, dtype="V%d" % raw.get_size())
    if out.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, raw)
    assert list(dataset.shape) == expected["shape"], name
    assert hashlib.sha256(out.tobytes()).hexdigest() == expected["sha256"], name


def main():
    view, expected = sys.argv[1], json.load(open(sys.argv[2]))[sys.argv[3]]
    escape = lambda name: name.replace("%", "%25").replace("/", "%2F")
    with h5py.File(view, "r") as file:
        for name, tensor in expected["model"].items():
            if name not in NOT_SHOWN:
                check(file["model"][escape(name)], tensor, name)
        for name, states in expected.get("optim", {}).items():
            for state, tensor in states.items():
                check(file["optim/state"][escape(name)][escape(state)], tensor, name + "." + state)
        if "param_groups" in expected:
            assert json.loads(file["optim/param_groups"][()]) == expected["param_groups"]


main()
