# SPDX-License-Identifier: Apache-2.0
"""The installed libraries for module mode (Bazel 7 and later); see MODULE.bazel."""

load(":deps.bzl", "development_repositories", "system_repositories")

def _system_deps_impl(_module_ctx):
    system_repositories()

system_deps = module_extension(implementation = _system_deps_impl)

def _dev_deps_impl(_module_ctx):
    development_repositories()

dev_deps = module_extension(implementation = _dev_deps_impl)
