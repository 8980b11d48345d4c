"""Callbacks, which watch a trainer between steps and epochs, and the progress bar."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .. import _validation
from ..objectives import Batch

if TYPE_CHECKING:
    import rich.progress


class Callback:
    """Base class of callbacks; override the methods you need.

    A callback may be a function instead, which is then called with the trainer after each epoch. What a callback must
    remember across a resume goes through :meth:`state_dict`. Of the trainer, callbacks may use

    * ``objective``, ``history``, ``callbacks`` and ``seed``;
    * ``step``, how many steps are done, and ``epoch``, the number of this epoch from 0;
    * ``settings``: the arguments of :func:`fvnce.fit` and of :class:`FitOptions`, such as ``settings.epochs``;
    * ``is_main``, whether this is the process that writes files, and ``fabric``, the processes;
    * ``stop(reason)``, which ends the training after this epoch;
    * ``replace_noise(noise)``, to train against another p_n from the next step on;
    * ``sample_rows(n, generator)``, at most n rows of the training data.

    >>> import torch
    >>> import fvnce
    >>> class Announce(Callback):
    ...     def epoch(self, trainer):
    ...         print("epoch", trainer.epoch + 1)
    >>> noise = fvnce.fit_gaussian(torch.eye(4))
    >>> objective = fvnce.NCE(fvnce.EnergyModel(fvnce.mlp([4, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
    >>> _ = fvnce.fit(objective, torch.eye(4), epochs=2, callbacks=[Announce()])
    epoch 1
    epoch 2
    """

    def start(self, trainer: Any) -> None:
        """Called before the first step, also of a resumed training."""

    def before_epoch(self, trainer: Any) -> None:
        """Called before the first step of an epoch, also of one that is resumed in its middle."""

    def before_step(self, trainer: Any, batch: Batch) -> Batch:
        """Return the batch to train on, by default ``batch`` itself.

        If the objective refuses the batch, its buffers are put back to what they were before this call, and
        :meth:`after_step` is not called.
        """
        return batch

    def after_step(self, trainer: Any, batch: Batch) -> None:
        """Called after the weights have changed by a batch."""

    def epoch(self, trainer: Any) -> None:
        """Called after an epoch; its row is the last of ``trainer.history.epochs``."""

    def end(self, trainer: Any) -> None:
        """Called after the last step, unless an error or a signal ended the training."""

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, text, lists, dictionaries and tensors for a checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`; called before :meth:`start`."""


class FunctionCallback(Callback):
    """Call a function with the trainer after each epoch."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self.function = function

    def epoch(self, trainer: Any) -> None:
        """Call the function with the trainer."""
        self.function(trainer)


class EarlyStopping(Callback):
    """Stop when a column of the epochs has not improved for some epochs, and go back to the best weights.

    Args:
        patience: how many epochs without improvement to wait.
        monitor: the column to watch; NaN never counts as an improvement. Smaller is better, except for ``val_bound``.

    >>> import torch
    >>> import fvnce
    >>> noise = fvnce.fit_gaussian(torch.eye(4))
    >>> objective = fvnce.NCE(fvnce.EnergyModel(fvnce.mlp([4, 1]), reference=noise), noise, fvnce.PowerRule(alpha=0))
    >>> stop = EarlyStopping(patience=1, monitor="lr")  # which does not change
    >>> history = fvnce.fit(objective, torch.eye(4), epochs=50, callbacks=[stop])
    >>> history["epoch"]
    [1.0, 2.0]
    """

    def __init__(self, patience: int = 10, *, monitor: str = "val_loss") -> None:
        self.patience = _validation.count("patience", patience)
        self.monitor = monitor
        self.best = math.inf
        self.best_epoch = -1
        self._weights: dict[str, Tensor] | None = None

    def epoch(self, trainer: Any) -> None:
        """Compare the epoch with the best one so far."""
        epochs = trainer.history.epochs
        if self.monitor not in epochs:
            names = ", ".join(epochs.columns)
            raise ValueError(f"monitor must be one of {names}, found {self.monitor!r}; val_… need validation data")
        value = epochs[self.monitor][-1] * (-1 if self.monitor == "val_bound" else 1)
        if value < self.best:
            self.best, self.best_epoch = value, trainer.epoch
            self._weights = {name: value.detach().clone() for name, value in trainer.objective.state_dict().items()}
        elif trainer.epoch - self.best_epoch >= self.patience:
            trainer.stop(f"{self.monitor} has not improved since epoch {self.best_epoch + 1}")

    def end(self, trainer: Any) -> None:
        """Put the best weights back."""
        if self._weights is not None:
            trainer.objective.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the best epoch, its value and its weights."""
        return {"best": self.best, "best_epoch": self.best_epoch, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        self.best, self.best_epoch, self._weights = state["best"], state["best_epoch"], state["weights"]


class Progress:
    """A rich progress bar on standard error: epoch, loss, live fraction of the noise, samples per second, time left.

    Args:
        shown: by default if standard error is a terminal. One that is not shown does nothing.
    """

    def __init__(self, shown: bool | None = None) -> None:
        self._bar: rich.progress.Progress | None = None
        if sys.stderr.isatty() if shown is None else shown:
            # Imported here: a training without a terminal need not wait for it.
            from rich.console import Console
            from rich.progress import Progress, TextColumn

            columns = (*Progress.get_default_columns(), TextColumn("{task.fields[shown]}"))
            self._bar = Progress(*columns, console=Console(stderr=True))

    def begin(self, epochs: int, steps: int | None, done: int) -> None:
        """Start to show the training, of which ``done`` of ``steps`` steps are done."""
        if self._bar is not None:
            self._epochs = epochs
            self._bar.start()
            self._task = self._bar.add_task("training", total=steps, completed=done, shown="")

    def step(self, done: int, epoch: int, loss: float, live: float | None, rate: float) -> None:
        """Show the numbers of a step; rich redraws the bar a few times a second."""
        if self._bar is not None:
            noise = "" if live is None else f"  live noise {live:.0%}"
            shown = f"loss {loss:.4g}{noise}  {rate:,.0f} samples/s"
            self._bar.update(self._task, completed=done, description=f"epoch {epoch + 1}/{self._epochs}", shown=shown)

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Show work that precedes training; yield the function to report (done, total) to."""
        if self._bar is None:
            yield lambda done, total: None
            return
        self._bar.start()
        task, update = self._bar.add_task(name, total=None, shown=""), self._bar.update
        try:
            yield lambda done, total: update(task, completed=done, total=total)
        finally:
            self._bar.remove_task(task)

    def close(self) -> None:
        """Leave the bar as it was after the last step."""
        if self._bar is not None:
            self._bar.stop()
