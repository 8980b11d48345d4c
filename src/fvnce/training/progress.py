"""The progress bar: on a terminal, epoch, loss, live share of the noise, samples per second and time left; elsewhere
nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Redrawing more often than this only costs time.
_SECONDS_BETWEEN = 0.1


class NullProgress:
    """Shows nothing."""

    def begin(self, epochs: int, steps: int | None, done: int) -> None:
        """Training starts, with ``done`` of ``steps`` steps behind it."""

    def step(self, done: int, epoch: int, loss: float, live: float | None, rate: float) -> None:
        """A step was done."""

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None] | None]:
        """A piece of work before training; gives the function that reports (done, total)."""
        yield None

    def say(self, line: str) -> None:
        """One line for the user, on standard error."""
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    def close(self) -> None:
        """Training is over."""


class Bar(NullProgress):
    """A rich progress bar on standard error."""

    def __init__(self) -> None:
        # Imported here: a run without a terminal need not wait for it.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._progress: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: TaskID | None = None
        self._drawn = 0.0
        self._last: tuple[int, int, float, float | None, float] | None = None
        self._epochs = 0

    def begin(self, epochs: int, steps: int | None, done: int) -> None:
        """Draw the bar."""
        self._epochs = epochs
        self._progress.start()
        self._task = self._progress.add_task("training", total=steps, completed=done, shown="")

    def step(self, done: int, epoch: int, loss: float, live: float | None, rate: float) -> None:
        """Redraw, a few times a second at most."""
        self._last = (done, epoch, loss, live, rate)
        now = time.perf_counter()
        if now - self._drawn >= _SECONDS_BETWEEN:
            self._drawn = now
            self._draw(*self._last)

    def _draw(self, done: int, epoch: int, loss: float, live: float | None, rate: float) -> None:
        if self._task is None:
            return
        noise = "" if live is None else f"  live noise {live:.0%}"
        self._progress.update(
            self._task,
            completed=done,
            description=f"epoch {epoch + 1}/{self._epochs}",
            shown=f"loss {loss:.4g}{noise}  {rate:,.0f} samples/s",
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None] | None]:
        """A bar of its own, gone when the work is done."""
        self._progress.start()
        task = self._progress.add_task(name, total=None, shown="")
        try:
            yield lambda done, total: self._progress.update(task, completed=done, total=total)
        finally:
            self._progress.remove_task(task)

    def say(self, line: str) -> None:
        """One line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bar as the last step left it."""
        if self._last is not None:
            self._draw(*self._last)
        if self._task is not None:
            self._progress.refresh()
        self._progress.stop()


def make_progress(wanted: bool | None, *, main_process: bool) -> NullProgress:
    """The bar if wanted; by default if standard error is a terminal. Only the main process shows one."""
    if not main_process or wanted is False:
        return NullProgress()
    return Bar() if wanted or sys.stderr.isatty() else NullProgress()
