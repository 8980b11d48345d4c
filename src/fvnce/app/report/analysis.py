"""Data shared by all sections of a report: the run, and the training rows with their scores."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection import Finds
from ...detection.base import Scores
from ...detection.rows import take as take_rows
from ...tables.frame import Frame, Rows
from ..runs import FittedRun
from ..runs.training_data import TrainingData
from .page import png_uri
from .summary import ColumnSummary, number_text, summarize

Array = NDArray[np.float64]
#: The most rows scored for the page.
SCORED = 20_000


@dataclass(frozen=True)
class Analysis:
    """A run, and rows of its training data: all of them, or a sample that includes the known outliers.

    Attributes:
        run: the fitted run.
        data: the training data.
        notices: messages from reading the data.
        positions: indices of the analyzed rows in the training data.
        rows: the analyzed rows.
        known: which of them are known outliers.
        inliers: which of them are known inliers; all others are unlabeled.
        scores: of these rows.
        rng: for sections that choose rows.
    """

    run: FittedRun
    data: TrainingData
    notices: Sequence[str]
    positions: NDArray[np.int64]
    rows: Rows
    known: NDArray[np.bool_]
    inliers: NDArray[np.bool_]
    scores: Scores
    rng: np.random.Generator

    @property
    def anomaly(self) -> Array:
        """The anomaly scores of the analyzed rows."""
        return self.scores.anomaly

    @property
    def is_image(self) -> bool:
        """Whether the rows are pictures."""
        return not isinstance(self.rows, Frame) and self.rows.ndim > 2

    @cached_property
    def finds(self) -> dict[str, Finds]:
        """The lists that hold unlabeled analyzed rows, by name; ``rows`` are places among the analyzed rows."""
        there = np.flatnonzero(~(self.known | self.inliers))
        columns = {name: getattr(self.scores, name)[there] for name in ("anomaly", "line", "like_known", "novelty")}
        finds = self.run.detector.expected_finds(replace(self.scores, **columns))
        if self.run.detector.novelty_threshold_ is None:  # one threshold for all rows
            finds = dict(list(finds.items())[:1])
        return {name: replace(each, rows=there[each.rows]) for name, each in finds.items() if len(each.rows)}

    @cached_property
    def summaries(self) -> list[ColumnSummary]:
        """A summary of each column of a table."""
        return summarize(self.data.rows)

    def name(self, index: int) -> str:
        """Return the name of an analyzed row."""
        return self.name_at(int(self.positions[index]))

    def name_at(self, position: int) -> str:
        """Return the name of a training row: its file, its identifier, or its number in the file."""
        if self.data.names is None:
            return f"row {position + 1:,}"
        name = self.data.names[position]
        if self.run.config.data.id is not None:
            # Without "id", a numeric identifier would look like the number of the row.
            return f"id {name}" if name.isdecimal() else name
        return f"row {int(name):,}" if name.isascii() and name.isdecimal() and len(name) < 20 else name

    def values(self, index: int) -> list[str]:
        """Return the values of an analyzed row as they were read, as text."""
        row = self.rows.row(index).values() if isinstance(self.rows, Frame) else self.rows[index]
        return [cell(value) for value in row]

    def cells(self, indices: Sequence[int]) -> list[list[str]]:
        """Return the values of analyzed rows by column, as written in the file if it is a table."""
        positions = self.positions[list(indices)].tolist()
        written = self.data.cells(positions, self.run.config.data)
        rows = []
        for index, position in zip(indices, positions, strict=True):
            texts = [text or "missing" for text in written[position]] if position in written else self.values(index)
            rows.append(texts)
        return rows


def analyze(run: FittedRun, data: TrainingData, notices: Sequence[str]) -> Analysis:
    """Choose rows of the training data and score them."""
    rng = np.random.default_rng([run.config.seed, 11])
    positions = np.arange(len(data.known))
    if len(positions) > SCORED:
        known = np.flatnonzero(data.known)[:SCORED]
        rest = rng.choice(np.flatnonzero(~data.known), SCORED - len(known), replace=False)
        positions = np.sort(np.concatenate([known, rest]))
    rows = take(data.rows, positions)
    scores = run.detector.scores(run.layout.prepare(rows))
    return Analysis(run, data, notices, positions, rows, data.known[positions], data.inliers[positions], scores, rng)


def take(rows: Rows, chosen: Any) -> Any:
    """Return the chosen rows of a frame or an array."""
    return rows.take(chosen) if isinstance(rows, Frame) else np.asarray(take_rows(rows, chosen))


def picture_uri(image: Array) -> str:
    """Return an image of shape (H, W) or (C, H, W), scaled to its range, as a data URI."""
    low, high = float(image.min()), float(image.max())
    scaled = np.clip((image - low) / ((high - low) or 1.0), 0, 1)
    return _png(scaled if scaled.ndim == 2 else np.moveaxis(scaled, 0, -1))


def heat_uri(values: Array) -> str:
    """Return a heat map of shape (H, W) or (C, H, W) as a data URI: red above zero, blue below, white at zero."""
    summed = values if values.ndim == 2 else values.sum(0)
    share = summed / (float(np.abs(summed).max()) or 1.0)
    red, blue = np.array([0.75, 0.15, 0.12]), np.array([0.04, 0.31, 0.62])
    ends = np.where(share[..., None] > 0, red, blue)
    return _png(1 + np.abs(share)[..., None] * (ends - 1))


def _png(image: Array) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    # Without the name of the program, equal images give equal files. The range is used for gray images only.
    metadata: dict[str, Any] = {"Software": None}
    imsave(buffer, image, format="png", metadata=metadata, cmap="gray", vmin=0, vmax=1)
    return png_uri(buffer.getvalue())


def cell(value: Any) -> str:
    """Format a value as text, a number without an exponent unless it is very large or small.

    >>> cell(78110.0), cell(0.25), cell(None)
    ('78110', '0.25', 'missing')
    """
    if value is None or value != value:
        return "missing"
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]")).replace("T", " ").removesuffix(" 00:00:00")
    if isinstance(value, np.timedelta64):
        return f"{value / np.timedelta64(1, 's'):.4g} seconds"
    return number_text(value) if isinstance(value, float | np.floating) else str(value)
