#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the libraries, headers and programs for builds without Bazel.

  ./bazelw run //tools:install -- --prefix=DIR

PREFIX/include/fsdp/..., lib/libfsdp*.a, lib/libfsdp_checkpoint.so and fsdp_checkpoint.h for C, bin/ckpt and
bin/fsdp-launch, lib/pkgconfig/*.pc, and lib/cmake/fsdp/fsdpConfig.cmake, which finds PREFIX from its own location.
Existing files of these names are replaced, no others touched. --destdir=DIR puts PREFIX below DIR, as make install
does.
"""

import argparse
import functools
import json
import os
import re
import shutil
import subprocess

import module_version

SYSTEM = ("/usr/", "/lib/", "/opt/")

# Archive -> (its description in the .pc file, the archives that it depends on).
LIBRARIES = {
    "fsdp_collectives": ("Process groups and collectives of fsdp", []),
    "fsdp_checkpoint": ("Checkpoints of fsdp in HDF5, and converters", ["fsdp_collectives"]),
    "fsdp": ("Fully sharded data parallel training", ["fsdp_checkpoint", "fsdp_collectives"]),
}
WHOLE = "fsdp_kernels"
C_LIBRARY = "fsdp_checkpoint_c"

PC = """\
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: {name}
Description: {description}
Version: {version}
Requires: {requires}
Cflags: -I${{includedir}}{cflags}
Libs: -L${{libdir}} {libs}
"""

CMAKE_HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Targets: fsdp::collectives, fsdp::checkpoint, fsdp::fsdp, and for programs in C fsdp::checkpoint_c.
get_filename_component(_fsdp_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
"""

CMAKE_TARGET = """
if(NOT TARGET fsdp::{target})
  add_library(fsdp::{target} {kind} IMPORTED)
  set_target_properties(fsdp::{target} PROPERTIES
    IMPORTED_LOCATION "${{_fsdp_prefix}}/lib/{file}"
    INTERFACE_INCLUDE_DIRECTORIES "${{_fsdp_prefix}}/include"
    INTERFACE_COMPILE_FEATURES "{features}"
    INTERFACE_COMPILE_DEFINITIONS "{defines}"
    INTERFACE_LINK_LIBRARIES "{libs}")
endif()
"""

CMAKE_VERSION = """\
# SPDX-License-Identifier: Apache-2.0
# Releases with the same first two numbers are interchangeable (docs/compatibility.md).
set(PACKAGE_VERSION "{version}")
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION AND
   "${{PACKAGE_FIND_VERSION_MAJOR}}.${{PACKAGE_FIND_VERSION_MINOR}}" STREQUAL "{minor}")
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
"""


def link_flags(wanted):
    """For the libraries in cpp.json: -lX for one that every linker finds, else its path."""
    flags = []
    for item in wanted:
        if item.startswith("-"):
            flags.append(item)
            continue
        # Bazel's links lead to the library's original location.
        path = item
        while os.path.islink(path) and not path.startswith(SYSTEM):
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        path = os.path.normpath(path)
        name = re.fullmatch(r"lib(.*?)\.(a|so)(\..*)?", os.path.basename(path)).group(1)
        flags.append("-l" + name if os.path.dirname(path) in linker_dirs() else path)
    # Some are needed by others that come later; linkers that drop libraries without a reference so far would drop them.
    return ["-Wl,--push-state,--no-as-needed", *flags, "-Wl,--pop-state"] if flags else []


@functools.lru_cache()
def linker_dirs():
    output = subprocess.run(["gcc", "-print-search-dirs"], capture_output=True, text=True, check=True).stdout
    return {os.path.normpath(path) for path in output.partition("libraries: =")[2].strip().split(":")}


class Installer:
    def __init__(self, prefix):
        self.prefix = prefix

    def path(self, name):
        path = os.path.join(self.prefix, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # A running program keeps its file.
        if os.path.lexists(path):
            os.unlink(path)
        return path

    def copy(self, source, name, mode=0o644):
        path = self.path(name)
        shutil.copyfile(source, path)
        os.chmod(path, mode)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)


def install_files(installer, arguments, description):
    for place, source in description["headers"].items():
        installer.copy(source, f"include/{place}")
    for name in list(LIBRARIES) + [WHOLE]:
        installer.copy(os.path.join(arguments.cpp_dir, f"lib{name}.a"), f"lib/lib{name}.a")
    installer.copy(arguments.library, "lib/libfsdp_checkpoint.so", 0o755)
    installer.copy(arguments.header, "include/fsdp_checkpoint.h")
    installer.copy(arguments.ckpt, "bin/ckpt", 0o755)
    installer.copy(arguments.launch, "bin/fsdp-launch", 0o755)


def write_pkg_config(installer, description, version):
    defines = "".join(f" -D{define}" for define in description["defines"])
    for name, (text, requires) in LIBRARIES.items():
        own = [f"${{libdir}}/lib{name}.a"]
        if name == "fsdp":
            own.insert(0, f"-Wl,--whole-archive,${{libdir}}/lib{WHOLE}.a,--no-whole-archive")
        installer.write(f"lib/pkgconfig/{name}.pc", PC.format(
            name=name, description=text, version=version, requires=", ".join(requires), cflags=" -std=c++20" + defines,
            libs=" ".join(own + description["libraries"][name])))
    installer.write(f"lib/pkgconfig/{C_LIBRARY}.pc", PC.format(
        name=C_LIBRARY, description="Checkpoints for programs in C and Fortran", version=version, requires="", cflags="",
        libs="${libdir}/libfsdp_checkpoint.so -Wl,-rpath,${libdir}"))


def write_cmake(installer, description, version):
    text = CMAKE_HEAD
    for name, (_, requires) in LIBRARIES.items():
        wanted = ["fsdp::" + target(required) for required in requires] + description["libraries"][name]
        if name == "fsdp":
            wanted.insert(0, f"-Wl,--whole-archive,${{_fsdp_prefix}}/lib/lib{WHOLE}.a,--no-whole-archive")
        text += CMAKE_TARGET.format(target=target(name), kind="STATIC", file=f"lib{name}.a", features="cxx_std_20",
                                    libs=";".join(wanted), defines=";".join(description["defines"]))
    text += CMAKE_TARGET.format(target="checkpoint_c", kind="SHARED", file="libfsdp_checkpoint.so", features="",
                                libs="", defines="")
    installer.write("lib/cmake/fsdp/fsdpConfig.cmake", text)
    installer.write("lib/cmake/fsdp/fsdpConfigVersion.cmake",
                    CMAKE_VERSION.format(version=version, minor=version.rpartition(".")[0]))


def target(name):
    return name[len("fsdp_"):] if name.startswith("fsdp_") else name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--destdir", default="")
    for name in ("caller_dir", "cpp_dir", "library", "header", "ckpt", "launch", "module"):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    version = module_version.of(arguments.module)
    with open(os.path.join(arguments.cpp_dir, "cpp.json"), encoding="utf-8") as file:
        description = json.load(file)
    description["libraries"] = {name: link_flags(wanted) for name, wanted in description["libraries"].items()}
    prefix = os.path.abspath(os.path.join(arguments.caller_dir, arguments.prefix))
    if arguments.destdir:
        prefix = os.path.join(arguments.caller_dir, arguments.destdir, prefix.lstrip("/"))
    installer = Installer(prefix)
    install_files(installer, arguments, description)
    write_pkg_config(installer, description, version)
    write_cmake(installer, description, version)
    print(f"fsdp {version} is in {prefix}")


main()
