"""Text tables, with any delimiter, header or not, read in parts by pyarrow.

Delimiter and header are found in the first lines unless given; :mod:`fvnce.tables.arrow` decides what columns hold.
:class:`CheckedText` checks the bytes (UTF-8, no zero byte, no line without end), splits them into blocks of whole rows,
and corrects what pyarrow would misread: blanks between a delimiter and a quote, and runs of blanks where blanks are the
delimiter.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from .._validation import FileError
from .arrow import TableSource
from .errors import CHUNK_BYTES, DAMAGED, VARIABLE, budget, explained, listed, one_line
from .frame import Frame
from .parsing import ColumnType
from .schema import ReadOptions, numbered

#: A line of text may be as long as this part of the budget: split into short fields, it takes many times its length.
LINE_SHARE = 256
#: Characters of a field; a longer one is a quote that was never closed.
FIELD_LIMIT = csv.field_size_limit()
DELIMITERS = ",;\t| "
#: Lines and bytes of the beginning, in which delimiter and header are looked for.
SAMPLE_LINES, SAMPLE_BYTES = 200, 2**20
#: A text that one of these types can read does not name a column.
_VALUE_TYPES = (ColumnType(), ColumnType(decimal=","), ColumnType("time"))


class DelimitedSource(TableSource):
    """A text table, compressed with gzip or not.

    Args:
        name: of the file, for errors.
        file: its bytes.
        options: how to read it.
        path: of the file, to find the line of an error; None for a pipe.

    >>> source = DelimitedSource("demo", io.BytesIO(b"a;b\\n1,5;x\\n;y\\n"), ReadOptions())
    >>> frame = source.read()
    >>> source.delimiter, source.header, frame["a"], frame["b"]
    (';', True, array([1.5, nan]), array(['x', 'y'], dtype=object))
    """

    kind = "table"

    def __init__(self, name: str, file: IO[bytes], options: ReadOptions, path: Path | None = None) -> None:
        self._raw, self._path = file, path
        if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '\r\n"\0'):
            raise FileError(
                f"delimiter must be one character, and neither a quote nor a line end, found {options.delimiter[:20]!r}"
            )
        self._text = CheckedText(name, _unpacked(file))
        sample, whole = self._text.sample()
        if not any(line.strip() for line in sample):
            raise FileError(f"{name} is empty: a table needs at least one row; give a file that has one")
        self.delimiter = options.delimiter or find_delimiter(sample, whole=whole)
        try:
            rows = _split(sample, self.delimiter, whole=whole)
        except csv.Error as error:
            raise _unreadable(name, "near its beginning", error) from None
        self.header = _has_header(rows, options) if options.header is None else options.header
        columns = _names(name, rows[0]) if self.header else numbered(len(rows[0]))
        if options.types is not None:
            columns = _match(name, columns, list(options.types), header=self.header)
        # Where a comma is no delimiter it is likely to be the decimal mark.
        super().__init__(name, columns, options, "." if self.delimiter == "," else ",")

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        if self._path is not None:
            self._raw.close()

    def _done(self, rows: int) -> float | None:
        if self._path is None:
            return None
        return min(1.0, self._raw.tell() / (os.fstat(self._raw.fileno()).st_size or 1))

    def _frames(self, rows: int) -> Iterator[Frame]:
        start = 0
        for table in self._tables(rows):
            columns = dict(zip(self.columns, table.columns, strict=True))
            yield self._frame(columns, lambda row, start=start: self._place(start + row))  # type: ignore[misc]
            start += len(table)

    def _tables(self, rows: int) -> Iterator[Any]:
        """Yield Arrow tables of text, of ``rows`` rows each but for the last."""
        import pyarrow

        waiting = None
        for table in self._blocks():
            waiting = table.slice(int(self.header)) if waiting is None else pyarrow.concat_tables([waiting, table])
            while len(waiting) >= rows:
                yield waiting.slice(0, rows).combine_chunks()
                waiting = waiting.slice(rows)
        if waiting is not None and len(waiting):
            yield waiting.combine_chunks()

    def _blocks(self) -> Iterator[Any]:
        """Yield an Arrow table for each block of rows, the header still one of the rows.

        Arrow could read the file by itself, but would call back from its own thread, which must not happen while the
        program is ending.
        """
        import pyarrow
        from pyarrow import compute
        from pyarrow import csv as tables

        names = [f"f{i}" for i in range(len(self.columns))]
        parsing = tables.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        convert = tables.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
        try:
            for block in self._text.blocks(self.delimiter):
                if not block.strip(b"\r\n"):
                    continue
                whole = tables.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names)
                table = tables.read_csv(pyarrow.BufferReader(block), whole, parsing, convert)
                lengths = (compute.max(compute.binary_length(column)).as_py() or 0 for column in table.columns)
                if any(length > FIELD_LIMIT for length in lengths):
                    raise LongFieldError
                yield table
        except LongFieldError:
            raise _unreadable(self.name, self._place(None), csv.Error("field limit")) from None
        except pyarrow.ArrowException as error:
            raise self._arrow_error(error) from None

    def _arrow_error(self, error: Exception) -> FileError:
        """Find what pyarrow stopped at again, with the number of its line."""
        for line, row in self._rows_again():
            if len(row) != len(self.columns):
                return FileError(
                    f"{self.name}, line {line}: found {len(row)} fields where the first line has {len(self.columns)}; "
                    "correct the line, or name the delimiter with --delimiter"
                )
        return FileError(f"{self.name}: {one_line(error)}; correct it, or name the delimiter with --delimiter")

    def _place(self, row: int | None) -> str:
        """Return the line of a row of data, or, for None, the line after which the file cannot be read on."""
        line = 0
        for number, (line, _) in enumerate(self._rows_again()):
            if row is not None and number == row + int(self.header):
                return f"line {line}"
        return f"line {line + 1}" if row is None else f"row {row + 1}"

    def _rows_again(self) -> Iterator[tuple[int, list[str]]]:
        """Yield lines and rows once more by Python's own reader, which counts lines; nothing from a pipe."""
        if self._path is None:
            return
        with self._path.open("rb") as file:
            text = io.TextIOWrapper(_unpacked(file), encoding="utf-8-sig", newline="")
            reader = csv.reader(text, delimiter=self.delimiter, skipinitialspace=True)
            try:
                for row in reader:
                    if row:
                        yield reader.line_num, row
            except csv.Error:
                return


def _unpacked(file: IO[bytes]) -> Any:
    """Return the bytes in a file, decompressed if it is one of gzip."""
    raw: Any = file if hasattr(file, "peek") else io.BufferedReader(file)
    return gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw


def _unreadable(name: str, where: str, error: csv.Error) -> FileError:
    if "field limit" in str(error):
        return FileError(
            f"{name}, {where}: a field has more than {FIELD_LIMIT:,} characters; close the quote that opens it, or "
            "leave its column out of the file"
        )
    return FileError(f"{name}, {where}: {error}; give a text table, or name the delimiter with --delimiter")


def _match(name: str, columns: list[str], trained: list[str], *, header: bool) -> list[str]:
    """Return the names of columns in which those of training are found by name, or else by position."""
    missing = [column for column in trained if column not in columns]
    if not missing:
        return columns
    unnamed = not header or all(column.startswith("column_") for column in trained)
    if unnamed and len(columns) == len(trained):
        return trained
    raise FileError(
        f"{name} lacks column {missing[0]!r} of training; it has {listed(columns)}, and training had {listed(trained)}"
    )


def _has_header(rows: list[list[str]], options: ReadOptions) -> bool:
    """Return whether the first line names columns.

    It does if it holds the names known from training; if none of it is a number and some number comes below; or if all
    is text and no first entry comes again below it.
    """
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if options.types is not None and set(options.types) <= {text.strip() for text in first}:
        return True
    missing = options.all_missing

    def is_value(text: str) -> bool:
        text = text.strip()
        return text.lower() not in missing and any(kind.parse_one(text) is not None for kind in _VALUE_TYPES)

    if any(map(is_value, first)):
        return False
    if not rest:
        # A line of words alone names columns, unless the columns are known and it is what is to be scored.
        return options.types is None
    below = list(zip(*rest, strict=True))
    if any(is_value(text) for column in below for text in column):
        return all(text.strip() for text in first) or not first[0].strip()
    return len(set(first)) == len(first) and all(text not in column for text, column in zip(first, below, strict=True))


def find_delimiter(sample: Sequence[str], *, whole: bool = True) -> str:
    """Return the delimiter that splits most lines into equally many fields, with fewest other delimiters inside.

    >>> find_delimiter(["a;b;c", "1,5;2,5;3"]), find_delimiter(["a\\tb", "1\\t2"]), find_delimiter(["7", "8"])
    (';', '\\t', ',')
    """
    best, chosen = (0.0, 0.0), ","
    for delimiter in DELIMITERS:
        try:
            rows = _split(sample, delimiter, whole=whole)
        except csv.Error:
            continue
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        if width < 2 or (delimiter == " " and best > (0.9, 0.0)):
            continue
        cells = [cell for row in rows for cell in row]
        # A quote that opens inside a field means that the fields were cut at the wrong places.
        clean = sum(not any(other in cell for other in ';\t|"') for cell in cells) / len(cells)
        if (count / len(rows), clean) > best:
            best, chosen = (count / len(rows), clean), delimiter
    return chosen


def _split(sample: Sequence[str], delimiter: str, *, whole: bool) -> list[list[str]]:
    rows = [row for row in csv.reader(sample, delimiter=delimiter, skipinitialspace=True) if row]
    # The last of many lines may end within a quoted field.
    return rows if whole or len(rows) < 2 else rows[:-1]


def _names(name: str, fields: list[str]) -> list[str]:
    names = [text.strip() or number for text, number in zip(fields, numbered(len(fields)), strict=True)]
    twice = [text for text, count in Counter(names).items() if count > 1]
    if twice:
        raise FileError(f"{name} names column {twice[0]!r} twice; rename one, or pass --no-header if that is no header")
    return names


class LongFieldError(Exception):
    """Raised for a quote that opens a field and is not closed within :data:`FIELD_LIMIT`."""


class CheckedText:
    """A binary file of UTF-8 text, checked as it is read; an error names the line."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name, self._file = name, file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._longest = budget() // LINE_SHARE
        self._line, self._unfinished = 1, 0
        self._start = b""

    def sample(self) -> tuple[list[str], bool]:
        """Return the first lines, and whether they are all; the blocks begin with them again."""
        while len(self._start) < SAMPLE_BYTES and (part := self._read()):
            self._start += part
        whole = len(self._start) < SAMPLE_BYTES
        # A character may be cut in two at the end of the sample.
        text = self._start.decode("utf-8-sig", "strict" if whole else "ignore")
        lines = list(itertools.islice(io.StringIO(text, newline=""), SAMPLE_LINES + 1))
        return lines[:SAMPLE_LINES], whole and len(lines) <= SAMPLE_LINES

    def blocks(self, delimiter: str) -> Iterator[bytes]:
        """Yield all bytes, in blocks that end where a row does."""
        mark = delimiter.encode()
        # A quote opens a field only where a field begins, and is closed by the next one that is not doubled. Patterns
        # begin with what is rare, which makes them fast.
        quoted = re.compile(rb"\"(?<=[\r\n" + re.escape(mark) + rb"]\")[^\"]*(?:\"\"[^\"]*)*(?:\"|(\Z))")
        blanks = re.compile(rb"  +" if delimiter == " " else re.escape(mark) + rb" +(?=\")")
        waiting, part = b"", self._start.removeprefix(codecs.BOM_UTF8) or self._read()
        self._start = b""
        while part:
            waiting += part
            if b"  " in waiting or b' "' in waiting:
                waiting = blanks.sub(mark, waiting)
            end = _last_end(waiting, quoted)
            if end:
                yield waiting[:end]
                waiting = waiting[end:]
            part = self._read()
        if waiting:
            yield waiting

    def _read(self) -> bytes:
        with explained(f"{self._name} is damaged", "fetch or write it again", DAMAGED):
            content = self._file.read(min(CHUNK_BYTES, self._longest + 1))
        if b"\0" in content:
            line = self._line + content[: content.index(b"\0")].count(b"\n")
            raise FileError(f"{self._name} is no text table: line {line} holds a zero byte; give a text file")
        try:
            self._decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            line = self._line + error.object[: error.start].count(b"\n")
            raise FileError(
                f"{self._name} is not text in UTF-8 (byte {error.object[error.start]:#04x} near line {line}); "
                "convert it, for instance with iconv -f latin1 -t utf-8"
            ) from None
        # A chunk is no longer than a line may be, so that a line that is too long has an end in none or in the next.
        first, last = content.find(b"\n"), content.rfind(b"\n")
        if self._unfinished + (len(content) if first < 0 else first) > self._longest:
            raise FileError(
                f"{self._name}, line {self._line} has more than {self._longest:,} characters; break it into lines, or, "
                f"if you trust the file and have the memory, set {VARIABLE} higher, as in {VARIABLE}=16G"
            )
        self._unfinished = self._unfinished + len(content) if last < 0 else len(content) - last - 1
        self._line += content.count(b"\n")
        return content


def _last_end(content: bytes, quoted: re.Pattern[bytes]) -> int:
    """Return where the last whole row ends, at a line end outside quotes, or 0."""

    def hide(match: re.Match[bytes]) -> bytes:
        if match.group(1) is not None and len(match.group()) > 4 * FIELD_LIMIT:
            raise LongFieldError
        return b"x" * len(match.group())

    hidden = b"\n" + content
    if b'"' in content:
        hidden = quoted.sub(hide, hidden)
    return max(hidden.rfind(b"\n"), hidden.rfind(b"\r"))
