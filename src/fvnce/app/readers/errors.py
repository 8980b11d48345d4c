"""What is said of a file that cannot be used, and of one whose rows would take more memory than they may.

Compressed or forged, a file of a megabyte can call for ten gigabytes. What a header promises is compared with the
budget first, and what has no header (a line of text, a gzip stream) is read no further than the budget goes. The budget
is 2G; the environment variable FVNCE_MAX_MEMORY, such as ``FVNCE_MAX_MEMORY=16G``, sets another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

VARIABLE = "FVNCE_MAX_MEMORY"
DEFAULT = 2 * 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


class DataError(ValueError):
    """A file that cannot be used as it is; the message says where and what to do.

    >>> from fvnce.data import open_source
    >>> open_source("nowhere.csv")
    Traceback (most recent call last):
        ...
    fvnce.app.readers.errors.DataError: nowhere.csv does not exist; give a file (...
    """


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in one line of a sentence: the first few of them, and of each no more than fits there.

    >>> listed(["a", "b" * 100], 12)[:12], listed(list("abc"), 2)
    ('a, bbbbbbbbb', 'a, b, … (3 in all)')
    """
    lines = (" ".join(name[:200].split()) for name in names[:most])
    shown = ", ".join(name if len(name) <= 60 else f"{name[:59]}…" for name in lines)
    return shown + (f", … ({len(names)} in all)" if len(names) > most else "")


def one_line(error: BaseException) -> str:
    """What another library says of a file, within a sentence."""
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextmanager
def explained(what: str, step: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Make one sentence of what another library raises on a damaged file: what it is, why, and the next step.

    >>> with explained("a.npy is damaged", "write it again", (EOFError,)):
    ...     raise EOFError("no more bytes")
    Traceback (most recent call last):
    fvnce.app.readers.errors.DataError: a.npy is damaged: no more bytes; write it again
    """
    try:
        yield
    except (DataError, FileNotFoundError, PermissionError):
        raise
    except kinds as error:
        raise DataError(f"{what}: {one_line(error)}; {step}") from None


def budget() -> int:
    """Bytes that the rows of one file may take."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    found = _SIZE.fullmatch(text)
    size = int(found.group(1)) * _UNITS[found.group(2).upper()] if found else 0
    if size < 2**20:
        raise DataError(f"{VARIABLE} must be a size of at least 1M, such as 16G, found {text[:40]!r}; set it anew")
    return size


def within_budget(name: str, what: str, size: int) -> None:
    """Refuse what would take more memory than the budget.

    >>> within_budget("a.npz", "its rows", 10 * 2**30)
    Traceback (most recent call last):
    fvnce.app.readers.errors.DataError: a.npz needs 10G of memory for its rows, more than the 2G allowed; if you trust the file and have the memory, set FVNCE_MAX_MEMORY=11G
    """  # noqa: E501
    allowed = budget()
    if size > allowed:
        raise DataError(
            f"{name} needs {_told(size)} of memory for {what}, more than the {_told(allowed)} allowed; if you trust "
            f"the file and have the memory, set {VARIABLE}={size // 2**30 + 1}G"
        )


def over_budget(name: str, what: str) -> DataError:
    """The error for what turned out too large while it was read, so that nobody knows how large it is."""
    return DataError(
        f"{name} takes more than the {_told(budget())} of memory allowed for {what}; if you trust the file and have "
        f"the memory, set {VARIABLE} higher, as in {VARIABLE}=16G"
    )


def _told(size: int) -> str:
    for unit in "TGMK":
        if size >= _UNITS[unit]:
            return f"{size / _UNITS[unit]:.4g}{unit}" if size < 1000 * 2**40 else "over 1000T"
    return f"{size} bytes"
