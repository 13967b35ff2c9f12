# SPDX-License-Identifier: Apache-2.0
"""The installed MPI as @local_mpi: its headers, its shared library, and its launcher.

Its requirements come from MPI's own compiler wrapper, `mpicc -show`, which Open MPI, MPICH and their derivatives all
support. The wrapper is $MPICC, or $MPI_PATH/bin/mpicc, or the mpicc in PATH. Nothing installs MPI for a build: without
MPI, or with --repo_env=FSDP_MPI=0, the repository has the same labels as empty libraries, and MPI_AVAILABLE in its
config.bzl is False: BUILD files choose by that constant.
"""

_DEFAULT_LIB_DIRS = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]

# Libraries of a wrapper's command for programs in C; mpifort, mpi_cxx and mpichcxx are for other languages.
_C_LIBRARIES = ["mpi", "mpich", "mpi_cray", "mpi_gnu", "msmpi"]

def _wrapper(ctx):
    """The compiler wrapper's path, or None."""
    if ctx.os.environ.get("FSDP_MPI") == "0":
        return None
    named = ctx.os.environ.get("MPICC")
    prefix = ctx.os.environ.get("MPI_PATH")
    if not named and not prefix:
        return ctx.which("mpicc")
    wanted = named or prefix + "/bin/mpicc"
    path = ctx.path(wanted) if wanted.startswith("/") else ctx.which(wanted)
    if not path or not path.exists:
        fail("%s names %s, which does not exist" % ("MPICC" if named else "MPI_PATH", wanted))
    return path

def _show(ctx, wrapper):
    """The words of the command that the wrapper runs."""
    result = ctx.execute([wrapper, "-show"])
    return result.stdout.split(" ") if result.return_code == 0 else []

def _values(words, flag):
    return [word.strip()[len(flag):] for word in words if word.startswith(flag)]

def _find(ctx, directories, name):
    for directory in directories:
        path = ctx.path(directory + "/" + name)
        if directory.startswith("/") and path.exists:
            return path
    return None

def _launcher(ctx, wrapper):
    """The mpiexec next to a wrapper: Debian's mpicc.mpich has mpiexec.mpich."""
    path = ctx.path(str(wrapper.dirname) + "/" + wrapper.basename.replace("mpicc", "mpiexec"))
    return str(path) if path.exists else ""

def _installed(ctx):
    """Directories of headers, the library's path and the launcher of the MPI that is installed, or None."""
    wrapper = _wrapper(ctx)
    if not wrapper:
        return None
    words = _show(ctx, wrapper)
    includes = [d for d in _values(words, "-I") if _find(ctx, [d], "mpi.h")]
    if not includes and ctx.path("/usr/include/mpi.h").exists:
        includes = ["/usr/include"]
    library = None
    for name in _values(words, "-l"):
        if name in _C_LIBRARIES and not library:
            library = _find(ctx, _values(words, "-L") + _DEFAULT_LIB_DIRS, "lib" + name + ".so")
    if not includes or not library:
        # buildifier: disable=print
        print("MPI is left out: %s -show names no mpi.h, or no shared library" % wrapper)
        return None
    return includes[0], library, _launcher(ctx, wrapper)

def _mpi_impl(ctx):
    installed = _installed(ctx)
    launcher = ""
    attributes = ""
    if installed:
        include, library, launcher = installed
        for entry in ctx.path(include).readdir():
            if entry.basename.endswith(".h") and entry.basename.startswith("mpi"):
                ctx.symlink(entry, "include/" + entry.basename)
        ctx.symlink(library, "lib/" + library.basename)

        # MPI's bindings for C++ were removed from the standard, and would require another library.
        attributes = """
    srcs = [%s],
    hdrs = glob(["include/*.h"]),
    defines = ["MPICH_SKIP_MPICXX", "OMPI_SKIP_MPICXX"],
    includes = ["include"],
    linkopts = [%s],""" % (repr("lib/" + library.basename), repr("-Wl,-rpath," + str(library.realpath.dirname)))
    ctx.file("BUILD.bazel", """\
load("@rules_cc//cc:defs.bzl", "cc_library")

cc_library(
    name = "mpi",%s
    linkstatic = True,
    visibility = ["//visibility:public"],
)
""" % attributes)
    ctx.file("config.bzl", "MPI_AVAILABLE = %s\nMPIEXEC = %s\n" % (bool(installed), repr(launcher)))

local_mpi = repository_rule(
    implementation = _mpi_impl,
    environ = ["FSDP_MPI", "MPICC", "MPI_PATH", "PATH"],
    local = True,
)
