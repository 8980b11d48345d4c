"""What scores rows, whichever detector a run holds, and scores of a source of any length, written part by part.

Memory does not grow with the number of rows. A score of rows that are unlike those of training says little, and people
should know before they believe it: a column may have moved, changed its unit or its spelling.
"""

from __future__ import annotations

import csv
import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...detection import LatentDetector, NoiseContrastiveDetector
from ...detection.frame import Frame
from ...detection.preprocessing import TablePreprocessor
from ...pages.escape import cell, line_json
from ..readers.errors import DataError
from ..readers.sources import Part, Source, TableSource
from .labels import Say, find_column
from .training_data import Layout

Array = NDArray[np.float64]
#: Columns named as reasons for a score.
REASONS = 3
#: Rows explained at once: integrated gradients hold many copies of a row.
EXPLAINED = 256
#: Share of the values of a column that must be unlike any of training to be worth a word.
SHARE = 0.5
#: Rows below which only an empty file can be told.
ENOUGH = 5


class Scorer:
    """Scores of a detector, with the layout of the rows that it takes.

    Attributes:
        detector: as it was trained or loaded.
        layout: what rows look like.
        threshold: the score above which a row is called an outlier.
    """

    def __init__(self, detector: NoiseContrastiveDetector | LatentDetector, layout: Layout) -> None:
        self.detector, self.layout = detector, layout
        self.threshold = -float(detector.offset_)

    def anomaly(self, rows: Any) -> Array:
        """Higher for stranger rows, shape (n,)."""
        return self.detector.anomaly_score(rows)

    def probability(self, anomaly: Array) -> Array | None:
        """P(outlier | score); None for a latent-variable model, whose threshold is a quantile."""
        if isinstance(self.detector, LatentDetector):
            return None
        return self.detector.calibration_.probability(anomaly)

    @property
    def has_p_values(self) -> bool:
        """Whether training left rows that can measure how rare a score is."""
        return self.detector.findings_.conformal is not None

    def p_value(self, rows: Any, anomaly: Array) -> Array | None:
        """The conformal p-value of rows whose scores are known; None if there are none."""
        conformal = self.detector.findings_.conformal
        if conformal is None:
            return None
        # Where the detector itself is measured, rows need not be scored again.
        return conformal.p_value(anomaly) if conformal.model is None else self.detector.p_value(rows)

    def contributions(self, rows: Any) -> Array:
        """Parts of the anomaly by column or pixel."""
        return self.detector.explain(rows).total


class Unlike:
    """Counts of values unlike those of training: columns that are empty, texts never seen, numbers far away."""

    def __init__(self, scorer: Scorer) -> None:
        self._detector, self._names = scorer.detector, scorer.layout.columns
        self._rows = 0
        self._there: Any = 0
        self._odd: Any = 0

    def add(self, rows: Any) -> None:
        """Count some more rows."""
        if isinstance(self._detector.preprocessor_, TablePreprocessor):
            there, odd = self._detector.odd_values(rows)
            self._rows += len(rows)
            self._there, self._odd = self._there + there, self._odd + odd

    def sentences(self) -> list[str]:
        """What a person should know, a sentence for each column."""
        how = self._detector.preprocessor_
        if not isinstance(how, TablePreprocessor) or self._rows < ENOUGH:
            return []
        found = []
        for name, column, there, odd in zip(self._names, how.columns, self._there, self._odd, strict=True):
            if column.empty:
                continue
            if there == 0:
                found.append(f"column {name!r} is empty in all {self._rows:,} rows")
            elif odd > SHARE * there:
                what = (
                    "texts that no training row had"
                    if column.categories is not None
                    else f"values other than {column.centre:.6g}, which all training rows had"
                    if column.unused
                    else "numbers more than 10 deviations away from those of training"
                )
                found.append(f"column {name!r} holds {what}, in {odd:,} of {there:,} rows")
        return found


@dataclass
class Summary:
    """What was scored."""

    rows: int = 0
    outliers: int = 0
    highest: float = -math.inf
    warnings: list[str] = field(default_factory=list)


@dataclass(order=True)
class Scored:
    """One row; ordered by score, and by position, so that the earlier of two equals wins."""

    score: float
    before: int
    name: str = field(compare=False)
    probability: float | None = field(compare=False)
    outlier: bool = field(compare=False)
    reasons: list[tuple[str, float]] | None = field(compare=False)
    p_value: float | None = field(compare=False, default=None)
    id: str | None = field(compare=False, default=None)

    def content(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = {
            "row": int(self.name) if self.name.isascii() and self.name.isdecimal() else self.name,
            **({} if self.id is None else {"id": self.id}),
            "score": self.score,
        }
        if self.probability is not None:
            content["probability"] = self.probability
        if self.p_value is not None:
            content["p_value"] = self.p_value
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
    id: str | None = None,
    strict: bool = False,
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
        id: the column that names rows, which :func:`add_id` found.
        strict: refuse rows that are unlike those of training, where otherwise the summary warns of them.
        tick: called after each part with the rows done and the share of the source.
    """
    summary = Summary()
    probability = scorer.probability(np.zeros(1)) is not None
    given = {"id": id is not None, "probability": probability, "p_value": scorer.has_p_values}
    out = _Writer(write, {name for name, there in given.items() if there}, as_json=as_json, explain=explain)
    unlike = Unlike(scorer)
    best: list[Scored] = []
    for part in source.parts():
        ids = None
        if id is not None and isinstance(part.rows, Frame):
            ids, part = part.rows[id], replace(part, rows=part.rows.without([id]))
        for scored in _score(scorer, part, summary, explain, best, top, unlike):
            if ids is not None:
                scored.id = ids[-scored.before - part.start] or ""
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
    summary.warnings = unlike.sentences()
    if summary.warnings and as_json:
        write.write(line_json({"summary": asdict(summary)}) + "\n")
    write.flush()
    if summary.warnings and strict:
        raise DataError(f"{source.name} is unlike the training rows: {'; '.join(summary.warnings)}")
    return summary


def add_id(source: Source, column: str | None, say: Say, *, asked: bool) -> str | None:
    """Have the column that names rows read too; one that was not asked for on the line may be missing."""
    if column is None:
        return None
    if not isinstance(source, TableSource):
        if asked:
            source.close()
            raise DataError(f"--id needs a table with columns (csv, tsv, parquet), found {source.name}")
        return None
    try:
        found = find_column(source.reader.columns, column, source.name)
    except DataError:
        if asked:
            source.close()
            raise
        say(f"{source.name} has no column {column!r}, which named the rows of training: scores go by row alone")
        return None
    source.reader.reader.add_text(found)
    return found


def _score(
    scorer: Scorer, part: Part, summary: Summary, explain: bool, best: list[Scored], top: int | None, unlike: Unlike
) -> Iterator[Scored]:
    rows = scorer.layout.prepare(part.rows, part.start)
    unlike.add(rows)
    anomaly = scorer.anomaly(rows)
    probability, p_value = scorer.probability(anomaly), scorer.p_value(rows, anomaly)
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
            None if p_value is None else float(p_value[position]),
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
    """Rows as csv or as lines of JSON; ``given`` names the columns that not every run has."""

    def __init__(self, file: IO[str], given: set[str], *, as_json: bool, explain: bool) -> None:
        self._file, self._given, self._json, self._explain = file, given, as_json, explain
        self._csv = csv.writer(file, lineterminator="\n")
        if not as_json:
            every = ("row", "id", "score", "probability", "p_value", "outlier")
            header = [name for name in every if name in {"row", "score", "outlier"} | given]
            if explain:
                header += itertools.chain.from_iterable((f"reason_{i + 1}", f"part_{i + 1}") for i in range(REASONS))
            self._csv.writerow(header)

    def row(self, scored: Scored) -> None:
        if self._json:
            self._file.write(line_json(scored.content()) + "\n")
            return
        cells: list[Any] = [cell(scored.name), *([cell(scored.id or "")] if "id" in self._given else [])]
        cells.append(repr(scored.score))
        cells += [repr(getattr(scored, name)) for name in ("probability", "p_value") if name in self._given]
        cells.append(int(scored.outlier))
        if self._explain:
            named = [(cell(name), f"{part:.6g}") for name, part in scored.reasons or []]
            named += [("", "")] * (REASONS - len(named))
            cells += itertools.chain.from_iterable(named)
        self._csv.writerow(cells)
