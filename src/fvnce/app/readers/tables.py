"""Tables: parquet files, and what the columns of any table hold, decided on its first rows and kept for all others.

Numbers, amounts, truths and dates are read as :mod:`fvnce.detection.reading` does. A column in which a few values among
many do not fit is refused, because neither reading of it is safe; the user says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection.frame import Frame
from ...detection.reading import Reading, is_ambiguous, learn_reading
from .errors import DataError, explained, listed, within_budget

#: Amounts that Arrow can be made to read; :class:`Reading` reads them alike, and others beside.
_AMOUNT = r"^-?[$€£¥]?([1-9][0-9]{0,2}(,[0-9]{3})+|[0-9]+)([.][0-9]+)?$"
#: Texts that stand for nothing, in lower case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "#n/a"})


def present(values: NDArray[Any]) -> NDArray[Any]:
    """The values of a column that are not missing.

    >>> present(np.array([1.0, np.nan])), present(np.array(["x", None], dtype=object))
    (array([1.]), array(['x'], dtype=object))
    """
    if values.dtype.kind == "O":
        there = np.array([value is not None for value in values.tolist()], dtype=bool)
    else:
        there = ~(np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values))
    return np.asarray(values[there])


def numbered(count: int) -> list[str]:
    """What columns without names are called.

    >>> numbered(2)
    ['column_1', 'column_2']
    """
    return [f"column_{i + 1}" for i in range(count)]


class ColumnSummary:
    """What a column holds, added up over its parts; durations are in seconds.

    >>> found = ColumnSummary()
    >>> found.add(np.array([3.0, np.nan]))
    >>> found.add(np.array([1.0]))
    >>> found.missing, float(found.low), float(found.high)
    (1, 1.0, 3.0)
    """

    def __init__(self) -> None:
        self.kind, self.missing = "", 0
        self.low: Any = None
        self.high: Any = None
        self.texts: set[str] = set()

    def add(self, values: NDArray[Any]) -> None:
        """Some more values."""
        there = present(values)
        self.kind, self.missing = values.dtype.kind, self.missing + len(values) - len(there)
        if self.kind == "O":
            # Enough to tell a category from an identifier, whatever the length of the file.
            if len(self.texts) < 10_000:
                self.texts.update(there.tolist())
        elif len(there):
            if self.kind == "m":
                there = there / np.timedelta64(1, "s")
            low, high = there.min(), there.max()
            self.low, self.high = (low, high) if self.low is None else (min(self.low, low), max(self.high, high))


@dataclass(frozen=True)
class TableOptions:
    """How a table is to be read; delimiter and header of a text table are found if they are None."""

    delimiter: str | None = None
    header: bool | None = None
    missing: tuple[str, ...] = ()  # texts that stand for a missing value, beside the usual ones
    categorical: tuple[str, ...] = ()  # columns to take as text whatever they hold
    kinds: Mapping[str, str | Reading] | None = field(default=None, hash=False)  # what columns hold, if known

    @property
    def all_missing(self) -> frozenset[str]:
        """Every text that stands for a missing value, in lower case."""
        return MISSING | {text.strip().lower() for text in self.missing}


class ColumnReader:
    """Columns of Arrow as columns of a frame.

    Attributes:
        kinds: how each column is read, as far as it has shown.
        wanted: the columns to give.
    """

    def __init__(self, name: str, columns: list[str], options: TableOptions, decimal: str | None = None) -> None:
        self.name, self._decimal = name, decimal
        self._missing = sorted(options.all_missing)
        self.kinds: dict[str, Reading] = {
            column: kind if isinstance(kind, Reading) else Reading(kind)
            for column, kind in (options.kinds or {}).items()
        }
        for column in options.categorical:
            if column not in columns:
                raise DataError(f"{name} has no column {column!r}; its columns are {listed(columns)}")
            self.kinds[column] = Reading("text")
        self._trained = options.kinds is not None
        self.wanted = list(columns if options.kinds is None else options.kinds)
        #: What a person should know of the columns.
        self.notes: list[str] = []

    def add_text(self, column: str) -> None:
        """Give a column as text whatever it looks like, beside those of training: a label, an identifier."""
        if self._trained and column in self.wanted:
            raise DataError(
                f"{self.name}: column {column!r} is one that the run was trained on, so it can neither mark outliers "
                f"nor name rows; name another, or train again with --label {column!r} or --id {column!r}"
            )
        self.kinds[column] = Reading("text")
        self.wanted += [] if column in self.wanted else [column]

    def frame(self, columns: Mapping[str, Any], where: Callable[[int], str]) -> Frame:
        """A part of the table; ``where`` names the place of one of its rows in the file."""
        found = {name: self._column(name, columns[name], where) for name in self.wanted}
        return Frame(found, {name: reading for name, reading in self.kinds.items() if name in found})

    def _column(self, name: str, values: Any, where: Callable[[int], str]) -> NDArray[Any]:
        import pyarrow
        from pyarrow import compute

        if not (pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)):
            typed = Frame.of(pyarrow.table({name: values}))[name]
            if self.kinds.get(name, Reading()).kind != "text" and typed.dtype.kind != "O":
                if typed.dtype.kind not in "mM":
                    return np.asarray(typed, dtype=np.float64)
                self.kinds.setdefault(name, Reading("time" if typed.dtype.kind == "M" else "duration"))
                return typed
            if typed.dtype.kind == "O":
                values = pyarrow.array([None if value is None else str(value) for value in typed])
            else:
                values = values.cast(pyarrow.string())
        values = compute.utf8_trim_whitespace(values)
        gone = compute.is_in(compute.utf8_lower(values), pyarrow.array(self._missing, values.type))
        values = compute.if_else(gone, pyarrow.scalar(None, values.type), values)
        reading = self.kinds.get(name)
        if reading is None or (reading.kind == "number" and reading.decimal == "."):
            numbers = _numbers(values, amounts=reading is not None)
            if numbers is not None:
                if reading is None and values.null_count < len(values):
                    # Whole numbers do not show what will stand before a fraction.
                    shown = compute.any(compute.match_substring(values, ".")).as_py()
                    self.kinds[name] = Reading(decimal="." if shown else self._decimal or ".")
                return numbers
        texts = _objects(values)
        if reading is None:
            reading, odd = learn_reading(texts.tolist(), self._decimal)
            if odd is not None:
                raise self._misfit(name, reading, odd, where(texts.tolist().index(odd)))
            self.kinds[name] = reading
            if reading.kind == "time" and is_ambiguous(texts.tolist()):
                self.notes.append(
                    f"column {name!r} holds dates such as {next(filter(None, texts))!r}, in which month and day cannot "
                    "be told apart: the month is taken to come first; write dates like 2024-03-01 if it does not"
                )
        if reading.kind == "text":
            return texts
        numbers, bad = reading.numbers(texts.tolist())
        if bad is not None:
            raise self._misfit(name, reading, texts[bad], where(bad))
        if reading.kind != "time":
            return numbers
        times = np.full(len(numbers), np.datetime64("NaT", "us"))
        there = ~np.isnan(numbers)
        times[there] = (numbers[there] * 1e6).round().astype(np.int64).astype("datetime64[us]")
        return times

    def _misfit(self, name: str, reading: Reading, text: str, where: str) -> DataError:
        return DataError(
            f"{self.name}, {where}: column {name!r} holds {reading.told} elsewhere but {text[:40]!r} here; correct it, "
            f"or pass --missing {text[:40]!r} or --categorical {name!r}"
        )


def _numbers(values: Any, *, amounts: bool) -> NDArray[np.float64] | None:
    """Texts as numbers if all of them are, or are such amounts as $1,234.50 if these may be: what most columns hold."""
    import pyarrow
    from pyarrow import compute

    try:
        return np.asarray(compute.cast(values, pyarrow.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pyarrow.ArrowInvalid:
        if not amounts or not compute.all(compute.match_substring_regex(values, _AMOUNT)).as_py():
            return None
        return _numbers(compute.replace_substring_regex(values, "[$€£¥,]", ""), amounts=False)


def _objects(values: Any) -> NDArray[np.object_]:
    """Texts as Python's own, one object for all rows that share a text, None where missing."""
    import pyarrow

    encoded = values.dictionary_encode()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.combine_chunks()
    different: NDArray[np.object_] = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    places = encoded.indices.fill_null(len(different) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(different[places])


class ParquetReader:
    """A parquet file, read in parts."""

    def __init__(self, path: Path, options: TableOptions) -> None:
        import pyarrow
        from pyarrow import parquet

        self.name, self._kinds = str(path), (pyarrow.ArrowException, OSError)
        with explained(f"{path} is not a parquet file, or damaged", "write it again", self._kinds):
            # What is read ahead is kept until the end: the whole file.
            self._file = parquet.ParquetFile(path, pre_buffer=False)
        self.rows = int(self._file.metadata.num_rows)
        self.columns = [str(name) for name in self._file.schema_arrow.names]
        missing = [name for name in options.kinds or {} if name not in self.columns]
        if missing:
            raise DataError(f"{path} lacks column {missing[0]!r} of training; it has {listed(self.columns)}")
        for group in range(self._file.metadata.num_row_groups):
            within_budget(self.name, "one of its groups of rows", self._file.metadata.row_group(group).total_byte_size)
        self.column_reader = ColumnReader(self.name, self.columns, options)

    def frames(self, rows: int) -> Iterator[Frame]:
        """The table in parts of at most so many rows."""
        start = 0
        with explained(f"{self.name} is damaged", "write it again", self._kinds):
            for batch in self._file.iter_batches(rows, columns=self.column_reader.wanted):
                columns = {name: batch.column(name) for name in self.column_reader.wanted}
                yield self.column_reader.frame(columns, lambda row, start=start: f"row {start + row + 1}")  # type: ignore[misc]
                start += len(batch)
        if start == 0:
            raise DataError(f"{self.name} has no rows; give a file that has some")
