"""Training data of a run: the columns that are used, and known outliers from a label or a separate file.

A column is given by its name or its number; one value of the label column marks known outliers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...detection.rows import INLIER, OUTLIER, release, take
from ...tables import ColumnType, FileError, Frame, ReadOptions, Source, TableSource, open_source
from ...tables.arrays import read_npz_labels
from ...tables.errors import budget, listed, over_budget
from ...tables.frame import Rows, present
from ...tables.schema import identifier_in, numbered
from .settings import DataSettings, read_schema

Say = Callable[[str], None]
Marks = NDArray[np.bool_]
#: Splits rows, given with the position of the first one, into rows without labels and labels.
Split = Callable[[Any, int], tuple[Any, NDArray[Any]]]
#: Fractions of known outliers above which a label is probably inverted: for a warning, and for an error.
MANY, MOST = 0.25, 0.5
#: Words that occur in names of columns of labels.
LABEL_WORDS = {"label", "labels", "fraud", "fraudulent", "outlier", "outliers", "anomaly", "anomalies", "anomalous"}
#: Size in bytes above which rows are subsampled, and the numbers of known outliers and of other rows then kept.
LARGE_BYTES = 128 * 2**20
LARGE_ROWS = 200_000
#: Columns of a sample, numbered as columns of a file have names: marks of its rows, their positions, random numbers.
KNOWN, CHECKED, NUMBER, DRAW = range(4)


@dataclass(frozen=True)
class Layout:
    """Layout of the rows, by which other files are read in the same way."""

    types: dict[str, ColumnType] | None  # types of the columns of a table with names
    shape: tuple[int, ...] | None  # shape of one row of an array

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Return the layout of rows."""
        if isinstance(rows, Frame):
            return cls({name: rows.types.get(name, ColumnType()) for name in rows.columns.tolist()}, None)
        return cls(None, tuple(int(side) for side in rows.shape[1:]))

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a table; none for images."""
        if self.types is not None:
            return list(self.types)
        return numbered(self.shape[0]) if self.shape and len(self.shape) == 1 else []

    def prepare(self, rows: Rows) -> Rows:
        """Return the rows of any file in the form that the model takes."""
        if self.types is not None and not isinstance(rows, Frame):
            return Frame({name: np.asarray(rows[:, i], dtype=np.float64) for i, name in enumerate(self.types)})
        if self.types is None and isinstance(rows, Frame):
            if self.shape != (rows.shape[1],) or any(rows[name].dtype.kind not in "biuf" for name in rows.columns):
                raise FileError(
                    f"rows must have shape {self.shape} of numbers as in training, found a table of {rows.shape[1]} "
                    "columns"
                )
            return np.column_stack([rows[name] for name in rows.columns])
        return rows


@dataclass(frozen=True)
class TrainingData:
    """Rows of a run; known outliers from a separate file and rows of sheets come last."""

    rows: Rows
    known: Marks
    names: list[str] | None  # of the rows: the files of images, or the column that names rows
    checked: Marks  # rows whose label is the truth
    reviewed: Marks  # rows with a verdict in a sheet
    numbers: NDArray[np.int64] | None = None  # of a table's rows, their positions in its file, if it can be read again

    @property
    def layout(self) -> Layout:
        """Layout of the rows, by which others are read."""
        return Layout.of(self.rows)

    @property
    def inliers(self) -> Marks:
        """Which rows are known inliers."""
        return self.checked & ~self.known

    def extended(self, rows: Rows, known: Marks, names: Sequence[str] | None, *, reviewed: bool) -> TrainingData:
        """Return the data with more rows at the end."""
        own, more = self.rows, np.full(len(known), reviewed)
        both = Frame.join([own, rows]) if isinstance(own, Frame) and isinstance(rows, Frame) else None
        first = self.names or [str(i + 1) for i in range(len(own))]
        return replace(
            self,
            rows=np.concatenate([own, rows]) if both is None else both,
            known=np.concatenate([self.known, known]),
            names=None if names is None else [*first, *names],
            checked=np.concatenate([self.checked, more]),
            reviewed=np.concatenate([self.reviewed, more]),
        )

    def cells(self, rows: list[int], settings: DataSettings) -> dict[int, list[str]]:
        """Return the values of rows as written in the file, for rows of a table that can be read again."""
        if self.numbers is None:
            return {}
        rows = [row for row in rows if row < len(self.numbers)]
        source = open_source(settings.path, _options(settings, self.layout.types))
        assert isinstance(source, TableSource)
        return dict(zip(rows, source.cells(self.numbers[rows].tolist(), self.layout.columns), strict=True))


def read_training_data(settings: DataSettings, say: Say, seed: int = 0) -> TrainingData:
    """Read the files that a run is trained on; ``say`` is called with each message for the user."""
    source = open_source(settings.path, _options(settings, None))
    rng = np.random.default_rng([seed, 5])
    with closing(source):
        is_table = isinstance(source, TableSource)
        data = _read_table(source, settings, say, rng) if is_table else _read_array(source, settings, say)
    count = len(data.rows)
    if count < 2:
        raise FileError(f"{source.name} must hold at least 2 rows, found {count}; a hundred or more are recommended")
    _check_finite(data.rows, source.name)
    if isinstance(data.rows, Frame):
        kept = {*settings.keep, *settings.categorical, *source.declared}  # type: ignore[union-attr]
        data = replace(data, rows=_without_identifiers(data.rows, kept, say))
    if settings.outliers is not None:
        with closing(read_like(data.layout, settings.outliers, replace(settings, decimal=None))) as others:
            outliers = others.read()
        _check_finite(outliers, others.name)
        outliers = data.layout.prepare(outliers)
        if not isinstance(data.rows, Frame) and data.rows.nbytes > LARGE_BYTES and count > LARGE_ROWS:
            # A memory map may exceed memory, but rows that are joined with others must fit.
            chosen = np.sort(rng.choice(count, LARGE_ROWS, replace=False))
            say(f"of {count:,} rows, {LARGE_ROWS:,} chosen at random are used")
            own = data.names or range(1, count + 1)
            names = [str(own[i]) for i in chosen.tolist()]
            data = _unmarked(np.asarray(take(data.rows, chosen)), data.known[chosen], names)
        added = None if data.names is None else [f"outlier {i + 1}" for i in range(len(outliers))]
        data = data.extended(outliers, np.ones(len(outliers), dtype=bool), added, reviewed=False)
    if settings.label is not None and not data.known.any():
        say(f"no row is marked as an outlier by {settings.label!r}: training continues without known outliers")
    _report_empty_columns(data.rows, source, say)
    return data if Path(settings.path).is_file() else replace(data, numbers=None)


def _unmarked(rows: Rows, known: Marks, names: list[str] | None) -> TrainingData:
    """Return training data of which no row was looked at by a person."""
    return TrainingData(rows, known, names, np.zeros(len(known), dtype=bool), np.zeros(len(known), dtype=bool))


def read_like(layout: Layout, path: str, settings: DataSettings, *, labels: bool = False) -> Source:
    """Open a file with the layout of training; an array may have one additional column of labels."""
    source = open_source(path, _options(settings, layout.types))
    if isinstance(source, TableSource):
        return source
    trained = layout.shape if layout.types is None else (len(layout.types),)
    if source.shape[1:] == trained or (labels and source.shape[1:] == (len(layout.columns) + 1,)):
        return source
    source.close()
    names = "" if layout.types is None else f" ({listed(layout.columns)})"
    raise FileError(f"{path} must hold rows of shape {trained} as in training{names}, found {source.shape[1:]}")


def _options(settings: DataSettings, types: dict[str, ColumnType] | None) -> ReadOptions:
    options = ReadOptions(
        settings.delimiter, settings.header, settings.missing, (), types, settings.array, settings.decimal
    )
    if types is not None:
        return options
    schema = None if settings.schema is None else read_schema(settings.schema)
    return replace(options, categorical=settings.categorical, schema=schema)


def _read_table(source: Any, settings: DataSettings, say: Say, rng: np.random.Generator) -> TrainingData:
    """Read a table in parts; keep a random sample if it is too large."""
    columns, where = source.columns, settings.path
    labels, split = (None, None) if settings.label is None else split_labels(source, settings.label, where)
    name = None if settings.id is None else find_column(columns, settings.id, where)
    if name is not None:
        source.add_text(name)
    looked_at = None if settings.checked is None else find_column(columns, settings.checked, where)
    if looked_at is not None:
        source.add_text(looked_at)
    dropped = [find_column(columns, column, where) for column in settings.drop]
    for column in settings.keep:
        find_column(columns, column, where)
    roles = {name, looked_at, None if labels is None else labels.column}  # read, whether or not they are dropped
    source.skip([column for column in dropped if column not in roles])
    if not set(columns) - {*dropped, *roles}:
        raise FileError(f"--drop leaves no column of {settings.path}")
    sample = _Sample(rng)
    for part in source.parts():
        rows: Any = part.rows
        known, checked, values = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool), None
        if labels is not None and split is not None:
            rows, values = split(rows, part.start)
            known = labels.marks(values)
        if looked_at is not None:
            checked, rows = is_checked(rows[looked_at], where, looked_at, part.start), rows.without([looked_at])
            if bare := [i for i in np.flatnonzero(checked).tolist() if values is not None and values[i] is None]:
                raise FileError(
                    f"{where}, row {part.start + bare[0] + 1}: {looked_at!r} marks a row without a label; fill in its "
                    "label, or clear the mark"
                )
        numbers = np.arange(part.start, part.start + len(rows))
        sample.add(rows.with_columns({KNOWN: known, CHECKED: checked, NUMBER: numbers}))
        if sample.nbytes > budget():
            raise over_budget(source.name, "a table")
    if labels is not None:
        labels.check(say, mostly=settings.mostly_outliers)
    else:
        for column in (column for column in columns if column not in dropped and sounds_like_labels(column)):
            say(f"column {column!r} is used as data; if it marks known outliers, pass --label {listed([column])}")
    for notice in source.notices:
        say(notice)
    frame = sample.result()
    known, checked, numbers = (frame[mark] for mark in (KNOWN, CHECKED, NUMBER))
    if len(frame) < sample.seen:
        say(f"of {sample.seen:,} rows, {len(frame):,} chosen at random are used")
    names = None if len(frame) == sample.seen else [str(row + 1) for row in numbers.tolist()]
    if name is not None:
        names = [text or f"row {row + 1}" for text, row in zip(frame[name], numbers.tolist(), strict=True)]
    frame = frame.without([KNOWN, CHECKED, NUMBER, DRAW, name])
    return replace(_unmarked(frame, known, names), checked=checked, numbers=numbers)


class _Sample:
    """Random sample of rows that are added part by part, with their marks as columns."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._parts, self._thin = rng, list[Frame](), False
        self.seen = self.nbytes = 0

    def add(self, rows: Frame) -> None:
        # Rows with the lowest random numbers stay, so early and late rows are equally likely to stay.
        self._parts.append(rows.with_columns({DRAW: self._rng.random(len(rows))}))
        self.seen += len(rows)
        self.nbytes += rows.nbytes
        if self.nbytes > LARGE_BYTES and sum(map(len, self._parts)) > 2 * LARGE_ROWS:
            self._thin = True
            self._parts = [self.result()]
            self.nbytes = self._parts[0].nbytes

    def result(self) -> Frame:
        rows = Frame.join(self._parts)
        if not self._thin:
            return rows
        marked = rows[KNOWN] | rows[CHECKED]
        order = [np.flatnonzero(kind)[np.argsort(rows[DRAW][kind], kind="stable")] for kind in (marked, ~marked)]
        return rows.take(np.sort(np.concatenate([kept[:LARGE_ROWS] for kept in order])))


def _read_array(source: Any, settings: DataSettings, say: Say) -> TrainingData:
    for option in ("drop", "keep", "id", "checked"):
        if getattr(settings, option):
            raise FileError(f"--{option} needs a table with columns (csv, tsv, parquet), found {settings.path}")
    if settings.label is None:
        rows = source.read()
        return _unmarked(rows, np.zeros(len(rows), dtype=bool), source.names)
    labels, split = split_labels(source, settings.label, settings.path)
    rows, values = split(source.read(), 0)
    known = labels.marks(values)
    labels.check(say, mostly=settings.mostly_outliers)
    return _unmarked(rows, known, source.names)


def _check_finite(rows: Rows, name: str) -> None:
    """Raise FileError, with the file and the row, if a value is infinite."""
    # A memory map may be larger than memory.
    step = len(rows) if isinstance(rows, Frame) else max(1, 2**20 // int(np.prod(rows.shape[1:])))
    for start in range(0, len(rows), step):
        check_finite_part(rows if isinstance(rows, Frame) else rows[start : start + step], name, start)
        release(rows)


def check_finite_part(rows: Rows, name: str, start: int) -> None:
    """Raise FileError if a value is infinite in a part of a file whose first row is at position ``start``."""
    columns = {f": column {c!r}": rows[c] for c in rows.columns} if isinstance(rows, Frame) else {"": rows}
    advice = "pass --missing inf" if isinstance(rows, Frame) else "write NaN for missing values"
    for where, values in columns.items():
        infinite = np.isinf(values).reshape(len(values), -1).any(1) if values.dtype.kind == "f" else np.zeros(1, bool)
        if infinite.any():
            row = start + int(infinite.argmax()) + 1
            raise FileError(f"{name}, row {row}{where} holds infinity; correct it, or {advice}")


def _report_empty_columns(rows: Rows, source: Source, say: Say) -> None:
    """Report columns without any value; raise FileError for a table without any value."""
    if isinstance(rows, Frame):
        names = rows.columns.tolist()
        empty = [name for name in names if not len(present(rows[name]))]
    elif rows.ndim == 2 and rows.dtype.kind == "f" and np.isnan(rows[0]).any():
        names = numbered(rows.shape[1])
        empty = [name for i, name in enumerate(names) if np.isnan(rows[:, i]).all()]
    else:
        return
    if len(empty) == len(names):
        raise FileError(f"{source.name} must hold values, found only missing ones; pass another file")
    for name in empty:
        say(f"column {name!r} has only missing values and is not used; leave it out with --drop {name!r}")


def _without_identifiers(rows: Frame, kept: set[str], say: Say) -> Frame:
    """Leave out identifier columns, unless there are no others."""
    reasons = {}
    for name in rows.columns.tolist():
        if name not in kept and rows.types.get(name, ColumnType()).kind in ("number", "text"):
            reasons[name] = identifier_in(name, rows[name])
    reasons = {name: why for name, why in reasons.items() if why is not None}
    if len(reasons) == rows.shape[1]:
        return rows
    for name, why in reasons.items():
        say(f"column {name!r} {why}; it is left out; keep it with --keep {name!r}")
    return rows.without(list(reasons))


def find_column(columns: list[str], name: str, where: str) -> str:
    """Return a column given by its name, or by its number, from 1 or backwards from −1."""
    if name in columns:
        return name
    try:
        return columns[find_position(name, len(columns), where)]
    except FileError:
        raise FileError(f"{where} has no column {name!r}; its columns are {listed(columns)}") from None


def find_position(name: str, width: int, where: str) -> int:
    """Return the position of a column without a name, from 0."""
    text = name.removeprefix("column_")
    number = int(text) if re.fullmatch(r"-?\d{1,9}", text) else 0
    if number == 0 or abs(number) > width:
        raise FileError(f"{where} has no column {name!r}; its columns are numbered from 1 to {width}")
    return number - 1 if number > 0 else width + number


def split_labels(source: Source, label: str, path: str) -> tuple[Labels, Split]:
    """Find the labels of a file: a column of a table or of a matrix, or an array of an npz file.

    Args:
        source: the file.
        label: a column or array, or COLUMN=VALUE.
        path: path of the file.

    Returns:
        The labels, and a function that splits rows of the file into rows and labels.
    """
    if isinstance(source, TableSource):
        column, value = (label, "") if label in source.columns else _label_value(label)
        column = find_column(source.columns, column, source.name)
        source.add_text(column)
        return Labels(column, value), lambda rows, start: (rows.without([column]), rows[column])
    name, value = _label_value(label)
    array = read_npz_labels(Path(path), name, source.shape[0]) if source.kind == "npz" else None
    if array is not None:
        return Labels(name, value), lambda rows, start: (rows, array[start : start + len(rows)])
    if len(source.shape) != 2:
        raise FileError(
            f"--label needs a table or a matrix, found images ({path}); pass known outliers with --outliers"
        )
    position = find_position(name, source.shape[1], path)
    return Labels(name, value), lambda rows, start: (np.delete(np.asarray(rows), position, 1), rows[:, position])


def truths(values: Sequence[Any], where: str, column: str, start: int = 0) -> list[bool | None]:
    """Convert words such as yes and no, 1 and 0, outlier and inlier to booleans; an empty cell gives None.

    >>> truths(["yes", None, "0"], "sheet.csv", "verdict")
    [True, None, False]
    """
    words = ["" if value is None else str(value).strip().lower() for value in values]
    for row, word in enumerate(words):
        if word not in OUTLIER | INLIER | {"", "nan"}:
            raise FileError(
                f"{where}, row {start + row + 1}: {column!r} must be yes or no, 1 or 0, outlier or inlier, found "
                f"{word[:40]!r}; correct it, or leave it empty"
            )
    return [None if word in ("", "nan") else word in OUTLIER for word in words]


def is_checked(values: NDArray[Any], where: str, column: str, start: int) -> Marks:
    """Return which cells of a column mark a checked row."""
    return np.array([mark is True for mark in truths(values.tolist(), where, column, start)], dtype=bool)


def _label_value(label: str) -> tuple[str, str]:
    """Split the argument of ``--label`` into column and value; the value is empty if none is given.

    >>> _label_value("class=3"), _label_value("fraud")
    (('class', '3'), ('fraud', ''))
    """
    column, _, value = label.rpartition("=")
    return (column, value) if column else (label, "")


def sounds_like_labels(column: str) -> bool:
    """Return whether the name of a column contains a word of :data:`LABEL_WORDS`.

    >>> [sounds_like_labels(name) for name in ("isFraud", "is_outlier", "Label", "labelling", "amount")]
    [True, True, True, False, False]
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column)
    return not LABEL_WORDS.isdisjoint(word.lower() for word in words)


class Labels:
    """Labels of known outliers, read part by part.

    Args:
        column: name of the column or array.
        value: value that marks known outliers; by default 1, yes, fraud and similar words.

    >>> labels = Labels("fraud")
    >>> labels.marks(np.array(["yes", None, "no"], dtype=object)).tolist()
    [True, False, False]
    >>> Labels("class", "3").marks(np.array([3.0, 1.0])).tolist()
    [True, False]
    """

    def __init__(self, column: str, value: str = "") -> None:
        self.column, self.value = column, as_label(value)
        self._counts: Counter[str] = Counter()

    def marks(self, values: NDArray[Any]) -> Marks:
        """Return which of these labels mark a known outlier."""
        texts = [as_label(value) for value in values.tolist()]
        self._counts.update(texts)
        return np.array([self._is_known(text) for text in texts], dtype=bool)

    def _is_known(self, text: str) -> bool:
        return text == self.value if self.value else text.lower() in OUTLIER

    def check(self, say: Say, *, mostly: bool = False) -> None:
        """Raise FileError if the labels are ambiguous or seem inverted; called after the last part."""
        there = {text: count for text, count in self._counts.items() if text}
        column = self.column
        if self.value and self.value not in there:
            raise FileError(f"column {column!r} never holds {self.value!r}; it holds {listed(sorted(there))}")
        unclear = sorted(text for text in there if text.lower() not in OUTLIER | INLIER | {"nan"})
        if unclear and not self.value:
            raise FileError(
                f"column {column!r} must mark known outliers by 1 and other rows by 0, found {listed(unclear, 5)}; "
                f"pass the value that marks them, as in {self._example(there)}, its rarest value"
            )
        total = sum(self._counts.values())
        known = sum(count for text, count in there.items() if self._is_known(text))
        marked = f"column {column!r} marks {known:,} of {total:,} rows as known outliers"
        if known > MOST * total and not mostly:
            others = {text: count for text, count in there.items() if self.value and text != self.value}
            hint = f"choose another value, as in {self._example(others)}, or " if others else ""
            raise FileError(f"{marked}, more than half; {hint}pass --mostly-outliers if this is correct")
        if known > MANY * total:
            say(f"{marked}, more than a quarter; check whether the right value marks them")

    def _example(self, counts: dict[str, int]) -> str:
        rarest = min(sorted(counts), key=lambda text: counts[text])
        return f"--label {listed([f'{self.column}={rarest}'])}"


def as_label(value: Any) -> str:
    """Return a label as text, 1.0 as 1."""
    if value is None:
        return ""
    text = str(value).strip()
    try:
        return text if isinstance(value, bool) or "_" in text else f"{float(text):.15g}"
    except ValueError:
        return text
