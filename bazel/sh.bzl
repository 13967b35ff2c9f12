# SPDX-License-Identifier: Apache-2.0
"""sh_binary and sh_test: a script with a first line that names its interpreter, and the files that it needs.

Bazel 8 has no native rules for scripts, Bazel 4 does not support @rules_shell, and this repository needs no more than
this.
"""

def _script_impl(ctx):
    if len(ctx.files.srcs) != 1:
        fail("%s: srcs has %d files; expected one script" % (ctx.label, len(ctx.files.srcs)))
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = executable, target_file = ctx.files.srcs[0], is_executable = True)
    runfiles = ctx.runfiles(files = ctx.files.srcs + ctx.files.data + [executable])
    for target in ctx.attr.data:
        runfiles = runfiles.merge(target[DefaultInfo].default_runfiles)
    return [DefaultInfo(executable = executable, files = depset([executable]), runfiles = runfiles)]

_ATTRS = {
    "srcs": attr.label_list(allow_files = True, mandatory = True, doc = "One script."),
    "data": attr.label_list(allow_files = True, doc = "The files of its runfiles."),
}

sh_binary = rule(implementation = _script_impl, attrs = _ATTRS, executable = True)

sh_test = rule(implementation = _script_impl, attrs = _ATTRS, test = True)
