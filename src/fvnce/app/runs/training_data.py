"""Files as training rows: which columns count, which rows are known outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection.mapped import release
from ..readers.arrays import read_labels
from ..readers.delimited import Kinds, TableOptions
from ..readers.frame import DataError, Frame, listed
from ..readers.png import PictureReader
from ..readers.sources import ArraySource, ReadOptions, Rows, Source, TableSource, open_source
from .settings import DataSettings

Say = Callable[[str], None]

YES = frozenset({"1", "1.0", "true", "yes", "outlier", "anomaly", "anomalous"})
NO = frozenset({"0", "0.0", "false", "no", "inlier", "normal", "none", "nan", ""})
#: An array beyond this is thinned before known outliers from another file are put below it.
LARGE_BYTES = 512 * 2**20
LARGE_ROWS = 200_000


@dataclass(frozen=True)
class Layout:
    """What rows look like, so that other files can be read the same way.

    Attributes:
        kinds: for a table with names, what each used column holds.
        shape: for an array, the shape of one row.
        missing: for an array, whether values were missing in training, so that they may be missing again.
    """

    kinds: Kinds | None
    shape: tuple[int, ...] | None
    missing: bool = False

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a table; none for images."""
        if self.kinds is not None:
            return list(self.kinds)
        return [f"column_{i + 1}" for i in range(self.shape[0])] if self.shape and len(self.shape) == 1 else []

    def prepare(self, rows: Rows, start: int = 0) -> Rows:
        """Rows as the model takes them, whatever file they came in; the first is row ``start`` of it."""
        if self.kinds is not None:
            return rows if isinstance(rows, Frame) else to_frame(rows, self.columns)
        assert self.shape is not None
        if isinstance(rows, Frame):
            rows = _matrix(rows, self.shape)
        if rows.ndim == 2 and rows.dtype.kind == "f":
            bad = ~np.isfinite(rows).all(1)
            if bad.any():
                if self.missing and not np.isinf(rows).any():
                    return to_frame(rows)
                row = start + int(np.flatnonzero(bad)[0]) + 1
                raise DataError(
                    f"row {row} holds a missing or infinite value, and no training row did; "
                    "leave it out, or train with rows that have some"
                )
        return rows


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run.

    Attributes:
        rows: a frame or an array; known outliers that came in a file of their own stand last.
        known: which rows are known outliers.
        layout: what rows look like.
        names: what rows are called, for images of a folder.
    """

    rows: Rows
    known: NDArray[np.bool_]
    layout: Layout
    names: list[str] | None


def read_training_data(settings: DataSettings, say: Say, seed: int = 0) -> TrainingData:
    """Read the files that a run is trained on; ``say`` is told what a person should know of them."""
    source = open_source(settings.path, _options(settings, None))
    rows = source.read()
    known = np.zeros(len(rows), dtype=bool)
    names = source.reader.names if isinstance(getattr(source, "reader", None), PictureReader) else None  # type: ignore[attr-defined]
    if settings.label is not None:
        known, rows = _labelled(rows, settings, source)
    rows = _dropped(rows, settings)
    _check(rows, source)
    layout = _layout(rows, source)
    if isinstance(rows, Frame):
        _warn_of_identifiers(rows, say)
    if settings.outliers is not None:
        more = read_like(layout, settings.outliers, settings).read()
        rows, known = _thinned(rows, known, say, seed)
        rows = _stack(rows, more)
        known = np.concatenate([known, np.ones(len(more), dtype=bool)])
        names = None if names is None else [*names, *(f"outlier {i + 1}" for i in range(len(more)))]
    if settings.label is not None and not known.any():
        say(f"no row is marked as an outlier by {settings.label!r}: the run goes on without known outliers")
    rows = _as_frame_if_missing(rows)
    if isinstance(rows, Frame):
        _tell_of_empty_columns(rows, source, say)
    return TrainingData(rows, known, replace(layout, missing=isinstance(rows, Frame)), names)


def read_like(layout: Layout, path: str, settings: DataSettings) -> Source:
    """A source whose rows must look like those of training."""
    source = open_source(path, _options(settings, layout.kinds))
    if layout.kinds is None:
        if not isinstance(source, ArraySource) or source.shape[1:] != layout.shape:
            found = str(source.shape[1:]) if isinstance(source, ArraySource) else "a table with named columns"
            if isinstance(source, TableSource):
                return source
            source.close()
            raise DataError(f"{path} must hold rows of shape {layout.shape} as in training, found {found}")
    elif isinstance(source, ArraySource) and source.shape[1:] != (len(layout.kinds),):
        source.close()
        raise DataError(
            f"{path} must hold the {len(layout.kinds)} columns of training ({listed(layout.columns)}), found rows of "
            f"shape {source.shape[1:]}"
        )
    return source


def _options(settings: DataSettings, kinds: Kinds | None) -> ReadOptions:
    categorical = settings.categorical if kinds is None else ()
    table = TableOptions(settings.delimiter, settings.header, settings.missing, categorical, kinds)
    return ReadOptions(table, settings.array)


def _labelled(rows: Rows, settings: DataSettings, source: Source) -> tuple[NDArray[np.bool_], Rows]:
    assert settings.label is not None
    name, _, value = settings.label.rpartition("=")
    if not name or (isinstance(rows, Frame) and settings.label in rows):
        name, value = settings.label, ""
    if isinstance(rows, Frame):
        column = find_column(rows.columns.tolist(), name, settings.path)
        return marks(rows[column], column, value), rows.without([column])
    if source.kind == "npz":
        labels = read_labels(Path(settings.path), name, len(rows))
        if labels is not None:
            return marks(labels, name, value), rows
    if rows.ndim != 2:
        raise DataError(f"--label cannot name a column of images ({settings.path}); give known outliers by --outliers")
    position = _position(name, rows.shape[1], settings.path)
    return marks(rows[:, position], name, value), np.delete(np.asarray(rows), position, axis=1)


def marks(values: NDArray[Any], column: str, value: str = "") -> NDArray[np.bool_]:
    """Which labels mark a known outlier: those equal to ``value``, or 1, true, yes, outlier, anomaly.

    >>> marks(np.array(["yes", None, "no"], dtype=object), "fraud").tolist()
    [True, False, False]
    >>> marks(np.array([3.0, 1.0]), "class", "3").tolist()
    [True, False]
    """
    texts = ["" if v is None else (f"{v:g}" if isinstance(v, float | np.floating) else str(v)) for v in values.tolist()]
    if value:
        found = np.array([text == value for text in texts], dtype=bool)
        if not found.any():
            raise DataError(f"column {column!r} never holds {value!r}; it holds {listed(sorted(set(texts)))}")
        return found
    odd = sorted({text for text in texts if text.lower() not in YES | NO})
    if odd:
        raise DataError(
            f"column {column!r} must mark known outliers by 1 and other rows by 0, found {listed(odd, 5)}; "
            f"say which value marks them, as in --label {column}={listed(odd[:1])}"
        )
    return np.array([text.lower() in YES for text in texts], dtype=bool)


def find_column(columns: list[str], name: str, where: str) -> str:
    """A column by its name, or by its number from 1, or from −1 backwards."""
    if name in columns:
        return name
    try:
        return columns[_position(name, len(columns), where)]
    except DataError:
        raise DataError(f"{where} has no column {name!r}; its columns are {listed(columns)}") from None


def _position(name: str, width: int, where: str) -> int:
    text = name.removeprefix("column_")
    if text.removeprefix("-").isdigit() and text != "0" and -width <= int(text) <= width:
        return int(text) - 1 if int(text) > 0 else width + int(text)
    raise DataError(f"{where} has no column {name!r}; its columns are numbered from 1 to {width}")


def _dropped(rows: Rows, settings: DataSettings) -> Rows:
    if not settings.drop:
        return rows
    if isinstance(rows, Frame):
        rows = rows.without([find_column(rows.columns.tolist(), name, settings.path) for name in settings.drop])
        if rows.shape[1] == 0:
            raise DataError(f"--drop leaves no column of {settings.path}")
        return rows
    raise DataError(f"--drop needs a table with columns (csv, tsv, parquet), found {settings.path}")


def _layout(rows: Rows, source: Source) -> Layout:
    if not isinstance(rows, Frame):
        return Layout(None, tuple(int(side) for side in rows.shape[1:]))
    reader = getattr(source, "reader", None)
    kinds = reader.kinds if reader is not None else {}
    return Layout({name: kinds.get(name, "number") for name in rows.columns.tolist()}, None)


def _check(rows: Rows, source: Source) -> None:
    """What no model can be trained on, told with the name of the file and the number of the row."""
    if len(rows) < 2:
        raise DataError(f"{source.name} holds {len(rows)} row; give at least 2, and a hundred or more to be of use")
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


def _tell_of_empty_columns(rows: Frame, source: Source, say: Say) -> None:
    """Columns without a single value say nothing; a table of nothing else is refused."""
    names = rows.columns.tolist()
    empty = [name for name in names if _is_empty(rows[name])]
    if len(empty) == len(names):
        raise DataError(f"{source.name} holds no value at all: all are missing; give a file with values")
    for name in empty:
        say(f"column {name!r} holds no value at all and is of no use; leave it out with --drop {name!r}")


def _is_empty(values: NDArray[Any]) -> bool:
    if values.dtype.kind == "O":
        return all(value is None for value in values.tolist())
    return values.dtype.kind == "f" and bool(np.isnan(values).all())


def _warn_of_identifiers(rows: Frame, say: Say) -> None:
    for name in rows.columns.tolist():
        values = rows[name]
        if values.dtype.kind == "O" and len(values) >= 20:
            different = len({v for v in values.tolist() if v is not None})
            if different > max(50, len(values) // 2):
                say(
                    f"column {name!r} holds {different:,} different texts in {len(values):,} rows and looks like an "
                    f"identifier; leave it out with --drop {name!r}"
                )


def _thinned(rows: Rows, known: NDArray[np.bool_], say: Say, seed: int) -> tuple[Rows, NDArray[np.bool_]]:
    if isinstance(rows, Frame) or rows.nbytes <= LARGE_BYTES or len(rows) <= LARGE_ROWS:
        return rows, known
    chosen = np.sort(np.random.default_rng([seed, 5]).choice(len(rows), LARGE_ROWS, replace=False))
    say(f"of {len(rows):,} rows, {LARGE_ROWS:,} chosen at random are used")
    return np.asarray(rows[chosen]), known[chosen]


def _stack(rows: Rows, more: Rows) -> Rows:
    if isinstance(rows, Frame):
        if not isinstance(more, Frame):
            more = to_frame(more, rows.columns.tolist())
        return Frame.join([rows, more])
    if isinstance(more, Frame):
        more = np.column_stack([more[name] for name in more.columns])
    return np.concatenate([rows, more])


def _as_frame_if_missing(rows: Rows) -> Rows:
    """A matrix with NaN becomes a frame, in which missing values are welcome."""
    if isinstance(rows, Frame) or rows.ndim != 2 or rows.dtype.kind != "f":
        return rows
    if any(np.isnan(rows[start : start + 4096]).any() for start in range(0, len(rows), 4096)):
        return to_frame(rows)
    return rows


def to_frame(rows: NDArray[Any], names: list[str] | None = None) -> Frame:
    """A matrix with named columns."""
    names = names or [f"column_{i + 1}" for i in range(rows.shape[1])]
    return Frame({name: np.asarray(rows[:, i], dtype=np.float64) for i, name in enumerate(names)})


def _matrix(frame: Frame, shape: tuple[int, ...]) -> NDArray[Any]:
    if shape != (frame.shape[1],) or any(dtype.kind == "O" for dtype in frame.dtypes):
        raise DataError(
            f"rows must have shape {shape} of numbers as in training, found a table of {frame.shape[1]} columns"
        )
    return np.column_stack([frame[name] for name in frame.columns])
