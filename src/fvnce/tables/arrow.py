"""Tables in files, whose columns come through Arrow; parquet files.

A column's type is learned on its first rows and kept for all others. A column in which a few values among many do not
fit is refused, because neither reading of it is safe; the user decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._validation import FileError
from .errors import budget, explained, listed, over_budget, within_budget
from .frame import PART_ROWS, Frame, Part
from .parsing import ColumnType, has_ambiguous_dates, learn_type
from .schema import KIND_OF, ReadOptions

#: Amounts that Arrow can be made to read; :class:`ColumnType` reads them in the same way, and others too.
_AMOUNT = r"^-?[$€£¥]?([1-9][0-9]{0,2}(,[0-9]{3})+|[0-9]+)([.][0-9]+)?$"


class TableSource(ABC):
    """A table in a file, read once.

    Attributes:
        kind: of the file.
        name: of the file.
        columns: names of all columns.
        types: how each column is read, as far as the rows read so far have shown.
        notices: what a person should know about the columns.

    >>> import tempfile
    >>> from fvnce.tables import open_source
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "rows.csv").write_text("size,paid\\n1.5,yes\\n2.5,no\\n")
    ...     source = open_source(f"{folder}/rows.csv")
    ...     sizes = [part.rows["size"].tolist() for part in source.parts()]
    >>> sizes, {name: column.kind for name, column in source.types.items()}
    ([[1.5, 2.5]], {'size': 'number', 'paid': 'truth'})
    """

    kind: ClassVar[str]

    def __init__(self, name: str, columns: list[str], options: ReadOptions, decimal: str | None = None) -> None:
        self.name, self.columns, self._decimal = name, columns, decimal
        self._missing = sorted(options.all_missing)
        self.types: dict[str, ColumnType] = dict(options.types or {})
        for column in options.categorical:
            if column not in columns:
                raise FileError(f"{name} has no column {column!r}; its columns are {listed(columns)}")
            self.types[column] = ColumnType("text")
        self._trained = options.types is not None
        self._chosen = list(columns if options.types is None else options.types)
        self.notices: list[str] = []

    @abstractmethod
    def _frames(self, rows: int) -> Iterator[Frame]:
        """Yield the table in frames of at most ``rows`` rows."""

    @abstractmethod
    def _done(self, rows: int) -> float | None:
        """Return which share of the file ``rows`` rows are, if it is known."""

    @abstractmethod
    def close(self) -> None:
        """Close the file, if it was not read to its end."""

    def add_text(self, column: str) -> None:
        """Read a column as text in addition to those of training: a label or an identifier."""
        if self._trained and column in self._chosen:
            raise FileError(
                f"{self.name}: column {column!r} is one that the run was trained on, so it can neither mark outliers "
                f"nor name rows; name another, or train again with --label {column!r} or --id {column!r}"
            )
        self.types[column] = ColumnType("text")
        self._chosen += [] if column in self._chosen else [column]

    def parts(self) -> Iterator[Part]:
        """Yield all rows, in parts that fit in memory."""
        start = 0
        try:
            for frame in self._frames(PART_ROWS):
                yield Part(frame, start, None, self._done(start + len(frame)))
                start += len(frame)
        finally:
            self.close()
        if start == 0:
            raise FileError(f"{self.name} has no rows; give a file that has some")

    def read(self) -> Frame:
        """Return the whole table as one frame."""
        left, frames = budget(), []
        for part in self.parts():
            assert isinstance(part.rows, Frame)
            frames.append(part.rows)
            left -= part.rows.nbytes
            if left < 0:
                raise over_budget(self.name, "a table")
        return Frame.join(frames)

    def _frame(self, columns: Mapping[str, Any], where: Callable[[int], str]) -> Frame:
        """Return a part of the table from Arrow columns; ``where`` names the place of one of its rows in the file."""
        read = {name: self._column(name, columns[name], where) for name in self._chosen}
        return Frame(read, {name: column for name, column in self.types.items() if name in read})

    def _column(self, name: str, values: Any, where: Callable[[int], str]) -> NDArray[Any]:
        import pyarrow
        from pyarrow import compute

        column = self.types.get(name)
        if not (pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)):
            typed = Frame.of(pyarrow.table({name: values}))[name]
            if typed.dtype.kind == "O":
                values = pyarrow.array([None if value is None else str(value) for value in typed])
            elif column is not None and column.kind == "text":
                values = values.cast(pyarrow.string())
            elif typed.dtype.kind in "mM":
                self.types.setdefault(name, ColumnType(KIND_OF[typed.dtype.kind]))
                return typed
            else:
                return np.asarray(typed, dtype=np.float64)
        values = compute.utf8_trim_whitespace(values)
        gone = compute.is_in(compute.utf8_lower(values), pyarrow.array(self._missing, values.type))
        values = compute.if_else(gone, pyarrow.scalar(None, values.type), values)
        if column is None or (column.kind == "number" and column.decimal == "."):
            numbers = _numbers(values, amounts=column is not None)
            if numbers is not None:
                if column is None and values.null_count < len(values):
                    # Whole numbers do not show the decimal mark of later fractions.
                    point = compute.any(compute.match_substring(values, ".")).as_py()
                    self.types[name] = ColumnType(decimal="." if point else self._decimal or ".")
                return numbers
        texts = _objects(values)
        if column is None:
            column = self.types[name] = self._learn(name, texts.tolist(), where)
        if column.kind == "text":
            return texts
        numbers, misfit = column.parse(texts.tolist())
        if misfit is not None:
            raise self._misfit(name, column, texts[misfit], where(misfit))
        if column.kind != "time":
            return numbers
        times = np.full(len(numbers), np.datetime64("NaT", "us"))
        there = ~np.isnan(numbers)
        times[there] = (numbers[there] * 1e6).round().astype(np.int64).astype("datetime64[us]")
        return times

    def _learn(self, name: str, texts: list[str | None], where: Callable[[int], str]) -> ColumnType:
        column, misfit = learn_type(texts, self._decimal)
        if misfit is not None:
            raise self._misfit(name, column, misfit, where(texts.index(misfit)))
        if column.kind == "time" and has_ambiguous_dates(texts):
            self.notices.append(
                f"column {name!r} holds dates such as {next(filter(None, texts))!r}, in which month and day cannot be "
                "told apart: the month is taken to come first; write dates like 2024-03-01 if it does not"
            )
        return column

    def _misfit(self, name: str, column: ColumnType, text: str, where: str) -> FileError:
        return FileError(
            f"{self.name}, {where}: column {name!r} holds {column.noun} elsewhere but {text[:40]!r} here; correct it, "
            f"or pass --missing {text[:40]!r} or --categorical {name!r}"
        )


def _numbers(values: Any, *, amounts: bool) -> NDArray[np.float64] | None:
    """Read texts as numbers if all are numbers, or, with ``amounts``, all are amounts such as $1,234.50."""
    import pyarrow
    from pyarrow import compute

    try:
        return np.asarray(compute.cast(values, pyarrow.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pyarrow.ArrowInvalid:
        if not amounts or not compute.all(compute.match_substring_regex(values, _AMOUNT)).as_py():
            return None
        return _numbers(compute.replace_substring_regex(values, "[$€£¥,]", ""), amounts=False)


def _objects(values: Any) -> NDArray[np.object_]:
    """Return texts as Python's own, one object for all rows that share a text, None where missing."""
    import pyarrow

    encoded = values.dictionary_encode()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.combine_chunks()
    different: NDArray[np.object_] = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    places = encoded.indices.fill_null(len(different) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(different[places])


class ParquetSource(TableSource):
    """A parquet file, read in batches of rows."""

    kind = "parquet"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        import pyarrow
        from pyarrow import parquet

        self._damaged = (pyarrow.ArrowException, OSError)
        with explained(f"{path} is not a parquet file, or damaged", "write it again", self._damaged):
            # What is read ahead is kept until the end: the whole file.
            self._file = parquet.ParquetFile(path, pre_buffer=False)
        columns = [str(name) for name in self._file.schema_arrow.names]
        missing = [name for name in options.types or {} if name not in columns]
        if missing:
            raise FileError(f"{path} lacks column {missing[0]!r} of training; it has {listed(columns)}")
        for group in range(self._file.metadata.num_row_groups):
            within_budget(str(path), "one of its groups of rows", self._file.metadata.row_group(group).total_byte_size)
        super().__init__(str(path), columns, options)

    def close(self) -> None:
        """Close the file that is read."""
        self._file.close()

    def _done(self, rows: int) -> float | None:
        return rows / (self._file.metadata.num_rows or 1)

    def _frames(self, rows: int) -> Iterator[Frame]:
        start = 0
        with explained(f"{self.name} is damaged", "write it again", self._damaged):
            for batch in self._file.iter_batches(rows, columns=self._chosen):
                columns = {name: batch.column(name) for name in self._chosen}
                yield self._frame(columns, lambda row, start=start: f"row {start + row + 1}")  # type: ignore[misc]
                start += len(batch)
