#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Debian package of the static programs, for any Debian or Ubuntu on this architecture: ckpt, launch (as
fsdp-launch), their manual pages, and completion for bash,
zsh and fish.

  ./bazelw run //tools:deb -- --output_dir=DIR

Prints the package's path. Equal inputs give equal bytes. Needs dpkg-deb.
"""

import argparse
import gzip
import os
import platform
import re
import shutil
import subprocess
import tempfile

import completions
import man_pages
import module_version
import program_help

NAME = "fsdp-tools"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

# The time of every file in the package.
EPOCH = 1704067200

CONTROL = """\
Package: {name}
Version: {version}
Architecture: {architecture}
Maintainer: The fsdp developers <fsdp@localhost>
Installed-Size: {kib}
Section: science
Priority: optional
Description: verified checkpoints in plain HDF5: look, check, convert
 ckpt inspects, verifies, converts, compares, repairs and prunes checkpoints of
 training: its own in HDF5, safetensors, torch.save, Hugging Face directories
 and torch.distributed.checkpoint. fsdp-launch starts the ranks of a job. Both
 are static and depend on nothing.
"""


def write(root, path, content, mode=0o644):
    path = os.path.join(root, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def fill(root, arguments, version):
    """The tree of the package."""
    for source, name in ((arguments.ckpt, "ckpt"), (arguments.launch, "fsdp-launch")):
        with open(source, "rb") as file:
            write(root, f"usr/bin/{name}", file.read(), 0o755)
    with program_help.called(arguments.launch, "fsdp-launch") as launch:
        pages = {**man_pages.ckpt_pages(arguments.ckpt, version), **man_pages.launch_page(launch, version)}
        shells = {"bash-completion/completions/ckpt": completions.bash(arguments.ckpt),
                  "bash-completion/completions/fsdp-launch": completions.launch_bash(launch),
                  "zsh/vendor-completions/_ckpt": completions.zsh(arguments.ckpt),
                  "zsh/vendor-completions/_fsdp-launch": completions.launch_zsh(launch),
                  "fish/vendor_completions.d/ckpt.fish": completions.fish(arguments.ckpt),
                  "fish/vendor_completions.d/fsdp-launch.fish": completions.launch_fish(launch)}
    for name, text in pages.items():
        write(root, f"usr/share/man/man1/{name}.gz", gzip.compress(text.encode(), mtime=0))
    for name, text in shells.items():
        write(root, f"usr/share/{name}", text.encode())
    with open(arguments.license, "rb") as file:
        write(root, f"usr/share/doc/{NAME}/copyright", file.read())
    with open(arguments.changelog, "rb") as file:
        write(root, f"usr/share/doc/{NAME}/NEWS.gz", gzip.compress(file.read(), mtime=0))


def control(root, version):
    size = sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(root) for name in names)
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise SystemExit(f"deb: {machine}: Debian's name for this machine is not known")
    return CONTROL.format(name=NAME, version=version, architecture=ARCHITECTURES[machine], kib=(size + 1023) // 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True)
    for name in ("caller_dir", "ckpt", "launch", "license", "changelog", "module"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not shutil.which("dpkg-deb"):
        raise SystemExit("deb: there is no dpkg-deb (Debian: dpkg)")
    version = module_version.of(arguments.module)
    output_dir = os.path.join(arguments.caller_dir, arguments.output_dir)
    os.makedirs(output_dir, exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        fill(root, arguments, version)
        text = control(root, version)
        write(root, "DEBIAN/control", text.encode())
        architecture = re.search(r"^Architecture: (.*)$", text, re.MULTILINE).group(1)
        path = os.path.join(output_dir, f"{NAME}_{version}_{architecture}.deb")
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, path], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "LC_ALL": "C"})
    print(path)


main()
