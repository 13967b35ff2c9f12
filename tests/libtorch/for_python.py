#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the libraries of CUDA that `import torch` needs and this machine lacks.

    PYTHON tests/libtorch/for_python.py

The torch is the one that PYTHON finds, from a wheel that was installed without its requirements: 3 GB of libraries, of
which an installed CUDA Toolkit has most. Those that are not here, or are too old, are installed beside it, as it requires
them. The exit status is 0 if it then loads; otherwise 1, and the last line has the reason.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys

SECONDS = 600  # that the libraries may take


def lacks(torch):
    """What the loader does not find for the torch in this directory: libraries, and symbols that the library here, of
    another version, does not have."""
    ldd = subprocess.run(["ldd", "-r", os.path.join(torch, "lib", "libtorch_python.so")], capture_output=True, text=True)
    libraries = set(re.findall(r"^\s*lib(\S+) => not found", ldd.stdout, re.MULTILINE))
    return libraries, set(re.findall(r"^undefined symbol: (\w+)", ldd.stdout + ldd.stderr, re.MULTILINE))


def requirement_with(name, requirements):
    """The requirement of torch whose package has a library or a symbol of this name, or None."""
    name = name.lower()
    for requirement in requirements:
        of = re.match(r"nvidia-(\w+)-cu\d+==[^;\s]+", requirement)
        if of and name.startswith(of[1]):
            return of[0]
    for requirement in requirements:
        of = re.match(r"cuda-toolkit\[([\w,]+)\](==[^;\s]+)", requirement)
        parts = [part for part in of[1].split(",") if name.startswith(part)] if of else []
        if parts:
            return f"cuda-toolkit[{max(parts, key=len)}]{of[2]}"
    return None


def install(python, requirement):
    """The reason why it is not installed, or None."""
    # The parts of cuda-toolkit are its requirements; the others' requirements are libraries that may be here.
    options = ["--quiet", "--no-cache-dir", *([] if requirement.startswith("cuda-toolkit") else ["--no-deps"])]
    print(f"installing {requirement} for torch", file=sys.stderr)
    try:
        pip = [python, "-m", "pip", "install", *options, requirement]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"pip: {error}"
    return f"pip: {(done.stderr.strip().splitlines() or ['no output'])[-1]}" if done.returncode != 0 else None


def main():
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return "there is no torch"
    torch = os.path.dirname(spec.origin)
    python = os.path.normpath(os.path.join(torch, *[os.pardir] * 4, "bin", "python"))
    requirements = importlib.metadata.requires("torch") or []
    installed = set()
    while True:
        libraries, symbols = lacks(torch)
        wanted = {requirement_with(name, requirements) for name in libraries | symbols} - installed - {None}
        if not wanted:  # a symbol of no requirement is Python's
            break
        for requirement in sorted(wanted):
            reason = install(python, requirement)
            if reason is not None:
                return reason
        installed |= wanted
    imported = subprocess.run([sys.executable, "-c", "import torch.distributed"], capture_output=True, text=True)
    return imported.stderr.strip().splitlines()[-1] if imported.returncode != 0 else None


if __name__ == "__main__":
    reason = main()
    if reason is not None:
        print(reason, file=sys.stderr)
        sys.exit(1)
