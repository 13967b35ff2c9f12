# SPDX-License-Identifier: Apache-2.0
"""fsdp_deps(): every repository that @fsdp needs, unless the caller has declared it already."""

load(":abseil.bzl", "system_abseil")
load(":compat.bzl", "remote_coverage_tools_compat", "rules_cc_compat", "rules_java_compat")
load(":cuda_toolkit.bzl", "cuda_toolkit")
load(":host_compiler.bzl", "host_compiler")
load(":libtorch.bzl", "libtorch")
load(":mpi.bzl", "local_mpi")
load(":system_libs.bzl", "system_hdf5", "system_library")

def _unless(without, rule, name, **kwargs):
    if name not in without:
        rule(name = name, **kwargs)

def development_repositories(without = []):
    """The installed libraries that only the tests and benchmarks of this repository need."""
    _unless(
        without,
        system_library,
        "com_google_googletest",
        headers = ["gtest", "gmock"],
        targets = {
            "gtest": ["gtest", "gmock"],
            "gtest_main": ["gmock_main", ":gtest"],
        },
        linkopts = ["-lpthread"],
        debian_package = "libgtest-dev libgmock-dev",
    )
    _unless(
        without,
        system_library,
        "com_github_google_benchmark",
        headers = ["benchmark"],
        targets = {
            "benchmark": ["benchmark"],
            "benchmark_main": ["benchmark_main", ":benchmark"],
        },
        linkopts = ["-lpthread"],
        debian_package = "libbenchmark-dev",
    )

def system_repositories(without = []):
    """The installed libraries that our libraries need, except the repositories in `without`.

    For both WORKSPACE mode and module mode.
    """
    _unless(without, system_abseil, "com_google_absl")
    _unless(without, system_hdf5, "system_hdf5")
    _unless(
        without,
        system_library,
        "onednn",
        headers = [
            "dnnl.h",
            "dnnl.hpp",
            "dnnl_config.h",
            "dnnl_debug.h",
            "dnnl_types.h",
            "dnnl_version.h",
            "oneapi",
        ],
        targets = {"onednn": ["dnnl"]},
        debian_package = "libdnnl-dev",
    )
    _unless(
        without,
        system_library,
        "nlohmann_json",
        headers = ["nlohmann"],
        targets = {"json": []},
        debian_package = "nlohmann-json3-dev",
    )
    _unless(
        without,
        system_library,
        "isal",
        headers = [
            "isa-l",
            "isa-l.h",
        ],
        targets = {"isal": ["isal"]},
        debian_package = "libisal-dev",
    )
    _unless(
        without,
        system_library,
        "liburing",
        headers = [
            "liburing",
            "liburing.h",
        ],
        targets = {"liburing": ["uring"]},
        debian_package = "liburing-dev",
    )
    _unless(
        without,
        system_library,
        "ucx",
        headers = [
            "ucm",
            "ucp",
            "ucs",
            "uct",
        ],
        targets = {"ucx_headers": []},
        debian_package = "libucx-dev",
    )
    _unless(
        without,
        system_library,
        "xxhash",
        headers = ["xxhash.h"],
        targets = {"xxhash": ["xxhash"]},
        debian_package = "libxxhash-dev",
    )
    _unless(
        without,
        system_library,
        "curl",
        headers = ["openssl"],
        targets = {"curl": [
            "curl",
            "ssl",
            "crypto",
        ]},
        debian_package = "libcurl4-openssl-dev libssl-dev",
    )
    _unless(
        without,
        system_library,
        "highway",
        headers = ["hwy"],
        targets = {"hwy": ["hwy"]},
        debian_package = "libhwy-dev",
    )
    _unless(
        without,
        system_library,
        "zlib",
        headers = [
            "zconf.h",
            "zlib.h",
        ],
        targets = {"zlib": ["z"]},
        debian_package = "zlib1g-dev",
    )
    _unless(
        without,
        system_library,
        "zstd",
        headers = [
            "zstd.h",
            "zstd_errors.h",
        ],
        targets = {"zstd": ["zstd"]},
        debian_package = "libzstd-dev",
    )
    _unless(without, cuda_toolkit, "local_cuda")
    _unless(without, host_compiler, "local_compiler")
    _unless(without, libtorch, "libtorch")
    _unless(without, local_mpi, "local_mpi")

def fsdp_deps():
    """For WORKSPACE files: the installed libraries, the stand-ins for rule repositories, and the toolchain of ckpt."""
    declared = native.existing_rules().keys()
    _unless(declared, rules_cc_compat, "rules_cc")
    _unless(declared, rules_java_compat, "rules_java")
    _unless(declared, remote_coverage_tools_compat, "remote_coverage_tools")
    development_repositories(declared)
    system_repositories(declared)
    native.register_toolchains("@fsdp//tools:ckpt_toolchain")
