"""Summaries of the columns of a table: missing values, smallest and largest values, distinct texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection.rows import release
from ...tables.frame import Frame, Rows, present

#: Rows of a matrix that are summarized together.
PART_ROWS = 2**16
#: The most distinct texts of a column that are counted: enough to distinguish a category from an identifier.
TEXTS = 10_000


class ColumnSummary:
    """Summary of one column, updated part by part; durations are in seconds.

    >>> summary = ColumnSummary()
    >>> summary.add(np.array([3.0, np.nan]))
    >>> summary.add(np.array([1.0]))
    >>> summary.missing, summary.span()
    (1, '1 to 3')
    """

    def __init__(self) -> None:
        self.kind, self.missing = "", 0
        self.low: Any = None
        self.high: Any = None
        self.texts: set[str] = set()

    def add(self, values: NDArray[Any]) -> None:
        """Add the values of more rows."""
        there = present(values)
        self.kind, self.missing = values.dtype.kind, self.missing + len(values) - len(there)
        if self.kind == "O":
            if len(self.texts) < TEXTS:
                self.texts.update(there.tolist())
        elif len(there):
            if self.kind == "m":
                there = there / np.timedelta64(1, "s")
            low, high = there.min(), there.max()
            self.low, self.high = (low, high) if self.low is None else (min(self.low, low), max(self.high, high))

    def content(self) -> dict[str, Any]:
        """Return the number of distinct texts, or the smallest and the largest value, for JSON."""
        if self.kind == "O":
            return {"different": len(self.texts), **({"at_least": True} if len(self.texts) >= TEXTS else {})}
        if self.low is None:
            return {}
        edges = {"low": self.low, "high": self.high}
        if self.kind == "M":
            return {name: str(edge.astype("datetime64[s]")) for name, edge in edges.items()}
        return {name: float(edge) if np.isfinite(edge) else None for name, edge in edges.items()}

    def span(self, kind: str = "number") -> str:
        """Return the smallest and the largest value, or the number of distinct texts, as text."""
        if self.kind == "O":
            return f"{'at least ' * (len(self.texts) >= TEXTS)}{len(self.texts):,} different"
        if self.low is None:
            return "none"
        if self.kind == "M":
            low, high = (str(edge.astype("datetime64[s]")).removesuffix("T00:00:00") for edge in (self.low, self.high))
            return f"{low} to {high}".replace("T", " ")
        if kind == "truth":
            return {(0.0, 0.0): "no", (1.0, 1.0): "yes"}.get((self.low, self.high), "yes and no")
        if self.kind == "m":
            return f"{self.low:.4g} to {self.high:.4g} seconds"
        return f"{number_text(self.low)} to {number_text(self.high)}"


def summarize(rows: Rows) -> list[ColumnSummary]:
    """Return a summary of each column of a table."""
    summaries = [ColumnSummary() for _ in range(rows.shape[1])]
    if isinstance(rows, Frame):
        for summary, name in zip(summaries, rows.columns, strict=True):
            summary.add(rows[name])
        return summaries
    for start in range(0, len(rows), PART_ROWS):  # a memory map may be larger than memory
        part = np.asarray(rows[start : start + PART_ROWS], dtype=np.float64)
        for summary, values in zip(summaries, part.T, strict=True):
            summary.add(values)
        release(rows)
    return summaries


def number_text(value: Any) -> str:
    """Format a number with up to ten significant digits."""
    return str(value) if isinstance(value, np.float32) and value % 1 else f"{value:.10g}"
