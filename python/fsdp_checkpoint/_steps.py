# SPDX-License-Identifier: Apache-2.0
"""Operations on a directory of checkpoints, and the repair of one."""

import ctypes
import os
from typing import Any, List, NamedTuple, Sequence, Union

from . import _library
from ._checkpoint import Path
from ._library import CheckpointError, DataLossError, library


class Step(NamedTuple):
    """A checkpoint of a directory.

    >>> fsdp_checkpoint.steps("checkpoints")[-1].path
    'checkpoints/step-2000'
    """

    step: int
    path: str


def _text(function: object, *arguments: object) -> str:
    """The text that a function of C gives by its last argument."""
    text = ctypes.c_void_p()
    function(*arguments, ctypes.byref(text))  # type: ignore[operator]
    return _library.take_string(text)


def _lines(text: str) -> List[str]:
    """The lines of a text of C; a name may hold what str.splitlines takes for the end of a line."""
    return text.split("\n") if text else []


def steps(root: Path) -> List[Step]:
    """The checkpoints of a directory, oldest first, by the step that they record. They are not verified; copies under
    another name than the one they were saved under do not count.

    >>> [step.step for step in fsdp_checkpoint.steps("checkpoints")]
    [1000, 2000]
    """
    lines = (line.split(" ", 1) for line in _lines(_text(library.fsdp_steps, root)))
    return [Step(int(step), os.path.join(os.fsdecode(root), name)) for step, name in lines]


def latest(root: Path) -> str:
    """The path of the newest checkpoint of a directory that verifies; all of it is read. NotFoundError, with all
    reasons, if none does.

    >>> fsdp_checkpoint.latest("checkpoints")
    'checkpoints/step-2000'
    """
    path = ctypes.c_void_p()
    library.fsdp_latest(root, ctypes.byref(path))
    return os.fsdecode(_library.take_bytes(path))


def prune(
    root: Path,
    *,
    keep_last: int = 1,
    keep_every: int = 0,
    keep: Union[Path, Sequence[Path]] = (),
    verify: bool = True,
    dry_run: bool = False,
) -> List[str]:
    """Deletes the checkpoints of a directory except the newest `keep_last`, multiples of `keep_every`, those whose name
    or path is in `keep`, and in any case the newest that verifies; and what crashed saves left. Returns the names of
    the deleted ones. DataLossError, and nothing is deleted, if none verifies. With `verify=False` a checkpoint is good
    if its files are there with their sizes, and nothing is read.

    >>> fsdp_checkpoint.prune("checkpoints", keep_last=3, keep_every=10000)
    ['step-1000']
    """
    if keep_last < 1:
        raise ValueError(f"keep_last is {keep_last}, expected at least 1")
    # A str is one name, not its letters, and a path, as of `latest`, is its name.
    kept = [keep] if isinstance(keep, (str, os.PathLike)) else keep
    names = [os.path.basename(os.fsdecode(name).rstrip("/")) for name in kept]
    options = _library.options(
        _library.PruneOptions,
        keep_last=keep_last,
        keep_every=keep_every,
        dry_run=int(dry_run),
        no_verify=int(not verify),
        keep="\n".join(names),
    )
    return _lines(_text(library.fsdp_prune, root, options))


def prune_after_save(root: Path, **options: Any) -> None:
    """As prune, without a verification, which would read the newest after each save: it was just written. What another
    process is deleting or repairing is left to the next save, and no error of this one."""
    try:
        prune(root, verify=False, **options)
    except CheckpointError as error:
        if error.code != "unavailable":
            raise


def repair(path: Path, *, dry_run: bool = False) -> List[str]:
    """Rebuilds lost and damaged files of a checkpoint from its parity files and from the rank files' own records.
    Returns a sentence for each file that was, or would be, rebuilt. DataLossError names the damage that remains, one
    problem per line; then nothing is changed.

    >>> fsdp_checkpoint.repair("checkpoints/step-2000")
    ['rank-00001-of-00002.h5: rebuilt, since it was missing']
    """
    report = ctypes.c_void_p()
    try:
        library.fsdp_repair(path, int(dry_run), ctypes.byref(report))
    except DataLossError as error:
        raise DataLossError(15, _library.take_string(report) or str(error)) from None
    return _library.take_lines(report)
