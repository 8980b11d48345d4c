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
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        with Path(path).open("w", newline="", encoding="utf-8") as file:
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
        """Both tables and the notes as JSON text, also written to ``path`` if given; NaN becomes null."""
        tables = {
            table: {name: [None if math.isnan(v) else _plain(v) for v in column] for name, column in columns.items()}
            for table, columns in self.to_dict().items()
        }
        text = json.dumps({**tables, "notes": self.notes})
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
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


def _tensor(values: array[Any], dtype: torch.dtype) -> torch.Tensor:
    # Through bytes: torch.tensor would read an array one Python number at a time.
    return torch.frombuffer(bytearray(values.tobytes()), dtype=dtype)


def _plain(value: float) -> float | int:
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**53 else value
