# SPDX-License-Identifier: Apache-2.0
"""cc_archives: the objects of Bazel's targets as archives, for builds that do not use Bazel.

Each key of `libraries` becomes lib<key>.a with the objects of its targets and of their dependencies in this repository.
An object is in one archive only: in the first one that needs it, or, if two later ones do, in the first of all, on
which the others depend. Objects that must be linked although nothing refers to them (alwayslink) are in lib<whole>.a.

NAME.json lists, for each archive, its other requirements, as flags and as paths of installed libraries in the runfiles;
the defines; and the headers, each with its path below an include directory. A program needs no other option but
-std=c++20.
"""

load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cpp_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

_VIRTUAL = "/_virtual_includes/"

def _is_ours(label):
    # Bazel 4 has only the older name, and later releases will remove it.
    return not (label.repo_name if hasattr(label, "repo_name") else label.workspace_name)

def _linked(info):
    """(archives of this repository by path, its archives with alwayslink, flags and installed libraries)."""
    archives = {}
    whole = {}
    wanted = []
    for linker_input in info.linking_context.linker_inputs.to_list():
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if archive and _is_ours(linker_input.owner):
                (whole if library.alwayslink else archives)[archive.path] = archive
            else:
                wanted.append(archive or library.resolved_symlink_dynamic_library or library.dynamic_library)
        wanted.extend(linker_input.user_link_flags)
    return archives, whole, wanted

def _archive(ctx, toolchain, name, archives):
    output = ctx.actions.declare_file("lib%s.a" % name)
    script = ctx.actions.declare_file("lib%s.mri" % name)
    lines = ["CREATE " + output.path] + ["ADDLIB " + archive.path for archive in archives] + ["SAVE", "END", ""]
    ctx.actions.write(script, "\n".join(lines))
    ctx.actions.run_shell(
        command = "%s -M < %s" % (toolchain.ar_executable, script.path),
        inputs = depset(archives + [script], transitive = [toolchain.all_files]),
        outputs = [output],
        mnemonic = "MergeArchives",
    )
    return output

def _cc_archives_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    order = []
    infos = {}
    for target, name in ctx.attr.libraries.items():
        if name not in infos:
            order.append(name)
        infos[name] = infos.get(name, []) + [target[CcInfo]]
    merged = {name: cc_common.merge_cc_infos(cc_infos = infos[name]) for name in order}
    linked = {name: _linked(merged[name]) for name in order}

    # The archive that gets each object file.
    place = {}
    files = {}
    whole = {}
    for name in order:
        for path, file in linked[name][0].items():
            place[path] = order[0] if path in place and place[path] != name else place.get(path, name)
            files[path] = file
        whole.update(linked[name][1])
    description = {"libraries": {}, "defines": [], "headers": {}}
    outputs = []
    installed = []
    of_first = linked[order[0]][2]
    for name in order:
        outputs.append(_archive(ctx, toolchain, name, [files[path] for path in files if place[path] == name]))
        wanted = []
        for flag in linked[name][2]:
            if name == order[0] or flag not in of_first:
                if type(flag) != "string":
                    installed.append(flag)
                    flag = flag.short_path
                wanted.append(flag)
        description["libraries"][name] = depset(wanted).to_list()
    outputs.append(_archive(ctx, toolchain, ctx.attr.whole, whole.values()))

    headers = []
    defines = {}
    for name in order:
        context = merged[name].compilation_context
        defines.update({define: None for define in context.defines.to_list()})
        for header in context.headers.to_list():
            if _VIRTUAL in header.path and _is_ours(header.owner):
                place_of_header = header.path.split(_VIRTUAL)[1].split("/", 1)[1]
                if place_of_header not in description["headers"]:
                    description["headers"][place_of_header] = header.short_path
                    headers.append(header)
    description["defines"] = sorted(defines.keys())
    listing = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(listing, json.encode(description))
    outputs.append(listing)
    return [DefaultInfo(files = depset(outputs), runfiles = ctx.runfiles(files = outputs + headers + installed))]

cc_archives = rule(
    implementation = _cc_archives_impl,
    attrs = {
        "libraries": attr.label_keyed_string_dict(
            providers = [CcInfo],
            mandatory = True,
            doc = "A target -> the archive that it goes to. The others depend on the first archive.",
        ),
        "whole": attr.string(mandatory = True, doc = "The archive that a program links whole."),
        "_cc_toolchain": attr.label(default = "@rules_cc//cc:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)
