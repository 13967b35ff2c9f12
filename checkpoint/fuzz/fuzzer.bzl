# SPDX-License-Identifier: Apache-2.0
"""cc_fuzzer: a libFuzzer program of one function of fuzz_targets.h. Built by name, with --config=fuzz:

    ./bazelw build --config=fuzz //checkpoint/fuzz:manifest_fuzzer
    bazel-bin/checkpoint/fuzz/manifest_fuzzer -max_total_time=60 NEW_INPUTS checkpoint/fuzz/corpus/manifest
"""

load("//bazel:cc.bzl", "cc_binary")

def cc_fuzzer(name, target):
    cc_binary(
        name = name,
        testonly = True,
        srcs = ["fuzzer.cc"],
        local_defines = ["FSDP_FUZZ_TARGET=" + target],
        tags = ["manual"],
        deps = [":fuzz_targets"],
    )
