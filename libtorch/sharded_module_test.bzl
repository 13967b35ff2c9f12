# SPDX-License-Identifier: Apache-2.0
"""sharded_module_test: a torch_test that trains the models of models_testutil.h on ranks."""

load("//bazel:torch.bzl", "torch_test")

def sharded_module_test(name, deps = [], **kwargs):
    torch_test(
        name = name,
        size = "medium",
        srcs = [name + ".cc"],
        deps = [
            ":libtorch",
            ":models_testutil",
            "//base:status_macros",
            "//base:status_matchers",
            "//collectives:run_ranks",
            "@com_google_googletest//:gtest_main",
        ] + deps,
        **kwargs
    )
