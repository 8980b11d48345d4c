"""From steps to the history: losses, and what statistics are computed from, wait until there are enough of them; then
all are recorded at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..objectives.terms import Snapshot, Terms, statistics_of
from .history import History

#: Steps whose statistics are computed together.
AT_ONCE = 50

#: Columns that are no averages over rows, and those that every process knows for itself.
_NOT_AVERAGED = ("step", "epoch", "rows", "seconds", "samples_per_second")
_OWN = (*_NOT_AVERAGED, "lr")


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
        self._pending: list[tuple[dict[str, float], float | Tensor]] = []
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

    def step(self, row: dict[str, float], loss: float | Tensor) -> None:
        """A step, whose loss may still be on an accelerator."""
        self._pending.append((row, loss))
        self._lap_rows += row["rows"]
        self._epoch_rows += row["rows"]

    def log(self, terms: Any) -> float | None:
        """Add time and the objective's statistics to the last step, and record what waits if there is enough of it.

        Gives back the first loss that is not finite, if one was recorded.
        """
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
        enough = len(self._pending) >= AT_ONCE or not self.history.steps.columns
        return self.flush() if enough else None

    def flush(self) -> float | None:
        """Record all that waits; gives back the first loss that is not finite, if any."""
        if not self._pending:
            return None
        found = statistics_of([snapshot for _, snapshot in self._snapshots])
        for (row, _), named in zip(self._snapshots, found, strict=True):
            row |= named
        self._snapshots.clear()
        self._average_over_processes()
        bad = None
        for row, _ in self._pending:
            bad = row["loss"] if bad is None and not math.isfinite(row["loss"]) else bad
            self.live = row.get("live_noise", self.live)
            self.history.steps.add(**row)
            self._epoch.append(row)
        self._pending.clear()
        return bad

    def _average_over_processes(self) -> None:
        """Losses and statistics become their means over all processes, in one exchange."""
        losses = torch.stack([torch.as_tensor(loss, dtype=torch.float64) for _, loss in self._pending])
        for (row, _), loss in zip(self._pending, losses.tolist(), strict=True):
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
