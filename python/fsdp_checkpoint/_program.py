# SPDX-License-Identifier: Apache-2.0
"""The program `ckpt`, for what the library lacks: its reports as dicts, and its failures as exceptions."""

import contextlib
import json
import os
import re
import subprocess
import sysconfig
from typing import Any, Dict, List, NamedTuple

from ._checkpoint import Path
from ._library import CheckpointError, failure_of_code

_ARGUMENTS = {"force": "overwrite=True", "map": "layout", "endpoint_url": "endpoint_url"}  # by flag


class Outcome(NamedTuple):
    """What a run of ckpt --json gave."""

    is_done: bool
    report: Dict[str, Any]  # {} if it is not JSON
    problem: str

    def failure(self) -> CheckpointError:
        """The exception for the problem, with the names of flags as arguments."""
        flags = "|".join(_ARGUMENTS)
        problem = re.sub(rf"(?<![^\s\"`])--({flags})\b", lambda flag: _ARGUMENTS[flag[1]], self.problem)
        return failure_of_code(self.report.get("code", ""), problem)


def _only_programs(directories: List[str]) -> List[str]:
    paths = [os.path.join(directory, "ckpt") for directory in directories]
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def own() -> List[str]:
    """This package's ckpt, or none: where pip recorded it (pip install --user, --prefix), in bin/ of the package's
    directory (--target), or with the interpreter's other programs."""
    from importlib import metadata

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    directories = [os.path.join(package, "bin"), sysconfig.get_path("scripts")]
    with contextlib.suppress(metadata.PackageNotFoundError):
        recorded = metadata.distribution("fsdp_checkpoint").files or []
        found = [os.path.dirname(str(file.locate())) for file in recorded if file.name == "ckpt"]
        directories = [*map(os.path.realpath, found), *directories]
    return _only_programs(directories)


def on_path() -> List[str]:
    """Those on the PATH, in its order."""
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return _only_programs([directory or "." for directory in directories])


def operand(path: Path) -> str:
    """A path as ckpt takes it: never as a flag."""
    text = os.fsdecode(path)
    return os.path.join(".", text) if text.startswith("-") else text


def run(program: str, operands: List[str], flags: List[str]) -> Outcome:
    words = [program, *operands, "--json", *flags]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace")
    try:
        report = json.loads(done.stdout)
    except ValueError:
        report = {}
    problem = report.get("problem") or done.stderr.strip() or f"{program} ended with status {done.returncode}"
    return Outcome(done.returncode == 0, report, problem)
