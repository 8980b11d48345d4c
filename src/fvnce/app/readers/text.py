"""The bytes of a text table, looked at on their way to the reader: UTF-8, no zero byte, no line without end.

They are given in blocks of whole rows. What the reader of tables would misunderstand is put right on the way: blanks
between a delimiter and a quote, and runs of blanks where blanks are the delimiter.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from typing import IO

from .arrays import DAMAGED
from .errors import VARIABLE, DataError, budget, one_line

#: A line of text may be as long as this part of the budget: split into short fields, it takes many times its length.
LINE_SHARE = 256
#: Bytes asked of a file at once.
CHUNK = 2**20
#: Characters of a field; a longer one is a quote that was never closed.
FIELD = csv.field_size_limit()


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
        try:
            content = self._file.read(min(CHUNK, self._longest + 1))
        except DAMAGED as error:
            raise DataError(f"{self._name} is damaged: {one_line(error)}; fetch or write it again") from None
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
