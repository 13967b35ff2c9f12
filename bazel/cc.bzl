# SPDX-License-Identifier: Apache-2.0
"""cc_library, cc_test and cc_binary with the project's compiler options and include paths.

A library's headers are included as "fsdp/<package>/<file>", here and in every repository that depends on this one; each
header must be in `hdrs`, because headers in `srcs` get no prefix.

The rules come from @rules_cc, the only spelling that Bazel 4 to 9 all accept. -std=c++20 is set here and not only in
.bazelrc, because a consumer's build does not read ours; -Werror is only in .bazelrc, because a consumer's compiler may
be newer.
"""

load("@local_compiler//:config.bzl", "IS_GCC")
load("@rules_cc//cc:defs.bzl", _cc_binary = "cc_binary", _cc_library = "cc_library", _cc_test = "cc_test")

COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
]

# A test is compiled as often as it runs, so compile it fast. gcc 12 derives wrong warnings about values and bounds at
# -O1.
TEST_COPTS = COPTS + [
    "-O1",
    "-Wno-array-bounds",
    "-Wno-maybe-uninitialized",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-uninitialized",
]

def _is_here():
    """Whether the package is in the main repository. Bazel 4 has only the older name; later releases will remove it."""
    return not native.repo_name() if hasattr(native, "repo_name") else native.repository_name() == "@"

def _with_prelude(prelude, copts, kwargs):
    """Makes the sources of a target read a precompiled header first (see precompiled.bzl).

    Only for gcc, only in this repository, and not in targets with their own options: gcc uses a precompiled header that
    was made with another -O or -f, and then compiles with the header's options.
    """
    if copts or not IS_GCC or not _is_here():
        return copts
    kwargs["deps"] = kwargs.get("deps", []) + ["//bazel:" + prelude]

    # -fpch-deps: Bazel learns from the compiler which headers a source depends on.
    return ["-include", "fsdp_%s.h" % prelude, "-fpch-deps"]

def cc_library(name, copts = [], prelude = "prelude", **kwargs):
    # Both prefixes are given, because Bazel's default for the missing one changed between releases.
    kwargs.setdefault("strip_include_prefix", "/" + native.package_name())
    kwargs.setdefault("include_prefix", ("fsdp/" + native.package_name()).rstrip("/"))

    # Without this, building a library also makes a shared one, and so compiles everything twice (PIC and not).
    kwargs.setdefault("linkstatic", True)
    copts = _with_prelude(prelude, copts, kwargs)
    _cc_library(name = name, copts = COPTS + copts, **kwargs)

def cc_binary(name, copts = [], prelude = "prelude", **kwargs):
    copts = _with_prelude(prelude, copts, kwargs)
    _cc_binary(name = name, copts = COPTS + copts, **kwargs)

def cc_test(name, copts = [], size = "small", prelude = "test_prelude", **kwargs):
    copts = _with_prelude(prelude, copts, kwargs)
    _cc_test(name = name, copts = TEST_COPTS + copts, size = size, **kwargs)
