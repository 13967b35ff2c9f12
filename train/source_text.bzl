# SPDX-License-Identifier: Apache-2.0
"""source_text: one text file made of the C++ sources of this repository that `deps` are built from.

What train_gpt trains on when it is given no data: real text that is there wherever the program was built.
"""

_SourcesInfo = provider(doc = "The source files of a target and of all it depends on.", fields = ["files"])

def _sources_aspect_impl(target, ctx):
    own = []
    if target.label.workspace_name == ctx.label.workspace_name:
        for attribute in ["hdrs", "srcs"]:
            own += getattr(ctx.rule.files, attribute, [])
    own = [f for f in own if f.is_source and f.extension in ["cc", "h"]]
    deps = [dep[_SourcesInfo].files for dep in getattr(ctx.rule.attr, "deps", []) if _SourcesInfo in dep]
    return [_SourcesInfo(files = depset(own, transitive = deps))]

_sources_aspect = aspect(implementation = _sources_aspect_impl, attr_aspects = ["deps"])

def _path(file):
    return file.short_path

def _source_text_impl(ctx):
    home = ctx.label.workspace_name
    files = depset(transitive = [dep[_SourcesInfo].files for dep in ctx.attr.deps]).to_list()
    files = [f for f in files if f.owner.workspace_name == home]
    files = sorted(files, key = _path)
    output = ctx.actions.declare_file(ctx.label.name + ".txt")
    arguments = ctx.actions.args()
    arguments.add(output)
    arguments.add_all(files)
    ctx.actions.run_shell(
        outputs = [output],
        inputs = files,
        arguments = [arguments],
        command = "out=\"$1\"; shift; cat \"$@\" > \"$out\"",
        mnemonic = "SourceText",
    )
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output]))]

source_text = rule(
    implementation = _source_text_impl,
    attrs = {"deps": attr.label_list(aspects = [_sources_aspect])},
)
