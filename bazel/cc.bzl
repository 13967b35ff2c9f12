# SPDX-License-Identifier: Apache-2.0
"""cc_library, cc_test and cc_binary with the project's compiler options and include paths.

A library's headers are included as "fsdp/<package>/<file>", here and in every repository that depends on this one; each
header must be in `hdrs`, since those in `srcs` get no prefix.

The rules come from @rules_cc, the one spelling that Bazel 4 to 9 all accept. -std=c++20 is set here and not in .bazelrc
alone, since a consumer's build does not read ours; -Werror is in .bazelrc alone, since a consumer's compiler may be newer.
"""

load("@rules_cc//cc:defs.bzl", _cc_binary = "cc_binary", _cc_library = "cc_library", _cc_test = "cc_test")

COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
]

def cc_library(name, copts = [], **kwargs):
    # Both prefixes are given, because what Bazel takes for the one that is left out changed between releases.
    kwargs.setdefault("strip_include_prefix", "/" + native.package_name())
    kwargs.setdefault("include_prefix", "fsdp/" + native.package_name())

    # Without this, building a library makes a shared one as well, and so compiles everything twice (PIC and not).
    kwargs.setdefault("linkstatic", True)
    _cc_library(name = name, copts = COPTS + copts, **kwargs)

def cc_binary(name, copts = [], **kwargs):
    _cc_binary(name = name, copts = COPTS + copts, **kwargs)

def cc_test(name, copts = [], size = "small", **kwargs):
    _cc_test(name = name, copts = COPTS + copts, size = size, **kwargs)
