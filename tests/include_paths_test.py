#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every include is a path in the repository, and compile_flags.txt is enough for an editor to parse any file.

include/fsdp is a link to the root, so "fsdp/ROOM/FILE.h" exists as include/fsdp/ROOM/FILE.h. The files are read next to
the real README.md, which is a link in a test's runfiles.
"""
import collections
import concurrent.futures
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.path.realpath("README.md")).parent
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
# Not parsed: outputs, another repository, other people's sources, stand-ins for CUDA's own headers.
SKIPPED = re.compile(r"(bazel-|include/fsdp|tests/consumer|third_party/registry|cuda/emulator/include|\.)|.*/testdata/")
# Headers that exist only if their library is installed, with the package that has them.
OPTIONAL = {"nccl.h": "NCCL", "mpi.h": "an MPI", "torch/": "LibTorch", "ATen/": "LibTorch", "c10/": "LibTorch"}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def sources():
    found = []
    for folder, folders, files in os.walk(ROOT):
        place = os.path.relpath(folder, ROOT)
        here = "" if place == "." else place + "/"
        folders[:] = [name for name in folders if not SKIPPED.match(here + name)]
        found += [here + name for name in files if pathlib.Path(name).suffix in SUFFIXES]
    return sorted(found)


def includes(path):
    return INCLUDE.findall((ROOT / path).read_text())


def flags():
    torch = os.environ.get("TORCH_PATH")
    more = [f"-isystem{torch}/include", f"-isystem{torch}/include/torch/csrc/api/include"] if torch else []
    return [*(ROOT / "compile_flags.txt").read_text().split(), *more]


def is_found(header):
    folders = [flag[2:] for flag in flags() if flag.startswith("-I")] + [flag[8:] for flag in flags() if "isystem" in flag]
    return any(glob.glob(str(ROOT / folder / header) + "*") for folder in [*folders, "/usr/include"])


def parse(path):
    """The compiler's first lines about a file, or nothing if it parses."""
    done = subprocess.run([os.environ.get("CXX", "g++"), *flags(), "-Wno-unused", "-fsyntax-only", path], cwd=ROOT,
                          capture_output=True, text=True, timeout=300)
    return "" if done.returncode == 0 else f"{path}: " + "\n".join(done.stderr.splitlines()[:4])


@unittest.skipUnless((ROOT / ".git").exists(), "an archive of a release has no include/fsdp, which only editors need")
class IncludePaths(unittest.TestCase):
    maxDiff = None

    def test_every_include_of_the_prefix_names_a_file_of_the_repository(self):
        files = sources()
        self.assertGreater(len(files), 500)
        missing = [f"{path} includes {header}: no file {ROOT.name}/include/{header}" for path in files
                   for header in includes(path) if header.startswith("fsdp/") and not (ROOT / "include" / header).is_file()]
        self.assertEqual(missing, [])

    def test_the_link_is_relative_so_that_a_clone_anywhere_has_it(self):
        self.assertEqual(os.readlink(ROOT / "include" / "fsdp"), "..")

    @unittest.skipUnless(shutil.which(os.environ.get("CXX", "g++")), "there is no compiler on the PATH")
    def test_a_file_of_each_room_parses_with_these_flags_alone(self):
        rooms = collections.defaultdict(list)
        for path in sources():
            rooms[os.path.dirname(path)].append(path)
        self.assertGreater(len(rooms), 40)
        chosen, skipped = [], []
        for room, paths in sorted(rooms.items()):
            wanted = {path: [name for prefix, name in OPTIONAL.items() if not is_found(prefix)
                             and any(header.startswith(prefix) for header in closure(path))] for path in paths}
            parsed = [path for path in paths if not wanted[path]]
            # Parses, of the files that include ours, the one that reads the least: two processors parse some sixty
            # files.
            if parsed:
                chosen.append(min(parsed, key=lambda path: (not own_includes(path), len(closure(path)), path)))
            else:
                skipped.append(f"{room}/: {', '.join(sorted({name for names in wanted.values() for name in names}))}")
        if skipped:
            print("SKIPPED, not installed here: " + "; ".join(skipped), file=sys.stderr)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            self.assertEqual([fault for fault in pool.map(parse, chosen) if fault], [])


def own_includes(path):
    return [header for header in includes(path) if header.startswith("fsdp/")]


def closure(path, seen=None):
    """All headers that a file reaches through ours."""
    seen = set() if seen is None else seen
    for header in includes(path):
        if header not in seen:
            seen.add(header)
            if header.startswith("fsdp/") and (ROOT / "include" / header).is_file():
                closure(header[len("fsdp/"):], seen)
    return seen


if __name__ == "__main__":
    unittest.main()
