"""Memory budget of readers, and conversion of problems with a file to :class:`FileError`.

A compressed or forged file of a megabyte can need ten gigabytes. Readers compare the sizes in a header with the budget
before allocating memory, and read content without a header (a line of text, a gzip stream) up to the budget. The budget
is 2G; the environment variable FVNCE_MAX_MEMORY, such as ``FVNCE_MAX_MEMORY=16G``, changes it.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from lzma import LZMAError
from typing import Any, Self

from .._validation import FileError

VARIABLE = "FVNCE_MAX_MEMORY"
DEFAULT_BUDGET = 2 * 2**30
#: Exceptions of Python's readers of compressed files for a damaged file.
DAMAGED = (EOFError, OSError, zlib.error, LZMAError, zipfile.BadZipFile, struct.error)
#: Bytes of one read: requesting all bytes that a header states would allocate them.
CHUNK_BYTES = 2**20
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def listed(names: Sequence[str], limit: int = 12) -> str:
    """Join names for an error message, shortened to the first ``limit`` names.

    >>> listed(["a", "b" * 100], 12)[:12], listed(list("abc"), 2)
    ('a, bbbbbbbbb', 'a, b, … (3 in all)')
    """
    lines = (" ".join(name[:200].split()) for name in names[:limit])
    text = ", ".join(name if len(name) <= 60 else f"{name[:59]}…" for name in lines)
    return text + (f", … ({len(names)} in all)" if len(names) > limit else "")


def one_line(error: BaseException) -> str:
    """Return the message of another library's error in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


@dataclass(frozen=True)
class Problem:
    """A value of a table that cannot be read without a decision by the user.

    Attributes:
        column: name of its column.
        row: position of its row.
        value: the value as written.
        requirement: what the column must hold.
        advice: what the user can do.
        options: options of the command line that would resolve it.
    """

    column: Any
    row: int
    value: str
    requirement: str
    advice: str
    options: tuple[str, ...] = ()


class TableError(FileError):
    """Error with all problems that prevent a table from being read.

    Attributes:
        name: name of the file.
        rows: table of the problems, starting with its header.
        paste: options of the command line that would resolve them.
    """

    name: str
    rows: list[list[str]]
    paste: str

    @classmethod
    def of(cls, name: str, problems: Sequence[tuple[str, Problem]]) -> Self:
        """Make the error from the name of the file and the problems with their locations."""
        rows = [[str(p.column), place, listed([p.value]), p.requirement, p.advice] for place, p in problems]
        of = [f"{place}: column {p.column!r}" if p.column != "" else f"{place}:" for place, p in problems[:8]]
        shown = [
            f"{w} {p.requirement}, found {p.value[:40]!r}; {p.advice}" for w, (_, p) in zip(of, problems, strict=False)
        ]
        more = [f"and {len(rows) - 8} more"] if len(rows) > 8 else []
        error = cls(f"{name}, " + "; ".join([*shown, *more]))
        error.name, error.rows = name, [["column", "place", "value", "problem", "what to do"], *rows]
        error.paste = " ".join(dict.fromkeys(option for _, p in problems for option in p.options))
        return error


@contextmanager
def explained(problem: str, advice: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Convert exceptions of other libraries in the block to :class:`FileError`: problem, cause, advice.

    >>> with explained("a.npy is damaged", "write it again", (EOFError,)):
    ...     raise EOFError("no more bytes")
    Traceback (most recent call last):
    fvnce.io.FileError: a.npy is damaged: no more bytes; write it again
    """
    try:
        yield
    except (FileError, FileNotFoundError, PermissionError):
        raise
    except kinds as error:
        raise FileError(f"{problem}: {one_line(error)}; {advice}") from None


@contextmanager
def closed_on_error(file: Any) -> Iterator[None]:
    """Close a file if the block fails."""
    try:
        yield
    except BaseException:
        file.close()
        raise


def read_exactly(file: Any, count: int, name: str) -> bytes:
    """Read ``count`` bytes in chunks, or fewer at the end of the file."""
    parts: list[bytes] = []
    missing = count
    with explained(f"{name} is damaged", "fetch or write it again", DAMAGED):
        while missing and (part := file.read(min(missing, CHUNK_BYTES))):
            parts.append(part)
            missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def budget() -> int:
    """Return the memory budget for the rows of one file, in bytes."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT_BUDGET
    match = _SIZE.fullmatch(text)
    size = int(match.group(1)) * _UNITS[match.group(2).upper()] if match else 0
    if size < 2**20:
        raise FileError(f"{VARIABLE} must be a size of at least 1M, such as 16G, found {text[:40]!r}; set it again")
    return size


def within_budget(name: str, what: str, size: int) -> None:
    """Raise :class:`FileError` if ``size`` bytes exceed the budget.

    >>> within_budget("a.npz", "its rows", 10 * 2**30)
    Traceback (most recent call last):
    fvnce.io.FileError: a.npz needs 10G of memory for its rows, more than the 2G allowed; if you trust the file and \
have the memory, set FVNCE_MAX_MEMORY=11G
    """
    allowed = budget()
    if size > allowed:
        raise FileError(
            f"{name} needs {_size_text(size)} of memory for {what}, more than the {_size_text(allowed)} allowed; if "
            f"you trust the file and have the memory, set {VARIABLE}={size // 2**30 + 1}G"
        )


def over_budget(name: str, what: str) -> FileError:
    """Return the error for content of unknown size that exceeded the budget while it was read."""
    return FileError(
        f"{name} takes more than the {_size_text(budget())} of memory allowed for {what}; if you trust the file and "
        f"have the memory, set {VARIABLE} higher, as in {VARIABLE}=16G"
    )


def _size_text(size: int) -> str:
    if size >= 1000 * 2**40:
        return "over 1000T"
    unit = next((unit for unit in "TGMK" if size >= _UNITS[unit]), "")
    return f"{size / _UNITS[unit]:.4g}{unit}" if unit else f"{size} bytes"
