"""Scores of a source of any length, written part by part: memory does not grow with the number of rows."""

from __future__ import annotations

import csv
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from ...pages.escape import cell, line_json
from ..readers.frame import Frame
from ..readers.sources import Part, Source
from .scorer import Scorer

#: Columns named as reasons for a score.
REASONS = 3
#: Rows explained at once: integrated gradients hold many copies of a row.
EXPLAINED = 256


@dataclass
class Summary:
    """What was scored."""

    rows: int = 0
    outliers: int = 0
    highest: float = -math.inf


@dataclass(order=True)
class Scored:
    """One row; ordered by score, and by position, so that the earlier of two equals wins."""

    score: float
    before: int
    name: str = field(compare=False)
    probability: float | None = field(compare=False)
    outlier: bool = field(compare=False)
    reasons: list[tuple[str, float]] | None = field(compare=False)

    def content(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = {
            "row": int(self.name) if self.name.isascii() and self.name.isdecimal() else self.name,
            "score": self.score,
        }
        if self.probability is not None:
            content["probability"] = self.probability
        content["outlier"] = self.outlier
        if self.reasons is not None:
            content["reasons"] = dict(self.reasons)
        return content


def stream_scores(
    scorer: Scorer,
    source: Source,
    write: IO[str],
    *,
    top: int | None = None,
    explain: bool = False,
    as_json: bool = False,
    tick: Callable[[int, float | None], None] | None = None,
) -> Summary:
    """Score every row of the source.

    Args:
        scorer: of the run.
        source: rows.
        write: where the table (csv) or the lines (JSON) go.
        top: give the strangest rows only, strangest first.
        explain: name the columns that add most to a score.
        as_json: one JSON object on each line.
        tick: called after each part with the rows done and the share of the source.
    """
    summary = Summary()
    out = _Writer(write, as_json=as_json, probability=scorer.probability(np.zeros(1)) is not None, explain=explain)
    best: list[Scored] = []
    for part in source.parts():
        for scored in _score(scorer, part, summary, explain, best, top):
            if top is None:
                out.row(scored)
            elif len(best) < top:
                heapq.heappush(best, scored)
            else:
                heapq.heappushpop(best, scored)
        if tick is not None:
            tick(summary.rows, part.done)
    for scored in sorted(best, reverse=True):
        out.row(scored)
    write.flush()
    return summary


def _score(
    scorer: Scorer, part: Part, summary: Summary, explain: bool, best: list[Scored], top: int | None
) -> Iterator[Scored]:
    rows = scorer.layout.prepare(part.rows, part.start)
    anomaly = scorer.anomaly(rows)
    probability = scorer.probability(anomaly)
    outlier = anomaly > scorer.threshold
    summary.rows += len(anomaly)
    summary.outliers += int(outlier.sum())
    summary.highest = max(summary.highest, float(anomaly.max()))
    chosen = np.arange(len(anomaly))
    if top is not None:
        # No more of this part than the top can matter, and none below the worst that is kept.
        chosen = np.sort(np.argsort(-anomaly, kind="stable")[:top])
        if len(best) >= top:
            chosen = chosen[anomaly[chosen] > best[0].score]
    reasons: Iterator[Any] = iter(itertools.repeat(None))
    if explain:
        reasons = reasons_of(scorer, rows, chosen)
    for position, because in zip(chosen.tolist(), reasons, strict=False):
        number = part.start + position
        yield Scored(
            float(anomaly[position]),
            -number,
            part.names[position] if part.names is not None else str(number + 1),
            None if probability is None else float(probability[position]),
            bool(outlier[position]),
            because,
        )


def reasons_of(scorer: Scorer, rows: Any, chosen: Any) -> Iterator[list[tuple[str, float]]]:
    """For each chosen row the columns, or places of an image, that add most to its score."""
    columns = scorer.layout.columns
    for start in range(0, len(chosen), EXPLAINED):
        positions = chosen[start : start + EXPLAINED]
        parts = scorer.contributions(rows.take(positions) if isinstance(rows, Frame) else rows[positions])
        for values in parts:
            flat = values.ravel()
            order = np.argsort(-flat, kind="stable")[:REASONS]
            yield [(_place(int(i), values.shape, columns), float(flat[i])) for i in order]


def _place(index: int, shape: tuple[int, ...], columns: list[str]) -> str:
    if columns:
        return columns[index]
    place = [int(i) for i in np.unravel_index(index, shape)]
    return f"pixel {place[-2]},{place[-1]}" + (f" channel {place[0]}" if len(place) == 3 else "")


class _Writer:
    def __init__(self, file: IO[str], *, as_json: bool, probability: bool, explain: bool) -> None:
        self._file, self._json, self._explain = file, as_json, explain
        self._probability = probability
        self._csv = csv.writer(file, lineterminator="\n")
        if not as_json:
            header = ["row", "score", *(["probability"] if probability else []), "outlier"]
            if explain:
                header += itertools.chain.from_iterable((f"reason_{i + 1}", f"part_{i + 1}") for i in range(REASONS))
            self._csv.writerow(header)

    def row(self, scored: Scored) -> None:
        if self._json:
            self._file.write(line_json(scored.content()) + "\n")
            return
        cells: list[Any] = [cell(scored.name), repr(scored.score)]
        if self._probability:
            cells.append(repr(scored.probability))
        cells.append(int(scored.outlier))
        if self._explain:
            named = [(cell(name), f"{part:.6g}") for name, part in scored.reasons or []]
            named += [("", "")] * (REASONS - len(named))
            cells += itertools.chain.from_iterable(named)
        self._csv.writerow(cells)
