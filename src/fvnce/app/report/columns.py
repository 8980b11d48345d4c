"""The section of columns: how each was read, what is missing in it, what was left out and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection.preprocessing import TablePreprocessor
from ...detection.rows import release
from ...tables.frame import Frame, Rows, present
from .analysis import Analysis, number_text
from .page import PageTable, Section, block

#: Columns that the table shows, those with a note first.
SHOWN = 60
#: Kinds of columns in words, where the kind is not the word.
KINDS = {"truth": "yes or no", "time": "date", "clock": "time of day"}
#: Rows of a matrix that are summarized together.
PART_ROWS = 2**16
#: Texts of a column that are counted: enough to tell a category from an identifier, whatever the length of the file.
TEXTS = 10_000


class ColumnSummary:
    """What a column holds, added up over parts of its rows; durations are in seconds.

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
        """Return the number of different texts, or the smallest and the largest value, for JSON."""
        if self.kind == "O":
            return {"different": len(self.texts), **({"at_least": True} if len(self.texts) >= TEXTS else {})}
        if self.low is None:
            return {}
        edges = {"low": self.low, "high": self.high}
        if self.kind == "M":
            return {name: str(edge.astype("datetime64[s]")) for name, edge in edges.items()}
        return {name: float(edge) if np.isfinite(edge) else None for name, edge in edges.items()}

    def span(self, kind: str = "number") -> str:
        """Return the smallest and the largest value, or the number of different texts, in words."""
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


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the notices from reading the file, and a table of columns."""
    blocks = [block("notices", sentences=analysis.notices)] if analysis.notices else []
    preprocessor = analysis.run.detector.preprocessor_
    if analysis.is_image or not isinstance(preprocessor, TablePreprocessor):
        if blocks:
            yield Section("How the data were read", blocks=blocks)
        return
    rows, layout, settings = len(analysis.data.known), analysis.run.layout, analysis.run.config.data
    lines = []
    for name, summary, encoded in zip(
        layout.columns, _summaries(analysis.data.rows), preprocessor.columns, strict=True
    ):
        kind = "number" if layout.types is None else layout.types[name].kind
        note = "constant, not used" if encoded.unused else "–"
        if encoded.empty:
            note = "empty, not used"
        elif encoded.times == [] and not encoded.missing:
            note = "no cycle seen twice, not used"
        missing = f"{summary.missing:,} ({summary.missing / rows:.1%})" if summary.missing else "–"
        lines.append([name, KINDS.get(kind, kind), missing, summary.span(kind), note])
    troubled = [line for line in lines if line[2] != "–" or line[4] != "–"]
    reading = [
        f"{len(lines):,} columns are used as follows; "
        + (f"{len(troubled):,} of them have missing values or are not used." if troubled else "no value is missing.")
    ]
    left_out = [f"{name} (--drop)" for name in settings.drop]
    left_out += [f"{name} ({why})" for name, why in ((settings.label, "the label"), (settings.id, "--id")) if name]
    if left_out:
        reading.append(f"Left out as asked: {', '.join(left_out)}.")
    if len(lines) > SHOWN:
        lines = [*troubled, *(line for line in lines if line not in troubled)][:SHOWN]
        reading.append(f"Of {len(layout.columns):,} columns {SHOWN} are shown, those with a note first.")
    table = PageTable("Columns as they were read", ["column", "read as", "missing", "values", "note"], lines)
    yield Section("Columns and their health", reading, blocks=blocks, tables=[table])


def _summaries(rows: Rows) -> list[ColumnSummary]:
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
