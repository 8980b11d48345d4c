"""Sheets of rows to review, and the verdicts that a person fills in.

A sheet is a csv table with the columns ``verdict``, to be filled in; ``key``, which identifies the row; row, scores and
reasons; and the columns of the data file. The key is a hash of the values in the columns of the model, so a row is
found again in any file and at any position, and rows that are equal in these columns share a key. A spreadsheet may
reformat numbers as long as it keeps the key.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...detection.batch_scorer import MODEL
from ...detection.trust.evidence import Evidence, shown_count
from ...tables import FileError, Frame, TableSource
from ...tables.errors import listed
from ...tables.frame import as_texts
from ..escaping import cell
from . import FittedRun, load_run
from .scoring import REASONS, Unlike, score_part
from .settings import DataSettings
from .training_data import Layout, Marks, Say, TrainingData, checked_rows, read_like, split_labels, truths

VERDICT, KEY = "verdict", "key"


def row_keys(rows: Frame) -> list[str]:
    """Return the key of each row: a hash of its values by column name, with numbers rounded to 15 digits.

    >>> one, other = Frame({"a": np.ones(1), "b": np.zeros(1)}), Frame({"b": np.zeros(1), "a": np.ones(1)})
    >>> row_keys(one) == row_keys(other), len(row_keys(one)[0])
    (True, 17)
    """
    names = sorted(rows.columns.tolist())
    values = zip(*(as_texts(rows[name]) for name in names), strict=True)
    # Begins with a letter, so that no spreadsheet takes a key for a number.
    return ["k" + hashlib.blake2b(repr((names, row)).encode(), digest_size=8).hexdigest() for row in values]


def read_sheet(path: str, layout: Layout, settings: DataSettings) -> tuple[Frame, list[tuple[str, bool | None]]]:
    """Return the rows of a sheet in the layout of training, with their keys and verdicts."""
    source = read_like(layout, path, replace(settings, delimiter=None, header=None, decimal=None))
    with closing(source):
        if not isinstance(source, TableSource) or layout.types is None:
            raise FileError(f"--review needs tables with columns (csv, tsv, parquet), found {path}")
        if VERDICT not in source.columns:
            raise FileError(f"{path} has no column {VERDICT!r}; its columns are {listed(source.columns)}")
        given = [name for name in (VERDICT, KEY) if name in source.columns]
        for name in given:
            source.add_text(name)
        frame = source.read()
    rows = frame.without(given)
    for name in rows.columns.tolist():
        if rows[name].dtype.kind == "O":
            rows[name][:] = [_unmarked(text) for text in rows[name].tolist()]
    own = row_keys(rows)
    keys = [key or mine for key, mine in zip(frame[KEY].tolist() if KEY in given else own, own, strict=True)]
    return rows, list(zip(keys, truths(frame[VERDICT].tolist(), path, VERDICT), strict=True))


def _unmarked(text: str | None) -> str | None:
    """Remove the leading ' that :func:`cell` added to a text."""
    return text[1:] if text is not None and text.startswith("'") and cell(text[1:]) == text else text


def add_verdicts(data: TrainingData, settings: DataSettings, say: Say) -> TrainingData:
    """Add the verdicts of all sheets to the training data; if a row has several, the last one counts.

    Rows of a sheet that are not among the training rows are added to them.
    """
    rows, known = data.rows, data.known.copy()
    checked = np.zeros(len(known), dtype=bool) if data.checked is None else data.checked.copy()
    if not isinstance(rows, Frame):
        raise FileError(f"--review needs a table with columns (csv, tsv, parquet), found {settings.path}")
    places, added = defaultdict(list), dict[str, tuple[Frame, bool, str]]()
    for i, key in enumerate(row_keys(rows)):
        places[key].append(i)
    for path in settings.review:
        sheet, verdicts = read_sheet(path, data.layout, settings)
        mine, before = row_keys(sheet), len(added)
        for i, (stored, verdict) in enumerate(verdicts):
            if verdict is None:
                continue
            here = places.get(stored) or places.get(mine[i])
            if here:
                known[here], checked[here] = verdict, True
            else:
                added[stored] = sheet.take([i]), verdict, f"{Path(path).name} row {i + 1}"
        words = [verdict for _, verdict in verdicts]
        say(
            f"{path}: {words.count(True):,} outliers and {words.count(False):,} inliers, {words.count(None):,} rows "
            f"without a verdict are skipped; {len(added) - before:,} rows are not among the training rows and are added"
        )
    if not added:
        return replace(data, known=known, checked=checked)
    frames, new, names = zip(*added.values(), strict=True)
    return replace(
        data,
        rows=Frame.join([rows, *frames]),
        known=np.concatenate([known, new]),
        checked=np.concatenate([checked, np.ones(len(new), dtype=bool)]),
        names=None if data.names is None else [*data.names, *names],
    )


def write_sheet(run: FittedRun, path: str, settings: DataSettings, file: IO[str], count: int) -> tuple[int, int]:
    """Write the ``count`` highest-scoring unreviewed rows of a table; return the numbers of rows written and read.

    Omitted are rows with a verdict in a sheet that the run was fitted with, rows that the label or the checked column
    of the run marks, and copies of a row.
    """
    data = run.config.data
    if path == "-":
        raise FileError("--review reads the rows twice: DATA must be a file, found -")
    done = {
        key for sheet in data.review for key, verdict in read_sheet(sheet, run.layout, data)[1] if verdict is not None
    }
    best: dict[str, tuple[float, int, Frame]] = {}
    rows_seen = 0
    with closing(read_like(run.layout, path, settings)) as source:
        if not isinstance(source, TableSource) or run.layout.types is None:
            raise FileError(f"--review needs a table with columns (csv, tsv, parquet), found {path}")
        if taken := {VERDICT, KEY} & set(source.columns):
            raise FileError(f"{path} must have no column {min(taken)!r}, which the sheet adds; rename it")
        marks = list(_marked(source, data))
        for part in source.parts():
            rows, looked_at = part.rows, np.zeros(len(part.rows), dtype=bool)
            for mark in marks:
                rows, marked = mark(rows, part.start)
                looked_at |= marked
            rows, scores = score_part(run, rows, part, source.name, Unlike(run))
            keys, rows_seen = row_keys(rows), rows_seen + len(rows)
            fresh = 0
            for i in np.argsort(-scores.anomaly, kind="stable").tolist():
                if fresh == count:
                    break
                if not looked_at[i] and keys[i] not in done and keys[i] not in best:
                    fresh += 1
                    best[keys[i]] = -float(scores.anomaly[i]), part.start + i, rows.take([i])
            best = dict(sorted(best.items(), key=lambda item: item[1][:2])[:count])
    if not best:
        raise FileError(f"{path} must hold rows without a verdict, found none; pass other rows")
    places, frame = [place for _, place, _ in best.values()], Frame.join([row for _, _, row in best.values()])
    again = read_like(run.layout, path, settings)
    assert isinstance(again, TableSource)
    _write(run, frame, [[*best], places, again.cells(places, again.columns)], again.columns, file)
    return len(best), rows_seen


def _marked(source: TableSource, data: DataSettings) -> Iterator[Any]:
    """Yield for each column of labels in a file a function that removes it from rows and returns the labeled rows."""
    if data.label is not None and {data.label, data.label.rpartition("=")[0]} & set(source.columns):
        labels, split = split_labels(source, data.label, source.name)

        def outliers(rows: Frame, start: int) -> tuple[Frame, Marks]:
            rest, values = split(rows, start)
            return rest, labels.marks(values)

        yield outliers
    if (column := data.checked) is not None and column in source.columns:
        source.add_text(column)
        yield lambda rows, start: checked_rows(rows, column, source.name, start)


def _write(run: FittedRun, rows: Frame, found: Sequence[Any], columns: list[str], file: IO[str]) -> None:
    """Write the key, the position and the cells of each row to a sheet."""
    detector, table = run.detector, csv.writer(file, lineterminator="\n")
    scores, reasons = detector.scores(rows), detector.reasons(rows, REASONS)
    numbers: dict[str, Any] = {"score": scores.anomaly, "probability": detector.probability_of(scores)}
    if detector.novelty_threshold_ is not None:
        numbers |= {"like_known": scores.like_known, "novelty": scores.novelty, "kind": scores.kind}
    numbers |= {"outlier": scores.flagged.astype(int)}
    ours = [VERDICT, KEY, "row", *numbers, *(f"reason_{i + 1}" for i in range(REASONS))]
    table.writerow([*(name if name not in columns else f"fvnce_{name}" for name in ours), *map(cell, columns)])
    # A value that was read as a number is not a formula, and stays a number.
    plain = [name in run.layout.columns and rows.types[name].kind != "text" for name in columns]
    for i, (key, place, cells) in enumerate(zip(*found, strict=True)):
        words = [cell(sentence) for sentence in reasons[i]]
        cells = [text if is_plain else cell(text) for text, is_plain in zip(cells, plain, strict=True)]
        values = [values[i].item() for values in numbers.values()]
        table.writerow(["", key, place + 1, *values, *words, *[""] * (REASONS - len(words)), *cells])


def say_gains(config: Path, after: FittedRun, say: Say) -> None:
    """Report how verdicts changed a run, compared with the earlier run of a config if its model exists."""
    folder = config if config.is_dir() else config.parent
    if not (folder / MODEL).is_file():
        return
    before = load_run(folder)
    first, second = before.detector.evidence_, after.detector.evidence_

    def precision(evidence: Evidence) -> str:
        known = f"{shown_count(evidence.known)} known outliers"
        return f"{evidence.average_precision or 'unknown'} by {known}"

    say(
        f"held-out average precision {precision(first)} before the verdicts, {precision(second)} after; part of a "
        "gain may be due to reviewed outliers, which were chosen for high scores and are easy to find again"
    )
    say(
        f"threshold {before.threshold:.4g} before, {after.threshold:.4g} after; share of outliers among other rows "
        f"{before.detector.prior_:.3g} before, {after.detector.prior_:.3g} after; {shown_count(first.flagged)} of "
        f"{shown_count(first.rows)} rows flagged before, {shown_count(second.flagged)} of {shown_count(second.rows)} "
        "after"
    )
