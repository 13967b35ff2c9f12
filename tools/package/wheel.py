#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel fsdp_checkpoint: the Python package, libfsdp_checkpoint.so with the libraries that it is linked with,
and the static ckpt, which pip puts into the environment's bin/.

  ./bazelw run //tools:wheel -- --output_dir=DIR

Prints the wheel's path. Equal inputs give equal bytes. Standard library only.
"""

import argparse
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

import module_version

# Present on every Linux.
OF_THE_SYSTEM = (
    "linux-vdso",
    "ld-linux",
    "libc.so",
    "libm.so",
    "libdl.so",
    "libpthread.so",
    "librt.so",
    "libstdc++",
    "libgcc_s",
)

# Debian's packages whose code is in the library or in ckpt, or whose libraries are in the wheel.
LICENSED = ("libabsl-dev", "libaec-dev", "libc6", "libcurl4", "libhdf5-dev", "libhwy-dev", "libisal-dev", "libssl3",
            "libstdc++6", "liburing-dev", "libxxhash-dev", "libzstd-dev", "nlohmann-json3-dev", "zlib1g-dev")  # fmt: skip

NAME = "fsdp_checkpoint"
METADATA = """\
Metadata-Version: 2.1
Name: fsdp-checkpoint
Version: {version}
Summary: Verified checkpoints in plain HDF5 for PyTorch, and every format that ckpt reads
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy; extra == 'numpy'
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == 'torch'
"""


def libraries_beside(library):
    """The shared libraries that `library` needs, directly or not, and that a bare system lacks: {name: path}."""
    output = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    found = {}
    for line in output.splitlines():
        name = line.split()[0]
        if os.path.basename(name).startswith(OF_THE_SYSTEM):
            continue
        match = re.search(r"=> (/\S+)", line)
        if match is None:
            sys.exit(f"wheel: {library} needs {name}, which is not found here")
        found[name] = match.group(1)
    return found


def glibc_of(libraries):
    """The oldest C library that these run with, as (2, 18)."""
    newest = (2, 0)
    for library in libraries:
        text = subprocess.run(["readelf", "--version-info", "--wide", library], check=True, capture_output=True,
                              text=True, env={**os.environ, "LC_ALL": "C"}).stdout
        _, needs, wanted = text.partition("Version needs section")
        if not needs or "Name: GLIBC_" not in wanted:
            sys.exit(f"wheel: {library} says of no C library that it wants it")
        if "Name: GLIBCXX_" in wanted:  # the C++ library of this machine, which comes with its C library
            wanted += "Name: GLIBC_" + platform.libc_ver()[1]
        for match in re.finditer(r"Name: GLIBC_(\d+)\.(\d+)", wanted):
            newest = max(newest, (int(match[1]), int(match[2])))
    return newest


def licences():
    for package in LICENSED:
        path = f"/usr/share/doc/{package}/copyright"
        if os.path.exists(path):  # only Debian has them in this place
            yield f"{NAME}-{{version}}.dist-info/licenses/{package}", path


def contents(arguments, version):
    """{name in the wheel: (path here, whether it is a program)}."""
    files = {}
    for path in arguments.package:
        files[f"{NAME}/{os.path.basename(path)}"] = (path, False)
    files[f"{NAME}/libfsdp_checkpoint.so"] = (arguments.library, True)
    for name, path in libraries_beside(arguments.library).items():
        files[f"{NAME}/libfsdp_checkpoint.libs/{name}"] = (path, True)
    files[f"{NAME}-{version}.data/scripts/ckpt"] = (arguments.ckpt, True)
    files[f"{NAME}-{version}.dist-info/licenses/LICENSE"] = (arguments.license, False)
    for name, path in licences():
        files[name.format(version=version)] = (path, False)
    return files


def add(archive, record, name, data, is_program):
    entry = zipfile.ZipInfo(name)  # 1980: the time of the build must not matter
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if is_program else 0o100644) << 16
    archive.writestr(entry, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    record.append(f"{name},sha256={digest},{len(data)}")


def write_wheel(arguments, version, tag, path):
    info = f"{NAME}-{version}.dist-info"
    record = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, (source, is_program) in sorted(contents(arguments, version).items()):
            with open(source, "rb") as file:
                add(archive, record, name, file.read(), is_program)
        add(archive, record, f"{info}/METADATA", METADATA.format(version=version).encode(), False)
        wheel = f"Wheel-Version: 1.0\nGenerator: fsdp {version}\nRoot-Is-Purelib: false\nTag: {tag}\n"
        add(archive, record, f"{info}/WHEEL", wheel.encode(), False)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join([*record, f"{info}/RECORD,,", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="directory for the wheel; made if needed")
    for name in ("caller_dir", "library", "ckpt", "license", "module"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)  # Bazel's
    parser.add_argument("--package", nargs="+", required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    version = module_version.of(arguments.module)
    major, minor = glibc_of([arguments.library, *libraries_beside(arguments.library).values()])
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    output_dir = os.path.join(arguments.caller_dir, arguments.output_dir)
    os.makedirs(output_dir, exist_ok=True)
    path = os.path.join(output_dir, f"{NAME}-{version}-{tag}.whl")
    with tempfile.NamedTemporaryFile(dir=output_dir, suffix=".tmp", delete=False) as file:
        temporary = file.name
    try:
        write_wheel(arguments, version, tag, temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    print(path)


if __name__ == "__main__":
    main()
