"""What happened in training: one row per step and one per epoch.

>>> history = History()
>>> history.steps.add(step=0, loss=2.0)
>>> history.steps.add(step=1, loss=1.5, live_noise=0.9)
>>> history.steps["live_noise"]
[nan, 0.9]
"""

from __future__ import annotations

import csv
import json
import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..objectives.base import Snapshot, Terms, statistics_of
from ..serialization import atomic_write, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Steps whose statistics are computed together.
AT_ONCE = 50

#: Columns that are no averages over rows, and those that every process knows for itself.
_NOT_AVERAGED = ("step", "epoch", "rows", "seconds", "samples_per_second")
_OWN = (*_NOT_AVERAGED, "lr")


class _Column:
    """Numbers by row; the row numbers are kept only once a row has been left out."""

    def __init__(self, values: array[float], rows: array[int] | None) -> None:
        self.values = values
        self.rows = rows

    def add(self, row: int, value: float) -> None:
        if self.rows is None and row != len(self.values):
            self.rows = array("q", range(len(self.values)))
        if self.rows is not None:
            self.rows.append(row)
        self.values.append(value)

    def dense(self, length: int) -> list[float]:
        if self.rows is None and len(self.values) == length:
            return self.values.tolist()
        result = [math.nan] * length
        for row, value in zip(range(len(self.values)) if self.rows is None else self.rows, self.values, strict=True):
            result[row] = value
        return result


class Table:
    """Rows of numbers under named columns; a column that a row does not name holds NaN there.

    Only what was given is stored, so a million steps with statistics at every hundredth stay small.

    >>> table = Table()
    >>> table.add(step=1, loss=0.5)
    >>> table.add(step=2)
    >>> table["loss"], len(table)
    ([0.5, nan], 2)
    """

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._rows = 0

    def add(self, **values: float) -> None:
        """Append a row."""
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = _Column(array("d"), None)
            self._columns[name].add(self._rows, value)
        self._rows += 1

    def last(self) -> dict[str, float]:
        """The newest number of every column."""
        return {name: column.values[-1] for name, column in self._columns.items()}

    def to_dict(self) -> dict[str, list[float]]:
        """Columns by name, as ``pandas.DataFrame`` takes them."""
        return {name: column.dense(self._rows) for name, column in self._columns.items()}

    def to_csv(self, path: str | Path) -> None:
        """Write a header and the rows; NaN becomes an empty field."""
        with atomic_write(path, "w") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            for row in zip(*self.to_dict().values(), strict=True):
                writer.writerow(["" if math.isnan(value) else _plain(value) for value in row])

    def state_dict(self) -> dict[str, Any]:
        """The columns as tensors."""
        columns = {
            name: (
                _tensor(column.values, torch.float64),
                None if column.rows is None else _tensor(column.rows, torch.int64),
            )
            for name, column in self._columns.items()
        }
        return {"rows": self._rows, "columns": columns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all rows by those of :meth:`state_dict`."""
        self._rows = state["rows"]
        self._columns = {
            name: _Column(
                array("d", values.numpy().tobytes()), None if rows is None else array("q", rows.numpy().tobytes())
            )
            for name, (values, rows) in state["columns"].items()
        }

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> list[float]:
        if name not in self._columns:
            raise KeyError(f"history has no column {name!r}; its columns are {', '.join(self._columns) or 'none'}")
        return self._columns[name].dense(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[dict[str, float]]:
        columns = self.to_dict()
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


class History:
    """The record of a training run.

    ``history.steps`` has a row for every step: ``step``, ``epoch``, ``rows``, ``loss`` and ``lr``, and for the steps
    that are logged the objective's statistics, ``seconds`` and ``samples_per_second``. ``history.epochs`` has a row for
    every epoch: the means over it, and what validation found under names that begin with ``val_``. ``history.notes``
    says in words what has no column, such as how long log p_n of the data took.

    >>> history = History()
    >>> history.epochs.add(epoch=1, loss=0.5)
    >>> history.epochs.add(epoch=2, loss=0.25)
    >>> history["loss"], history.epochs.last()
    ([0.5, 0.25], {'epoch': 2.0, 'loss': 0.25})
    """

    def __init__(self) -> None:
        self.steps = Table()
        self.epochs = Table()
        self.notes: dict[str, Any] = {}

    def __getitem__(self, name: str) -> list[float]:
        """A column of the epochs."""
        return self.epochs[name]

    def to_dict(self) -> dict[str, dict[str, list[float]]]:
        """Both tables, as columns by name."""
        return {"steps": self.steps.to_dict(), "epochs": self.epochs.to_dict()}

    def to_csv(self, path: str | Path, *, of: str = "epochs") -> None:
        """Write one table, ``of="epochs"`` or ``of="steps"``."""
        tables = {"epochs": self.epochs, "steps": self.steps}
        if of not in tables:
            raise ValueError(f"of must be 'epochs' or 'steps', found {of!r}")
        tables[of].to_csv(path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Both tables and the notes as JSON text, also written to ``path`` if given; NaN and ∞ become null."""
        tables = {
            table: {name: [_plain(v) if math.isfinite(v) else None for v in column] for name, column in columns.items()}
            for table, columns in self.to_dict().items()
        }
        text = json.dumps({**tables, "notes": self.notes}, allow_nan=False)
        if path is not None:
            write_text(path, text)
        return text

    def plot(self, *names: str, ax: Axes | None = None) -> Axes:
        """Draw columns of the epochs, by default the losses, and return the axes."""
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots()
        chosen = names or tuple(name for name in ("loss", "val_loss") if name in self.epochs)
        for name in chosen:
            ax.plot(self.epochs["epoch"], self.epochs[name], label=name.replace("_", " "))
        ax.set_xlabel("epoch")
        ax.legend()
        return ax

    def state_dict(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {"steps": self.steps.state_dict(), "epochs": self.epochs.state_dict(), "notes": dict(self.notes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.steps.load_state_dict(state["steps"])
        self.epochs.load_state_dict(state["epochs"])
        self.notes = dict(state["notes"])

    def __repr__(self) -> str:
        last = self.epochs.last()
        shown = ", ".join(f"{name}={last[name]:.4g}" for name in ("loss", "val_loss") if name in last)
        return f"History({len(self.steps)} steps, {len(self.epochs)} epochs{', ' + shown if shown else ''})"


class Recorder:
    """Fills a history.

    Args:
        history: what is filled.
        average: the mean of a tensor over processes, or None with one process.
    """

    def __init__(self, history: History, average: Callable[[Tensor], Tensor] | None) -> None:
        self.history = history
        self.average = average
        self.live: float | None = None
        self.rate = 0.0
        self._pending: list[tuple[dict[str, float], float]] = []
        self._snapshots: list[tuple[dict[str, float], Snapshot]] = []
        self._epoch: list[dict[str, float]] = []
        self._before = self._epoch_rate = 0.0
        self.start()

    def start(self) -> None:
        """The clock runs from here, in continuation of the history's."""
        self._before = max(
            self.history.epochs.last().get("seconds", 0.0), self.history.steps.last().get("seconds", 0.0)
        )
        self._begun = time.perf_counter()
        self.begin_epoch()

    @property
    def seconds(self) -> float:
        """Time spent in training, over all its parts."""
        return self._before + time.perf_counter() - self._begun

    def begin_epoch(self) -> None:
        """The steps of an epoch begin: rates count from here to their end, without validation and callbacks."""
        self._lap = self._epoch_begun = time.perf_counter()
        self._lap_rows = self._epoch_rows = 0.0

    def end_steps(self) -> None:
        """The steps of an epoch are done."""
        self.flush()
        self._epoch_rate = self._epoch_rows / max(time.perf_counter() - self._epoch_begun, 1e-9)

    def resume(self, epoch: int) -> None:
        """Take up an epoch whose first steps are in the history."""
        columns = self.history.steps.to_dict()
        rows = [i for i, number in enumerate(columns.get("epoch", ())) if number == epoch]
        self._epoch = [{name: column[i] for name, column in columns.items() if not math.isnan(column[i])} for i in rows]
        self.start()

    def step(self, row: dict[str, float], loss: float) -> None:
        """A step."""
        self._pending.append((row, loss))
        self._lap_rows += row["rows"]
        self._epoch_rows += row["rows"]

    def log(self, terms: Any) -> None:
        """Add time and the objective's statistics to the last step, and record what waits if there is enough of it."""
        row, _ = self._pending[-1]
        now = time.perf_counter()
        self.rate = self._lap_rows / max(now - self._lap, 1e-9)
        self._lap, self._lap_rows = now, 0.0
        row["seconds"] = self.seconds
        row["samples_per_second"] = self.rate
        if isinstance(terms, Terms):
            # Of those that are computed together only the last is asked for its costly statistic.
            if self._snapshots:
                before, snapshot = self._snapshots[-1]
                self._snapshots[-1] = before, snapshot.without_held_out_value()
            self._snapshots.append((row, terms.snapshot()))
        elif terms is not None:  # an objective of the user's
            row |= {name: float(value) for name, value in terms.statistics.items()}
        if len(self._pending) >= AT_ONCE or not self.history.steps.columns:
            self.flush()

    def flush(self) -> None:
        """Record all that waits."""
        if not self._pending:
            return
        found = statistics_of([snapshot for _, snapshot in self._snapshots])
        for (row, _), named in zip(self._snapshots, found, strict=True):
            row |= named
        self._snapshots.clear()
        self._average_over_processes()
        for row, _ in self._pending:
            self.live = row.get("live_noise", self.live)
            self.history.steps.add(**row)
            self._epoch.append(row)
        self._pending.clear()

    def _average_over_processes(self) -> None:
        """Losses and statistics become their means over all processes, in one exchange."""
        for row, loss in self._pending:
            row["loss"] = loss
        if self.average is None:
            return
        places = [(row, name) for row, _ in self._pending for name in row if name not in _OWN]
        values = torch.tensor([row[name] for row, name in places], dtype=torch.float64)
        for (row, name), value in zip(places, self.average(values).tolist(), strict=True):
            row[name] = value

    def close_epoch(self, epoch: int, step: int, found: dict[str, float]) -> None:
        """Record an epoch: means over its steps, weighted by rows, and what validation found."""
        row: dict[str, float] = {"epoch": float(epoch + 1), "step": float(step)}
        for name in dict.fromkeys(name for each in self._epoch for name in each if name not in _NOT_AVERAGED):
            pairs = [(each[name], each["rows"]) for each in self._epoch if name in each]
            row[name] = math.fsum(value * weight for value, weight in pairs) / math.fsum(weight for _, weight in pairs)
        row["seconds"] = self.seconds
        row["samples_per_second"] = self._epoch_rate
        row |= {f"val_{name}": value for name, value in found.items()}
        self.history.epochs.add(**row)
        self._epoch = []


def _tensor(values: array[Any], dtype: torch.dtype) -> Tensor:
    # Through bytes: torch.tensor would read an array one Python number at a time.
    return torch.frombuffer(bytearray(values.tobytes()), dtype=dtype)


def _plain(value: float) -> float | int:
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**53 else value
