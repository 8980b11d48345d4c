"""File readers: whatever a person has, as parts of rows: csv, tsv, parquet, npy, npz, idx, PNG images, or a pipe.

======================  ===============================================================
``text``                text tables
``tables``              parquet files, and what the columns of a table hold
``arrays``              npy, npz and idx, and folders of PNG images
``errors``              what is said of a file that cannot be used, or takes too much memory
======================  ===============================================================

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "table.csv"
...     _ = path.write_text("a,b\\n1,2\\n3,\\n")
...     frame = open_source(path).read()
>>> frame["b"]
array([ 2., nan])
"""

from __future__ import annotations

import gzip
import io
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...detection.frame import Frame
from ...detection.preprocessing import channels_last
from . import arrays
from .arrays import ArrayReader, ImageReader, closed_on_error, read_idx
from .errors import DataError, budget, over_budget, within_budget
from .tables import ParquetReader, TableOptions
from .text import DelimitedReader

__all__ = ["DataError", "Frame", "ReadOptions", "Rows", "TableOptions", "open_source", "read_idx"]

Rows = Frame | NDArray[Any]

#: Bytes of a part of an array, and rows of a part of a table.
PART_BYTES = 4 * 2**20
PART_ROWS = 4096
FORMATS = "csv, tsv, parquet, npy, npz, idx, or a folder of PNG images"


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file: the options of tables, and the array of an npz file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rows.csv"
    ...     _ = path.write_text("size;hue\\n1.5;7\\n2.5;8\\n")
    ...     source = open_source(path, ReadOptions(TableOptions(delimiter=";", categorical=("hue",))))
    ...     [list(part.rows["hue"]) for part in source.parts()]
    [['7', '8']]
    """

    table: TableOptions = field(default_factory=TableOptions)
    array: str | None = None


@dataclass(frozen=True)
class Part:
    """Some rows: a frame, or an array of shape (n, D), (n, H, W) or (n, C, H, W)."""

    rows: Rows
    start: int  # the position of the first
    names: list[str] | None  # what the rows are called, if they have names
    done: float | None  # the share of the source that has been read, if it is known


def open_source(path: str | Path, options: ReadOptions | None = None) -> Source:
    """Open a file, a folder, or standard input if ``path`` is "-".

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/rows.npy", np.zeros((5, 2)))
    ...     source = open_source(f"{folder}/rows.npy")
    ...     source.kind, [part.rows.shape for part in source.parts()]
    ('npy', [(5, 2)])
    """
    options = options or ReadOptions()
    if str(path) == "-":
        return _from_pipe(sys.stdin.buffer, options)
    place = Path(path)
    if not place.exists():
        raise DataError(f"{place} does not exist; give a file ({FORMATS})")
    if place.is_dir():
        return ArraySource("images", ImageReader(place))
    suffixes = [suffix.lower() for suffix in place.suffixes]
    last = suffixes[-1] if suffixes else ""
    if last == ".npy":
        return ArraySource("npy", arrays.open_npy(place))
    if last == ".npz":
        return ArraySource("npz", arrays.open_npz(place, options.array))
    if last in (".parquet", ".pq"):
        return TableSource("parquet", ParquetReader(place, options.table))
    if "idx" in place.name.lower():
        return ArraySource("idx", arrays.open_idx(place))
    return _text(place, options, "\t" if ".tsv" in suffixes else None)


class TableSource:
    """A table, to be read once."""

    def __init__(self, kind: str, reader: DelimitedReader | ParquetReader, file: IO[bytes] | None = None) -> None:
        self.kind, self.reader, self.name = kind, reader, reader.name
        self.columns, self.column_reader = reader.columns, reader.column_reader
        self._file, self._size = file, 0 if file is None else os.fstat(file.fileno()).st_size

    def parts(self) -> Iterator[Part]:
        """All rows, in parts that fit in memory."""
        start = 0
        try:
            for frame in self.reader.frames(PART_ROWS):
                yield Part(frame, start, None, self._done(start + len(frame)))
                start += len(frame)
        finally:
            self.close()

    def read(self) -> Frame:
        """The whole table."""
        allowed, frames = budget(), []
        for part in self.parts():
            assert isinstance(part.rows, Frame)
            frames.append(part.rows)
            allowed -= part.rows.nbytes
            if allowed < 0:
                raise over_budget(self.name, "a table")
        return Frame.join(frames)

    def close(self) -> None:
        """Let go of the file, if it was not read to its end."""
        if self._file is not None:
            self._file.close()

    def _done(self, rows: int) -> float | None:
        if isinstance(self.reader, ParquetReader):
            return rows / self.reader.rows if self.reader.rows else 1.0
        if self._file is None:
            return None
        return min(1.0, self._file.tell() / self._size) if self._size else 1.0


class ArraySource:
    """An array or images, to be read once."""

    def __init__(self, kind: str, reader: ArrayReader | ImageReader) -> None:
        self.kind, self.reader, self.name, self.names = kind, reader, reader.name, reader.names
        # Images have their channels in front from here on.
        self._turned = channels_last(reader.shape[1:])
        self.shape = (reader.shape[0], reader.shape[-1], *reader.shape[1:-1]) if self._turned else reader.shape

    def parts(self) -> Iterator[Part]:
        """All rows, in parts that fit in memory."""
        size = 8 * math.prod(self.shape[1:])
        rows = max(1, min(PART_ROWS, PART_BYTES // size))
        start, names = 0, self.names
        for values in map(self._in_front, self.reader.parts(rows)):
            stop = start + len(values)
            yield Part(values, start, None if names is None else names[start:stop], stop / self.shape[0])
            start = stop

    def close(self) -> None:
        """Let go of the file."""
        if isinstance(self.reader, ArrayReader):
            self.reader.close()

    def read(self) -> NDArray[Any]:
        """The whole array; an npy file as a memory map, which need not fit in memory."""
        if self.kind == "npy" and isinstance(self.reader, ArrayReader) and os.path.isfile(self.name):
            self.reader.close()
            return self._in_front(arrays.map_npy(Path(self.name)))
        dtype = self.reader.dtype.newbyteorder("=")
        with closed_on_error(self):
            within_budget(self.name, f"{self.shape[0]:,} rows", dtype.itemsize * math.prod(self.shape))
        whole = np.empty(self.shape, dtype)
        for part in self.parts():
            whole[part.start : part.start + len(part.rows)] = part.rows
        return whole

    def _in_front(self, images: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(images, -1, 1) if self._turned else images


Source = TableSource | ArraySource


def _text(place: Path, options: ReadOptions, delimiter: str | None) -> TableSource:
    with place.open("rb") as beginning:
        start = beginning.read(6)
    if start.startswith((arrays.NPY_MAGIC, b"PK\x03\x04", b"PAR1", b"\x89PNG")):
        raise DataError(f"{place} is no text table by its first bytes; give it the ending of its kind ({FORMATS})")

    def unpacked(raw: Any) -> Any:
        return gzip.GzipFile(fileobj=raw) if start.startswith(b"\x1f\x8b") else raw

    table = options.table
    if delimiter is not None and table.delimiter is None:
        table = replace(table, delimiter=delimiter)
    file = place.open("rb")
    with closed_on_error(file):
        reader = DelimitedReader(str(place), unpacked(file), table, lambda: unpacked(place.open("rb")))
        return TableSource("table", reader, file)


def _from_pipe(file: IO[bytes], options: ReadOptions) -> Source:
    buffered: Any = file if hasattr(file, "peek") else io.BufferedReader(file)
    if buffered.peek(6)[:6] == arrays.NPY_MAGIC:
        return ArraySource("npy", arrays.npy_from(buffered, "standard input"))
    return TableSource("table", DelimitedReader("standard input", buffered, options.table))
