# SPDX-License-Identifier: Apache-2.0
"""inspect: what `ckpt inspect` says about a checkpoint, as a dict."""

from typing import Any, Dict, List, Optional

from . import _arguments, _program
from ._checkpoint import Path, SourceLayout
from ._library import CheckpointError

_UNIMPLEMENTED = 12


class Inspection(Dict[str, Any]):
    """The report of `ckpt inspect --json`, a dict whose repr is one line.

    >>> fsdp_checkpoint.inspect("checkpoints")["attributes"]["options.lr"]
    0.001
    """

    def __repr__(self) -> str:
        ranks, step, tensors = self.get("world_size"), self.get("step"), self.get("tensor_count")
        facts = [self.get("format"), f"{self.get('kind')} of {ranks} ranks" if ranks and ranks > 1 else None]
        facts += [None if step is None else f"step {step}", f"{tensors} tensor{'s' * (tensors != 1)}"]
        facts += [_size(self.get("bytes", 0)), self.get("problem")]
        return f"<fsdp_checkpoint.Inspection {self.get('path')!r}, {', '.join(fact for fact in facts if fact)}>"


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def inspect(
    path: Path, *, tensors: bool = False, layout: SourceLayout = None, endpoint_url: Optional[str] = None
) -> Inspection:
    """The report of `ckpt inspect --json` about a checkpoint of any format, or the newest of a directory, also in an
    object store: format, step, attributes, files, numbers of tensors and bytes, the values of short texts; with
    `tensors` every tensor and the files that hold it. Reads metadata only. A checkpoint that lacks a file is reported,
    with the member "problem"; what cannot be read is an exception. `layout` as of `open`. It runs the package's `ckpt`,
    or else the first on the PATH.

    >>> fsdp_checkpoint.inspect("checkpoints")
    <fsdp_checkpoint.Inspection 'checkpoints/step-9', hdf5, sharded of 4 ranks, step 9, 228 tensors, 403 MB>
    """
    _arguments.path("inspect", path)
    flags: List[str] = ["--tensors"] if tensors else []
    flags += [f"--map={role}" for role in _arguments.roles(layout) or []]
    flags += [f"--endpoint_url={endpoint_url}"] if endpoint_url else []
    programs = [*_program.own(), *_program.on_path()]
    if not programs:
        raise CheckpointError(_UNIMPLEMENTED, "inspect: no program ckpt is in this environment or on the PATH")
    outcome = _program.run(programs[0], ["inspect", _program.operand(path)], flags)
    if "format" in outcome.report:
        return Inspection(outcome.report)
    raise outcome.failure()
