"""What may happen between epochs: stop early, write a table, feed TensorBoard, or whatever a user's function does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from .. import _checks

if TYPE_CHECKING:
    from .history import History


class Run(Protocol):
    """What a callback sees of a run."""

    objective: nn.Module
    history: History
    step: int
    epoch: int
    is_main: bool

    def stop(self, reason: str) -> None:
        """End training after this epoch."""


class Callback:
    """A callback; override what you need. What it must remember across a resume goes through its state."""

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
        """Compare the epoch with the best one so far."""
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
    """Write every column to TensorBoard; needs the ``tensorboard`` package."""

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
            raise ImportError(
                "TensorBoardLog needs the tensorboard package: pip install 'fvnce[tensorboard]'"
            ) from None
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
