"""JSON with limits: what a stranger's text may cost is decided before it is parsed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .errors import RecordError

#: Bytes of JSON that are parsed unless a reader is told to take more.
MAX_TEXT = 64 * 2**20
#: Levels of lists and dictionaries within one another, far more than any state of ours has.
MAX_DEPTH = 100


def encode(content: object) -> str:
    """The text of a content, in ASCII and without blanks; keys stay in their order, which may mean something.

    >>> encode({"b": 1, "a": (0.5, None)})
    '{"b":1,"a":[0.5,null]}'
    """
    if is_too_deep(content):
        raise ValueError(f"content must not be nested deeper than {MAX_DEPTH} levels to be written, found more")
    text = json.dumps(content, separators=(",", ":"))  # ASCII, as UTF-8 cannot hold all that a name in a file may be
    if len(text) > MAX_TEXT:
        raise ValueError(f"content must take at most {MAX_TEXT:,} bytes of JSON to be read again, found {len(text):,}")
    return text


def decode(text: str | bytes, what: object, *, max_bytes: int | None = None) -> Any:
    """The content of a JSON text; one that is too long, too deep or no JSON is refused as ``what``.

    >>> decode("[" * 200 + "]" * 200, "analysis.json")
    Traceback (most recent call last):
    fvnce.serialization.errors.RecordError: analysis.json must not be nested deeper than 100 levels, found more; no \
file that fvnce wrote is
    """
    limit = MAX_TEXT if max_bytes is None else max_bytes
    if len(text) > limit:
        raise RecordError(
            f"{what} must hold at most {limit:,} bytes of JSON, found {len(text):,}; if you trust it, raise max_bytes"
        )
    try:
        content = json.loads(text)
    except RecursionError:
        raise RecordError(_too_deep(what)) from None
    except ValueError as error:  # UnicodeDecodeError and a number of too many digits among them
        raise RecordError(f"{what} is damaged: it is no JSON ({error})") from None
    if is_too_deep(content):
        raise RecordError(_too_deep(what))
    return content


def is_too_deep(content: object) -> bool:
    """Whether a nest would exhaust the stack of whatever walks through it."""
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
        level = [item for item in below if isinstance(item, dict | list | tuple)]
        if not level:
            return False
    return True


def checksum(text: str) -> str:
    """SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def _too_deep(what: object) -> str:
    return f"{what} must not be nested deeper than {MAX_DEPTH} levels, found more; no file that fvnce wrote is"
