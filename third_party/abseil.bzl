# SPDX-License-Identifier: Apache-2.0
"""The installed Abseil under upstream's labels, such as @com_google_absl//absl/status:statusor.

Every library of the installed Abseil has a pkg-config file that names its library and its requirements. Each becomes a
cc_library in the root package, with aliases in packages named like the header directories.
"""

load(":system_libs.bzl", "find_library", "missing", "sysroot")

_PKGCONFIG_DIRS = [
    "/usr/lib/x86_64-linux-gnu/pkgconfig",
    "/usr/lib/aarch64-linux-gnu/pkgconfig",
    "/usr/lib64/pkgconfig",
    "/usr/local/lib/pkgconfig",
    "/usr/lib/pkgconfig",
]

# pkg-config names whose label cannot be derived from their headers.
_EXCEPTIONS = {
    "btree": "container:btree",
    "config": "base:config",
    "core_headers": "base:core_headers",
    "flags": "flags:flag",
    "log_severity": "base:log_severity",
    "random_random": "random:random",
}

def _requires(text):
    for line in text.split("\n"):
        if line.startswith("Requires:"):
            parts = [part.strip().split(" ")[0] for part in line[len("Requires:"):].split(",")]
            return [part for part in parts if part]
    return []

def _label_of(ctx, name):
    """'directory:target' of absl_<name>, or None if it is internal."""
    if name in _EXCEPTIONS:
        return _EXCEPTIONS[name]
    include = sysroot(ctx) + "/usr/include/absl"
    if ctx.path(include + "/" + name).exists:
        return name + ":" + name
    parts = name.split("_")
    for i in range(1, len(parts)):
        directory = "_".join(parts[:i])
        rest = "_".join(parts[i:])
        if ctx.path("%s/%s/%s.h" % (include, directory, rest)).exists:
            return directory + ":" + rest
    for entry in ctx.path(include).readdir():
        if ctx.path("%s/%s.h" % (entry, name)).exists:
            return entry.basename + ":" + name
    return None

def _abseil_impl(ctx):
    pkgconfig = None
    for directory in _PKGCONFIG_DIRS:
        if ctx.path(sysroot(ctx) + directory + "/absl_base.pc").exists:
            pkgconfig = sysroot(ctx) + directory
            break
    include = sysroot(ctx) + "/usr/include/absl"
    if not pkgconfig or not ctx.path(include).exists:
        missing(ctx, "Abseil")
    ctx.symlink(include, "include/absl")
    root = ['load("@rules_cc//cc:defs.bzl", "cc_library")', 'package(default_visibility = ["//visibility:public"])', """
cc_library(
    name = "headers",
    hdrs = glob(["include/absl/**/*.h", "include/absl/**/*.inc"]),
    includes = ["include"],
)"""]
    packages = {}
    files = sorted([entry.basename for entry in ctx.path(pkgconfig).readdir()])
    for name in [file[:-len(".pc")] for file in files if file.startswith("absl_") and file.endswith(".pc")]:
        library = find_library(ctx, name)
        srcs = []
        if library:
            ctx.symlink(library, "lib/" + library.basename)
            srcs = ["lib/" + library.basename]
        requires = [r for r in _requires(ctx.read(pkgconfig + "/" + name + ".pc")) if r.startswith("absl_") and r != name]
        root.append("""
cc_library(
    name = "%s",
    srcs = %s,
    linkopts = ["-lpthread"],
    linkstatic = True,
    deps = [":headers"] + %s,
)""" % (name, repr(srcs), repr([":" + r for r in requires])))
        label = _label_of(ctx, name[len("absl_"):])
        if label:
            directory, target = label.split(":")
            packages.setdefault(directory, {})[target] = name
    ctx.file("BUILD.bazel", "\n".join(root) + "\n")
    for directory, targets in packages.items():
        ctx.file("absl/%s/BUILD.bazel" % directory, 'package(default_visibility = ["//visibility:public"])\n' + "".join([
            '\nalias(name = "%s", actual = "//:%s")\n' % (target, actual)
            for target, actual in sorted(targets.items())
        ]))

system_abseil = repository_rule(
    implementation = _abseil_impl,
    attrs = {"debian_package": attr.string(default = "libabsl-dev")},
    environ = ["FSDP_SYSROOT"],
    local = True,
)
