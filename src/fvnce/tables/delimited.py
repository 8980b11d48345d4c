"""Reader of delimited text tables, with or without a header, in parts by pyarrow.

Delimiter and header are detected in the first lines unless given; :mod:`fvnce.tables.arrow` infers column types.
:class:`CheckedText` checks the bytes (UTF-8, no zero byte, no endless line), splits them into blocks of whole rows, and
corrects what pyarrow would misread: blanks between a delimiter and a quote, and runs of blanks as the delimiter.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv
import gzip
import io
import itertools
import lzma
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from .._validation import FileError
from .arrow import TableSource
from .errors import CHUNK_BYTES, DAMAGED, VARIABLE, Problem, TableError, budget, explained, listed, one_line
from .learning import LISTED
from .parsing import ColumnType, kind_of
from .schema import ReadOptions, numbered, unique

#: Maximum length of a line as a fraction of the budget: split into short fields, it takes many times its length.
LINE_SHARE = 256
#: Maximum length of a field in characters; a longer one is assumed to be an unclosed quote.
FIELD_LIMIT = csv.field_size_limit()
DELIMITERS = ",;\t| "
#: Number of lines and bytes in which delimiter and header are detected.
SAMPLE_LINES, SAMPLE_BYTES = 200, 2**20
#: First bytes of text files that are not tables.
_NO_TABLE = re.compile(r"\s*(?:\{\s*\"|\[\s*[\[{]|<!doctype|<\?xml|<html)", re.IGNORECASE)


class DelimitedSource(TableSource):
    """Reader of a text table, optionally compressed.

    Args:
        name: name of the file in errors.
        file: the file, opened as binary.
        options: reader options.
        path: path of the file, to find the line of an error; None for a pipe.

    >>> source = DelimitedSource("demo", io.BytesIO(b"a;b\\n1,5;x\\n;y\\n"), ReadOptions())
    >>> frame = source.read()
    >>> source.delimiter, source.header, frame["a"], frame["b"]
    (';', True, array([1.5, nan]), array(['x', 'y'], dtype=object))
    """

    kind = "table"

    def __init__(self, name: str, file: IO[bytes], options: ReadOptions, path: Path | None = None) -> None:
        seekable, self._owned = file.seekable(), path is not None
        if not seekable and (options.types is None or any(column.undecided for column in options.types.values())):
            file, seekable, self._owned = _spooled(file), True, True  # to be read twice
        self._raw, self._path, self._seekable = file, path, seekable
        self._file: Any = file if hasattr(file, "peek") else io.BufferedReader(file)
        self._origin = self._file.tell() if seekable else 0
        if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '\r\n"\0'):
            raise FileError(
                f"delimiter must be one character, and neither a quote nor a line end, found {options.delimiter[:20]!r}"
            )
        self.name, self._started, self._skip = name, False, False
        self._text = CheckedText(name, *_unpacked(self._file))
        sample, whole = self._text.sample()
        if not any(line.strip() for line in sample):
            raise FileError(f"{name} must have at least one row, found an empty file; give a file with rows")
        if _NO_TABLE.match("".join(sample[:2])):
            raise FileError(f"{name} must be a text table, found the beginning of JSON, HTML or XML; convert it to csv")
        self.delimiter = options.delimiter or self._text.separator or find_delimiter(sample, whole=whole)
        try:
            rows = _split(sample, self.delimiter, whole=whole)
        except csv.Error as error:
            raise _unreadable(name, "near its beginning", error) from None
        width = Counter(map(len, rows)).most_common(1)[0][0]
        if len(rows[0]) == 1 < width and options.delimiter is None:
            raise FileError(f"{name}, line 1 has 1 field where most have {width}; leave out lines above the header")
        self.header = _has_header(name, rows, options) if options.header is None else options.header
        columns = _names(name, rows[0]) if self.header else numbered(len(rows[0]))
        named = columns
        if options.types is not None:
            columns = _match(name, columns, list(options.types), header=self.header)
        # A comma that separates fields is not a decimal mark, unless a value shows otherwise.
        super().__init__(name, columns, options, "." if self.delimiter == "," else None)
        if named != columns:
            self.notices.append(f"{name} has other column names than training; columns are matched by position")

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        if self._owned:
            self._raw.close()

    def _done(self, rows: int) -> float | None:
        if self._path is None or not self._seekable:
            return None
        return min(1.0, self._raw.tell() / (os.fstat(self._raw.fileno()).st_size or 1))

    def settle(self) -> None:
        """Infer the types of columns that are still unknown, and find lines with too many or too few fields."""
        self._skip = True
        super().settle()
        self._skip = False

    def _tables(self, rows: int, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yield Arrow columns of text with ``rows`` rows each, the last with fewer."""
        import pyarrow

        if self._started:
            self._file.seek(self._origin)
            self._text = CheckedText(self.name, *_unpacked(self._file))
            self._text.sample()
        self._started, waiting = True, None
        places = [self.columns.index(name) for name in names]
        for block in self._blocks():
            table = block.select(places)
            waiting = table.slice(int(self.header)) if waiting is None else pyarrow.concat_tables([waiting, table])
            while len(waiting) >= rows:
                yield dict(zip(names, waiting.slice(0, rows).combine_chunks().columns, strict=True))
                waiting = waiting.slice(rows)
        if waiting is not None and len(waiting):
            yield dict(zip(names, waiting.combine_chunks().columns, strict=True))

    def _blocks(self) -> Iterator[Any]:
        """Yield an Arrow table for each block of rows, with the header as a row.

        Arrow does not read the file itself, because it would call Python from its own thread, which is unsafe while
        the interpreter exits.
        """
        import pyarrow
        from pyarrow import compute
        from pyarrow import csv as tables

        names = [f"f{i}" for i in range(len(self.columns))]
        parsing = tables.ParseOptions(
            delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=self._skipped if self._skip else None
        )
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
            line = 1 + max((line for line, _ in self._rows_again()), default=0)
            raise _unreadable(self.name, f"line {line}", csv.Error("field limit")) from None
        except pyarrow.ArrowException as error:
            raise self._error([], one_line(error)) from None

    def _skipped(self, row: Any) -> str:
        self._broken = True
        return "skip"

    def _error(self, problems: Sequence[Problem], stopped: str = "") -> FileError:
        """Return the error for problems, listed after lines with too many or too few fields."""
        width, broken = len(self.columns), list[tuple[str, Problem]]()
        for line, row in self._rows_again():
            if len(row) != width and len(broken) < LISTED:
                advice = f"correct the line, which has {len(row)} fields, or pass --delimiter"
                requirement = f"must have {width} fields as the first line, not {len(row)} fields"
                broken.append((f"line {line}", Problem("", 0, self.delimiter.join(row), requirement, advice)))
        if not broken and not problems:
            return FileError(f"{self.name}: {stopped}; correct it, or name the delimiter with --delimiter")
        places = zip(self._places([p.row for p in problems]), problems, strict=True)
        return TableError.of(self.name, [*broken, *places])

    def _places(self, rows: Sequence[int]) -> list[str]:
        found, wanted, number = {row: f"row {row + 1}" for row in rows}, set(rows), -int(self.header)
        for line, row in self._rows_again() if rows else ():
            if len(row) == len(self.columns):
                if number in wanted:
                    found[number] = f"line {line}"
                number += 1
        return [found[row] for row in rows]

    def _rows_again(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line numbers and rows again by Python's csv reader, which counts lines; nothing for a pipe."""
        if not self._seekable:
            return
        self._file.seek(self._origin)
        file, encoding = _unpacked(self._file)
        text = io.TextIOWrapper(file, encoding, newline="")
        reader = csv.reader(text, delimiter=self.delimiter, skipinitialspace=True)
        try:
            for row in reader:
                if row and not (reader.line_num == 1 and self._text.separator):
                    yield reader.line_num, row
        except csv.Error:
            return
        finally:
            text.detach()  # otherwise the file would be closed with it


def _spooled(file: IO[bytes]) -> IO[bytes]:
    """Copy a pipe to a temporary file that can be read twice."""
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the source
    shutil.copyfileobj(file, spool)
    spool.seek(0)
    return spool


def _unpacked(file: Any) -> tuple[Any, str]:
    """Return the file, decompressed if it is gzip, bzip2 or xz, and its encoding."""
    start = file.peek(6)
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ")):
        file = gzip.GzipFile(fileobj=file) if start[:1] == b"\x1f" else (bz2 if start[:1] == b"B" else lzma).open(file)
    with contextlib.suppress(*DAMAGED):  # the reader reports it
        if file.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return file, "utf-16"
    return file, "utf-8-sig"


def _unreadable(name: str, where: str, error: csv.Error) -> FileError:
    if "field limit" in str(error):
        return FileError(
            f"{name}, {where}: a field has more than {FIELD_LIMIT:,} characters; close the quote that opens it, or "
            "leave its column out of the file"
        )
    return FileError(f"{name}, {where}: {error}; give a text table, or name the delimiter with --delimiter")


def _match(name: str, columns: list[str], trained: list[str], *, header: bool) -> list[str]:
    """Match columns to those of training by name, or else by position, and return their names."""
    missing = [column for column in trained if column not in columns]
    if not missing:
        return columns
    unnamed = not header or all(column.startswith("column_") for column in trained)
    if unnamed and len(columns) == len(trained):
        return trained
    raise FileError(
        f"{name} must have column {missing[0]!r} of training, found {listed(columns)}; training had {listed(trained)}"
    )


def _has_header(name: str, rows: list[list[str]], options: ReadOptions) -> bool:
    """Return whether the first line names columns.

    It does if it holds the names known from training, if it has no number and some number follows below, or if all
    values are text and the first entry of no column occurs again below.
    """
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    if options.types is not None and set(options.types) <= {text.strip() for text in first}:
        return True
    missing = ColumnType(missing=options.missing).gaps

    def is_value(text: str) -> bool:
        text = text.strip()
        kind = "text" if text.lower() in missing else kind_of(text)[0]
        return kind in ("number", "time", "unit %")

    below = list(zip(*rest, strict=True))
    names = [text.strip() for text in first]
    again = any(text and text in column for text, column in zip(first, below, strict=False))
    unclear = FileError(
        f"{name}, line 1 may name columns or be a row, found {listed(names)}; pass --header or --no-header"
    )
    if any(map(is_value, first)):
        # A name may be a whole number, such as a year, next to other names above columns of values.
        above = [
            n not in c and all(is_value(t) or not t.strip() for t in c) for n, c in zip(names, below, strict=False)
        ]
        named = [bool(n) and not is_value(n) and over for n, over in zip(names, above, strict=False)]
        whole = [int(n) for n in names if n.isdecimal()]
        if len(whole) < sum(map(is_value, names)):
            return False
        if 2 * sum(named) < len(first) and len(whole) > 1 and whole == [*range(whole[0], whole[0] + len(whole))]:
            over = [column for n, column in zip(names, below, strict=False) if n.isdecimal()]
            fractions = any("." in text or "," in text for column in over for text in column)
            if not again and (fractions or len(whole) < len(names)):
                raise unclear
        return 2 * sum(named) >= len(first)
    if not rest:
        # A line of words only is a header, unless the columns are known and it may be a row to score.
        return options.types is None
    valued = [n for n, column in zip(names, below, strict=True) if any(map(is_value, column))]
    if valued:
        # A column without a name is allowed if it is the first, which counts rows, or empty.
        if not again and any(not n and i and any(t.strip() for t in below[i]) for i, n in enumerate(names)):
            raise unclear
        return not again or any(n.lower() not in missing for n in valued)
    return len(set(first)) == len(first) and not again


def find_delimiter(sample: Sequence[str], *, whole: bool = True) -> str:
    """Detect the delimiter: the one that splits most lines into the same number of fields.

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
        # A quote that opens inside a field shows that the fields were split at the wrong places.
        clean = sum(not any(other in cell for other in ';\t|"') for cell in cells) / len(cells)
        if (count / len(rows), clean) > best:
            best, chosen = (count / len(rows), clean), delimiter
    return chosen


def _split(sample: Sequence[str], delimiter: str, *, whole: bool) -> list[list[str]]:
    rows = [row for row in csv.reader(sample, delimiter=delimiter, skipinitialspace=True) if row]
    # The last line of a sample may end within a quoted field.
    return rows if whole or len(rows) < 2 else rows[:-1]


def _names(name: str, fields: list[str]) -> list[str]:
    return unique(name, [text.strip() or number for text, number in zip(fields, numbered(len(fields)), strict=True)])


class LongFieldError(Exception):
    """Raised if a quote is not closed within :data:`FIELD_LIMIT` characters."""


class CheckedText:
    """Reader that checks a text file and converts it to UTF-8; an error names the line."""

    def __init__(self, name: str, file: Any, encoding: str = "utf-8") -> None:
        self._name = name
        self._file: Any = codecs.EncodedFile(file, "utf-8", "utf-16") if encoding == "utf-16" else file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._longest = budget() // LINE_SHARE
        self._line, self._unfinished = 1, 0
        self._start = b""
        #: The delimiter of a first line such as "sep=;", which Excel writes.
        self.separator: str | None = None

    def sample(self) -> tuple[list[str], bool]:
        """Return the first lines, and whether these are all lines; :meth:`blocks` yields them again."""
        while len(self._start) < SAMPLE_BYTES and (part := self._read()):
            self._start += part
        whole = len(self._start) < SAMPLE_BYTES
        if match := re.match(rb"(?:\xef\xbb\xbf)?\"?sep=(.)\"?\r?\n", self._start):
            self.separator, self._start = match.group(1).decode("latin-1"), self._start[match.end() :]
        # The sample may end within a character.
        text = self._start.decode("utf-8-sig", "strict" if whole else "ignore")
        lines = list(itertools.islice(io.StringIO(text, newline=""), SAMPLE_LINES + 1))
        return lines[:SAMPLE_LINES], whole and len(lines) <= SAMPLE_LINES

    def blocks(self, delimiter: str) -> Iterator[bytes]:
        """Yield all bytes in blocks that end at the end of a row."""
        mark = delimiter.encode()
        # A quote opens a field only at its beginning, and is closed by the next quote that is not doubled. Patterns
        # start with rare characters, which makes them fast.
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
                yield re.sub(rb"(?m)^ +", b"", waiting[:end]) if delimiter == " " else waiting[:end]
                waiting = waiting[end:]
            part = self._read()
        if waiting:
            yield waiting.lstrip(b" ") if delimiter == " " else waiting

    def _read(self) -> bytes:
        with explained(f"{self._name} is damaged", "fetch or write it again", (*DAMAGED, UnicodeError)):
            content: bytes = self._file.read(min(CHUNK_BYTES, self._longest + 1))
            recoded = getattr(self._file, "reader", None)
            if not content and recoded is not None and recoded.bytebuffer:
                raise EOFError("it ends within a character")
        if b"\0" in content:
            line = self._line + content[: content.index(b"\0")].count(b"\n")
            raise FileError(f"{self._name} must be a text table, found a zero byte in line {line}; give a text file")
        try:
            self._decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            line = self._line + error.object[: error.start].count(b"\n")
            raise FileError(
                f"{self._name} is not text in UTF-8 (byte {error.object[error.start]:#04x} near line {line}); "
                "convert it, for instance with iconv -f latin1 -t utf-8"
            ) from None
        # A chunk is at most as long as a line may be, so only its first line, continued from before, can be too long.
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
    """Return the end of the last complete row, at a line end outside quotes, or 0."""

    def hide(match: re.Match[bytes]) -> bytes:
        if match.group(1) is not None and len(match.group()) > 4 * FIELD_LIMIT:
            raise LongFieldError
        return b"x" * len(match.group())

    hidden = b"\n" + content
    if b'"' in content:
        hidden = quoted.sub(hide, hidden)
    return max(hidden.rfind(b"\n"), hidden.rfind(b"\r"))
