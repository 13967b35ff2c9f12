# SPDX-License-Identifier: Apache-2.0
"""Repositories of aliases: the labels that BUILD files here use, for targets of a module of the consumer's graph."""

_HEADER = 'package(default_visibility = ["//visibility:public"])\n'

def _alias(name, actual):
    return '\nalias(name = "%s", actual = "%s")\n' % (name, actual)

def _target_alias_impl(ctx):
    ctx.file("BUILD.bazel", _HEADER + _alias(ctx.attr.target, ctx.attr.actual))

target_alias = repository_rule(
    implementation = _target_alias_impl,
    attrs = {
        "target": attr.string(mandatory = True, doc = "The name here."),
        "actual": attr.string(mandatory = True, doc = "The canonical label of the target."),
    },
)

def _names_of(text):
    """The `name` of each target in a BUILD file that a formatter has put into one attribute a line."""
    names = {}
    for line in text.split("\n"):
        words = line.strip().split('"')
        if len(words) == 3 and words[0].replace(" ", "") == "name=" and words[2] == ",":
            names[words[1]] = None
    return names.keys()

def _abseil_aliases_impl(ctx):
    repository = str(ctx.attr.module).split("//")[0]
    root = ctx.path(Label(repository + "//:MODULE.bazel")).dirname
    if not root.get_child("absl").exists:
        fail("%s has no folder absl; expected the module abseil-cpp" % ctx.attr.module)
    for folder in root.get_child("absl").readdir():
        build = folder.get_child("BUILD.bazel")
        if build.exists:
            package = "absl/" + folder.basename
            ctx.file(package + "/BUILD.bazel", _HEADER + "".join([
                _alias(name, "%s//%s:%s" % (repository, package, name))
                for name in _names_of(ctx.read(build))
            ]))
    ctx.file("BUILD.bazel", "")

abseil_aliases = repository_rule(
    implementation = _abseil_aliases_impl,
    attrs = {"module": attr.label(mandatory = True, doc = "Any label in the module abseil-cpp.")},
)
