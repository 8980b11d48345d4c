"""Sheets of rows to review, and the verdicts that a person fills in.

A sheet is a csv table: ``verdict``, to be filled in; ``key``, by which the row is recognized; row, scores and reasons;
and the row as its file has it. The key is a hash of what the row holds in the columns of the model, so a row is
recognized in whatever file and at whatever place it comes, and rows that are equal in these columns are one. A
spreadsheet may round numbers and change their decimal mark; a key that has come to another row, or a row whose values
were changed, is refused.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...detection.base import in_turn
from ...detection.batch_scorer import MODEL
from ...tables import FileError, Frame, TableSource
from ...tables.errors import TableError, listed
from ...tables.frame import as_texts
from ..escaping import cell
from ..report.page import plain, plural
from . import FittedRun, load_run
from .scoring import REASONS, score_columns, score_part
from .settings import DataSettings
from .training_data import Layout, Marks, Say, TrainingData, as_label, is_checked, read_like, split_labels, truths

VERDICT, KEY = "verdict", "key"
#: What makes a row worth a review (``Scores.review_lists``), its place in the file, and the row.
Candidate = tuple[NDArray[np.float64], int, Frame]
#: By how much a spreadsheet may have changed a number that it shows with few digits, relatively or up to 1.
ROUNDED = 0.01


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


@dataclass(frozen=True)
class Verdict:
    """A row of a sheet, by its number in the sheet.

    Attributes:
        row: its number, from 1.
        stored: its key as the sheet has it, if it does.
        content: the key that its values have in the columns of the model.
        outlier: the verdict, None if there is none.
    """

    row: int
    stored: str | None
    content: str
    outlier: bool | None

    @property
    def key(self) -> str:
        """What the row is recognized by."""
        return self.stored or self.content


def read_sheet(path: str, layout: Layout, settings: DataSettings) -> tuple[Frame, list[Verdict]]:
    """Return the rows of a sheet, laid out as those of training, and the verdict of each.

    A spreadsheet may have changed the decimal mark. The sheet is read with the mark of training, a comma and a point;
    the first reading in which most rows agree with their keys is returned.
    """
    readings, problems = list[tuple[Frame, list[Verdict]]](), list[TableError]()
    for decimal in (None, ",", "."):
        try:
            own = replace(settings, delimiter=None, header=None, decimal=decimal)
            readings.append(_read_sheet(path, layout, own))
        except TableError as error:
            problems.append(error)
    if not readings:
        raise problems[0]
    rows, verdicts = max(readings, key=lambda reading: sum(each.key == each.content for each in reading[1]))
    _check_keys(path, verdicts)
    return rows, verdicts


def _read_sheet(path: str, layout: Layout, settings: DataSettings) -> tuple[Frame, list[Verdict]]:
    source = read_like(layout, path, settings)
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
    stored = frame[KEY].tolist() if KEY in given else [None] * len(own)
    outliers = truths(frame[VERDICT].tolist(), path, VERDICT)
    numbered = zip(range(1, len(own) + 1), stored, own, outliers, strict=True)
    return rows, [Verdict(*entries) for entries in numbered]


def _check_keys(path: str, verdicts: Sequence[Verdict]) -> None:
    """Refuse a sheet in which a key has come to another row, or a row has two verdicts."""
    first: dict[str, Verdict] = {}
    written = {each.key: each.row for each in verdicts}
    for each in verdicts:
        before = first.setdefault(each.key, each)
        both = f"rows {before.row:,} and {each.row:,} of {path}"
        if before.content != each.content:
            raise FileError(
                f"{both} are different rows with one key {each.key!r}, which a spreadsheet may have filled down; "
                "restore the column key from the sheet as it was written"
            )
        if None not in (each.outlier, before.outlier) and each.outlier != before.outlier:
            raise FileError(f"{both} are the same row with two verdicts; keep one of them")
        if each.key != each.content and (other := written.get(each.content)) is not None:
            raise FileError(
                f"row {each.row:,} of {path} has the values to which the key of row {other:,} belongs; restore the "
                "column key from the sheet as it was written"
            )


def _refuse_changed(path: str, verdict: Verdict) -> NoReturn:
    raise FileError(
        f"row {verdict.row:,} of {path} was changed after it was written, for its values do not belong to its key "
        f"{verdict.key!r}; restore them, or empty the key to have the row taken as it is now"
    )


def _rounded(row: Frame, original: Frame) -> bool:
    """Return whether a row of a sheet is this one but for what a spreadsheet does to numbers."""
    for name in original.columns.tolist():
        value, other = row[name][0], original[name][0]
        if original[name].dtype.kind == "f" and row[name].dtype.kind == "f":
            if not np.isclose(value, other, rtol=ROUNDED, atol=ROUNDED, equal_nan=True):
                return False
        # A spreadsheet takes 007 for a number.
        elif as_label(value) != as_label(other):
            return False
    return True


def _unmarked(text: str | None) -> str | None:
    """Remove the leading ' that :func:`cell` added to a text."""
    return text[1:] if text is not None and text.startswith("'") and cell(text[1:]) == text else text


def add_verdicts(data: TrainingData, settings: DataSettings, say: Say) -> TrainingData:
    """Add the verdicts of all sheets to the training data; if a row has several, the last one counts.

    Rows of a sheet that are not among the training rows are added to them.
    """
    rows, known, checked, reviewed = data.rows, data.known.copy(), data.checked.copy(), data.reviewed.copy()
    if not isinstance(rows, Frame):
        raise FileError(f"--review needs a table with columns (csv, tsv, parquet), found {settings.path}")
    places, added, alike = defaultdict(list), dict[str, tuple[Frame, bool, str]](), dict[str, str]()
    for i, key in enumerate(row_keys(rows)):
        places[key].append(i)
    for path in settings.review:
        sheet, verdicts = read_sheet(path, data.layout, settings)
        before, own = len(added), {each.key for each in verdicts}
        # All rows differ from their keys if numbers were rounded, or if the columns of the model are others now.
        intact = any(each.stored == each.content for each in verdicts)
        for i, each in enumerate(verdicts):
            if each.outlier is None:
                continue
            here = places.get(each.key, [])
            if each.key != each.content:
                same = _rounded(sheet.take([i]), rows.take(here[:1])) if here else not intact
                if not same:
                    _refuse_changed(path, each)
            here = here or places.get(each.content, [])
            if here:
                known[here], checked[here], reviewed[here] = each.outlier, True, True
            else:
                key = each.key if each.key in added else alike.setdefault(each.content, each.key)
                if key in own:  # rounding made two rows of this sheet equal
                    key = each.key
                added[key] = sheet.take([i]), each.outlier, f"row {each.row:,} of {Path(path).name}"
        outliers = [each.outlier for each in verdicts]
        empty, new = outliers.count(None), len(added) - before
        say(
            f"{path}: {plural(outliers.count(True), 'outlier')} and {plural(outliers.count(False), 'inlier')}, "
            f"{plural(empty, 'row')} without a verdict {'is' if empty == 1 else 'are'} skipped; {plural(new, 'row')} "
            f"{'is' if new == 1 else 'are'} not among the training rows and {'is' if new == 1 else 'are'} added"
        )
    data = replace(data, known=known, checked=checked, reviewed=reviewed)
    if not added:
        return data
    frames, found, names = zip(*added.values(), strict=True)
    return data.extended(Frame.join(frames), np.array(found), names, reviewed=True)


def write_sheet(run: FittedRun, path: str, settings: DataSettings, file: IO[str], count: int) -> tuple[int, int]:
    """Write the ``count`` unreviewed rows of a table most worth a review; return the numbers of rows written and read.

    Omitted are rows with a verdict in a sheet that the run was fitted with, rows that the label or the checked column
    of the run marks, and copies of a row.
    """
    data = run.config.data
    # By its content, too: the columns of the model may have changed since a sheet was written.
    verdicts = [each for sheet in data.review for each in read_sheet(sheet, run.layout, data)[1]]
    done = {key for each in verdicts if each.outlier is not None for key in (each.key, each.content)}
    best: dict[str, Candidate] = {}
    rows_seen = 0
    with closing(read_like(run.layout, path, settings)) as source:
        if not isinstance(source, TableSource) or run.layout.types is None:
            raise FileError(f"--review needs a table with columns (csv, tsv, parquet), found {path}")
        if taken := {VERDICT, KEY} & set(source.columns):
            raise FileError(f"{path} must have no column {min(taken)!r}, which the sheet adds; rename it")
        marks: dict[str, Callable[[Any, int], Marks]] = {}
        if data.label is not None and {data.label, data.label.rpartition("=")[0]} & set(source.columns):
            labels, _ = split_labels(source, data.label, source.name)
            marks[labels.column] = lambda values, start: labels.marks(values)
        if (column := data.checked) is not None and column in source.columns:
            source.add_text(column)
            marks[column] = lambda values, start: is_checked(values, source.name, column, start)
        for part in source.parts():
            looked_at = np.zeros(len(part.rows), dtype=bool)
            rows: Any = part.rows
            for name, marked in marks.items():
                looked_at |= marked(rows[name], part.start)
            rows, scores = score_part(run, rows.without([*marks]), part, source.name)
            keys, rows_seen = row_keys(rows), rows_seen + len(rows)
            lists = scores.review_lists
            for each in lists.T:
                fresh: set[str] = set()
                for i in np.argsort(-each, kind="stable").tolist():
                    if len(fresh) == count:
                        break
                    if not looked_at[i] and keys[i] not in done:
                        fresh.add(keys[i])
                        best.setdefault(keys[i], (lists[i], part.start + i, rows.take([i])))
            best = _first_in_turn(best, lists.shape[1] * count)
    if not best:
        raise FileError(f"{path} must hold rows without a verdict, found none; pass other rows")
    best = _first_in_turn(best, count)
    places, frame = [place for _, place, _ in best.values()], Frame.join([row for _, _, row in best.values()])
    again = read_like(run.layout, path, settings)
    assert isinstance(again, TableSource)
    _write(run, frame, [[*best], places, again.cells(places, again.columns)], again.columns, file)
    return len(best), rows_seen


def _first_in_turn(best: dict[str, Candidate], count: int) -> dict[str, Candidate]:
    by_place = sorted(best.items(), key=lambda item: item[1][1])
    if not best:
        return best
    return dict(by_place[i] for i in in_turn(np.stack([row[0] for _, row in by_place]))[:count])


def _write(run: FittedRun, rows: Frame, found: Sequence[Any], columns: list[str], file: IO[str]) -> None:
    """Write the key, the position and the cells of each row to a sheet."""
    detector, table = run.detector, csv.writer(file, lineterminator="\n")
    scores, reasons = detector.scores(rows), detector.reasons(rows, REASONS)
    numbers = score_columns(run, rows, scores) | {"outlier": scores.flagged.astype(int)}
    numbers.pop("p_value", None)
    ours = [VERDICT, KEY, "row", *numbers, *(f"reason_{i + 1}" for i in range(REASONS))]
    table.writerow([*(name if name not in columns else f"fvnce_{name}" for name in ours), *map(cell, columns)])
    # A value that was read as a number is not a formula, and stays a number.
    plain = [name in run.layout.columns and rows.types[name].kind != "text" for name in columns]
    for i, (key, place, cells) in enumerate(zip(*found, strict=True)):
        words = [cell(sentence) for sentence in reasons[i]]
        cells = [text if is_plain else cell(text) for text, is_plain in zip(cells, plain, strict=True)]
        values = [values[i].item() for values in numbers.values()]
        table.writerow(["", key, place + 1, *values, *words, *[""] * (REASONS - len(words)), *cells])


def say_gains(config: Path, after: FittedRun, sheets: Sequence[str], say: Say) -> None:
    """Say what the verdicts of sheets changed since the earlier run of a config, if its model is there."""
    folder, data = config if config.is_dir() else config.parent, after.config.data
    verdicts = [each.outlier for sheet in sheets for each in read_sheet(sheet, after.layout, data)[1]]
    if not (folder / MODEL).is_file() or all(outlier is None for outlier in verdicts):
        return
    both = {"before": load_run(folder).detector, "after": after.detector}
    for line in plain("gains.md", **both).splitlines():
        say(line)
