# SPDX-License-Identifier: Apache-2.0
"""Completion of ckpt's subcommands and flags in bash and zsh, from ckpt's help."""

import program_help

# The values of flags with few of them.
VALUES = {
    "to": ["hdf5", "safetensors", "torch", "dcp", "npz", "gguf", "megatron"],
    "state_dict_type": ["full", "sharded", "local"],
    "dtype": ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"],
    "outtype": ["F32", "F16", "BF16", "Q8_0", "MXFP4"],
}
# Flags whose value is a number or a name, not a path.
PLAIN = {"world_size", "step", "parity", "keep_last", "keep_every", "top", "atol", "rtol", "max_memory",
         "max_shard_size", "include", "exclude", "rename", "map", "endpoint_url"}


def flags_of(ckpt):
    """{subcommand: [program_help.Flag]}"""
    names = program_help.subcommands(program_help.of(ckpt, "ckpt").text)
    return {name: program_help.of(ckpt, f"ckpt {name}", [name]).flags for name in names}


def bash(ckpt):
    flags = flags_of(ckpt)
    lines = [
        "# bash completion of ckpt, made from ckpt --help",
        "_ckpt() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flag flags=",
        "  # COMP_WORDBREAKS has \"=\": --to=x is three words.",
        "  [ \"$before\" = = ] && before=${COMP_WORDS[COMP_CWORD-2]}",
        "  [ \"$word\" = = ] && word=",
        "  COMPREPLY=()",
        "  if [ \"$COMP_CWORD\" = 1 ]; then",
        f"    mapfile -t COMPREPLY < <(compgen -W '{' '.join(flags)} help version --help --helpfull --version' -- \"$word\")",
        "    return",
        "  fi",
        "  case $before in",
    ]
    for flag, values in VALUES.items():
        lines.append(f"    --{flag}) mapfile -t COMPREPLY < <(compgen -W '{' '.join(values)}' -- \"$word\"); return ;;")
    lines += ["  esac", "  case ${COMP_WORDS[1]} in"]
    for name, of in flags.items():
        words = " ".join(f"--{flag.name}" + ("" if flag.is_bool else "=") for flag in of)
        lines.append(f"    {name}) flags='{words} --help' ;;")
    lines += [
        "  esac",
        "  case $word in",
        "    -*) mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\")",
        "      [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace ;;",
        "    *) mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); compopt -o filenames ;;",
        "  esac",
        "}",
        "complete -F _ckpt ckpt",
    ]
    return "\n".join(lines) + "\n"


def quoted(text):
    """For zsh's _arguments, within apostrophes."""
    return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", "\\:")


def zsh(ckpt):
    summaries = program_help.subcommands(program_help.of(ckpt, "ckpt").text)
    lines = ["#compdef ckpt", "# zsh completion of ckpt, made from ckpt --help", "_ckpt() {",
             "  local -a subcommands=("]
    lines += [f"    '{name}:{quoted(summary)}'" for name, summary in summaries.items()]
    lines += ["  )", "  if (( CURRENT == 2 )); then", "    _describe subcommand subcommands", "    return", "  fi",
              "  case $words[2] in"]
    for name, flags in flags_of(ckpt).items():
        arguments = []
        for flag in flags:
            values = (f":value:({' '.join(VALUES[flag.name])})" if flag.name in VALUES else
                      ":value: " if flag.name in PLAIN else ":value:_files")
            arguments.append(f"'--{flag.name}{'' if flag.is_bool else '='}[{quoted(flag.meaning)}]"
                             f"{'' if flag.is_bool else values}'")
        lines.append(f"    {name}) _arguments {' '.join(arguments)} '*:path:_files' ;;")
    lines += ["  esac", "}", "_ckpt \"$@\""]
    return "\n".join(lines) + "\n"
