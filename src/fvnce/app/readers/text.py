"""The bytes of a text table, looked at on their way to the reader: UTF-8, no zero byte, no line without end.

What the reader of tables would misunderstand is put right on the way: blanks between a delimiter and a quote, and runs
of blanks where blanks are the delimiter.
"""

from __future__ import annotations

import codecs
import io
import re
from typing import IO, Any

from .arrays import DAMAGED
from .budget import VARIABLE, budget
from .frame import DataError

#: A line of text may be as long as this part of the budget: split into short fields, it takes many times its length.
LINE_SHARE = 256
#: Bytes asked of a file at once.
CHUNK = 2**20


def longest_line() -> int:
    """Bytes that a line may have."""
    return budget() // LINE_SHARE


class CheckedText(io.RawIOBase):
    """A binary file that raises a sentence where its bytes are no text."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name, self._file = name, file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._line, self._unfinished, self._longest = 1, 0, longest_line()
        self._ready, self._rest = b"", b""
        self._ended = False
        self._clean: Any = None

    def readable(self) -> bool:
        """Yes."""
        return True

    def start(self, size: int) -> bytes:
        """The first bytes, which will be read again; not yet put right."""
        parts, left = [], size
        while left > 0 and (part := self._checked()):
            parts.append(part)
            left -= len(part)
        self._ready = b"".join(parts)
        return self._ready

    def put_right(self, delimiter: str) -> None:
        """Take out blanks that a delimiter does not want behind it, from the first byte on."""
        mark = re.escape(delimiter.encode())
        pattern = rb"  +" if delimiter == " " else rb"(?<=" + mark + rb")[ \t]+(?=\")"
        if delimiter != "\t":
            self._clean = re.compile(pattern), b" " if delimiter == " " else b""
        self._ready = self._cleaned(self._ready)

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or what is left."""
        while not self._ended and (size < 0 or len(self._ready) < size):
            self._ready += self._cleaned(self._checked())
        size = len(self._ready) if size < 0 else size
        content, self._ready = self._ready[:size], self._ready[size:]
        return content

    def _cleaned(self, content: bytes) -> bytes:
        if self._clean is None:
            return content
        content, self._rest = self._rest + content, b""
        if not self._ended:
            # The last line may go on, and with it the blanks.
            cut = content.rfind(b"\n") + 1
            content, self._rest = content[:cut], content[cut:]
        return bytes(self._clean[0].sub(self._clean[1], content))

    def _checked(self) -> bytes:
        try:
            content = self._file.read(min(CHUNK, self._longest + 1))
        except DAMAGED as error:
            said = " ".join(str(error).split())
            raise DataError(f"{self._name} is damaged: {said}; fetch or write it again") from None
        self._ended = not content
        if b"\0" in content:
            line = self._line + content[: content.index(b"\0")].count(b"\n")
            raise DataError(f"{self._name} is no text table: line {line} holds a zero byte; give a text file")
        try:
            self._decoder.decode(content, final=self._ended)
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

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        super().close()
