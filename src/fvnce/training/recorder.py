"""From steps to the history: losses wait, where they were computed, until a step is logged; then all are recorded at
once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .history import History

_NOT_AVERAGED = ("step", "epoch", "rows", "seconds", "samples_per_second")


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

    def log(self, terms: Any) -> None:
        """Add time and the objective's statistics to the last step, and record what has been waiting."""
        row, _ = self._pending[-1]
        now = time.perf_counter()
        self.rate = self._lap_rows / max(now - self._lap, 1e-9)
        self._lap, self._lap_rows = now, 0.0
        row["seconds"] = self.seconds
        row["samples_per_second"] = self.rate
        if terms is not None:
            named = terms.statistics
            values = torch.tensor([float(value) for value in named.values()], dtype=torch.float64)
            row |= dict(zip(named, self._over_processes(values).tolist(), strict=True))
            self.live = row.get("live_noise")
        self.flush()

    def flush(self) -> float | None:
        """Record all that waits; gives back the first loss that is not finite, if any."""
        if not self._pending:
            return None
        losses = torch.stack([torch.as_tensor(loss, dtype=torch.float64) for _, loss in self._pending])
        bad = None
        for (row, _), loss in zip(self._pending, self._over_processes(losses).tolist(), strict=True):
            row["loss"] = loss
            bad = loss if bad is None and not math.isfinite(loss) else bad
            self.history.steps.add(**row)
            self._epoch.append(row)
        self._pending.clear()
        return bad

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

    def _over_processes(self, values: Tensor) -> Tensor:
        return values if self.average is None else self.average(values)
