"""Scoring of files of any length, part by part, with bounded memory.

Scores of rows far from those of training are unreliable: columns may be swapped, or have another unit or spelling.
:class:`Unlike` counts such values and :class:`FewValues` counts rows with few values. The summary contains warnings
about both, and about a file that is far from training as a whole (:mod:`fvnce.detection.trust.drift`).
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...detection.base import Scores
from ...detection.fitted import FittedEnsemble
from ...detection.preprocessing import TablePreprocessor
from ...detection.trust.conformal import flag_by
from ...tables import FileError, Frame, Source, TableSource
from ...tables.errors import listed
from ...tables.frame import Part
from ...tables.schema import described
from ..escaping import cell, line_json
from . import FittedRun
from .training_data import Say, check_finite_part, find_column

#: Yields the parts of a file, and may show how many are done.
Watch = Callable[[Iterator[Part]], Iterable[Part]]
#: A row: its score, its negative position, so that the earlier of two equal rows wins, and its entries.
Scored = tuple[float, int, dict[str, Any]]
#: Sets which rows of a part are flagged, given the scores and the position of the first row.
Budget = Callable[[Scores, int], Scores]
#: The most reasons given for a score.
REASONS = 3
#: Rows explained at once, since integrated gradients hold many copies of a row.
EXPLAINED = 256
#: Fraction of the values of a column that must differ from training for a warning.
UNLIKE_SHARE = 0.5
#: The most rows with few values that are listed by name.
NAMED = 5
#: The fewest rows for which there is a warning.
MIN_ROWS = 5


class FewValues:
    """Counter of rows that lack more than half of their values, and more than is usual in training."""

    def __init__(self, detector: FittedEnsemble) -> None:
        self._detector, self._rows, self._few = detector, 0, 0
        self._names: list[str] = []

    def add(self, rows: Any, name: Callable[[int], object]) -> None:
        """Count more rows; ``name(i)`` is the name of the i-th of them."""
        gaps = self._detector.gaps_
        if gaps is not None:
            few = np.flatnonzero(gaps.are_few(self._detector.count_gaps(rows))).tolist()
            self._rows, self._few = self._rows + len(rows), self._few + len(few)
            self._names += [str(name(i)) for i in few[: NAMED - len(self._names)]]

    def sentences(self) -> list[str]:
        """Return a sentence that lists these rows, if there are any."""
        names = ", ".join(self._names) + (", …" if self._few > len(self._names) else "")
        lack = f"{self._few:,} of {self._rows:,} rows have values in less than half of the columns"
        return [f"{lack}, so their scores are unreliable: {names}"] if self._few else []


class Unlike:
    """Counter of values unlike those of training: missing values, unseen texts, numbers far away."""

    def __init__(self, run: FittedRun) -> None:
        self._run, self._rows = run, 0
        self._there: Any = 0
        self._odd: Any = 0

    def add(self, rows: Any) -> None:
        """Count the values of more rows."""
        if isinstance(self._run.detector.preprocessor_, TablePreprocessor):
            there, odd = self._run.detector.odd_values(rows)
            self._rows += len(rows)
            self._there, self._odd = self._there + there, self._odd + odd

    def sentences(self) -> list[str]:
        """Return a warning for each column whose values differ from those of training."""
        preprocessor = self._run.detector.preprocessor_
        if not isinstance(preprocessor, TablePreprocessor) or self._rows < MIN_ROWS:
            return []
        warnings = []
        names, columns = self._run.layout.columns, preprocessor.columns
        for name, column, there, odd in zip(names, columns, self._there, self._odd, strict=True):
            if column.empty:
                continue
            if there == 0:
                warnings.append(f"column {name!r} is empty in all {self._rows:,} rows")
            elif odd > UNLIKE_SHARE * there:
                what = "numbers more than 10 deviations away from those of training"
                if column.categories is not None:
                    what = "texts that did not occur in training"
                elif column.unused:
                    what = f"values other than {column.center:.6g}, which all training rows had"
                warnings.append(f"column {name!r} holds {what}, in {odd:,} of {there:,} rows")
        return warnings


@dataclass
class Summary:
    """Counts and warnings of scored rows; ``novel`` counts rows flagged for their novelty alone."""

    rows: int = 0
    outliers: int = 0
    novel: int = 0
    warnings: list[str] = field(default_factory=list)


def stream_scores(
    run: FittedRun,
    source: Source,
    file: IO[str],
    *,
    top: int | None = None,
    explain: bool = False,
    as_json: bool = False,
    id: str | None = None,
    strict: bool = False,
    watch: Watch = iter,
    budget: Budget | None = None,
) -> Summary:
    """Score every row of a file, and write the scores.

    Args:
        run: the run that scores the rows.
        source: the file to score.
        file: stream that the csv or JSON lines are written to.
        top: write only this many of the highest-scoring rows, highest first.
        explain: add reasons for each score, in words.
        as_json: write one JSON object on each line.
        id: identifier column, as returned by :func:`add_id`.
        strict: raise an error instead of a warning if the rows are far from those of training.
        watch: yields the parts of the file, and may show the progress.
        budget: rule from :func:`budget_of` that replaces the threshold of the run.
    """
    summary, unlike, few, batch = Summary(), Unlike(run), FewValues(run.detector), run.detector.new_batch()
    write = _json_writer(file) if as_json else _csv_writer(file, explain=explain)
    best: list[Scored] = []
    two = run.detector.novelty_threshold_ is not None
    for part in watch(source.parts()):
        rows, ids = part.rows, None
        if id is not None and isinstance(rows, Frame):
            rows, ids = rows.without([id]), rows[id]
        rows, scores = score_part(run, rows, part, source.name, unlike)
        if budget is not None:
            scores = budget(scores, part.start)
        anomaly = scores.anomaly
        few.add(rows, partial(_name, part))
        if batch is not None:
            run.detector.count_batch(batch, rows, scores)
        summary.rows += len(anomaly)
        summary.outliers += int(scores.flagged.sum())
        summary.novel += int((scores.kind == "novel").sum()) if two else 0
        chosen = np.arange(len(anomaly))
        if top is not None:
            # Skip rows of this part that cannot be among the top rows.
            chosen = np.sort(np.argsort(-anomaly, kind="stable")[:top])
            if len(best) >= top:
                chosen = chosen[anomaly[chosen] > best[-1][0]]
        scored = _scored(run, rows, scores, chosen, part, ids, explain)
        if top is not None:
            best = heapq.nlargest(top, [*best, *scored])
            continue
        for _, _, row in scored:
            write(row)
    for _, _, row in best:
        write(row)
    far = [] if batch is None else batch.sentences()
    summary.warnings = [*unlike.sentences(), *far, *few.sentences()]
    if summary.warnings and as_json:
        write({"summary": asdict(summary)})
    file.flush()
    if summary.warnings and strict:
        raise FileError(f"{source.name} is unlike the training rows: {'; '.join(summary.warnings)}")
    return summary


def budget_at(threshold: float) -> Budget:
    """Return a rule that flags scores above a threshold."""
    return lambda scores, start: replace(scores, threshold=threshold, chosen=scores.anomaly > threshold)


def budget_of(run: FittedRun, source: Source, *, alarms: int | None, fdr: float | None) -> Budget:
    """Return a rule that flags a number of rows or bounds the false discovery rate.

    Reads the file, and keeps a few numbers of each row.
    """
    detector = run.detector
    anomaly, p_values, above = [np.empty(0)], [np.empty(0)], [np.empty(0, dtype=bool)]
    discount = fdr is not None and detector.discounts
    for part in source.parts():
        rows, scores = score_part(run, part.rows, part, source.name)
        anomaly.append(scores.anomaly)
        above.append(scores.flagged)
        if fdr is not None:
            p_values.append(detector.p_value(rows, discount=discount))
    both = np.concatenate(anomaly), np.concatenate(above)
    if fdr is None:
        flagged = flag_by(*both, None, alarms=alarms)
    else:
        least = detector.conformal_.least(discount=discount) if detector.conformal_ else 0.0
        flagged = flag_by(*both, np.concatenate(p_values), fdr=fdr, least=least, discount=discount)
    return lambda scores, start: replace(scores, chosen=flagged[start : start + len(scores.anomaly)])


def score_part(run: FittedRun, rows: Any, part: Part, name: str, unlike: Unlike | None = None) -> tuple[Any, Scores]:
    """Return the rows of a part in the form that the model takes, and their scores; count unlike values."""
    check_finite_part(rows, name, part.start)
    prepared = run.layout.prepare(rows)
    if unlike is not None:
        unlike.add(prepared)
    return prepared, run.detector.scores(prepared)


def add_id(source: Source, column: str | None, say: Say, *, asked: bool) -> str | None:
    """Add the identifier column to those that are read; it may be missing unless the command line names it."""
    if column is None:
        return None
    if not isinstance(source, TableSource):
        if asked:
            raise FileError(f"--id needs a table with columns (csv, tsv, parquet), found {source.name}")
        return None
    try:
        name = find_column(source.columns, column, source.name)
    except FileError:
        if asked:
            raise
        say(f"{source.name} has no column {column!r}, the identifier in training; scores have row numbers only")
        return None
    source.add_text(name)
    return name


def _name(part: Part, i: int) -> Any:
    """Return the number of the i-th row of a part, starting at 1, or the name of its file."""
    return part.start + i + 1 if part.names is None else part.names[i]


def say_how(source: Source, say: Say, others: set[str | None]) -> None:
    """Report how the columns of a table were read, and which columns were not used."""
    if not isinstance(source, TableSource):
        return
    for line in described({name: column for name, column in source.types.items() if name not in others}):
        say(f"read as {line}")
    unused = [name for name in source.unused if name not in others]
    for notice in [*source.notices, *([f"columns not used: {listed(unused)}"] if unused else [])]:
        say(notice)


def score_columns(run: FittedRun, rows: Any, scores: Scores) -> dict[str, NDArray[Any]]:
    """Return what is written of scored rows, by column."""
    columns = {"score": scores.anomaly, "probability": run.detector.probability_of(scores)}
    if (p_value := run.p_value(rows, scores.anomaly)) is not None:
        columns["p_value"] = p_value
    if run.detector.novelty_threshold_ is None:
        return columns | {"outlier": scores.flagged}
    two = {"like_known": scores.like_known, "novelty": scores.novelty, "kind": scores.kind}
    return columns | two | {"outlier": scores.flagged}


def _scored(
    run: FittedRun, rows: Any, scores: Scores, chosen: Any, part: Part, ids: Any, explain: bool
) -> Iterator[Scored]:
    """Yield the output entries of each chosen row of a part."""
    columns, reasons = score_columns(run, rows, scores), _reasons(run, rows, chosen)
    for i in chosen.tolist():
        row: dict[str, Any] = {"row": _name(part, i)} | ({} if ids is None else {"id": ids[i] or ""})
        row |= {name: values[i].item() for name, values in columns.items()}
        if explain:
            row["reasons"], row["words"] = next(reasons)
        yield row["score"], -(part.start + i), row


def _reasons(run: FittedRun, rows: Any, chosen: Any) -> Iterator[tuple[dict[str, float], list[str]]]:
    """Yield for each chosen row the columns or pixels that raise its score most, with sentences."""
    for start in range(0, len(chosen), EXPLAINED):
        positions = chosen[start : start + EXPLAINED]
        part = rows.take(positions) if isinstance(rows, Frame) else rows[positions]
        explanation = run.detector.explain(part)
        reasons = [explanation.reasons(i, REASONS) for i in range(len(explanation))]
        words = run.detector.in_words(part, explanation, reasons)
        for values, columns, sentences in zip(explanation.causes, reasons, words, strict=True):
            places = [_place(i, values.shape, run.layout.columns) for i in columns]
            parts = {place: float(values.flat[i]) for place, i in zip(places, columns, strict=True)}
            yield parts, sentences if run.layout.columns else places


def _place(index: int, shape: tuple[int, ...], columns: list[str]) -> str:
    if columns:
        return columns[index]
    place = [int(i) for i in np.unravel_index(index, shape)]
    return f"pixel {place[-2]},{place[-1]}" + (f" channel {place[0]}" if len(place) == 3 else "")


Write = Callable[[dict[str, Any]], Any]


def _json_writer(file: IO[str]) -> Write:
    return lambda row: file.write(line_json(row) + "\n")


def _csv_writer(file: IO[str], *, explain: bool) -> Write:
    table, header = csv.writer(file, lineterminator="\n"), list[str]()
    reasons = [f"{what}_{i + 1}" for i in range(REASONS) for what in ("reason", "part")] if explain else []

    def write(row: dict[str, Any]) -> None:
        words, parts = row.pop("words", ()), row.pop("reasons", {})
        if not header:
            header.extend([*row, *reasons])
            table.writerow(header)
        cells = [cell(v) if isinstance(v, str) else int(v) if isinstance(v, bool) else v for v in row.values()]
        cells += [text for why, part in zip(words, parts.values(), strict=True) for text in (cell(why), f"{part:.6g}")]
        table.writerow([*cells, *[""] * (len(header) - len(cells))])

    return write
