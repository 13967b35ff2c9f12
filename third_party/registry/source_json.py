#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes source.json of each module here: the digests of its archive (below) and of its overlay.

    third_party/registry/source_json.py [--check]

--check writes nothing, and exits with 1 if a file differs from the result.

The SHA-256 of an archive is upstream's, which many recipes record. Debian's libisal_2.31.1.orig.tar.gz is the same
file, bit for bit. Its hdf5_1.14.5+repack.orig.tar.gz is not: Debian removes files from it.
"""
import argparse
import base64
import hashlib
import json
import pathlib
import sys

MODULES = {
    "hdf5/1.14.5": {
        "url": "https://github.com/HDFGroup/hdf5/releases/download/hdf5_1.14.5/hdf5-1.14.5.tar.gz",
        "sha256": "ec2e13c52e60f9a01491bb3158cb3778c985697131fc6a342262d32a26e58e44",
        "strip_prefix": "hdf5-1.14.5",
    },
    "isa-l/2.31.1": {
        "url": "https://github.com/intel/isa-l/archive/refs/tags/v2.31.1.tar.gz",
        "sha256": "e1d5573a4019738243b568ab1e1422e6ab7557c5cae33cc8686944d327ad6bb4",
        "strip_prefix": "isa-l-2.31.1",
    },
}


def integrity(digest):
    return "sha256-" + base64.b64encode(digest).decode()


def source_json(folder, module):
    overlay = folder / "overlay"
    files = sorted(path for path in overlay.rglob("*") if path.is_file())
    return json.dumps({
        "url": module["url"],
        "integrity": integrity(bytes.fromhex(module["sha256"])),
        "strip_prefix": module["strip_prefix"],
        "overlay": {
            str(path.relative_to(overlay)): integrity(hashlib.sha256(path.read_bytes()).digest()) for path in files
        },
    }, indent=4) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    modules = pathlib.Path(__file__).resolve().parent / "modules"
    status = 0
    for name, module in MODULES.items():
        path = modules / name / "source.json"
        wanted = source_json(modules / name, module)
        if not check:
            path.write_text(wanted)
        elif not path.exists() or path.read_text() != wanted:
            print(f"{path}: differs from what its overlay gives; run third_party/registry/source_json.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
