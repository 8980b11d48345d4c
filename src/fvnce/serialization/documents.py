"""Documents: JSON with a checksum, for what people read as well as programs.

A document is an object as any other, plus one entry ``"fvnce"`` with its kind, the number of the format and a SHA-256
over both and over everything else, without the blanks. A change of blanks is no change; any other is noticed when the
document is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import RecordError, shown
from .files import write_text
from .records import FORMAT_VERSION, check_version
from .text import MAX_TEXT, checksum, decode, encode

_MARK = "fvnce"


def write_document(path: str | os.PathLike[str], kind: str, content: Mapping[str, Any]) -> None:
    """Write a document, whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_document(f"{folder}/run.json", "run", {"rows": 3})
    ...     read_document(f"{folder}/run.json", "run")
    {'rows': 3}
    """
    if _MARK in content:
        raise ValueError(f"content must leave the key {_MARK!r} to its checksum, found it taken")
    plain = json.loads(encode(content))  # the keys and tuples that a reader will find
    mark = {"kind": kind, "version": FORMAT_VERSION, "sha256": _checksum(kind, plain)}
    write_text(path, encode({_MARK: mark, **plain}) + "\n")


def read_document(path: str | os.PathLike[str], kind: str, *, max_bytes: int | None = None) -> dict[str, Any]:
    """The content of a document, after its checksum has been compared.

    Args:
        path: the file.
        kind: what it must be.
        max_bytes: how long it may be, by default 64 MiB.

    Raises:
        RecordError: if it is damaged, of another kind or version, or longer than that.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"{place} must be a {kind} of fvnce, found no such file")
    limit = MAX_TEXT if max_bytes is None else max_bytes
    with place.open("rb") as file:
        content = decode(file.read(limit + 1), place, max_bytes=limit)
    if not isinstance(content, dict) or not isinstance(content.get(_MARK), dict):
        raise RecordError(f"{place} is damaged or not a {kind} of fvnce: it has no checksum")
    mark = content.pop(_MARK)
    check_version(place, mark.get("version"))
    if mark.get("sha256") != _checksum(mark.get("kind"), content):
        raise RecordError(f"{place} is damaged: its content does not match its SHA-256")
    if mark["kind"] != kind:
        raise RecordError(f"{place} is a {shown(mark['kind'])} of fvnce, not a {kind}")
    if set(mark) != {"kind", "version", "sha256"}:
        raise RecordError(f"{place} is damaged: its checksum has an entry too many")
    return content


def _checksum(kind: object, content: Mapping[str, Any]) -> str:
    return checksum(encode([kind, FORMAT_VERSION, content]))
