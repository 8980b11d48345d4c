"""A table in memory: named columns of numbers, of times or of text, made of any library's data frame.

pandas, polars, Arrow and whatever else narwhals knows become the same thing here, so that the detector and the
readers of files know one kind of table. Numbers are NaN where missing, times NaT, texts None. How each column is read
as numbers is learnt here too (:mod:`fvnce.detection.reading`), and columns that name rows are left out.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from numpy.typing import NDArray

from .plan import Array
from .reading import Reading, identifier_in, learn_reading, with_codes

#: How each column of a data frame is read.
Readings = list[Reading]
#: What columns hold, by the kind of their type; numbers otherwise.
KIND_OF = {"M": "time", "m": "duration", "b": "truth"}


class Frame:
    """Columns of equal length by name.

    Attributes:
        readings: for columns that were text in a file, how they were read, so that others are read alike.

    >>> frame = Frame({"age": np.array([30.0, np.nan]), "town": np.array(["Bern", None], dtype=object)})
    >>> frame.shape, [frame[name].dtype.kind for name in frame.columns]
    ((2, 2), ['f', 'O'])
    """

    def __init__(self, columns: Mapping[Any, NDArray[Any]], readings: Mapping[Any, Reading] | None = None) -> None:
        self._columns: dict[Any, NDArray[Any]] = dict(columns)
        self.readings = dict(readings or {})
        lengths = {len(values) for values in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns must be equally long, found lengths {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0

    @classmethod
    def of(cls, X: Any) -> Frame:
        """The columns of a data frame of any library.

        >>> import pyarrow
        >>> Frame.of(pyarrow.table({"a": [1, None], "b": ["x", None]})).row(1)
        {'a': nan, 'b': None}
        """
        if isinstance(X, Frame):
            _check(X.columns.tolist(), len(X))
            return X
        names = list(getattr(X, "column_names", None) or X.columns)
        _check(names, len(X))
        # A label of pandas may be a number, a tuple or None, and narwhals wants names that are text.
        plain = X.set_axis([str(i) for i in range(len(names))], axis=1) if hasattr(X, "set_axis") else X
        frame = nw.from_native(plain, eager_only=True)
        return cls({name: _values(column) for name, column in zip(names, frame.iter_columns(), strict=True)})

    @property
    def columns(self) -> NDArray[np.object_]:
        """Their names."""
        names = np.empty(len(self._columns), dtype=object)
        names[:] = list(self._columns)
        return names

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self._length, len(self._columns)

    @property
    def nbytes(self) -> int:
        """Memory it takes, about: a text costs some 56 bytes and its letters, once for all rows that share it."""
        total = 0
        for values in self._columns.values():
            total += values.nbytes
            if values.dtype.kind == "O":
                total += sum(
                    56 + len(text) for text in {id(v): v for v in values.tolist()}.values() if text is not None
                )
        return total

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: Hashable) -> NDArray[Any]:
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def without(self, names: Sequence[str]) -> Frame:
        """All columns but these."""
        return self._like({name: values for name, values in self._columns.items() if name not in set(names)})

    def take(self, rows: Any) -> Frame:
        """Some rows, by slice, mask or positions."""
        return self._like({name: values[rows] for name, values in self._columns.items()})

    def row(self, position: int) -> dict[str, Any]:
        """One row, by name of column."""
        return {
            name: values[position].item() if values.dtype.kind in "biuf" else values[position]
            for name, values in self._columns.items()
        }

    @classmethod
    def join(cls, parts: Sequence[Frame]) -> Frame:
        """Frames of the same columns, one below the other."""
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns}
        return cls(columns, parts[-1].readings)

    def _like(self, columns: dict[Any, NDArray[Any]]) -> Frame:
        return Frame(columns, {name: reading for name, reading in self.readings.items() if name in columns})


def is_frame(X: Any) -> bool:
    """Whether X is a data frame, of whatever library."""
    return isinstance(X, Frame) or bool(nw.dependencies.is_into_dataframe(X))


def is_missing(value: Any) -> bool:
    """Whether a value of a data frame stands for none: None, NaN, or one of pandas' own.

    >>> [is_missing(value) for value in (None, np.nan, 0.0, "")]
    [True, True, False, False]
    """
    # By name first: pandas.NA compared with anything, itself included, is neither true nor false.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | complex | Decimal | np.inexact | np.datetime64 | np.timedelta64) and bool(
        value != value
    )


def _check(names: list[Any], rows: int) -> None:
    """At least one row and one column, and no name twice: a column that is named is one."""
    if len(names) == 0:
        raise ValueError("X must hold at least one column, found 0 feature(s)")
    if rows == 0:
        raise ValueError("X must hold at least one row, found 0 sample(s)")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(
            f"X must have a name of its own for each column, found {twice[0]!r} more than once; rename one"
        )


def _values(column: nw.Series[Any]) -> NDArray[Any]:
    """A column as an array of whole numbers, floats, truths, times, durations or objects."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        if dtype.is_integer() and not column.is_null().any():
            return np.asarray(column.to_numpy(), dtype=np.int64 if dtype.is_signed_integer() else np.uint64)
        if dtype == nw.Boolean and not column.is_null().any():
            return np.asarray(column.to_numpy(), dtype=bool)
        plain = column.to_numpy()
        if plain.dtype.kind == "f":
            return plain.astype(np.float64)
        return np.array([np.nan if is_missing(v) else float(v) for v in column.to_list()], dtype=np.float64)
    if dtype == nw.Date or (dtype == nw.Datetime and getattr(dtype, "time_zone", None) is None):
        return np.asarray(column.to_numpy(), dtype="datetime64[us]")
    if dtype == nw.Datetime:
        # The time that the clock on the wall showed.
        return np.asarray(column.dt.replace_time_zone(None).to_numpy(), dtype="datetime64[us]")
    if dtype == nw.Duration:
        return np.asarray(column.to_numpy(), dtype="timedelta64[ns]")
    found = np.empty(len(column), dtype=object)
    found[:] = [None if is_missing(value) else value for value in column.to_list()]
    return found


def learn_readings(frame: Frame, of: int | None = None) -> Readings:
    """How each column of a data frame is to be read; identifiers are left out, and said so.

    Args:
        frame: the rows to learn from.
        of: rows of the table, if the frame is a random part of one that was accepted as a whole: then no warning is
            given twice, and nothing is refused.
    """
    found: Readings = []
    for name in frame.columns:
        values = frame[name]
        reading = frame.readings.get(name)
        if reading is not None:
            found.append(with_codes(reading, values.tolist()) if reading.kind == "text" else reading)
            continue
        kind = values.dtype.kind
        if kind == "O":
            reading = _learn_objects(name, values, strict=of is None)
        else:
            reading = Reading(KIND_OF.get(kind, "number"))
        why = identifier_in(name, values, of) if reading.kind == "text" or kind in "iu" else None
        if why is not None and of is None:
            warnings.warn(
                f"column {name!r} {why} and is left out; to keep it, make it a column of floats or, if it is text, of "
                "fewer different texts",
                stacklevel=4,
            )
        found.append(reading if why is None else replace(reading, ignored=True))
    if all(reading.ignored for reading in found):
        if of is not None:
            return [replace(reading, ignored=False) for reading in found]
        raise ValueError(
            f"X must hold a column that is no identifier, found only {', '.join(map(str, frame.columns[:5]))}; "
            "make those to keep columns of floats"
        )
    return found


def _learn_objects(name: Any, values: NDArray[Any], *, strict: bool) -> Reading:
    texts = as_texts(values)
    reading, odd = learn_reading(texts)
    if odd is not None and not strict:
        reading = Reading("text")
    elif odd is not None:
        row = next(row for row, text in enumerate(texts) if text is not None and text.strip() == odd)
        raise ValueError(
            f"column {name!r} must hold one kind of values, found {reading.told} and {odd[:40]!r} in row {row}; "
            "correct it, or leave it missing"
        )
    return with_codes(reading, texts) if reading.kind == "text" else reading


def as_texts(values: NDArray[Any]) -> list[str | None]:
    """Values of any kind as text, whole numbers without a point."""
    kind = values.dtype.kind
    if kind == "f":
        return [None if value != value else f"{value:.15g}" for value in values.tolist()]
    return [None if value is None else value if type(value) is str else str(value) for value in values.tolist()]


def read_by(frame: Frame, rows: NDArray[np.int64], of: int) -> tuple[Array, Readings]:
    """Read a data frame as some of its rows suggest, so that the others have no part in how they are read.

    Args:
        frame: the whole table.
        rows: positions of the rows to learn from.
        of: how many rows these are a random part of.

    Returns:
        All rows, NaN where a value cannot be read so, and the readings.
    """
    readings = learn_readings(frame.take(rows), of)
    return frame_to_matrix(frame, readings, strict=False), readings


def plain_matrix(frame: Frame) -> Array:
    """Return numbers that distinguish rows before any column is read: a code for each text."""
    columns = [frame[name] for name in frame.columns]
    texts = [as_texts(values) if values.dtype.kind == "O" else None for values in columns]
    readings = [
        Reading(KIND_OF.get(values.dtype.kind, "number")) if found is None else with_codes(Reading("text"), found)
        for values, found in zip(columns, texts, strict=True)
    ]
    return frame_to_matrix(frame, readings, strict=False)


def text_bytes(frame: Frame, rows: NDArray[np.bool_]) -> list[NDArray[np.uint8]]:
    """Return the texts of some rows, one array of bytes for each column of objects."""
    columns = [frame[name][rows] for name in frame.columns if frame[name].dtype.kind == "O"]
    joined = ("\x1f".join(text or "" for text in as_texts(values)) for values in columns)
    return [np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8) for text in joined]


def frame_to_matrix(frame: Frame, readings: Readings, *, strict: bool = True) -> Array:
    """Numbers as they are, NaN for missing; categories as their codes, −1 for missing and −2 for those never seen.

    What cannot be read is refused if ``strict``, and missing otherwise.
    """
    result = np.empty((len(frame), len(readings)))
    for position, (name, reading) in enumerate(zip(frame.columns, readings, strict=True)):
        result[:, position] = 0.0 if reading.ignored else _numbers(name, frame[name], reading, strict=strict)
    if not strict:
        result[np.isinf(result)] = np.nan
    if np.isinf(result).any():
        row, position = np.argwhere(np.isinf(result))[0]
        raise ValueError(f"X must not hold infinity, found it in row {row} of column {frame.columns[position]!r}")
    return result


def _numbers(name: Any, values: NDArray[Any], reading: Reading, *, strict: bool) -> Array:
    kind = values.dtype.kind
    if reading.kind == "text":
        numbers, _ = reading.numbers(as_texts(values))
        return np.where(np.isnan(numbers), -1.0, numbers)
    fits = {"time": "M", "duration": "m"}.get(reading.kind, "biuf")
    if kind in fits or (kind == "f" and name is not None and np.isnan(values).all()):
        if kind in "mM":
            unit = "datetime64[us]" if kind == "M" else "timedelta64[ns]"
            seconds = values.astype(unit).astype(np.int64) / (1e6 if kind == "M" else 1e9)
            return np.where(np.isnat(values), np.nan, seconds)
        return np.asarray(values, dtype=np.float64)
    if kind == "O":
        texts = as_texts(values)
        numbers, bad = reading.numbers(texts)
        if bad is None or not strict:
            return numbers
        raise ValueError(
            f"column {name!r} must hold {reading.told} as in training, found {str(texts[bad])[:40]!r} in row {bad}; "
            "correct it, or leave it missing"
        )
    if not strict:
        return np.full(len(values), np.nan)
    raise ValueError(f"column {name!r} must hold {reading.told} as in training, found {values.dtype}")
