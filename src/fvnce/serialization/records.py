"""Records, which are tensors and JSON in one safetensors file, and documents, which are JSON that people read as well.

Both are written whole or not at all. The JSON of a record stands in the file's header, beside a SHA-256 over itself and
every tensor. A document is an object as any other, plus one entry ``"fvnce"`` with its kind, the number of the format
and a SHA-256 over both and over everything else, without the blanks: a change of blanks is no change. Reading compares
the checksum and runs no code: nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import RecordError, fields, shown
from .files import atomic_write, write_text
from .text import MAX_TEXT, decode, encode

#: The format of every file that this package writes, counted up when it changes. Older files are refused.
FORMAT_VERSION = 2
_MARK = "fvnce"


def write_record(path: Path, kind: str, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Write a record, in place of one of that name, and return its checksum.

    Args:
        path: the file.
        kind: what it is; :func:`read_record` checks it.
        content: what JSON can hold.
        tensors: tensors by name.
    """
    # Contiguous copies, each with storage of its own, as safetensors wants them.
    plain = {
        name: torch.empty_like(value, device="cpu", memory_format=torch.contiguous_format).copy_(value)
        for name, value in tensors.items()
    }
    text = encode({"kind": kind, "version": FORMAT_VERSION, "content": content})
    checksum = _checksum(text, plain)
    data = safetensors.torch.save(plain, metadata={"fvnce": text, "sha256": checksum})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)
    return checksum


def read_record(path: Path, kind: str, checksum: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(content, tensors) of a record, after its checksum has been compared.

    Args:
        path: the file.
        kind: what it must be.
        checksum: the checksum it must have, if another record names it.
    """
    document, tensors, found = _open(path, kind)
    if checksum is not None and found != checksum:
        raise RecordError(f"{path} does not belong to the {kind} that names it")
    if document["kind"] != kind:
        raise RecordError(f"{path} is a {document['kind'][:100]} of fvnce, not a {kind}")
    return document["content"], tensors


def kind_of(path: Path) -> str:
    """What a record is, from its header alone."""
    return str(_document(path, _header(path, "file"))["kind"])


def checksum_of(path: Path) -> str:
    """The SHA-256 that a record states, from its header alone; :func:`read_record` compares it with the content."""
    return str(_header(path, "file").get("sha256"))


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
    mark = {"kind": kind, "version": FORMAT_VERSION, "sha256": _document_checksum(kind, plain)}
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
    if mark.get("sha256") != _document_checksum(mark.get("kind"), content):
        raise RecordError(f"{place} is damaged: its content does not match its SHA-256")
    if mark["kind"] != kind:
        raise RecordError(f"{place} is a {shown(mark['kind'])} of fvnce, not a {kind}")
    if set(mark) != {"kind", "version", "sha256"}:
        raise RecordError(f"{place} is damaged: its checksum has an entry too many")
    return content


def _open(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    header = _header(path, kind)
    document = _document(path, header)
    try:
        tensors = safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise RecordError(f"{path} is damaged: {error}") from None
    if header.get("sha256") != _checksum(header["fvnce"], tensors):
        raise RecordError(f"{path} is damaged: its content does not match its SHA-256")
    return document, tensors, header["sha256"]


def _header(path: Path, kind: str) -> dict[str, str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a {kind} of fvnce, found no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise RecordError(f"{path} is damaged or not a {kind} of fvnce: {error}") from None
    if "fvnce" not in header:
        raise RecordError(f"{path} is not a {kind} of fvnce: its header does not say so")
    return header


def check_version(path: Path, version: object) -> None:
    """Refuse a file of another format than today's, in one sentence."""
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise RecordError(
            f"{path} has version {shown(version)} of the format; this fvnce reads version {FORMAT_VERSION}: make the "
            "file again with it"
        )


def _document(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    document = decode(header["fvnce"], f"the header of {path}")
    check_version(path, document.get("version") if isinstance(document, dict) else None)
    kind, _, content = fields(document, f"the header of {path}", "kind", "version", "content")
    if not isinstance(kind, str) or not isinstance(content, dict):
        raise RecordError(f"{path} is damaged: its header cannot be read")
    return document  # type: ignore[no-any-return]


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _document_checksum(kind: object, content: Mapping[str, Any]) -> str:
    return _checksum(encode([kind, FORMAT_VERSION, content]), {})
