"""How much memory the rows of one file may take, asked before any of it is allocated.

Compressed or forged, a file of a megabyte can call for ten gigabytes. What a header promises is compared with the
budget first, and what has no header (a line of text, a gzip stream) is read no further than the budget goes. The budget
is 2G; the environment variable FVNCE_MAX_MEMORY, such as ``FVNCE_MAX_MEMORY=16G``, sets another.
"""

from __future__ import annotations

import os
import re

from .frame import DataError

VARIABLE = "FVNCE_MAX_MEMORY"
DEFAULT = 2 * 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


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
    fvnce.app.readers.frame.DataError: a.npz needs 10G of memory for its rows, more than the 2G allowed; if you trust the file and have the memory, set FVNCE_MAX_MEMORY=11G
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
