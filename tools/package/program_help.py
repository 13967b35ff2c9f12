# SPDX-License-Identifier: Apache-2.0
"""A program's --help, for pages and completions made from it: flags are described only in the program."""

import contextlib
import dataclasses
import os
import re
import subprocess
import tempfile


@dataclasses.dataclass
class Flag:
    name: str
    value: str  # "=VALUE", "[=VALUE]" if it may be left out, or empty
    meaning: str
    default: str  # empty: none, or false


@dataclasses.dataclass
class Help:
    """The help of a program or of one of its subcommands."""

    name: str  # "ckpt convert"
    synopsis: list  # lines of usage
    text: str  # between the usage and the flags
    flags: list
    examples: list  # command lines
    exit_status: str
    environment: str


def run(command):
    # COLUMNS: no line is wrapped.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "100000"})
    if done.returncode != 0 or done.stderr:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def parse(name, output):
    """Raises ValueError if the output does not have the form of command_line.h."""
    usage, _, rest = output.partition("\n\n")
    if not usage.startswith("usage: "):
        raise ValueError(f"{name} --help begins with {usage[:40]!r}, expected 'usage: '")
    lines = usage[len("usage: "):].split("\n")
    flags, text, examples = [], [], []
    paragraphs = {"exit status": "", "environment": ""}
    listed = text
    for line in rest.splitlines():
        match = re.fullmatch(r"  --(\w+)(=VALUE|\[=VALUE\])?: (.*?)(?:; default: (.*))?", line)
        title, _, paragraph = line.partition(": ")
        if match:
            flags.append(Flag(match[1], match[2] or "", match[3], match[4] or ""))
        elif title in paragraphs:
            paragraphs[title] = paragraph
        elif line == "examples:":
            listed = examples
        elif not line:
            listed = text
            text.append(line)
        else:
            listed.append(line.strip() if listed is examples else line)
    # A subcommand's summary is in the line after its usage.
    synopsis = [line for line in lines if line.startswith(name.split()[0])]
    summary = [line for line in lines if line not in synopsis]
    return Help(name, [form for line in synopsis for form in line.split("; ")],
                re.sub(r"\n{3,}", "\n\n", "\n".join(summary + text)).strip("\n"), flags, examples,
                paragraphs["exit status"], paragraphs["environment"])


def of(program, name, arguments=()):
    return parse(name, run([program, *arguments, "--help"]))


@contextlib.contextmanager
def called(program, name):
    """The program under another name, by which it then calls itself."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, name)
        os.symlink(os.path.abspath(program), path)
        yield path


def subcommands(text):
    """{name: summary} from the text of `ckpt --help`."""
    found = {}
    for match in re.finditer(r"^  ckpt (\w+) .*\n      (.*)$", text, re.MULTILINE):
        found[match.group(1)] = match.group(2)
    if not found:
        raise ValueError("ckpt --help names no subcommands")
    return found
