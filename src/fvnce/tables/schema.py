"""Schema of a table: reader options, column types learned from rows, and detection of identifiers.

Files and data frames give the same numbers: :func:`frame_to_matrix` converts a :class:`Frame` by the types that
:func:`learn_types`, or the reader of a file, inferred from the training rows.

A column that names rows instead of describing them (an identifier, a row counter, an account number) is excluded: its
values in new rows are always new, so the detector would flag every row.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._validation import FileError
from .errors import Problem, listed
from .frame import Frame, as_texts
from .learning import ColumnScan, Decision, decide, distinct, misfits
from .parsing import Array, ColumnType

#: Types of the columns of a table, in order.
ColumnTypes = list[ColumnType]
#: Kinds of typed columns by NumPy's type code; all others are numbers.
KIND_OF = {"M": "time", "m": "duration", "b": "truth"}
#: Minimum number of rows for the detection of identifiers.
MIN_ROWS = 20
#: Minimum number of digits of an account number.
ACCOUNT_DIGITS = 9
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
#: Words that mark the name of an identifier: alone, as the last word, and as the last word after one of ``_THINGS``.
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
        delimiter: delimiter of a text table; None to detect it.
        header: whether the first line of a text table names the columns; None to detect it.
        missing: texts that mean a missing value, in addition to the built-in ones.
        decimal: "." or ",", the decimal mark if no value of a column shows it.
        categorical: columns to read as text.
        schema: types of some columns given by the user; a column whose type is ``ignored`` is excluded.
        types: types of the columns of training; only these columns are read.
        array: name of the array of an npz file that holds the rows.

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
    decimal: str | None = None
    schema: Mapping[str, ColumnType] | None = field(default=None, hash=False)


def numbered(count: int) -> list[str]:
    """Return default names for columns without names.

    >>> numbered(2)
    ['column_1', 'column_2']
    """
    return [f"column_{i + 1}" for i in range(count)]


def unique(name: str, columns: list[str]) -> list[str]:
    """Return the column names, or raise FileError if two are equal."""
    twice = [text for text, count in Counter(columns).items() if count > 1]
    if twice:
        raise FileError(
            f"{name} must have different column names, found {twice[0]!r} twice; rename one, or pass --no-header if "
            "the first line is not a header"
        )
    return columns


def described(types: Mapping[str, ColumnType]) -> list[str]:
    """Describe the types of columns, in one line for each type.

    >>> described({"a": ColumnType(decimal=","), "b": ColumnType(), "c": ColumnType("time", day_first=True)})
    ['numbers (decimal ,): a', 'numbers: b', 'dates (day first): c']
    """
    ways: dict[str, list[str]] = {}
    for name, column in types.items():
        how = f" (decimal {column.decimal})" if column.kind == "number" and column.decimal else ""
        how = " (day first)" if column.kind == "time" and column.day_first else how
        ways.setdefault(column.noun + how, []).append(str(name))
    return [f"{way}: {listed(names)}" for way, names in ways.items()]


def learn_types(frame: Frame, of: int | None = None) -> ColumnTypes:
    """Infer the type of each column of a frame; identifiers are ignored, with a warning.

    Args:
        frame: the rows to infer from.
        of: number of rows of the table, if the frame is a random part of a table that was already accepted; no warnings
            or errors are raised then.

    Returns:
        The types of the columns.
    """
    strict, decision = of is None, _decide(frame)
    if strict and decision.problems:
        raise _refused(decision.problems)
    for notice in decision.notices if strict else ():
        warnings.warn(notice.partition("; ")[0], stacklevel=4)
    types: ColumnTypes = []
    for name in frame.columns:
        values, column = frame[name], frame.types.get(name)
        if column is not None:
            types.append(column.with_codes(as_texts(values)) if column.kind == "text" else column)
            continue
        column = decision.types.get(name, ColumnType())
        if values.dtype.kind != "O" and column.kind != "time":
            column = typed(values)
        column = column.with_codes(as_texts(values)) if column.kind == "text" else column
        why = identifier_in(name, values, of) if column.kind == "text" or values.dtype.kind in "iu" else None
        if why is not None and strict:
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


def typed(values: NDArray[Any], missing: tuple[str, ...] = ()) -> ColumnType:
    """Return the type of a column of numbers, booleans, times or durations."""
    kind = KIND_OF.get(values.dtype.kind, "number")
    return ColumnType(kind, day_first=None if kind == "time" else False, missing=missing)


def _refused(problems: Sequence[Problem]) -> ValueError:
    """Return the error for a data frame with problems."""
    found = [f"column {p.column!r} {p.requirement}, found {p.value[:40]!r} in row {p.row}" for p in problems[:8]]
    more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
    return ValueError(f"{'; '.join(found)}{more}; correct it, leave it missing, or convert the column yourself")


def _decide(frame: Frame, given: Mapping[Any, ColumnType] | None = None) -> Decision:
    """Infer the types of columns with text, or with integers that may be dates.

    If the types of training are given, infer only the decimal marks that training left open.
    """
    scans: dict[Any, ColumnScan] = {}
    for name in frame.columns:
        values, column = frame[name], (frame.types if given is None else given).get(name)
        undecided = column is None if given is None else column is not None and column.undecided
        if undecided and values.dtype.kind in ("O" if given is not None else "Oiu"):
            scan = scans[name] = ColumnScan()
            if values.dtype.kind == "O":
                scan.add(distinct(as_texts(values), gaps=(column or ColumnType()).gaps))
            else:
                scan.add_whole(values)
    return decide(scans, given or {}, loose=[name for name in scans if names_identifier(name)])


def read_by(frame: Frame, rows: NDArray[np.int64], of: int) -> tuple[Array, ColumnTypes]:
    """Convert a whole frame by types that are inferred from some of its rows only.

    Args:
        frame: the whole table.
        rows: positions of the rows to infer from.
        of: number of rows of which these are a random part.

    Returns:
        All rows, NaN where a value cannot be read, and the types.
    """
    types = learn_types(frame.take(rows), of)
    return frame_to_matrix(frame, types, strict=False), types


def plain_matrix(frame: Frame) -> Array:
    """Convert a frame to numbers that distinguish rows, without types: each text becomes a code."""
    types = [
        ColumnType("text").with_codes(as_texts(values)) if values.dtype.kind == "O" else typed(values)
        for values in map(frame.__getitem__, frame.columns)
    ]
    return frame_to_matrix(frame, types, strict=False)


def text_bytes(frame: Frame, rows: NDArray[np.bool_]) -> list[NDArray[np.uint8]]:
    """Return the texts of selected rows, as one array of bytes for each column of objects."""
    columns = [frame[name][rows] for name in frame.columns if frame[name].dtype.kind == "O"]
    joined = ("\x1f".join(text or "" for text in as_texts(values)) for values in columns)
    return [np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8) for text in joined]


def frame_to_matrix(frame: Frame, types: ColumnTypes, *, strict: bool = True) -> Array:
    """Convert a frame to a matrix: NaN for missing numbers; codes of text, −1 for missing, −2 for unseen texts.

    Values that cannot be read raise ValueError if ``strict``, else they are missing.
    """
    read = {name: column for name, column in zip(frame.columns, types, strict=True) if not column.ignored}
    decision = _decide(frame, read)
    result, problems = np.zeros((len(frame), len(types))), decision.problems
    for position, name in enumerate(frame.columns):
        if name in read:
            column = decision.types.get(name, read[name])
            found: list[Problem] = []
            result[:, position] = _numbers(name, frame[name], column, found)
            problems += [] if any(problem.column == name for problem in problems) else found
    if problems and strict:
        raise _refused(problems)
    infinite = np.isinf(result)
    if not strict:
        result[infinite] = np.nan
    elif infinite.any():
        row, position = np.argwhere(infinite)[0]
        raise ValueError(f"X must not hold infinity, found it in row {row} of column {frame.columns[position]!r}")
    return result


def _numbers(name: Any, values: NDArray[Any], column: ColumnType, problems: list[Problem]) -> Array:
    kind = values.dtype.kind
    if column.kind == "text":
        codes = column.parse(as_texts(values))[0]
        return np.where(np.isnan(codes), -1.0, codes)
    if kind in {"time": "M", "duration": "m"}.get(column.kind, "biuf") or (kind == "f" and np.isnan(values).all()):
        if kind in "mM":
            unit = "datetime64[us]" if kind == "M" else "timedelta64[ns]"
            seconds = values.astype(unit).astype(np.int64) / (1e6 if kind == "M" else 1e9)
            return np.where(np.isnat(values), np.nan, seconds)
        return without_gaps(values, column)
    if kind not in ("O" if column.kind != "time" else "Oiuf"):
        problems.append(Problem(name, 0, str(values.dtype), f"must hold {column.noun} as in training", "convert it"))
        return np.full(len(values), np.nan)
    texts = as_texts(values)
    numbers, misfit = column.parse(texts)
    if misfit is not None:
        problems += misfits(name, column, distinct(texts, gaps=column.gaps), "in training")
    return numbers


def without_gaps(values: NDArray[Any], column: ColumnType) -> Array:
    """Convert numbers to floats, with NaN for numbers that the user declared missing, such as −999.

    >>> without_gaps(np.array([1, -999]), ColumnType(missing=("-999",))).tolist()
    [1.0, nan]
    """
    gaps = ColumnType(decimal=column.decimal or ".").parse(column.missing)[0]
    floats = np.asarray(values, dtype=np.float64)
    return np.where(np.isin(floats, gaps), np.nan, floats) if len(gaps) else floats


def identifier_in(name: Any, values: NDArray[Any], of: int | None = None) -> str | None:
    """Return the reason why a column is an identifier, or None if it is not.

    Args:
        name: name of the column.
        values: values of the column, None or NaN where missing.
        of: number of rows of the table, if the values are a random part.

    >>> identifier_in("n", np.arange(40)), identifier_in("patient_id", np.arange(100) // 2)
    ('counts rows', 'looks like an identifier: its name says so, and it holds 50 different values in 100 rows')
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
    looks, counted = "looks like an identifier:", f"{different:,} different values in {count:,} rows"
    if names_identifier(name) and different > max(share * MIN_ROWS, count // 20):
        return f"{looks} its name says so, and it holds {counted}"
    if values.dtype.kind == "O":
        # If each text occurs twice, a random part of the rows has share · (1 − share / 2) · rows different texts.
        return f"{looks} it holds {counted}" if different > max(50 * share, (1 - share / 2) * count) else None
    low, high = float(there.min()), float(there.max())
    if different == count and high - low < (of or count):
        return "counts rows"
    if different > 0.9 * count and low >= 10 ** (ACCOUNT_DIGITS - 1) and len(f"{low:.0f}") == len(f"{high:.0f}"):
        return f"looks like account numbers: {counted}, all of {len(f'{low:.0f}')} digits"
    return None


def names_identifier(name: Any) -> bool:
    """Return whether the name of a column is typical of an identifier.

    >>> [names_identifier(name) for name in ("patient_id", "customerID", "Account No", "account_balance", "paid")]
    [True, True, True, False, False]
    """
    words = [word for word in re.split(r"[^a-z]+", _CAMEL.sub(" ", str(name)).lower()) if word]
    if not words:
        return False
    alone = len(words) == 1 and words[0] in _ALONE
    return alone or words[-1] in _LAST or (words[-1] in _NUMBER and bool(_THINGS & set(words)))
