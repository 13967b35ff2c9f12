# SPDX-License-Identifier: Apache-2.0
"""torch_library, torch_test and torch_binary: C++ rules whose sources include LibTorch's headers.

They read LibTorch's precompiled header first and depend on @libtorch. Without a LibTorch they are incompatible: "//..."
skips them, and naming one is an error with the reason.
"""

load("@libtorch//:config.bzl", "LIBTORCH_AVAILABLE")
load("//bazel:cc.bzl", "cc_binary", "cc_library", "cc_test")

# For target_compatible_with.
LIBTORCH_COMPATIBLE = [] if LIBTORCH_AVAILABLE else ["//third_party:unavailable"]

def _with_libtorch(prelude, deps, kwargs):
    return dict(
        kwargs,
        prelude = prelude,
        target_compatible_with = LIBTORCH_COMPATIBLE,
        deps = deps + ["@libtorch"],
    )

def torch_library(name, deps = [], **kwargs):
    cc_library(name = name, **_with_libtorch("libtorch_prelude", deps, kwargs))

def torch_binary(name, deps = [], **kwargs):
    cc_binary(name = name, **_with_libtorch("libtorch_prelude", deps, kwargs))

def torch_test(name, deps = [], **kwargs):
    cc_test(name = name, **_with_libtorch("libtorch_test_prelude", deps, kwargs))
