"""Ctrl-C, a cluster's SIGTERM and a terminal's SIGHUP end a run between two steps instead of inside one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .history import History


#: What asks a process to end; Windows knows no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupted(SystemExit):
    """Raised after a run was interrupted and its state was saved; ends a script quietly with the shell's exit code.

    Attributes:
        history: the record up to the interruption.
    """

    def __init__(self, number: int, history: History) -> None:
        super().__init__(128 + number)
        self.history = history


class Watch:
    """While open, the first SIGINT, SIGTERM or SIGHUP is only noted; a second SIGINT interrupts at once.

    Signals belong to the main thread: elsewhere nothing is watched and Ctrl-C does what it always does.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Watch:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                # Somebody else's handler is not replaced, nor what nohup ignores; Python's own and the default are.
                if before in (signal.default_int_handler, signal.SIG_DFL):
                    self._before[number] = before
                    signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
