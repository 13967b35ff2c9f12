# SPDX-License-Identifier: Apache-2.0
"""Repository rules that find installed libraries and give them upstream's labels.

A missing library fails only the targets that need it, with the name of the Debian package. Static libraries are
preferred, so that a binary runs on a machine without the -dev packages.

FSDP_SYSROOT names a directory that replaces "/" in the search for all of them, for another kind of machine.
"""

_LIB_DIRS = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/lib",
]

_INCLUDE_DIRS = ["/usr/include", "/usr/local/include"]

def sysroot(ctx):
    """The prefix of the paths of all installed files: "", or an absolute directory."""
    root = ctx.os.environ.get("FSDP_SYSROOT", "").rstrip("/")
    if root and not (root.startswith("/") and ctx.path(root).exists):
        fail("FSDP_SYSROOT is %s; expected the absolute path of an existing directory" % root)
    return root

def find_library(ctx, name, directories = _LIB_DIRS):
    """The path of lib<name>.a, or else .so, or None."""
    for suffix in [".a", ".so"]:
        for directory in directories:
            path = ctx.path(sysroot(ctx) + directory + "/lib" + name + suffix)
            if path.exists:
                return path
    return None

def _find_header(ctx, header, directories = _INCLUDE_DIRS):
    for directory in directories:
        path = ctx.path(sysroot(ctx) + directory + "/" + header)
        if path.exists:
            return path
    return None

def missing(ctx, what):
    fail(("%s is not installed. Run ./bazelw, which installs what is missing, or: apt-get install %s") %
         (what, ctx.attr.debian_package))

def _system_library_impl(ctx):
    lines = ['load("@rules_cc//cc:defs.bzl", "cc_library")', "", 'package(default_visibility = ["//visibility:public"])', 'exports_files(glob(["lib/**"]))']
    for header in ctx.attr.headers:
        path = _find_header(ctx, header)
        if not path:
            missing(ctx, "header " + header)
        ctx.symlink(path, "include/" + header)
    for target, libraries in ctx.attr.targets.items():
        srcs = []
        deps = []
        for library in libraries:
            if library.startswith(":"):
                deps.append(library)
                continue
            path = find_library(ctx, library)
            if not path:
                missing(ctx, "library lib" + library)
            if "lib/" + path.basename not in srcs:
                ctx.symlink(path, "lib/" + path.basename)
            srcs.append("lib/" + path.basename)
        lines.append("""
cc_library(
    name = "%s",
    srcs = %s,
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = %s,
    linkstatic = True,
    deps = %s,
)""" % (target, repr(srcs), repr(ctx.attr.linkopts), repr(deps)))
    ctx.file("BUILD.bazel", "\n".join(lines) + "\n")

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "headers": attr.string_list(doc = "Headers, or directories of headers, below an include directory."),
        "targets": attr.string_list_dict(doc = "Target name -> library names without 'lib', or ':target' it depends on."),
        "linkopts": attr.string_list(),
        "debian_package": attr.string(mandatory = True),
    },
    environ = ["FSDP_SYSROOT"],
    local = True,
)

def _hdf5_impl(ctx):
    prefix = None
    for directory in ["/usr/include/hdf5/serial", "/usr/local/include", "/usr/include"]:
        if ctx.path(sysroot(ctx) + directory + "/hdf5.h").exists:
            prefix = sysroot(ctx) + directory
            break
    if not prefix:
        missing(ctx, "HDF5 (hdf5.h)")
    for entry in ctx.path(prefix).readdir():
        if entry.basename.startswith("H5") or entry.basename == "hdf5.h":
            ctx.symlink(entry, "include/" + entry.basename)
    directories = [d + "/hdf5/serial" for d in _LIB_DIRS] + _LIB_DIRS
    srcs = []
    for library in ["hdf5", "sz", "aec", "z"]:
        path = find_library(ctx, library, directories)
        if path:
            ctx.symlink(path, "lib/" + path.basename)
            srcs.append("lib/" + path.basename)
        elif library == "hdf5":
            missing(ctx, "HDF5 (libhdf5)")

    # libhdf5.a also has a driver for S3, which needs curl and crypto; nothing here refers to it, so it is not linked.
    ctx.file("BUILD.bazel", """\
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "hdf5",
    srcs = %s,
    hdrs = glob(["include/*.h"]),
    includes = ["include"],
    linkopts = ["-ldl", "-lm", "-lpthread"],
    linkstatic = True,
    visibility = ["//visibility:public"],
)
""" % repr(srcs))

system_hdf5 = repository_rule(
    implementation = _hdf5_impl,
    attrs = {"debian_package": attr.string(default = "libhdf5-dev")},
    environ = ["FSDP_SYSROOT"],
    local = True,
)
