# SPDX-License-Identifier: Apache-2.0
"""Completion of ckpt and fsdp-launch in bash, zsh and fish, from what the programs say: their help, and the values that they
name when they refuse one."""

import re
import subprocess

import program_help

# Flags that take one of few values: a command line that is refused for the value "?", and names the others.
CHOICES = {
    "to": ["convert", "a", "b", "--to=?"],
    "state_dict_type": ["convert", "a", "b", "--state_dict_type=?"],
    "dtype": ["convert", "a", "b", "--dtype=?"],
    "outtype": ["convert", "a", "b.gguf", "--outtype=?"],
    "sort": ["inspect", "a", "--tensors", "--sort=?"],
}
# Flags that take a path. The values of all others are numbers, names or patterns, which no shell knows.
PATHS = {"html", "flat_layout", "template", "recipe"}


def choices(ckpt):
    """{flag: its values}"""
    found = {}
    for flag, arguments in CHOICES.items():
        refusal = subprocess.run([ckpt, *arguments], capture_output=True, text=True, timeout=60).stderr
        listed = re.search(r"(?:expected|known)[^:;,]*(?::| (?=[\w]+,)) ?([^;]*)", refusal)
        values = re.findall(r"[\w]+", re.sub(r"\([^)]*\)|\bor\b", "", listed[1])) if listed else []
        if len(values) < 2:
            raise SystemExit(f"{ckpt} {' '.join(arguments)}: expected an error that names the values, found: {refusal}")
        found[flag] = values
    return found


def flags_of(ckpt):
    """{subcommand: [program_help.Flag]}"""
    names = program_help.subcommands(program_help.of(ckpt, "ckpt").text)
    return {name: program_help.of(ckpt, f"ckpt {name}", [name]).flags for name in names}


def bash_words(flags):
    # One whose value may be left out is two words.
    words = ((["", "="] if flag.value == "[=VALUE]" else [flag.value[:1]], flag) for flag in flags)
    return " ".join(f"--{flag.name}{end}" for ends, flag in words for end in ends)


def bash(ckpt):
    flags = flags_of(ckpt)
    values = choices(ckpt)
    plain = sorted({flag.name for of in flags.values() for flag in of if flag.value == "=VALUE"} - set(values) - PATHS)
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
        "  if [ \"${COMP_WORDS[1]}\" = help ]; then",
        f"    mapfile -t COMPREPLY < <(compgen -W '{' '.join(flags)}' -- \"$word\")",
        "    return",
        "  fi",
        "  case $before in",
    ]
    for flag, of in values.items():
        lines.append(f"    --{flag}) mapfile -t COMPREPLY < <(compgen -W '{' '.join(of)}' -- \"$word\"); return ;;")
    lines.append(f"    {' | '.join('--' + flag for flag in plain)}) return ;;")
    lines += ["  esac", "  case ${COMP_WORDS[1]} in"]
    for name, of in flags.items():
        lines.append(f"    {name}) flags='{bash_words(of)} --help' ;;")
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


def zsh_arguments(flags, values):
    arguments = []
    for flag in flags:
        value = (f":value:({' '.join(values[flag.name])})" if flag.name in values else
                 ":path:_files" if flag.name in PATHS else ":value: ")
        sign, value = {"": ("", ""), "=VALUE": ("=", value), "[=VALUE]": ("=-", ":" + value)}[flag.value]
        arguments.append(f"'--{flag.name}{sign}[{quoted(flag.meaning)}]{value}'")
    return " ".join(arguments)


def zsh(ckpt):
    summaries = program_help.subcommands(program_help.of(ckpt, "ckpt").text)
    values = choices(ckpt)
    lines = ["#compdef ckpt", "# zsh completion of ckpt, made from ckpt --help", "_ckpt() {",
             "  local -a subcommands=("]
    lines += [f"    '{name}:{quoted(summary)}'" for name, summary in summaries.items()]
    lines += ["    'help:what there is, and the flags of a subcommand'", "    'version:the release'"]
    lines += ["  )", "  if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then",
              "    _describe subcommand subcommands", "    return", "  fi", "  case $words[2] in"]
    for name, flags in flags_of(ckpt).items():
        lines.append(f"    {name}) _arguments {zsh_arguments(flags, values)} '*:path:_files' ;;")
    lines += ["  esac", "}", "_ckpt \"$@\""]
    return "\n".join(lines) + "\n"


def fish_word(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_flags(command, condition, flags, values):
    """fish itself offers both `--flag value` and `--flag=value`."""
    lines = []
    for flag in flags:
        wants = ("" if flag.value != "=VALUE" else f" -x -a {fish_word(' '.join(values[flag.name]))}"
                 if flag.name in values else " -r -F" if flag.name in PATHS else " -x")
        lines.append(f"complete -c {command}{condition} -l {flag.name}{wants} -d {fish_word(flag.meaning)}")
    return lines


def fish(ckpt):
    summaries = program_help.subcommands(program_help.of(ckpt, "ckpt").text)
    summaries |= {"help": "what there is, and the flags of a subcommand", "version": "the release"}
    values = choices(ckpt)
    lines = ["# fish completion of ckpt, made from ckpt --help"]
    for name, summary in summaries.items():
        lines.append(f"complete -c ckpt -n __fish_use_subcommand -f -a {name} -d {fish_word(summary)}")
    lines.append(f"complete -c ckpt -n '__fish_seen_subcommand_from help' -f -a '{' '.join(summaries)}'")
    for name, flags in flags_of(ckpt).items():
        lines += fish_flags("ckpt", f" -n '__fish_seen_subcommand_from {name}'", flags, values)
    return "\n".join(lines) + "\n"


def launch_fish(launch):
    flags = fish_flags("fsdp-launch", "", program_help.of(launch, "fsdp-launch").flags, {})
    return "\n".join(["# fish completion of fsdp-launch, made from its --help", *flags,
                      "complete -c fsdp-launch -x -a '(__fish_complete_subcommand --fcs-skip=1)'", ""])


def launch_bash(launch):
    """Of fsdp-launch: its flags, and after -- a command as at the prompt."""
    flags = program_help.of(launch, "fsdp-launch").flags
    lines = ["# bash completion of fsdp-launch, made from its --help", "_fsdp_launch() {",
             "  local word=${COMP_WORDS[COMP_CWORD]} i", "  COMPREPLY=()",
             "  for ((i = 1; i < COMP_CWORD; ++i)); do", "    [ \"${COMP_WORDS[i]}\" = -- ] || continue",
             "    if [ \"$((i + 1))\" = \"$COMP_CWORD\" ]; then",
             "      mapfile -t COMPREPLY < <(compgen -c -- \"$word\")", "    else",
             "      mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); compopt -o filenames", "    fi", "    return",
             "  done",
             f"  [[ $word != -* ]] || mapfile -t COMPREPLY < <(compgen -W '{bash_words(flags)} --help --' -- \"$word\")",
             "  [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace", "}", "complete -F _fsdp_launch fsdp-launch"]
    return "\n".join(lines) + "\n"


def launch_zsh(launch):
    flags = program_help.of(launch, "fsdp-launch").flags
    return "\n".join(["#compdef fsdp-launch", "# zsh completion of fsdp-launch, made from its --help",
                      f"_arguments {zsh_arguments(flags, {})} '(-):program:_command_names -e' '*::arguments:_normal'", ""])
