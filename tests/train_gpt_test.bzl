# SPDX-License-Identifier: Apache-2.0
"""train_gpt_test: a cc_test that runs the program train_gpt, by train_gpt_run.h, on ranks that take two cores."""

load("//bazel:cc.bzl", "cc_test")

def train_gpt_test(name, size = "medium", data = [], deps = [], **kwargs):
    cc_test(
        name = name,
        size = size,
        srcs = [name + ".cc"],
        data = [":golden", "//train:train_gpt"] + data,
        tags = ["cpu:2"],
        deps = [
            ":train_gpt_run",
            "//base:status_matchers",
            "@com_google_googletest//:gtest_main",
        ] + deps,
        **kwargs
    )
