# SPDX-License-Identifier: Apache-2.0
"""push and pull: checkpoints to and from an object store, by the program `ckpt`.

The first ckpt on the PATH is taken, or else this package's. Static ones of earlier releases had no libcurl and are
passed over.
"""

import json
import os
import subprocess
import sysconfig
from typing import Any, Dict, List, Optional

from ._checkpoint import Path
from ._library import CheckpointError, ExistsError, NotFoundError

_IS_STATIC = "this program is static"
_UNIMPLEMENTED, _UNKNOWN, _NOT_FOUND, _EXISTS = 12, 2, 5, 6


def _programs() -> List[str]:
    directories = [directory or "." for directory in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    paths = [os.path.join(directory, "ckpt") for directory in [*directories, sysconfig.get_path("scripts")]]
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def _failure(problem: str) -> CheckpointError:
    if " exists" in problem and "--force replaces it" in problem:
        return ExistsError(_EXISTS, problem.replace("--force replaces it", "overwrite=True replaces it"))
    return NotFoundError(_NOT_FOUND, problem) if "does not exist" in problem else CheckpointError(_UNKNOWN, problem)


def _run(operands: List[str], overwrite: bool, endpoint_url: Optional[str]) -> Dict[str, Any]:
    flags = ["--json", *(["--force"] if overwrite else [])]
    flags += [f"--endpoint_url={endpoint_url}"] if endpoint_url else []
    refused = "no program ckpt is on the PATH"
    for program in _programs():
        done = subprocess.run([program, *operands, *flags], capture_output=True, encoding="utf-8", errors="replace")
        try:
            report = json.loads(done.stdout)
        except ValueError:
            report = {}
        if done.returncode == 0:
            return report
        problem = report.get("problem") or done.stderr.strip() or f"{program} ended with status {done.returncode}"
        if _IS_STATIC not in problem:
            raise _failure(problem)
        refused = f"{program}: {problem}"
    raise CheckpointError(
        _UNIMPLEMENTED,
        f"{operands[0]}: {refused}; expected a ckpt with libcurl, as this package has one: put its directory onto the "
        "PATH",
    )


def _operand(path: Path) -> str:
    """As a path, never as a flag."""
    text = os.fspath(path)
    return os.path.join(".", text) if text.startswith("-") else text


def push(source: Path, url: str, *, overwrite: bool = False, endpoint_url: Optional[str] = None) -> Dict[str, Any]:
    """Verifies a checkpoint, or the newest of a directory that verifies, and copies it to an object store, below `url`,
    s3://BUCKET/PREFIX. It appears when it is complete. Returns the report of `ckpt push --json`. Keys and region come
    from the environment and ~/.aws. CheckpointError with code "unimplemented" if no ckpt here has libcurl.

    >>> fsdp_checkpoint.push("checkpoints", "s3://models/gpt2")
    """
    return _run(["push", _operand(source), url], overwrite, endpoint_url)


def pull(url: str, destination: Path, *, overwrite: bool = False, endpoint_url: Optional[str] = None) -> Dict[str, Any]:
    """Copies a checkpoint of an object store, or the newest below `url`, to the directory `destination`, and compares
    every byte with its digest. Returns the report of `ckpt pull --json`; otherwise as push.

    >>> fsdp_checkpoint.pull("s3://models/gpt2", "copy")
    """
    return _run(["pull", url, _operand(destination)], overwrite, endpoint_url)
