"""Tables: read files and data frames as typed columns, without torch.

======================  ===============================================================
``schema``              reader options, column types of a frame, detection of identifiers
``learning``            inference of column types from all rows and columns
``parsing``             column types: parsing of text as numbers, booleans, dates and times
``frame``               a table in memory, from any library's data frame
``delimited``           text tables
``arrow``               tables in files, parquet files
``arrays``              npy and npz, and folders of PNG images
``errors``              memory budget, errors of damaged files, problems of tables
======================  ===============================================================

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = Path(folder, "table.csv").write_text("a,b\\n1,2\\n3,\\n")
...     frame = open_source(f"{folder}/table.csv").read()
>>> frame["b"]
array([ 2., nan])
"""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from .._validation import FileError
from .arrays import NPY_MAGIC, ArraySource, ImageFolder, npy_from, open_npy, open_npz
from .arrow import ParquetSource, TableSource
from .delimited import DelimitedSource
from .errors import closed_on_error
from .frame import Frame
from .parsing import ColumnType
from .schema import ReadOptions

__all__ = [
    "ArraySource",
    "ColumnType",
    "FileError",
    "Frame",
    "ReadOptions",
    "TableSource",
    "open_source",
]

Source = TableSource | ArraySource
FORMATS = "csv, tsv, parquet, npy, npz, or a folder of PNG images"


def open_source(path: str | Path, options: ReadOptions | None = None) -> Source:
    """Open a file, a folder, or standard input if ``path`` is "-".

    Args:
        path: csv, tsv, parquet, npy or npz file (text also compressed by gzip, bzip2 or xz), or a folder of PNG images.
        options: reader options.

    Returns:
        A :class:`TableSource` or an :class:`ArraySource`, to be read once, by ``read()`` or in ``parts()``.

    Raises:
        FileError: if the file cannot be read; the message gives the cause and what to do.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/rows.npy", np.zeros((5, 2)))
    ...     source = open_source(f"{folder}/rows.npy")
    ...     source.kind, [part.rows.shape for part in source.parts()]
    ('npy', [(5, 2)])
    >>> open_source("nowhere.csv")
    Traceback (most recent call last):
        ...
    fvnce.io.FileError: nowhere.csv does not exist; give a file (...
    """
    options = options or ReadOptions()
    if str(path) == "-":
        return _from_pipe(sys.stdin.buffer, options)
    place = Path(path)
    if not place.exists():
        raise FileError(f"{place} does not exist; give a file ({FORMATS})")
    if place.is_dir():
        return ImageFolder(place)
    suffixes = [suffix.lower() for suffix in place.suffixes]
    last = suffixes[-1] if suffixes else ""
    if last == ".npy":
        return open_npy(place)
    if last == ".npz":
        return open_npz(place, options.array)
    if last in (".parquet", ".pq"):
        return ParquetSource(place, options)
    if ".tsv" in suffixes and options.delimiter is None:
        options = replace(options, delimiter="\t")
    file = place.open("rb")
    with closed_on_error(file):
        if file.peek(6).startswith((NPY_MAGIC, b"PK\x03\x04", b"PAR1", b"\x89PNG")):
            raise FileError(f"{place} must be a text table, found binary data; give it the right ending ({FORMATS})")
        return DelimitedSource(str(place), file, options, place)


def _from_pipe(file: IO[bytes], options: ReadOptions) -> Source:
    buffered: Any = file if hasattr(file, "peek") else io.BufferedReader(file)
    if buffered.peek(6)[:6] == NPY_MAGIC:
        return npy_from("npy", "standard input", buffered)
    return DelimitedSource("standard input", buffered, options)
