"""The table that readers give, :class:`fvnce.detection.frame.Frame`, and the error for a file that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence

from ...detection.frame import Frame

__all__ = ["DataError", "Frame", "listed"]


class DataError(ValueError):
    """A file that cannot be used as it is; the message says where and what to do."""


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in one line of a sentence: the first few of them, and of each no more than fits there.

    >>> listed(["a", "b" * 100], 12)[:12], listed(list("abc"), 2)
    ('a, bbbbbbbbb', 'a, b, … (3 in all)')
    """
    lines = (" ".join(name[:200].split()) for name in names[:most])
    shown = ", ".join(name if len(name) <= 60 else f"{name[:59]}…" for name in lines)
    return shown + (f", … ({len(names)} in all)" if len(names) > most else "")
