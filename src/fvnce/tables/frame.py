"""Table in memory: named columns of numbers, times or texts, from any library's data frame.

Data frames of pandas, polars, Arrow and all libraries that narwhals supports are converted to :class:`Frame`, which the
readers of files return as well. Missing numbers are NaN, missing times NaT, missing texts None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import narwhals.stable.v1 as nw
import numpy as np
from numpy.typing import NDArray

from .parsing import ColumnType

#: Number of rows of a part of a file.
PART_ROWS = 4096


class Frame:
    """Table in memory: columns of equal length, by name.

    Args:
        columns: an array for each name.
        types: types of columns that were parsed from text in a file, so that later files are read in the same way.

    >>> frame = Frame({"age": np.array([30.0, np.nan]), "town": np.array(["Bern", None], dtype=object)})
    >>> frame.shape, [frame[name].dtype.kind for name in frame.columns]
    ((2, 2), ['f', 'O'])
    """

    def __init__(self, columns: Mapping[Any, NDArray[Any]], types: Mapping[Any, ColumnType] | None = None) -> None:
        self._columns: dict[Any, NDArray[Any]] = dict(columns)
        self.types = dict(types or {})
        lengths = {len(values) for values in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError(f"columns must be equally long, found lengths {sorted(lengths)}")
        self._length = lengths.pop() if lengths else 0

    @classmethod
    def of(cls, X: Any) -> Frame:
        """Convert a data frame of any library.

        >>> import pyarrow
        >>> Frame.of(pyarrow.table({"a": [1, None], "b": ["x", None]})).row(1)
        {'a': nan, 'b': None}
        """
        if isinstance(X, Frame):
            _check(X.columns.tolist(), len(X))
            return X
        X = _eager(X)
        # Labels in pandas may be numbers, tuples or None, but narwhals needs strings.
        names = list(X.columns)
        plain = X.set_axis([str(i) for i in range(len(names))], axis=1) if hasattr(X, "set_axis") else X
        frame = nw.from_native(plain, eager_only=True)
        _check(names if plain is not X else frame.columns, len(frame))
        names = names if plain is not X else frame.columns
        columns = dict(zip(names, frame.iter_columns(), strict=True))
        declared = [name for name, column in columns.items() if column.dtype in (nw.Categorical, nw.Enum)]
        return cls(
            {name: _values(column) for name, column in columns.items()}, dict.fromkeys(declared, ColumnType("text"))
        )

    @classmethod
    def join(cls, frames: Sequence[Frame]) -> Frame:
        """Concatenate the rows of several frames with the same columns."""
        columns = {name: np.concatenate([frame[name] for frame in frames]) for name in frames[0].columns}
        return cls(columns, frames[-1].types)

    @property
    def columns(self) -> NDArray[np.object_]:
        """The names of the columns."""
        names = np.empty(len(self._columns), dtype=object)
        names[:] = list(self._columns)
        return names

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self._length, len(self._columns)

    @property
    def nbytes(self) -> int:
        """The approximate memory in bytes; a text that several rows share counts once."""
        total = 0
        for values in self._columns.values():
            total += values.nbytes
            if values.dtype.kind == "O":
                different = {id(value): value for value in values.tolist()}.values()
                total += sum(56 + len(text) for text in different if text is not None)
        return total

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: Hashable) -> NDArray[Any]:
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def aligned(self, names: list[str], width: int) -> tuple[Frame, str]:
        """Return the columns of training in their order, and a notice about ignored columns.

        Args:
            names: names of the columns of training as text; empty if training had none: columns are then in order.
            width: number of columns of training.

        >>> frame, notice = Frame({"b": np.zeros(1), "c": np.zeros(1), "a": np.ones(1)}).aligned(["a", "b"], 2)
        >>> frame.columns.tolist(), notice
        (['a', 'b'], 'X has columns that training did not have, which are ignored: c')
        """
        own, notice = {str(name): name for name in self._columns}, ""
        if list(self._columns) == list(range(width)):
            return self, "X has no names of columns as training had: they are taken in their order" if names else ""
        if not names and not all(isinstance(name, int | np.integer) for name in self._columns):
            names, notice = list(own), "X has names of columns, training had none: they are taken in their order"
        names = names or [str(i) for i in range(width)]
        missing = [name for name in names if name not in own]
        if missing or len(names) != width:
            raise ValueError(
                f"X must have the {width} columns of training, {', '.join(names[:9])}, found {', '.join([*own][:9])}; "
                f"{len(missing)} are missing ({', '.join(missing[:9])}): the feature names should match"
            )
        if extra := [name for name in own if name not in names]:
            notice = f"X has columns that training did not have, which are ignored: {', '.join(extra[:9])}"
        return self._like({own[name]: self._columns[own[name]] for name in names}), notice

    def with_columns(self, columns: Mapping[Any, NDArray[Any]]) -> Frame:
        """Return the frame with more columns.

        Args:
            columns: an array for each name, as long as the others.
        """
        return Frame(self._columns | dict(columns), self.types)

    def without(self, names: Sequence[Any]) -> Frame:
        """Return the frame without the named columns."""
        return self._like({name: values for name, values in self._columns.items() if name not in set(names)})

    def take(self, rows: Any) -> Frame:
        """Select rows by slice, mask or positions."""
        return self._like({name: values[rows] for name, values in self._columns.items()})

    def row(self, position: int) -> dict[str, Any]:
        """Return one row as a dictionary by column name.

        Args:
            position: position of the row, from 0.
        """
        return {
            name: values[position].item() if values.dtype.kind in "biuf" else values[position]
            for name, values in self._columns.items()
        }

    def _like(self, columns: dict[Any, NDArray[Any]]) -> Frame:
        return Frame(columns, {name: column for name, column in self.types.items() if name in columns})


Rows = Frame | NDArray[Any]


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a file: a frame, or an array of shape (n, D), (n, H, W) or (n, C, H, W)."""

    rows: Rows
    start: int  # position of the first row
    names: list[str] | None  # names of the rows, if any
    done: float | None  # fraction of the file that has been read, if known


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame of any library, or a mapping from names to columns."""
    if hasattr(X, "tocsr"):  # a sparse matrix may be a dict
        return False
    if isinstance(X, Frame | Mapping | nw.DataFrame | nw.LazyFrame) or nw.dependencies.is_into_dataframe(X):
        return True
    return bool(nw.dependencies.is_polars_lazyframe(X)) or type(X).__name__ in ("RecordBatch", "LazyFrame", "DataFrame")


def _eager(X: Any) -> Any:
    """Convert to a data frame in memory: collect a lazy frame, make a table of an Arrow batch or a mapping."""
    if isinstance(X, Mapping) or type(X).__name__ == "RecordBatch":
        import pyarrow

        if not isinstance(X, Mapping):
            return pyarrow.Table.from_batches([X])
        try:  # from_pandas: NaN and NA are missing texts, too
            plain = {
                n: pyarrow.array(v, from_pandas=True) if isinstance(v, list | np.ndarray) else v for n, v in X.items()
            }
            return pyarrow.table(plain)
        except (TypeError, ValueError) as error:
            raise ValueError(f"X must hold an array of one type and length for each name, found {error}") from None
    X = X.collect() if type(X).__name__ == "LazyFrame" else X
    return nw.to_native(X, pass_through=True)


def is_missing(value: Any) -> bool:
    """Return whether a value of a data frame is missing: None, NaN, or pandas.NA and pandas.NaT.

    >>> [is_missing(value) for value in (None, np.nan, 0.0, "")]
    [True, True, False, False]
    """
    # By name first, as a comparison with pandas.NA is neither true nor false.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | complex | Decimal | np.inexact | np.datetime64 | np.timedelta64) and bool(
        value != value
    )


def present(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a column that are not missing.

    >>> present(np.array([1.0, np.nan])), present(np.array(["x", None], dtype=object))
    (array([1.]), array(['x'], dtype=object))
    """
    if values.dtype.kind == "O":
        there = np.array([value is not None for value in values.tolist()], dtype=bool)
    else:
        there = ~(np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values))
    return np.asarray(values[there])


def objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """Convert values of any kind to an array of objects, None where missing."""
    result = np.empty(len(values), dtype=object)
    result[:] = [None if is_missing(value) else value for value in values]
    return result


def as_texts(values: NDArray[Any]) -> list[str | None]:
    """Convert values of any kind to text, whole numbers without a decimal point."""
    if values.dtype.kind == "f":
        return [None if value != value else f"{value:.15g}" for value in values.tolist()]
    return [None if value is None else value if type(value) is str else str(value) for value in values.tolist()]


def _check(names: list[Any], rows: int) -> None:
    if len(names) == 0:
        raise ValueError("X must hold at least one column, found 0 feature(s)")
    if rows == 0:
        raise ValueError("X must hold at least one row, found 0 sample(s)")
    twice = [name for name, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise ValueError(f"X must have a different name for each column, found {twice[0]!r} more than once; rename one")


def _values(column: nw.Series[Any]) -> NDArray[Any]:
    """Convert a column to an array of integers, floats, booleans, times, durations or objects."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        whole = dtype == nw.Boolean or dtype.is_integer()
        if whole and not column.is_null().any():
            kind: Any = bool if dtype == nw.Boolean else np.int64 if dtype.is_signed_integer() else np.uint64
            return np.asarray(column.to_numpy(), dtype=kind)
        plain = column.to_numpy()
        if plain.dtype.kind == "f":
            return plain.astype(np.float64)
        return np.array([np.nan if is_missing(v) else float(v) for v in column.to_list()], dtype=np.float64)
    if dtype in (nw.Date, nw.Datetime):
        if getattr(dtype, "time_zone", None) is not None:
            column = column.dt.replace_time_zone(None)  # local wall-clock time
        return np.asarray(column.to_numpy(), dtype="datetime64[us]")
    if dtype == nw.Duration:
        return np.asarray(column.to_numpy(), dtype="timedelta64[ns]")
    return objects(column.to_list())
