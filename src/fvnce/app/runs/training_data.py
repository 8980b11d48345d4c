"""Files as training rows: which columns count, which rows are known outliers, by a label or in a file of their own.

A person names a column by its name or its number; of the labels in it, one value marks outliers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...detection.frame import Frame
from ...detection.reading import Reading, identifier_in
from ...detection.rows import INLIER, OUTLIER, release, take
from ..readers import ArraySource, ReadOptions, Rows, Source, TableOptions, TableSource, open_source
from ..readers.arrays import read_npz_labels
from ..readers.errors import DataError, budget, listed, over_budget
from ..readers.tables import numbered, present
from .settings import DataSettings

Say = Callable[[str], None]
Marks = NDArray[np.bool_]
#: Shares of known outliers above which something is likely to be the wrong way round.
MANY, MOST = 0.25, 0.5
#: Words in the name of a column that known outliers are marked by.
LABEL_WORDS = {"label", "labels", "fraud", "fraudulent", "outlier", "outliers", "anomaly", "anomalies", "anomalous"}
#: Rows beyond these bytes are thinned to so many of each kind, known outliers and others.
LARGE_BYTES = 128 * 2**20
LARGE_ROWS = 200_000


@dataclass(frozen=True)
class Layout:
    """What rows look like, so that other files can be read the same way."""

    kinds: dict[str, Reading] | None  # for a table with names, how each used column is read
    shape: tuple[int, ...] | None  # for an array, the shape of one row

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """The layout that these rows have."""
        if isinstance(rows, Frame):
            return cls({name: rows.readings.get(name, Reading()) for name in rows.columns.tolist()}, None)
        return cls(None, tuple(int(side) for side in rows.shape[1:]))

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a table; none for images."""
        if self.kinds is not None:
            return list(self.kinds)
        return numbered(self.shape[0]) if self.shape and len(self.shape) == 1 else []

    def prepare(self, rows: Rows, start: int = 0) -> Rows:
        """Rows as the model takes them, whatever file they came in; the first is row ``start`` of it."""
        if self.kinds is not None:
            if isinstance(rows, Frame):
                return rows
            return Frame({name: np.asarray(rows[:, i], dtype=np.float64) for i, name in enumerate(self.kinds)})
        if isinstance(rows, Frame):
            if self.shape != (rows.shape[1],) or any(rows[name].dtype.kind not in "biuf" for name in rows.columns):
                raise DataError(
                    f"rows must have shape {self.shape} of numbers as in training, found a table of {rows.shape[1]} "
                    "columns"
                )
            rows = np.column_stack([rows[name] for name in rows.columns])
        if rows.ndim == 2 and rows.dtype.kind == "f" and np.isinf(rows).any():
            row = start + int(np.flatnonzero(np.isinf(rows).any(1))[0]) + 1
            raise DataError(f"row {row} holds infinity; correct it, or write NaN for what is missing")
        return rows


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run; known outliers that came in a file of their own stand last."""

    rows: Rows
    known: Marks
    layout: Layout
    names: list[str] | None  # what rows are called: the files of images, or the column that names rows


def read_training_data(settings: DataSettings, say: Say, seed: int = 0) -> TrainingData:
    """Read the files that a run is trained on; ``say`` is told what a person should know of them."""
    source = open_source(settings.path, _options(settings, None))
    rng = np.random.default_rng([seed, 5])
    rows: Rows
    with closing(source):
        if isinstance(source, TableSource):
            rows, known, names = _read_table(source, settings, say, rng)
        else:
            rows, known, names = _read_array(source, settings, say)
    if len(rows) < 2:
        raise DataError(f"{source.name} holds {len(rows)} row; give at least 2, and a hundred or more to be of use")
    _check_finite(rows, source)
    if isinstance(rows, Frame):
        rows = _without_identifiers(rows, settings, say)
    layout = Layout.of(rows)
    if settings.outliers is not None:
        with closing(read_like(layout, settings.outliers, settings)) as others:
            more = others.read()
        _check_finite(more, others)
        if not isinstance(rows, Frame) and rows.nbytes > LARGE_BYTES and len(rows) > LARGE_ROWS:
            # A memory map need not fit in memory, and its rows are put there to have others below them.
            chosen = np.sort(rng.choice(len(rows), LARGE_ROWS, replace=False))
            say(f"of {len(rows):,} rows, {LARGE_ROWS:,} chosen at random are used")
            names = [str(i + 1) if names is None else names[i] for i in chosen.tolist()]
            rows, known = np.asarray(take(rows, chosen)), known[chosen]
        more = layout.prepare(more)
        if isinstance(rows, Frame) and isinstance(more, Frame):
            rows = Frame.join([rows, more])
        else:
            rows = np.concatenate([rows, more])
        known = np.concatenate([known, np.ones(len(more), dtype=bool)])
        names = None if names is None else [*names, *(f"outlier {i + 1}" for i in range(len(more)))]
    if settings.label is not None and not known.any():
        say(f"no row is marked as an outlier by {settings.label!r}: the run goes on without known outliers")
    _tell_of_empty_columns(rows, source, say)
    return TrainingData(rows, known, layout, names)


def read_like(layout: Layout, path: str, settings: DataSettings, *, beside: int = 0) -> Source:
    """A source whose rows must look like those of training; an array may have so many columns more beside them."""
    source = open_source(path, _options(settings, layout.kinds))
    if isinstance(source, TableSource):
        return source
    if beside and layout.columns and source.shape[1:] == (len(layout.columns) + beside,):
        return source
    if layout.kinds is None and source.shape[1:] != layout.shape:
        source.close()
        raise DataError(f"{path} must hold rows of shape {layout.shape} as in training, found {source.shape[1:]}")
    if layout.kinds is not None and source.shape[1:] != (len(layout.kinds),):
        source.close()
        raise DataError(
            f"{path} must hold the {len(layout.kinds)} columns of training ({listed(layout.columns)}), found rows of "
            f"shape {source.shape[1:]}"
        )
    return source


def _options(settings: DataSettings, kinds: dict[str, Reading] | None) -> ReadOptions:
    categorical = settings.categorical if kinds is None else ()
    table = TableOptions(settings.delimiter, settings.header, settings.missing, categorical, kinds)
    return ReadOptions(table, settings.array)


def _read_table(
    source: TableSource, settings: DataSettings, say: Say, rng: np.random.Generator
) -> tuple[Frame, Marks, list[str] | None]:
    """A table in parts, of which no more is kept than fits: a sample, if there are very many rows."""
    columns, where = source.columns, settings.path
    labels = None if settings.label is None else Labels.of(settings.label, columns, where)
    name = None if settings.id is None else find_column(columns, settings.id, where)
    dropped = [find_column(columns, column, where) for column in settings.drop]
    for column in settings.keep:
        find_column(columns, column, where)
    for text in (None if labels is None else labels.column, name):
        if text is not None:
            source.column_reader.add_text(text)
            dropped.append(text)
    if not set(columns) - set(dropped):
        raise DataError(f"--drop leaves no column of {settings.path}")
    sample = _Sample(rng)
    for part in source.parts():
        assert isinstance(part.rows, Frame)
        known = np.zeros(len(part.rows), dtype=bool) if labels is None else labels.marks(part.rows[labels.column])
        ids: NDArray[Any] = np.arange(part.start, part.start + len(part.rows)) + 1
        if name is not None:
            ids = np.array([text or f"row {i}" for text, i in zip(part.rows[name], ids, strict=True)], dtype=object)
        sample.add(part.rows.without(dropped), known, ids)
        if sample.nbytes > budget():
            raise over_budget(source.name, "a table")
    if labels is not None:
        labels.check(say, mostly=settings.mostly_outliers)
    else:
        for column in (column for column in columns if column not in dropped and _sounds_like_labels(column)):
            say(f"column {column!r} is data here: if it marks known outliers, pass --label {listed([column])}")
    for note in source.column_reader.notes:
        say(note)
    rows, known, ids, seen = sample.result()
    if len(rows) < seen:
        say(f"of {seen:,} rows, {len(rows):,} chosen at random are used")
    return rows, known, None if name is None and len(rows) == seen else [str(text) for text in ids.tolist()]


class _Sample:
    """Rows as they come, thinned at random whenever they have grown large."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._seen, self._thin = rng, 0, False
        self._parts: list[tuple[Frame, Marks, NDArray[Any], NDArray[np.float64]]] = []
        self.nbytes = 0

    def add(self, rows: Frame, known: Marks, ids: NDArray[Any]) -> None:
        # Whoever has the lowest numbers stays, so that no row is likelier to stay for coming early.
        self._parts.append((rows, known, ids, self._rng.random(len(rows))))
        self._seen += len(rows)
        self.nbytes += rows.nbytes
        if self.nbytes > LARGE_BYTES and sum(len(part[1]) for part in self._parts) > 2 * LARGE_ROWS:
            self._thin = True
            self._parts = [self._thinned()]
            self.nbytes = self._parts[0][0].nbytes

    def result(self) -> tuple[Frame, Marks, NDArray[Any], int]:
        rows, known, ids, _ = self._thinned()
        return rows, known, ids, self._seen

    def _thinned(self) -> tuple[Frame, Marks, NDArray[Any], NDArray[np.float64]]:
        rows = Frame.join([part[0] for part in self._parts])
        known, ids, draws = (np.concatenate([part[i] for part in self._parts]) for i in (1, 2, 3))
        if not self._thin:
            return rows, known, ids, draws
        kept = [np.flatnonzero(kind)[np.argsort(draws[kind], kind="stable")[:LARGE_ROWS]] for kind in (known, ~known)]
        chosen = np.sort(np.concatenate(kept))
        return rows.take(chosen), known[chosen], ids[chosen], draws[chosen]


def _read_array(source: ArraySource, settings: DataSettings, say: Say) -> tuple[NDArray[Any], Marks, list[str] | None]:
    for option, given in (("--drop", settings.drop), ("--keep", settings.keep), ("--id", settings.id)):
        if given:
            raise DataError(f"{option} needs a table with columns (csv, tsv, parquet), found {settings.path}")
    rows = source.read()
    if settings.label is None:
        return rows, np.zeros(len(rows), dtype=bool), source.names
    name, value = split_label(settings.label)
    values = read_npz_labels(Path(settings.path), name, len(rows)) if source.kind == "npz" else None
    if values is None:
        if rows.ndim != 2:
            raise DataError(
                f"--label cannot name a column of images ({settings.path}); give known outliers by --outliers"
            )
        position = find_position(name, rows.shape[1], settings.path)
        values, rows = rows[:, position], np.delete(np.asarray(rows), position, axis=1)
    labels = Labels(name, value)
    known = labels.marks(values)
    labels.check(say, mostly=settings.mostly_outliers)
    return rows, known, source.names


def _check_finite(rows: Rows, source: Source) -> None:
    """Refuse infinity, with the name of the file and the number of the row."""
    if isinstance(rows, Frame):
        for name in rows.columns.tolist():
            if rows[name].dtype.kind == "f" and np.isinf(rows[name]).any():
                where = f"{source.name}, row {int(np.isinf(rows[name]).argmax()) + 1}: column {name!r}"
                raise DataError(f"{where} holds infinity; correct it, or pass --missing inf")
        return
    step = max(1, 2**20 // int(np.prod(rows.shape[1:])))  # a memory map may be larger than memory
    for start in range(0, len(rows) if rows.dtype.kind == "f" else 0, step):
        infinite = np.isinf(rows[start : start + step]).reshape(-1, int(np.prod(rows.shape[1:]))).any(1)
        if infinite.any():
            where = f"{source.name}, row {start + int(infinite.argmax()) + 1}"
            raise DataError(f"{where} holds infinity; correct it, or write NaN for what is missing")
        release(rows)


def _tell_of_empty_columns(rows: Rows, source: Source, say: Say) -> None:
    """Columns without a single value say nothing; a table of nothing else is refused."""
    if isinstance(rows, Frame):
        names = rows.columns.tolist()
        empty = [name for name in names if not len(present(rows[name]))]
    elif rows.ndim == 2 and rows.dtype.kind == "f" and np.isnan(rows[0]).any():
        names = numbered(rows.shape[1])
        empty = [name for i, name in enumerate(names) if np.isnan(rows[:, i]).all()]
    else:
        return
    if len(empty) == len(names):
        raise DataError(f"{source.name} holds no value at all: all are missing; give a file with values")
    for name in empty:
        say(f"column {name!r} holds no value at all and is of no use; leave it out with --drop {name!r}")


def _without_identifiers(rows: Frame, settings: DataSettings, say: Say) -> Frame:
    """The columns that describe rows; those that name them are left out, unless they are all there is."""
    kept, found = {*settings.keep, *settings.categorical}, {}
    for name in rows.columns.tolist():
        if name not in kept and rows.readings.get(name, Reading()).kind in ("number", "text"):
            found[name] = identifier_in(name, rows[name])
    found = {name: why for name, why in found.items() if why is not None}
    if len(found) == rows.shape[1]:
        return rows
    for name, why in found.items():
        say(f"column {name!r} {why}; it is left out, and --keep {name!r} would keep it")
    return rows.without(list(found))


def find_column(columns: list[str], name: str, where: str) -> str:
    """A column by its name, or by its number from 1, or from −1 backwards."""
    if name in columns:
        return name
    try:
        return columns[find_position(name, len(columns), where)]
    except DataError:
        raise DataError(f"{where} has no column {name!r}; its columns are {listed(columns)}") from None


def find_position(name: str, width: int, where: str) -> int:
    """The position of a column without a name, from 0."""
    text = name.removeprefix("column_")
    number = int(text) if re.fullmatch(r"-?\d{1,9}", text) else 0
    if number == 0 or abs(number) > width:
        raise DataError(f"{where} has no column {name!r}; its columns are numbered from 1 to {width}")
    return number - 1 if number > 0 else width + number


def split_label(label: str) -> tuple[str, str]:
    """The column and the value that ``--label`` names, the value empty if it names none.

    >>> split_label("class=3"), split_label("fraud")
    (('class', '3'), ('fraud', ''))
    """
    column, _, value = label.rpartition("=")
    return (column, value) if column else (label, "")


def _sounds_like_labels(column: str) -> bool:
    """Whether one of the words of its name is what known outliers are called.

    >>> [_sounds_like_labels(name) for name in ("isFraud", "is_outlier", "Label", "labelling", "amount")]
    [True, True, True, False, False]
    """
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", column)
    return not LABEL_WORDS.isdisjoint(word.lower() for word in words)


class Labels:
    """Labels as they come, in parts.

    >>> labels = Labels("fraud")
    >>> labels.marks(np.array(["yes", None, "no"], dtype=object)).tolist()
    [True, False, False]
    >>> Labels("class", "3").marks(np.array([3.0, 1.0])).tolist()
    [True, False]
    """

    def __init__(self, column: str, value: str = "") -> None:
        self.column, self.value = column, _plain(value)
        self._counts: Counter[str] = Counter()

    @classmethod
    def of(cls, label: str, columns: list[str], where: str) -> Self:
        """From what --label says: a column, or COLUMN=VALUE."""
        name, value = (label, "") if label in columns else split_label(label)
        return cls(find_column(columns, name, where), value)

    def marks(self, values: NDArray[Any]) -> Marks:
        """Which of these labels mark a known outlier."""
        texts = [_plain(value) for value in values.tolist()]
        self._counts.update(texts)
        known = {text: text == self.value if self.value else text.lower() in OUTLIER for text in set(texts)}
        return np.array([known[text] for text in texts], dtype=bool)

    def check(self, say: Say, *, mostly: bool = False) -> None:
        """After the last part: refuse labels that cannot be told, and those that seem the wrong way round."""
        there = {text: count for text, count in self._counts.items() if text}
        column = self.column
        if self.value and self.value not in there:
            raise DataError(f"column {column!r} never holds {self.value!r}; it holds {listed(sorted(there))}")
        odd = sorted(text for text in there if text.lower() not in OUTLIER | INLIER | {"nan"})
        if odd and not self.value:
            rarest = min(sorted(there), key=lambda text: there[text])
            raise DataError(
                f"column {column!r} must mark known outliers by 1 and other rows by 0, found {listed(odd, 5)}; say "
                f"which value marks them, as in --label {listed([f'{column}={rarest}'])}, its rarest value"
            )
        total = sum(self._counts.values())
        known = self._counts[self.value] if self.value else sum(there[t] for t in there if t.lower() in OUTLIER)
        told = f"column {column!r} marks {known:,} of {total:,} rows as known outliers"
        if known > MOST * total and not mostly:
            others = {text: count for text, count in there.items() if text != self.value}
            rarest = min(sorted(others), key=lambda text: others[text], default="") if self.value else ""
            hint = f"choose another value, as in --label {listed([f'{column}={rarest}'])}, or " if rarest else ""
            raise DataError(f"{told}, more than half; {hint}pass --mostly-outliers if that is what they are")
        if known > MANY * total:
            say(f"{told}: more than a quarter, so look whether the value that marks them is the right one")


def _plain(value: Any) -> str:
    """A label as text, numbers without what does not count: 1.0 is 1."""
    if value is None:
        return ""
    text = str(value).strip()
    try:
        return text if isinstance(value, bool) or "_" in text else f"{float(text):.15g}"
    except ValueError:
        return text
