# SPDX-License-Identifier: Apache-2.0
"""push and pull: checkpoints to and from an object store, by the program `ckpt`.

The first ckpt on the PATH is taken, or else this package's. Static ones of earlier releases had no libcurl and are
passed over.
"""

from typing import Any, Dict, List, Optional

from . import _program
from ._checkpoint import Path
from ._library import CheckpointError

_IS_STATIC = "this program is static"
_UNIMPLEMENTED = 12


def _run(operands: List[str], overwrite: bool, endpoint_url: Optional[str]) -> Dict[str, Any]:
    flags = [*(["--force"] if overwrite else []), *([f"--endpoint_url={endpoint_url}"] if endpoint_url else [])]
    refused = "no program ckpt is on the PATH"
    for program in [*_program.on_path(), *_program.own()]:
        outcome = _program.run(program, operands, flags)
        if outcome.is_done:
            return outcome.report
        if _IS_STATIC not in outcome.problem:
            raise outcome.failure()
        refused = f"{program}: {outcome.problem}"
    raise CheckpointError(
        _UNIMPLEMENTED,
        f"{operands[0]}: {refused}; expected a ckpt with libcurl, as this package has one: put its directory onto the "
        "PATH",
    )


def push(source: Path, url: str, *, overwrite: bool = False, endpoint_url: Optional[str] = None) -> Dict[str, Any]:
    """Verifies a checkpoint, or the newest of a directory that verifies, and copies it to an object store, below `url`,
    s3://BUCKET/PREFIX. It appears when it is complete. Returns the report of `ckpt push --json`. Keys and region come
    from the environment and ~/.aws. CheckpointError with code "unimplemented" if no ckpt here has libcurl.

    >>> fsdp_checkpoint.push("checkpoints", "s3://models/gpt2")
    """
    return _run(["push", _program.operand(source), url], overwrite, endpoint_url)


def pull(url: str, destination: Path, *, overwrite: bool = False, endpoint_url: Optional[str] = None) -> Dict[str, Any]:
    """Copies a checkpoint of an object store, or the newest below `url`, to the directory `destination`, and compares
    every byte with its digest. Returns the report of `ckpt pull --json`; otherwise as push.

    >>> fsdp_checkpoint.pull("s3://models/gpt2", "copy")
    """
    return _run(["pull", url, _program.operand(destination)], overwrite, endpoint_url)
