# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while ranks act together."""

import signal
import threading
from typing import Any


class Interrupts:
    """A block in which SIGINT is noted and not raised. A rank that left its code between two collectives would leave the
    others waiting in the next one. The signal takes effect at the end of the block, or where `check` is called. Only the
    main thread gets signals; in others the block does nothing.

    >>> with Interrupts() as interrupts:
    ...     interrupts.check()
    """

    def __enter__(self) -> "Interrupts":
        self._has_come = False
        self._handler: Any = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # neither ignored nor the end of the process
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        self._has_come = True

    def check(self) -> None:
        """KeyboardInterrupt if a signal has come, which then has had its effect."""
        if self._has_come:
            self._has_come = False
            raise KeyboardInterrupt

    def __exit__(self, *exception: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._has_come:
            signal.raise_signal(signal.SIGINT)
