"""How the columns of a table are read: options of a person, types learned from rows, and identifiers left out.

Files and data frames end in the same numbers: :func:`frame_to_matrix` reads a :class:`Frame` by the types that
:func:`learn_types` found in the training rows, or that a file's reader found before.

A column that names rows instead of describing them (an identifier, a row counter, an account number) is left out: each
new row has a new one, so the detector would flag every row.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frame import Frame, as_texts
from .parsing import Array, ColumnType, learn_type

#: How each column of a table is read, in the order of the columns.
ColumnTypes = list[ColumnType]
#: Kinds of typed columns by NumPy's code; numbers otherwise.
KIND_OF = {"M": "time", "m": "duration", "b": "truth"}
#: Texts that stand for a missing value, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a"})

#: Rows below which no column is called an identifier.
MIN_ROWS = 20
#: Least number of digits of an account number.
ACCOUNT_DIGITS = 9
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
#: Words that name an identifier alone, as the last word, and as the last word after one of ``_THINGS``.
_ALONE = frozenset({"account", "index", "idx", "key", "no", "nr", "row", "rownum", "serial"})
_LAST = frozenset({"id", "ids", "uuid", "guid", "iban", "ssn", "rowid"})
_NUMBER = frozenset({"number", "no", "nr", "num", "code"})
_THINGS = frozenset(
    {"account", "card", "customer", "invoice", "order", "patient", "policy", "row", "serial", "transaction"}
)


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading a file.

    Attributes:
        delimiter: of a text table; found in its first lines if None.
        header: whether the first line of a text table names the columns; found if None.
        missing: texts that stand for a missing value, in addition to :data:`MISSING`.
        categorical: columns to read as text whatever they hold.
        types: how the columns of training are read; only these columns are read then.
        array: which array of an npz file holds the rows.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fvnce.tables import open_source
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "rows.csv").write_text("size;hue\\n1.5;7\\n2.5;8\\n")
    ...     open_source(f"{folder}/rows.csv", ReadOptions(delimiter=";", categorical=("hue",))).read()["hue"].tolist()
    ['7', '8']
    """

    delimiter: str | None = None
    header: bool | None = None
    missing: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    types: Mapping[str, ColumnType] | None = field(default=None, hash=False)
    array: str | None = None

    @property
    def all_missing(self) -> frozenset[str]:
        """Every text that stands for a missing value, in lower case."""
        return MISSING | {text.strip().lower() for text in self.missing}


def numbered(count: int) -> list[str]:
    """Return names for columns without names.

    >>> numbered(2)
    ['column_1', 'column_2']
    """
    return [f"column_{i + 1}" for i in range(count)]


def learn_types(frame: Frame, of: int | None = None) -> ColumnTypes:
    """Learn how each column of a frame is read; identifiers are ignored, with a warning.

    Args:
        frame: the rows to learn from.
        of: rows of the table, if the frame is a random part of one that was accepted as a whole: then no warning is
            given again, and nothing is refused.
    """
    types: ColumnTypes = []
    for name in frame.columns:
        values = frame[name]
        column = frame.types.get(name)
        if column is not None:
            types.append(column.with_codes(values.tolist()) if column.kind == "text" else column)
            continue
        kind = values.dtype.kind
        column = _learn_objects(name, values, strict=of is None) if kind == "O" else _typed(values)
        why = identifier_in(name, values, of) if column.kind == "text" or kind in "iu" else None
        if why is not None and of is None:
            warnings.warn(
                f"column {name!r} {why} and is left out; to keep it, make it a column of floats or, if it is text, of "
                "fewer different texts",
                stacklevel=4,
            )
        types.append(column if why is None else replace(column, ignored=True))
    if all(column.ignored for column in types):
        if of is not None:
            return [replace(column, ignored=False) for column in types]
        raise ValueError(
            f"X must hold a column that is not an identifier, found only {', '.join(map(str, frame.columns[:5]))}; "
            "make the columns to keep columns of floats"
        )
    return types


def _typed(values: NDArray[Any]) -> ColumnType:
    return ColumnType(KIND_OF.get(values.dtype.kind, "number"))


def _learn_objects(name: Any, values: NDArray[Any], *, strict: bool) -> ColumnType:
    texts = as_texts(values)
    column, misfit = learn_type(texts)
    if misfit is not None and not strict:
        column = ColumnType("text")
    elif misfit is not None:
        row = next(row for row, text in enumerate(texts) if text is not None and text.strip() == misfit)
        raise ValueError(
            f"column {name!r} must hold one kind of values, found {column.noun} and {misfit[:40]!r} in row {row}; "
            "correct it, or leave it missing"
        )
    return column.with_codes(texts) if column.kind == "text" else column


def read_by(frame: Frame, rows: NDArray[np.int64], of: int) -> tuple[Array, ColumnTypes]:
    """Read a whole frame by the types that some of its rows have, so that the others do not influence them.

    Args:
        frame: the whole table.
        rows: positions of the rows to learn from.
        of: how many rows these are a random part of.

    Returns:
        All rows, NaN where a value cannot be read, and the types.
    """
    types = learn_types(frame.take(rows), of)
    return frame_to_matrix(frame, types, strict=False), types


def plain_matrix(frame: Frame) -> Array:
    """Return numbers that distinguish rows before any type is learned: a code for each text."""
    types = [
        ColumnType("text").with_codes(as_texts(values)) if values.dtype.kind == "O" else _typed(values)
        for values in map(frame.__getitem__, frame.columns)
    ]
    return frame_to_matrix(frame, types, strict=False)


def text_bytes(frame: Frame, rows: NDArray[np.bool_]) -> list[NDArray[np.uint8]]:
    """Return the texts of some rows, one array of bytes for each column of objects."""
    columns = [frame[name][rows] for name in frame.columns if frame[name].dtype.kind == "O"]
    joined = ("\x1f".join(text or "" for text in as_texts(values)) for values in columns)
    return [np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8) for text in joined]


def frame_to_matrix(frame: Frame, types: ColumnTypes, *, strict: bool = True) -> Array:
    """Return a frame as numbers: NaN for missing; of text its codes, −1 for missing and −2 for texts never seen.

    A value that cannot be read raises ValueError if ``strict``, and is missing otherwise.
    """
    result = np.empty((len(frame), len(types)))
    for position, (name, column) in enumerate(zip(frame.columns, types, strict=True)):
        result[:, position] = 0.0 if column.ignored else _numbers(name, frame[name], column, strict=strict)
    infinite = np.isinf(result)
    if not strict:
        result[infinite] = np.nan
    elif infinite.any():
        row, position = np.argwhere(infinite)[0]
        raise ValueError(f"X must not hold infinity, found it in row {row} of column {frame.columns[position]!r}")
    return result


def _numbers(name: Any, values: NDArray[Any], column: ColumnType, *, strict: bool) -> Array:
    kind = values.dtype.kind
    if column.kind == "text":
        codes, _ = column.parse(as_texts(values))
        return np.where(np.isnan(codes), -1.0, codes)
    fits = {"time": "M", "duration": "m"}.get(column.kind, "biuf")
    if kind in fits or (kind == "f" and name is not None and np.isnan(values).all()):
        if kind in "mM":
            unit = "datetime64[us]" if kind == "M" else "timedelta64[ns]"
            seconds = values.astype(unit).astype(np.int64) / (1e6 if kind == "M" else 1e9)
            return np.where(np.isnat(values), np.nan, seconds)
        return np.asarray(values, dtype=np.float64)
    if kind == "O":
        texts = as_texts(values)
        numbers, misfit = column.parse(texts)
        if misfit is None or not strict:
            return numbers
        raise ValueError(
            f"column {name!r} must hold {column.noun} as in training, found {str(texts[misfit])[:40]!r} in row "
            f"{misfit}; correct it, or leave it missing"
        )
    if not strict:
        return np.full(len(values), np.nan)
    raise ValueError(f"column {name!r} must hold {column.noun} as in training, found {values.dtype}")


def identifier_in(name: Any, values: NDArray[Any], of: int | None = None) -> str | None:
    """Return why a column is an identifier, in words, or None if it is not.

    Args:
        name: of the column.
        values: of the column, None or NaN where missing.
        of: rows of the table, if the values are those of a random part of them.

    >>> identifier_in("n", np.arange(40)), identifier_in("patient_id", np.arange(100) // 2)
    ('counts rows', 'names rows: its name says so, and it holds 50 different values in 100 rows')
    >>> identifier_in("age", np.arange(100) // 2) is None
    True
    """
    share = 1.0 if of is None else len(values) / of
    if len(values) < share * MIN_ROWS or values.dtype.kind not in "iufO":
        return None
    if values.dtype.kind == "O":
        there: Any = [value for value in values.tolist() if value is not None]
        different = len(set(there)) if all(isinstance(value, str) for value in there) else len(set(map(str, there)))
    else:
        there = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        if not (np.isfinite(there).all() and (there == np.floor(there)).all()):
            return None
        different = len(np.unique(there))
    count = len(there)
    if count < share * MIN_ROWS:
        return None
    counted = f"{different:,} different values in {count:,} rows"
    if _names_identifier(name) and different > max(share * MIN_ROWS, count // 20):
        return f"names rows: its name says so, and it holds {counted}"
    if values.dtype.kind == "O":
        # Of texts that occur twice each, a part of the rows holds share · (1 − share / 2) · rows different ones.
        return f"names rows: it holds {counted}" if different > max(50 * share, (1 - share / 2) * count) else None
    low, high = float(there.min()), float(there.max())
    if different == count and high - low < (of or count):
        return "counts rows"
    if different > 0.9 * count and low >= 10 ** (ACCOUNT_DIGITS - 1) and len(f"{low:.0f}") == len(f"{high:.0f}"):
        return f"looks like account numbers: {counted}, all of {len(f'{low:.0f}')} digits"
    return None


def _names_identifier(name: Any) -> bool:
    """Return whether the name of a column is one of an identifier.

    >>> [_names_identifier(name) for name in ("patient_id", "customerID", "Account No", "account_balance", "paid")]
    [True, True, True, False, False]
    """
    words = [word for word in re.split(r"[^a-z]+", _CAMEL.sub(" ", str(name)).lower()) if word]
    if not words:
        return False
    alone = len(words) == 1 and words[0] in _ALONE
    return alone or words[-1] in _LAST or (words[-1] in _NUMBER and bool(_THINGS & set(words)))
