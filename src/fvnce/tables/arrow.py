"""Readers of tables through Arrow, and parquet files.

A file is read twice: once to infer column types from all rows, and once to read the values. When scoring, the types of
training are used.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._validation import FileError
from .errors import Problem, TableError, budget, explained, listed, over_budget, within_budget
from .frame import PART_ROWS, Frame, Part, as_texts
from .learning import ABOUT, KEPT, ColumnScan, decide, distinct, misfits
from .parsing import BOUND, COMPACT_DATE, MONEY, ColumnType
from .schema import ReadOptions, names_identifier, typed, unique, without_gaps

_COMMAS = "^[+-]?[0-9]+(,[0-9]+)?$"
#: Patterns of texts that Arrow reads as numbers but that carry more information.
_SHOWING = {
    "mark": r"^[+-]?([0-9]{4,}|0[0-9]*)?[.,]|[.,][0-9]{0,2}$|[.,][0-9]{4,}|[eE]",
    "?.": r"^[+-]?[1-9][0-9]{0,2}[.][0-9]{3}$",
    "?,": r"^[+-]?[1-9][0-9]{0,2},[0-9]{3}$",
    **{what: f"^(?:{ABOUT[what].pattern})" for what in ("zero", "long", "power", "bare", "infinite")},
    "plain": f"^{COMPACT_DATE.pattern}$",  # matches the opposite
}


class TableSource(ABC):
    """Base class of readers of a table in a file; it can be read once.

    Attributes:
        kind: kind of the file.
        name: name of the file.
        columns: names of all columns.
        types: type of each column, available after the first part has been read.
        notices: messages for the user about the columns, available likewise.

    Args:
        name: name of the file.
        columns: names of all columns.
        options: reader options.
        hint: decimal mark of numbers such as 1.234 if no value shows it.

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
    _settled = False
    #: Whether rows with too many or too few fields were skipped.
    _broken = False
    #: Columns that the file declares as categorical.
    declared: Sequence[str] = ()

    def __init__(self, name: str, columns: list[str], options: ReadOptions, hint: str | None = None) -> None:
        self.name, self.columns, self._options, self._hint = name, columns, options, hint
        schema = dict(options.schema or {})
        for column in (*options.categorical, *schema):
            if column not in columns:
                raise FileError(f"{name} has no column {column!r}; its columns are {listed(columns)}")
        self.types: dict[str, ColumnType] = dict(options.types or schema)
        if options.types is not None and options.decimal is not None:
            self.types = {name: replace(column, decimal=options.decimal) for name, column in self.types.items()}
        self.types |= dict.fromkeys(options.categorical, ColumnType("text", missing=options.missing))
        self._trained = options.types is not None
        chosen = columns if options.types is None else options.types
        self._chosen = [column for column in chosen if not (column in schema and schema[column].ignored)]
        self.notices: list[str] = []

    @abstractmethod
    def _tables(self, rows: int, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yield the named columns from the beginning, as Arrow arrays of at most ``rows`` rows."""

    @abstractmethod
    def _places(self, rows: Sequence[int]) -> list[str]:
        """Return the location of rows in the file, for errors."""

    @abstractmethod
    def _done(self, rows: int) -> float | None:
        """Return the fraction of the file that ``rows`` rows are, or None if unknown."""

    @abstractmethod
    def close(self) -> None:
        """Close the file if it was not read to its end."""

    @property
    def unused(self) -> list[str]:
        """Columns of the file that are not read."""
        return [column for column in self.columns if column not in self._chosen]

    def add_text(self, column: str) -> None:
        """Also read a column as text that was not used in training: a label or an identifier."""
        if self._trained and column in self._chosen:
            raise FileError(
                f"{self.name}: label or identifier must not be a column of training, found column {column!r}; name "
                f"another, or train again with --label {column!r} or --id {column!r}"
            )
        self.types[column] = ColumnType("text", missing=self._options.missing)
        self._chosen += [] if column in self._chosen else [column]

    def skip(self, columns: Sequence[str]) -> None:
        """Exclude the named columns from reading."""
        self._chosen = [column for column in self._chosen if column not in columns]

    def parts(self) -> Iterator[Part]:
        """Yield all rows, in parts that fit in memory."""
        start = 0
        try:
            self.settle()
            for columns in self._tables(PART_ROWS, self._chosen):
                problems: list[Problem] = []
                read = {name: self._column(name, columns[name], start, problems) for name in self._chosen}
                if problems:
                    raise self._error(problems)
                frame = Frame(read, {name: column for name, column in self.types.items() if name in read})
                yield Part(frame, start, None, self._done(start + len(frame)))
                start += len(frame)
        finally:
            self.close()
        if start == 0:
            raise FileError(f"{self.name} must have at least one row, found no rows; give a file with rows")

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

    def cells(self, rows: Sequence[int], names: Sequence[str]) -> list[list[str]]:
        """Return the cells of some rows as written in the file, None where empty."""
        wanted, found, start = np.asarray(rows), dict[int, list[Any]](), 0
        for columns in self._tables(PART_ROWS, names):
            count = len(next(iter(columns.values())))
            for row in wanted[(wanted >= start) & (wanted < start + count)].tolist():
                values = (columns[name][row - start].as_py() for name in names)
                found[row] = ["" if value is None else str(value).strip() for value in values]
            start += count
        self.close()
        return [found[row] for row in rows]

    def settle(self) -> None:
        """Infer the types of columns that are still unknown from all rows; :meth:`parts` also calls this."""
        if self._settled:
            return
        self._settled = True
        scans = {name: ColumnScan() for name in self._chosen if self._is_open(name)}
        start = 0
        for columns in self._tables(4 * PART_ROWS, list(scans)) if scans else ():
            for name, scan in scans.items():
                self._scan(scan, columns[name], self._gaps(name), start)
            start += len(next(iter(columns.values())))
        given = {name: column for name, column in self.types.items() if name in scans}
        loose = [name for name in scans if names_identifier(name)]
        decision = decide(scans, given, decimal=self._options.decimal, hint=self._hint, loose=loose)
        self.notices += decision.notices
        for name, column in decision.types.items():
            missing = column.missing if name in given else (*self._options.missing, *column.missing)
            self.types[name] = replace(column, missing=missing)
        if decision.problems or self._broken:
            raise self._error(decision.problems)

    def _is_open(self, name: str) -> bool:
        column = self.types.get(name)
        return column is None or column.undecided

    def _gaps(self, name: str) -> list[str]:
        column = self.types.get(name, ColumnType())
        return sorted(column.gaps | {text.strip().lower() for text in self._options.missing})

    def _error(self, problems: Sequence[Problem]) -> FileError:
        return TableError.of(self.name, list(zip(self._places([p.row for p in problems]), problems, strict=True)))

    def _scan(self, scan: ColumnScan, values: Any, gaps: list[str], start: int) -> None:
        """Add a part of an Arrow column to its scan."""
        import pyarrow
        from pyarrow import compute

        if not _is_text(values.type):
            plain = Frame.of(pyarrow.table({"": values}))[""]
            if plain.dtype.kind != "O":
                scan.add_whole(plain, start)
                return
            values = pyarrow.array(as_texts(plain), pyarrow.string())
        values = _without(values, gaps)
        if values.null_count == len(values):
            return
        mark = None
        if "text" not in scan.counts:
            mark = "." if _numbers(values, None) is not None else "," if _all_match(values, _COMMAS) else None
        if mark is None:
            encoded = _encoded(values)
            indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            places, first, counts = np.unique(indices, return_index=True, return_counts=True)
            texts = encoded.dictionary.to_pylist()
            found = zip(places.tolist(), counts.tolist(), first.tolist(), strict=True)
            scan.add({texts[place]: (count, start + row) for place, count, row in found if place >= 0})
            return
        # Arrow finds the first text that matches; its kind applies to all matches.
        open_ = [what for what in _SHOWING if ("number", mark if what == "mark" else what) not in scan.shown]
        masks = [compute.match_substring_regex(values, _SHOWING[what]) for what in open_ if what != "plain"]
        masks += [compute.invert(compute.match_substring_regex(values, _SHOWING["plain"]))] if "plain" in open_ else []
        rows = {compute.index(mask, True).as_py() for mask in masks} - {-1}
        if len(scan.texts["number"]) < KEPT:
            rows.update(range(min(len(values), 2 * KEPT)))
        order = sorted(rows)
        shown = distinct(values[row].as_py() for row in order)
        scan.add({text: (0, start + order[place]) for text, (_, place) in shown.items()})
        scan.counts["number"] += len(values) - values.null_count

    def _column(self, name: str, values: Any, start: int, problems: list[Problem]) -> NDArray[Any]:
        import pyarrow

        column = self.types.get(name, ColumnType(missing=self._options.missing))
        if not _is_text(values.type):
            plain = Frame.of(pyarrow.table({name: values}))[name]
            kind = plain.dtype.kind
            self.types.setdefault(name, typed(plain, column.missing))
            if kind in "mM" and column.kind != "text":
                return plain
            if kind != "O" and column.kind not in ("text", "time"):
                return without_gaps(plain, column)
            values = pyarrow.array(as_texts(plain), pyarrow.string())
        values = _without(values, self._gaps(name))
        plain_numbers = column.kind == "number" and (not column.unit or MONEY.fullmatch(column.unit))
        if plain_numbers and (numbers := _numbers(values, column.decimal)) is not None:
            return numbers
        texts = _objects(values)
        if column.kind == "text":
            return texts
        numbers, misfit = column.parse(texts.tolist())
        notice = f"column {name!r} holds bounds: the sign is left out"
        if self._trained and notice not in self.notices and any(text and BOUND.match(text) for text in set(texts)):
            self.notices.append(notice)
        if misfit is not None:
            problems += misfits(name, column, distinct(texts, start), "in training" if self._trained else "elsewhere")
        if column.kind != "time":
            return numbers
        times = np.full(len(numbers), np.datetime64("NaT", "us"))
        there = ~np.isnan(numbers)
        times[there] = (numbers[there] * 1e6).round().astype(np.int64).astype("datetime64[us]")
        return times


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _without(values: Any, gaps: list[str]) -> Any:
    """Strip blanks around texts, and replace texts that mean a missing value by null."""
    import pyarrow
    from pyarrow import compute

    values = compute.utf8_trim_whitespace(values)
    gone = compute.is_in(compute.utf8_lower(values), pyarrow.array(gaps, values.type))
    return compute.if_else(gone, pyarrow.scalar(None, values.type), values)


def _numbers(values: Any, mark: str | None) -> NDArray[np.float64] | None:
    """Parse texts by Arrow if all are plain numbers with this decimal mark; None if not."""
    import pyarrow
    from pyarrow import compute

    if mark == ",":
        if not _all_match(values, _COMMAS):
            return None
        values = compute.replace_substring(values, ",", ".")
    try:
        return np.asarray(compute.cast(values, pyarrow.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pyarrow.ArrowInvalid:
        return None


def _all_match(values: Any, pattern: str) -> bool:
    from pyarrow import compute

    return bool(compute.all(compute.match_substring_regex(values, pattern)).as_py())


def _encoded(values: Any) -> Any:
    import pyarrow

    encoded = values.dictionary_encode()
    return encoded.combine_chunks() if isinstance(encoded, pyarrow.ChunkedArray) else encoded


def _objects(values: Any) -> NDArray[np.object_]:
    """Convert texts to Python strings, one object for all rows with the same text, None where missing."""
    encoded = _encoded(values)
    different: NDArray[np.object_] = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    places = encoded.indices.fill_null(len(different) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(different[places])


class ParquetSource(TableSource):
    """Reader of a parquet file in batches of rows."""

    kind = "parquet"

    def __init__(self, path: Path, options: ReadOptions) -> None:
        import pyarrow
        from pyarrow import parquet, types

        self._damaged = (pyarrow.ArrowException, OSError)
        with explained(f"{path} is not a parquet file, or damaged", "write it again", self._damaged):
            # Pre-buffering would keep the whole file in memory until the end.
            self._file = parquet.ParquetFile(path, pre_buffer=False)
        schema = self._file.schema_arrow
        columns = unique(str(path), list(map(str, schema.names)))
        missing = [name for name in options.types or {} if name not in columns]
        if missing:
            raise FileError(f"{path} must have column {missing[0]!r} of training, found {listed(columns)}; add it")
        for group in range(self._file.metadata.num_row_groups):
            within_budget(str(path), "one of its groups of rows", self._file.metadata.row_group(group).total_byte_size)
        super().__init__(str(path), columns, options)
        self._scanned = {
            name
            for name, kind in zip(columns, schema.types, strict=True)
            if _is_text(kind) or types.is_string_view(kind) or types.is_integer(kind) or types.is_time(kind)
        }
        # Parquet's own schema declares dictionaries of text only; the schema that Arrow adds declares all.
        if written := (self._file.metadata.metadata or {}).get(b"ARROW:schema"):
            with explained(f"{path} is damaged", "write it again", (*self._damaged, ValueError)):
                schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(base64.b64decode(written)))
        self.declared = [field.name for field in schema if types.is_dictionary(field.type) and field.name in columns]
        for name in self.declared:
            self.types.setdefault(name, ColumnType("text", missing=options.missing))

    def close(self) -> None:
        """Close the file that is being read."""
        self._file.close()

    def _is_open(self, name: str) -> bool:
        return name in self._scanned and super()._is_open(name)

    def _done(self, rows: int) -> float | None:
        return rows / (self._file.metadata.num_rows or 1)

    def _places(self, rows: Sequence[int]) -> list[str]:
        return [f"row {row + 1}" for row in rows]

    def _tables(self, rows: int, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        import pyarrow
        from pyarrow import types

        with explained(f"{self.name} is damaged", "write it again", self._damaged):
            for batch in self._file.iter_batches(rows, columns=list(names)):
                columns = {name: batch.column(name) for name in names}
                yield {
                    name: values.cast(pyarrow.string()) if types.is_string_view(values.type) else values
                    for name, values in columns.items()
                }
