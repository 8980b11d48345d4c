"""The record of a training run: one row for each step and one for each epoch.

>>> history = History()
>>> history.steps.add(step=0, loss=2.0)
>>> history.steps.add(step=1, loss=1.5, live_noise=0.9)
>>> history.steps["live_noise"]
[nan, 0.9]
"""

from __future__ import annotations

import csv
import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .. import _validation
from ..io import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Steps whose numbers are exchanged between processes together.
_AT_ONCE = 50
#: Columns that are not averaged over an epoch, and those that are not averaged over processes.
_NOT_AVERAGED = ("step", "epoch", "rows", "seconds", "samples_per_second")
_SAME_ON_ALL = (*_NOT_AVERAGED, "lr")


class HistoryTable:
    """Table of numbers under named columns; columns that a row does not name hold NaN.

    Only given numbers are stored, so a million steps with statistics at every hundredth stay small.

    >>> table = HistoryTable()
    >>> table.add(step=1, loss=0.5)
    >>> table.add(step=2)
    >>> table["loss"], len(table)
    ([0.5, nan], 2)
    """

    def __init__(self) -> None:
        self._columns: dict[str, tuple[array[float], array[int]]] = {}  # numbers, and the rows they are of
        self._length = 0

    def add(self, **values: float) -> None:
        """Append a row of named numbers."""
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = array("d"), array("q")
            numbers, rows = self._columns[name]
            numbers.append(value)
            rows.append(self._length)
        self._length += 1

    def last(self) -> dict[str, float]:
        """Return the newest number of every column."""
        return {name: numbers[-1] for name, (numbers, _) in self._columns.items()}

    def to_dict(self) -> dict[str, list[float]]:
        """Return the columns by name, as ``pandas.DataFrame`` takes them."""
        return {name: self[name] for name in self._columns}

    def to_csv(self, path: str | Path) -> None:
        """Write a header and the rows; NaN becomes an empty field."""
        with atomic_write(path, "w") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            for row in zip(*self.to_dict().values(), strict=True):
                writer.writerow(["" if math.isnan(value) else _plain(value) for value in row])

    def state_dict(self) -> dict[str, Any]:
        """Return the columns as tensors, for a checkpoint."""
        columns = {
            # Of a column without gaps the row numbers are not stored.
            name: (_tensor(numbers), None if len(rows) == self._length else _tensor(rows))
            for name, (numbers, rows) in self._columns.items()
        }
        return {"rows": self._length, "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all rows by those of :meth:`state_dict`."""
        self._length = state["rows"]
        self._columns = {}
        for name, (numbers, rows) in state["columns"].items():
            places = range(len(numbers)) if rows is None else rows.numpy().tobytes()
            self._columns[name] = array("d", numbers.numpy().tobytes()), array("q", places)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> list[float]:
        if name not in self._columns:
            raise KeyError(f"history has no column {name!r}; its columns are {', '.join(self._columns) or 'none'}")
        numbers, rows = self._columns[name]
        if len(rows) == self._length:
            return numbers.tolist()
        column = [math.nan] * self._length
        for row, number in zip(rows, numbers, strict=True):
            column[row] = number
        return column

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[dict[str, float]]:
        columns = self.to_dict()
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


class History:
    """The record of a training run.

    ``history.steps`` has a row for every step: ``step``, ``epoch``, ``rows``, ``loss`` and ``lr``, and for the steps
    that are logged the objective's statistics, ``seconds`` and ``samples_per_second``. ``history.epochs`` has a row for
    every epoch: the means over it, and the results of validation under names that begin with ``val_``.
    ``history.notes`` holds what belongs to no row, such as how many seconds log p_n of the data took.

    >>> history = History()
    >>> history.epochs.add(epoch=1, loss=0.5)
    >>> history.epochs.add(epoch=2, loss=0.25)
    >>> history["loss"], history.epochs.last()
    ([0.5, 0.25], {'epoch': 2.0, 'loss': 0.25})
    """

    def __init__(self) -> None:
        self.steps = HistoryTable()
        self.epochs = HistoryTable()
        self.notes: dict[str, Any] = {}

    def __getitem__(self, name: str) -> list[float]:
        """Return a column of the epochs."""
        return self.epochs[name]

    def to_dict(self) -> dict[str, dict[str, list[float]]]:
        """Return both tables, as columns by name."""
        return {"steps": self.steps.to_dict(), "epochs": self.epochs.to_dict()}

    def to_csv(self, path: str | Path, *, of: str = "epochs") -> None:
        """Write one table as a csv file.

        Args:
            path: the file.
            of: "epochs" or "steps".
        """
        table: HistoryTable = getattr(self, _validation.choice("of", of, ("epochs", "steps")))
        table.to_csv(path)

    def plot(self, *names: str, ax: Axes | None = None) -> Axes:
        """Draw columns of the epochs, by default the losses, and return the axes."""
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots()
        for name in names or [name for name in ("loss", "val_loss") if name in self.epochs]:
            ax.plot(self.epochs["epoch"], self.epochs[name], label=name.replace("_", " "))
        ax.set_xlabel("epoch")
        ax.legend()
        return ax

    def state_dict(self) -> dict[str, Any]:
        """Return all of it, for a checkpoint."""
        return {"steps": self.steps.state_dict(), "epochs": self.epochs.state_dict(), "notes": dict(self.notes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`."""
        self.steps.load_state_dict(state["steps"])
        self.epochs.load_state_dict(state["epochs"])
        self.notes = dict(state["notes"])

    def __repr__(self) -> str:
        last = self.epochs.last()
        shown = ", ".join(f"{name}={last[name]:.4g}" for name in ("loss", "val_loss") if name in last)
        return f"History({len(self.steps)} steps, {len(self.epochs)} epochs{', ' + shown if shown else ''})"


class Recorder:
    """Fill a history while a trainer runs.

    Args:
        history: the record to fill.
        average: the mean of a tensor over processes, or None with one process.
    """

    def __init__(self, history: History, average: Callable[[Tensor], Tensor] | None) -> None:
        self.history, self.average = history, average
        self.live: float | None = None  # of the last logged step, for the progress bar
        self.rate = 0.0
        self._started = time.perf_counter()
        self._epoch: list[dict[str, float]] = []  # its steps in the history
        self._waiting: list[dict[str, float]] = []  # and those that are not there yet

    def resume(self, epoch: int) -> None:
        """Continue the clock of the history, and the epoch whose first steps it may hold."""
        self._started -= max(table.last().get("seconds", 0.0) for table in (self.history.epochs, self.history.steps))
        begun = [row for row in self.history.steps if row["epoch"] == epoch]
        self._epoch = [{name: value for name, value in row.items() if not math.isnan(value)} for row in begun]

    def begin_epoch(self) -> None:
        """Start the clock of the rate, which does not count validation and callbacks."""
        self._begun, self._rows = time.perf_counter(), 0.0

    def step(self, row: dict[str, float], terms: Any, *, logged: bool) -> None:
        """Take the numbers of a step; of one that is ``logged``, also time and the statistics of its terms."""
        self._waiting.append(row)
        self._rows += row["rows"]
        now = time.perf_counter()
        self.rate = self._rows / max(now - self._begun, 1e-9)
        if logged:
            row |= {"seconds": now - self._started, "samples_per_second": self.rate}
            if terms is not None:
                row |= {name: float(value) for name, value in terms.statistics.items()}
            self.live = row.get("live_noise", self.live)
        if len(self._waiting) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write waiting rows to the history; with several processes as means over them, in one exchange."""
        if self.average is not None and self._waiting:
            places = [(row, name) for row in self._waiting for name in row if name not in _SAME_ON_ALL]
            means = self.average(torch.tensor([row[name] for row, name in places], dtype=torch.float64)).tolist()
            for (row, name), mean in zip(places, means, strict=True):
                row[name] = mean
        for row in self._waiting:
            self.history.steps.add(**row)
        self._epoch += self._waiting
        self._waiting = []

    def close_epoch(self, epoch: int, step: int, validated: Mapping[str, float]) -> None:
        """Record an epoch: means over its steps, weighted by rows, and the results of validation."""
        self.flush()
        row: dict[str, float] = {"epoch": float(epoch + 1), "step": float(step)}
        for name in dict.fromkeys(name for each in self._epoch for name in each if name not in _NOT_AVERAGED):
            pairs = [(each[name], each["rows"]) for each in self._epoch if name in each]
            row[name] = math.fsum(value * weight for value, weight in pairs) / math.fsum(weight for _, weight in pairs)
        row |= {"seconds": time.perf_counter() - self._started, "samples_per_second": self.rate}
        self.history.epochs.add(**row, **{f"val_{name}": value for name, value in validated.items()})
        self._epoch = []


def _tensor(numbers: array[Any]) -> Tensor:
    # By way of NumPy: torch.tensor would read an array one Python number at a time.
    return torch.from_numpy(np.array(numbers))


def _plain(value: float) -> float | int:
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**53 else value
