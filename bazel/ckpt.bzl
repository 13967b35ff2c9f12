# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as targets: ckpt_convert makes one from another, and ckpt_verify_test fails if one is damaged.

    load("@fsdp//bazel:ckpt.bzl", "ckpt_convert", "ckpt_verify_test")

    ckpt_convert(
        name = "model_safetensors",
        src = "//models:step-00001000",
        to = "safetensors",
    )

    ckpt_verify_test(
        name = "model_safetensors_test",
        src = ":model_safetensors",
    )

Both run the ckpt of a toolchain. fsdp registers one that builds it from source; a workspace that already has a ckpt,
such as ckpt_static of a release, registers that one first:

    ckpt_toolchain(
        name = "released_ckpt",
        ckpt = "@ckpt//file",
    )

and register_toolchains("//:released_ckpt") in MODULE.bazel or WORKSPACE.
"""

# A string that contains the repository, because Bazel 4 accepts nothing else.
_TYPE = str(Label("//tools:ckpt_toolchain_type"))

# Format -> the suffix of a file of it, or None if it is a directory.
_FORMATS = {
    "dcp": None,
    "deepspeed": None,
    "gguf": ".gguf",
    "hdf5": None,
    "megatron": None,
    "npz": ".npz",
    "safetensors": ".safetensors",
    "torch": ".pt",
}

def _toolchain_impl(ctx):
    program = ctx.attr.ckpt[DefaultInfo]
    return [platform_common.ToolchainInfo(ckpt = program.files_to_run, runfiles = program.default_runfiles)]

_ckpt_toolchain = rule(
    implementation = _toolchain_impl,
    attrs = {
        "ckpt": attr.label(
            allow_files = True,
            cfg = "exec",
            executable = True,
            mandatory = True,
            doc = "The program: a target that builds it, or an executable file.",
        ),
    },
)

def ckpt_toolchain(name, ckpt, exec_compatible_with = [], **kwargs):
    """Makes a ckpt a toolchain that can be registered by this name.

    Args:
      name: the label to register.
      ckpt: label of the program.
      exec_compatible_with: constraints of the machines that run it, such as "@platforms//cpu:aarch64".
      **kwargs: attributes of both targets that this makes, such as visibility.
    """
    _ckpt_toolchain(name = name + "_program", ckpt = ckpt, **kwargs)
    native.toolchain(
        name = name,
        exec_compatible_with = exec_compatible_with,
        toolchain = ":%s_program" % name,
        toolchain_type = _TYPE,
        **kwargs
    )

def _directory_of(ctx, files):
    """The directory that contains all files of a checkpoint, at any depth: the shortest of their directories."""
    directories = {file.dirname: None for file in files}.keys()
    shortest = sorted(directories, key = len)[0]
    for directory in directories:
        if not (directory + "/").startswith(shortest + "/"):
            fail("%s: the files of src are in %s and %s; expected one checkpoint" % (ctx.label, shortest, directory))
    return shortest

def _checkpoint(ctx, short):
    """The path of the checkpoint `src`, in runfiles if `short`: its only file or directory, or its files' directory."""
    files = ctx.files.src
    if not files:
        fail("%s: src has no files" % ctx.label)
    if len(files) == 1 and files[0].basename != "manifest.json":
        return files[0].short_path if short else files[0].path
    directory = _directory_of(ctx, files)
    if not short:
        return directory or "."
    first = files[0]
    return first.short_path[:len(first.short_path) - len(first.path) + len(directory)] or "."

def _ckpt_convert_impl(ctx):
    suffix = _FORMATS[ctx.attr.to]
    if suffix:
        output = ctx.actions.declare_file(ctx.label.name + suffix)
    else:
        output = ctx.actions.declare_directory(ctx.label.name)
    ckpt = ctx.toolchains[_TYPE].ckpt

    # --force: Bazel makes the output directory before the action.
    arguments = ctx.actions.args()
    arguments.add_all(["convert", _checkpoint(ctx, False), output.path, "--to=" + ctx.attr.to, "--force"])
    arguments.add_all(ctx.attr.flags)
    ctx.actions.run(
        executable = ckpt,
        arguments = [arguments],
        inputs = ctx.files.src,
        outputs = [output],
        mnemonic = "CkptConvert",
        progress_message = "Converting %s to %s" % (ctx.label, ctx.attr.to),
    )
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles(files = [output]))]

_SRC = attr.label(
    allow_files = True,
    mandatory = True,
    doc = "A checkpoint: a file, a directory, or a filegroup of the files in one directory.",
)

ckpt_convert = rule(
    implementation = _ckpt_convert_impl,
    attrs = {
        "src": _SRC,
        "to": attr.string(mandatory = True, values = sorted(_FORMATS.keys()), doc = "The format."),
        "flags": attr.string_list(doc = "Further flags of `ckpt convert`, such as --dtype=bfloat16."),
    },
    toolchains = [_TYPE],
)

def _quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"

def _ckpt_verify_test_impl(ctx):
    toolchain = ctx.toolchains[_TYPE]
    ckpt = toolchain.ckpt
    script = ctx.actions.declare_file(ctx.label.name)

    # Short paths are relative to the directory in which a test starts, also for other repositories (../NAME/...).
    words = ["./" + ckpt.executable.short_path, "verify", _checkpoint(ctx, True)] + ctx.attr.flags
    ctx.actions.write(script, "#!/bin/sh\nexec %s\n" % " ".join([_quoted(word) for word in words]), is_executable = True)
    runfiles = ctx.runfiles(files = ctx.files.src + [ckpt.executable]).merge(toolchain.runfiles)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

ckpt_verify_test = rule(
    implementation = _ckpt_verify_test_impl,
    attrs = {
        "src": _SRC,
        "flags": attr.string_list(doc = "Further flags of `ckpt verify`, such as --skip_links."),
    },
    test = True,
    toolchains = [_TYPE],
)
