"""What watches a run: callbacks between epochs, which stop it early, write a table, feed TensorBoard or do whatever a
user's function does; and the progress bar, on a terminal, with epoch, loss, live share of the noise and time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from .fitting import Settings
    from .history import History

#: Redrawing more often than this only costs time.
_SECONDS_BETWEEN = 0.1


class Run(Protocol):
    """What a callback sees of a run."""

    objective: nn.Module
    history: History
    step: int
    epoch: int
    seed: int
    is_main: bool
    settings: Settings
    callbacks: list[Callback]

    @property
    def validation(self) -> object:
        """What evaluates held-out rows, or None without them."""

    def stop(self, reason: str) -> None:
        """End training after this epoch."""

    def replace_noise(self, noise: Distribution) -> None:
        """Train against another p_n from the next step on."""

    def sample_rows(self, n: int, generator: torch.Generator) -> Tensor:
        """At most n rows of the training data."""


class Callback:
    """A callback; override what you need. What it must remember across a resume goes through its state.

    >>> import torch
    >>> import fvnce
    >>> class Announce(Callback):
    ...     def epoch(self, run):
    ...         print("epoch", run.epoch + 1)
    >>> noise = fvnce.fit_gaussian(torch.eye(4))
    >>> objective = fvnce.SNCE(fvnce.EnergyModel(fvnce.mlp([4, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
    >>> _ = fvnce.fit(objective, torch.eye(4), epochs=2, callbacks=[Announce()])
    epoch 1
    epoch 2
    """

    def start(self, run: Run) -> None:
        """Before the first step, also of a resumed run."""

    def epoch(self, run: Run) -> None:
        """After an epoch; its row is the last of ``run.history.epochs``."""

    def end(self, run: Run) -> None:
        """After the last step, unless an error or Ctrl-C ended the run."""

    def state_dict(self) -> dict[str, Any]:
        """Numbers, text, lists, dictionaries and tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""


class FunctionCallback(Callback):
    """A function that is called with the run after each epoch."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self.function = function

    def epoch(self, run: Run) -> None:
        """Call it."""
        self.function(run)


class EarlyStopping(Callback):
    """Stop when a column of the epochs has not improved for some epochs, and go back to the best weights.

    Args:
        patience: epochs without improvement that are borne.
        monitor: the column, which must not be NaN to count. Smaller is better, except for ``val_bound``.
        min_delta: what counts as an improvement.
        restore_best: leave the objective with the weights of the best epoch.

    >>> import torch
    >>> import fvnce
    >>> noise = fvnce.fit_gaussian(torch.eye(4))
    >>> objective = fvnce.SNCE(fvnce.EnergyModel(fvnce.mlp([4, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
    >>> stop = EarlyStopping(patience=1, monitor="loss", min_delta=1e6)  # no epoch is that much better than the first
    >>> history = fvnce.fit(objective, torch.eye(4), epochs=50, callbacks=[stop])
    >>> history["epoch"]
    [1.0, 2.0]
    """

    def __init__(
        self, patience: int = 10, *, monitor: str = "val_loss", min_delta: float = 0.0, restore_best: bool = True
    ) -> None:
        self.patience = _checks.count("patience", patience)
        self.monitor = monitor
        self.min_delta = _checks.number("min_delta", min_delta, low=0.0)
        self.restore_best = restore_best
        self.best = math.inf
        self.best_epoch = -1
        self._weights: dict[str, Tensor] | None = None

    def epoch(self, run: Run) -> None:
        """Compare the epoch with the best one so far; one that was not validated has nothing to compare."""
        validated = run.validation is None or run.settings.validates_after(run.epoch)
        if self.monitor.startswith("val_") and not validated:
            return
        if self.monitor not in run.history.epochs:
            raise ValueError(
                f"monitor must be a column of the epochs ({', '.join(run.history.epochs.columns)}), found "
                f"{self.monitor!r}; columns that begin with val_ need validation data"
            )
        found = run.history.epochs[self.monitor][-1] * (-1 if self.monitor == "val_bound" else 1)
        if found < self.best - self.min_delta:
            self.best, self.best_epoch = found, run.epoch
            if self.restore_best:
                self._weights = {name: value.detach().clone() for name, value in run.objective.state_dict().items()}
        elif run.epoch - self.best_epoch >= self.patience:
            run.stop(f"{self.monitor} has not improved since epoch {self.best_epoch + 1}")

    def end(self, run: Run) -> None:
        """Put the best weights back."""
        if self._weights is not None:
            run.objective.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """The best epoch and its weights."""
        return {"best": self.best, "best_epoch": self.best_epoch, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.best, self.best_epoch, self._weights = state["best"], state["best_epoch"], state["weights"]


class CSVLog(Callback):
    """Keep a CSV file of the epochs (or, with ``of="steps"``, of the steps) up to date.

    The file is written anew after each epoch, so that a resumed run leaves no row twice.

    >>> import tempfile
    >>> import torch
    >>> import fvnce
    >>> noise = fvnce.fit_gaussian(torch.eye(4))
    >>> objective = fvnce.SNCE(fvnce.EnergyModel(fvnce.mlp([4, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fvnce.fit(objective, torch.eye(4), epochs=2, callbacks=[CSVLog(f"{folder}/epochs.csv")])
    ...     len(Path(f"{folder}/epochs.csv").read_text().splitlines())
    3
    """

    def __init__(self, path: str | Path, *, of: str = "epochs") -> None:
        self.path = Path(path)
        self.of = _checks.choice("of", of, ("epochs", "steps"))

    def epoch(self, run: Run) -> None:
        """Write the table."""
        if run.is_main:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            run.history.to_csv(self.path, of=self.of)


class TensorBoardLog(Callback):
    """Write every column to TensorBoard; needs the ``tensorboard`` package.

    >>> TensorBoardLog("logs").folder.name  # among the callbacks of fvnce.fit; nothing is written before it starts
    'logs'
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._writer: Any = None
        self._written = 0

    def start(self, run: Run) -> None:
        """Open the log; what a resumed run does again replaces what was logged."""
        if not run.is_main:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("TensorBoardLog needs the tensorboard package: pip install tensorboard") from None
        self._writer = SummaryWriter(str(self.folder), purge_step=run.step)
        self._written = len(run.history.steps)

    def epoch(self, run: Run) -> None:
        """Write the epoch, and its steps that were logged."""
        if self._writer is None:
            return
        steps = run.history.steps.to_dict()
        for row in range(self._written, len(run.history.steps)):
            for name, column in steps.items():
                if name not in ("step", "epoch", "rows") and not math.isnan(column[row]):
                    self._writer.add_scalar(f"step/{name}", column[row], int(steps["step"][row]))
        self._written = len(run.history.steps)
        for name, value in run.history.epochs.last().items():
            if name != "epoch" and not math.isnan(value):
                self._writer.add_scalar(f"epoch/{name}", value, run.step)
        self._writer.flush()

    def end(self, run: Run) -> None:
        """Close the log."""
        if self._writer is not None:
            self._writer.close()


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
