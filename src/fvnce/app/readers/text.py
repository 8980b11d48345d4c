"""Text tables, with any delimiter, header or not, read in parts by pyarrow.

Delimiter and header are found in the first lines unless given; what columns hold is for
:mod:`fvnce.app.readers.tables` to say. The bytes are looked at on their way: UTF-8, no zero byte, no line without end.
They are given in blocks of whole rows, and what pyarrow would misunderstand is put right: blanks between a delimiter
and a quote, and runs of blanks where blanks are the delimiter.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from ...detection.frame import Frame
from ...detection.reading import Reading
from .arrays import CHUNK, DAMAGED
from .errors import VARIABLE, DataError, budget, explained, listed, one_line
from .tables import ColumnReader, TableOptions, numbered

#: A line of text may be as long as this part of the budget: split into short fields, it takes many times its length.
LINE_SHARE = 256
#: Characters of a field; a longer one is a quote that was never closed.
FIELD = csv.field_size_limit()
DELIMITERS = ",;\t| "
#: The first lines, in which delimiter and header are looked for: so many, or as many as have so many bytes.
SAMPLE_LINES, SAMPLE_BYTES = 200, 2**20
_NUMBER, _COMMA_NUMBER, _TIME = Reading(), Reading(decimal=","), Reading("time")


class DelimitedReader:
    """A text table, read once from front to back.

    Args:
        name: of the file, for errors.
        file: its bytes.
        options: how to read it.
        reopen: the same bytes once more, to find the line of an error; None for a pipe.

    >>> reader = DelimitedReader("demo", io.BytesIO(b"a;b\\n1,5;x\\n;y\\n"), TableOptions())
    >>> [frame] = reader.frames(10)
    >>> reader.delimiter, reader.header, frame["a"], frame["b"]
    (';', True, array([1.5, nan]), array(['x', 'y'], dtype=object))
    """

    def __init__(
        self, name: str, file: IO[bytes], options: TableOptions, reopen: Callable[[], IO[bytes]] | None = None
    ) -> None:
        self.name, self._options, self._reopen = name, options, reopen
        if options.delimiter is not None and (len(options.delimiter) != 1 or options.delimiter in '\r\n"\0'):
            raise DataError(
                f"delimiter must be one character, and neither a quote nor a line end, found {options.delimiter[:20]!r}"
            )
        self._file = CheckedText(name, file)
        sample, whole = self._sample()
        if not any(line.strip() for line in sample):
            raise DataError(f"{name} is empty: a table needs at least one row; give a file that has one")
        self.delimiter = options.delimiter or find_delimiter(sample, whole=whole)
        self._missing = options.all_missing
        try:
            rows = _split(sample, self.delimiter, whole=whole)
        except csv.Error as error:
            raise self._unreadable(error, "near its beginning") from None
        self.header = self._has_header(rows) if options.header is None else options.header
        if options.header is None and options.kinds is not None:
            # Names known from training settle it.
            self.header = self.header or set(options.kinds) <= {text.strip() for text in rows[0]}
        self.columns = _names(name, rows[0]) if self.header else numbered(len(rows[0]))
        self._match(options.kinds)
        # Where a comma is no delimiter it is likely to stand before a fraction.
        self.column_reader = ColumnReader(name, self.columns, options, "." if self.delimiter == "," else ",")

    def frames(self, rows: int) -> Iterator[Frame]:
        """The table in parts of at most so many rows."""
        start = 0
        for table in self._tables(rows):
            columns = dict(zip(self.columns, table.columns, strict=True))
            yield self.column_reader.frame(columns, lambda row, start=start: self._place(start + row))  # type: ignore[misc]
            start += len(table)
        if start == 0:
            raise DataError(f"{self.name} has a header but no rows; give a file that has some")

    def _tables(self, rows: int) -> Iterator[Any]:
        """Tables of text from Arrow, of so many rows each but for the last."""
        import pyarrow

        waiting, skip = [], int(self.header)
        for table in self._blocks():
            waiting.append(table.slice(skip))
            skip = max(0, skip - len(table))
            if sum(map(len, waiting)) < rows:
                continue
            whole = pyarrow.concat_tables(waiting)
            full = len(whole) - len(whole) % rows
            for start in range(0, full, rows):
                yield whole.slice(start, rows).combine_chunks()
            waiting = [whole.slice(full).combine_chunks()]
        if sum(map(len, waiting)):
            yield pyarrow.concat_tables(waiting).combine_chunks()

    def _blocks(self) -> Iterator[Any]:
        """The tables that blocks of rows make, the header still one of the rows.

        Arrow could read the file by itself, and would then call back from a thread of its own, which must not happen
        when the program is about to end.
        """
        import pyarrow
        from pyarrow import compute
        from pyarrow import csv as tables

        names = [f"f{i}" for i in range(len(self.columns))]
        parsing = tables.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        convert = tables.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
        try:
            for block in self._file.blocks(self.delimiter):
                if not block.strip(b"\r\n"):
                    continue
                reading = tables.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names)
                table = tables.read_csv(pyarrow.BufferReader(block), reading, parsing, convert)
                if any((compute.max(compute.binary_length(column)).as_py() or 0) > FIELD for column in table.columns):
                    raise LongFieldError
                yield table
        except LongFieldError:
            raise self._unreadable(csv.Error("field limit"), self._place(None)) from None
        except pyarrow.ArrowException as error:
            raise self._arrow_error(error) from None

    def _arrow_error(self, error: Exception) -> DataError:
        """What pyarrow stopped at, found again with the number of its line."""
        for line, row in self._rows_again():
            if len(row) != len(self.columns):
                return DataError(
                    f"{self.name}, line {line}: found {len(row)} fields where the first line has {len(self.columns)}; "
                    "correct the line, or name the delimiter with --delimiter"
                )
        return DataError(f"{self.name}: {one_line(error)}; correct it, or name the delimiter with --delimiter")

    def _place(self, row: int | None) -> str:
        """The line of a row of data, or, of none, the one after which the file cannot be read on."""
        line = 0
        for number, (line, _) in enumerate(self._rows_again()):
            if row is not None and number == row + int(self.header):
                return f"line {line}"
        return f"line {line + 1}" if row is None else f"row {row + 1}"

    def _rows_again(self) -> Iterator[tuple[int, list[str]]]:
        """The rows with their lines once more, by Python's own reader, which counts lines; none from a pipe."""
        if self._reopen is None:
            return
        with self._reopen() as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
            reader = csv.reader(text, delimiter=self.delimiter, skipinitialspace=True)
            try:
                for row in reader:
                    if row:
                        yield reader.line_num, row
            except csv.Error:
                return

    def _sample(self) -> tuple[list[str], bool]:
        """The first lines, and whether they are all."""
        start = self._file.start(SAMPLE_BYTES)
        whole = len(start) < SAMPLE_BYTES
        # A character may be cut in two at the end of the sample.
        text = start.decode("utf-8-sig", "strict" if whole else "ignore")
        lines = list(itertools.islice(io.StringIO(text, newline=""), SAMPLE_LINES + 1))
        return lines[:SAMPLE_LINES], whole and len(lines) <= SAMPLE_LINES

    def _match(self, kinds: Any) -> None:
        """Columns of training are found by name, or else by position."""
        missing = [name for name in kinds or {} if name not in self.columns]
        if not missing:
            return
        unnamed = not self.header or all(name.startswith("column_") for name in kinds)
        if unnamed and len(self.columns) == len(kinds):
            self.columns = list(kinds)
            return
        raise DataError(
            f"{self.name} lacks column {missing[0]!r} of training; it has {listed(self.columns)}, and training had "
            f"{listed(list(kinds))}"
        )

    def _unreadable(self, error: csv.Error, where: str) -> DataError:
        if "field limit" in str(error):
            return DataError(
                f"{self.name}, {where}: a field has more than {FIELD:,} characters; close the quote "
                "that opens it, or leave its column out of the file"
            )
        return DataError(f"{self.name}, {where}: {error}; give a text table, or name the delimiter with --delimiter")

    def _has_header(self, rows: list[list[str]]) -> bool:
        """The first line names columns if none of it is a number and some number stands below, or if all is text and
        no first entry comes back below it."""
        first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
        if any(self._is_number(text) for text in first):
            return False
        if not rest:
            # A line of words alone names columns, unless the columns are known and it is what is to be scored.
            return self._options.kinds is None
        below = list(zip(*rest, strict=True))
        if any(self._is_number(text) for column in below for text in column):
            return all(text.strip() for text in first) or any(not text.strip() for text in first[:1])
        return len(set(first)) == len(first) and all(
            text not in column for text, column in zip(first, below, strict=True)
        )

    def _is_number(self, text: str) -> bool:
        """Whether a text is a number, an amount, a date: something that is no name."""
        return text.strip().lower() not in self._missing and any(
            reading.numbers([text])[1] is None for reading in (_NUMBER, _COMMA_NUMBER, _TIME)
        )


def find_delimiter(sample: Sequence[str], *, whole: bool = True) -> str:
    """The delimiter that splits most lines alike, and leaves fewest other delimiters inside fields.

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
        raise DataError(f"{name} names column {twice[0]!r} twice; rename one, or pass --no-header if that is no header")
    return names


class LongFieldError(Exception):
    """A quote that opens a field and is not closed for very long."""


class CheckedText:
    """A binary file whose rows are text, or a sentence that says where they are not."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name, self._file = name, file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._longest = budget() // LINE_SHARE
        self._line, self._unfinished = 1, 0
        self._start = b""

    def start(self, size: int) -> bytes:
        """The first bytes, which the blocks begin with again."""
        while len(self._start) < size and (part := self._read()):
            self._start += part
        return self._start

    def blocks(self, delimiter: str) -> Iterator[bytes]:
        """All bytes, in blocks that end where a row does."""
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
            content = self._file.read(min(CHUNK, self._longest + 1))
        if b"\0" in content:
            line = self._line + content[: content.index(b"\0")].count(b"\n")
            raise DataError(f"{self._name} is no text table: line {line} holds a zero byte; give a text file")
        try:
            self._decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            line = self._line + error.object[: error.start].count(b"\n")
            raise DataError(
                f"{self._name} is not text in UTF-8 (byte {error.object[error.start]:#04x} near line {line}); "
                "convert it, for instance with iconv -f latin1 -t utf-8"
            ) from None
        # A chunk is no longer than a line may be, so that a line that is too long has an end in none or in the next.
        first, last = content.find(b"\n"), content.rfind(b"\n")
        if self._unfinished + (len(content) if first < 0 else first) > self._longest:
            raise DataError(
                f"{self._name}, line {self._line} has more than {self._longest:,} characters; break it into lines, or, "
                f"if you trust the file and have the memory, set {VARIABLE} higher, as in {VARIABLE}=16G"
            )
        self._unfinished = self._unfinished + len(content) if last < 0 else len(content) - last - 1
        self._line += content.count(b"\n")
        return content


def _last_end(content: bytes, quoted: re.Pattern[bytes]) -> int:
    """Where the last row that is whole ends, or 0: at a line's end that stands in no quotes."""

    def hide(match: re.Match[bytes]) -> bytes:
        if match.group(1) is not None and len(match.group()) > 4 * FIELD:
            raise LongFieldError
        return b"x" * len(match.group())

    hidden = b"\n" + content
    if b'"' in content:
        hidden = quoted.sub(hide, hidden)
    return max(hidden.rfind(b"\n"), hidden.rfind(b"\r"))
