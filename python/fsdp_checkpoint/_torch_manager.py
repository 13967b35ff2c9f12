# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: the checkpoints of a training run, saved, kept and found again."""

import math
import os
from concurrent.futures import Future
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypeVar

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from . import _arguments, _steps
from ._checkpoint import Path
from ._checkpoint import open as open_checkpoint
from ._interrupts import Interrupts
from ._library import CheckpointError, NotFoundError, picklable
from ._torch_reader import Reader
from ._torch_writer import Writer
from ._values import value_of_text

_METRICS = "metrics"
_T = TypeVar("_T")


class CheckpointManager:
    """The checkpoints of one run, in the directory `root`.

    After each save the newest `keep_last` stay (None: all), those whose step is a multiple of `keep_every`, and with
    `best`, the name of a metric, the `keep_best` with the least value of it (`best_mode="max"`: the greatest; never
    NaN); the others are deleted. The newest whole one always stays. `save` does nothing for a step that is not a
    multiple of `save_interval`. With `async_` it returns when the state is copied, and the next call that saves or
    waits raises the error of a save that failed. All ranks of `process_group` make the same calls. `writer` are further
    arguments of Writer: parity, io_threads.

    >>> with CheckpointManager("checkpoints", keep_last=3, best="loss", async_=True) as manager:
    ...     start = manager.restore(state) if manager.latest_step() is not None else 0
    ...     for step in range(start + 1, 1001):
    ...         manager.save(step, state, metrics={"loss": train(step)})
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_last: Optional[int] = None,
        keep_every: int = 0,
        best: Optional[str] = None,
        best_mode: str = "min",
        keep_best: int = 1,
        save_interval: int = 1,
        async_: bool = False,
        process_group: Optional[dist.ProcessGroup] = None,
        **writer: Any,
    ) -> None:
        for name, value in (("keep_last", keep_last or 1), ("keep_best", keep_best), ("save_interval", save_interval)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")
        if keep_last == 0:
            raise ValueError("keep_last is 0, expected at least 1, or None to keep all")
        if keep_every < 0:
            raise ValueError(f"keep_every is {keep_every}, expected 0 or more")
        if best_mode not in ("min", "max"):
            raise ValueError(f"best_mode is {best_mode!r}, expected 'min' or 'max'")
        if "step" in writer:
            raise ValueError("CheckpointManager: step is an argument of save, not of all checkpoints")
        self._root, self._keep_last, self._keep_every = os.fsdecode(root), keep_last, keep_every
        Writer(self._path(0), **writer)  # wrong arguments are errors now, not at the first save
        self._best, self._sign, self._keep_best = best, 1 if best_mode == "min" else -1, keep_best
        self._interval, self._is_async, self._group, self._writer = save_interval, async_, process_group, writer
        self._saving: Optional["Future[Any]"] = None
        # By path, as far as they were read, with the identity of the manifest: a checkpoint may be replaced.
        self._metrics: Dict[str, Tuple[Any, Dict[str, Any]]] = {}

    def should_save(self, step: int) -> bool:
        """Whether `save` saves this step: its number is due, and there is no newer checkpoint.

        >>> CheckpointManager("checkpoints", save_interval=100).should_save(150)
        False
        """
        latest = self.latest_step()
        return step % self._interval == 0 and (latest is None or step > latest)

    def save(
        self, step: int, state: Dict[str, Any], *, metrics: Optional[Mapping[str, float]] = None, force: bool = False
    ) -> bool:
        """Saves `state` as the checkpoint of `step`, if it is due or with `force`; returns whether it does. The metrics
        are numbers, and a part of the checkpoint.

        >>> manager.save(1000, {"model": model_state, "optim": optim_state}, metrics={"loss": 2.5})
        True
        """
        step = _arguments.int64("step", step)
        if step < 0:
            raise ValueError(f"step is {step}, expected 0 or more")
        self.wait_until_finished()
        if self._best is not None and self._best not in (metrics or {}):
            raise ValueError(f"step {step}: metrics lack {self._best!r}, by which the best checkpoints are kept")
        if _METRICS in state and metrics is not None:
            raise ValueError(f"the state has a value {_METRICS!r}, the name under which metrics are saved")
        if not force and not self._on_first(lambda: self.should_save(step)):
            return False
        if metrics is not None:
            state = {**state, _METRICS: {name: float(value) for name, value in metrics.items()}}
        writer = Writer(self._path(step), process_group=self._group, **self._writer)
        if self._is_async:
            self._saving = dcp.async_save(state, storage_writer=writer, process_group=self._group)
        else:
            dcp.save(state, storage_writer=writer, process_group=self._group)
            self._prune()
        return True

    def restore(self, state: Dict[str, Any], step: Optional[int] = None, **reader: Any) -> int:
        """Loads the checkpoint of `step`, or the newest that verifies, into `state`, and returns its step. `reader` are
        further arguments of Reader. NotFoundError if there is none.

        >>> manager.restore({"model": model_state, "optim": optim_state})
        1000
        """
        self.wait_until_finished()
        found = self._on_first(lambda: self._newest() if step is None else self._find(step))
        dcp.load(state, storage_reader=Reader(found.path, **reader), process_group=self._group)
        return found.step

    def all_steps(self) -> List[int]:
        """The steps of all checkpoints, oldest first; they are not verified.

        >>> manager.all_steps()
        [900, 1000]
        """
        return [found.step for found in _steps.steps(self._root)]

    def latest_step(self) -> Optional[int]:
        """The newest of all_steps, or None.

        >>> manager.latest_step()
        1000
        """
        steps = self.all_steps()
        return steps[-1] if steps else None

    def best_step(self) -> Optional[int]:
        """The step with the best metric, or None: no checkpoint has it. Of equal ones the newest.

        >>> manager.best_step()
        900
        """
        ranked, _ = self._ranked()
        return ranked[0].step if ranked else None

    def metrics(self, step: int) -> Dict[str, float]:
        """The metrics that were saved with a step; NotFoundError for a step that is not there.

        >>> manager.metrics(1000)
        {'loss': 2.5}
        """
        return dict(self._metrics_of(self._find(step).path))

    def wait_until_finished(self) -> None:
        """Waits for the save in progress, raises its error, and then deletes what no longer stays.

        >>> manager.wait_until_finished()
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()
            self._prune()

    def close(self) -> None:
        """As wait_until_finished; the manager can still be used.

        >>> manager.close()
        """
        self.wait_until_finished()

    def __enter__(self) -> "CheckpointManager":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CheckpointManager {self._root!r}, steps {self.all_steps()}>"

    def _path(self, step: int) -> str:
        return os.path.join(self._root, f"step-{step:08}")

    def _on_first(self, function: Callable[[], _T]) -> _T:
        """What `function` returns or raises on the first rank: it sees what it has deleted, others may see it later."""
        if not dist.is_initialized() or dist.get_world_size(self._group) == 1:
            return function()
        result: List[Any] = [None, None]
        results: List[Any] = [None] * dist.get_world_size(self._group)
        with Interrupts():
            if dist.get_rank(self._group) == 0:
                try:
                    result[0] = function()
                except BaseException as error:  # the other ranks must not wait for this one
                    result[1] = picklable(error)
            dist.all_gather_object(results, result, group=self._group)
        value, error = results[0]
        if error is not None:
            raise error
        return value

    def _newest(self) -> _steps.Step:
        path = _steps.latest(self._root)
        for found in _steps.steps(self._root):
            if found.path == path:
                return found
        raise NotFoundError(5, f"{self._root} is a checkpoint, expected a directory of checkpoints")

    def _find(self, step: int) -> _steps.Step:
        for found in _steps.steps(self._root):
            if found.step == step:
                return found
        raise NotFoundError(5, f"{self._root} has no checkpoint of step {step}; it has {self.all_steps()}")

    def _metrics_of(self, path: str) -> Dict[str, Any]:
        status = os.stat(os.path.join(path, "manifest.json"))
        identity = status.st_ino, status.st_mtime_ns
        if self._metrics.get(path, (None,))[0] != identity:
            with open_checkpoint(path) as checkpoint:
                prefix, texts = f"extra/{_METRICS}.", checkpoint.texts.items()
                metrics = {k[len(prefix) :]: value_of_text(v) for k, v in texts if k.startswith(prefix)}
                self._metrics[path] = identity, metrics
        return self._metrics[path][1]

    def _ranked(self) -> Tuple[List[_steps.Step], List[_steps.Step]]:
        """The checkpoints that have the metric, and not NaN, the best first; and those that cannot be read now."""
        ranked, unread = [], []
        for step in _steps.steps(self._root):
            try:
                value = self._metrics_of(step.path).get(self._best)
            except (CheckpointError, OSError):
                unread.append(step)
                continue
            if isinstance(value, (int, float)) and not math.isnan(value):
                ranked.append((self._sign * value, -step.step, step))
        return [step for _, _, step in sorted(ranked)], unread

    def _prune(self) -> None:
        if self._keep_last is not None:
            self._on_first(self._prune_here)

    def _prune_here(self) -> None:
        ranked, unread = self._ranked() if self._best is not None else ([], [])
        keep = [step.path for step in [*ranked[: self._keep_best], *unread]]  # one of those may be the best
        _steps.prune_after_save(self._root, keep_last=self._keep_last or 1, keep_every=self._keep_every, keep=keep)
