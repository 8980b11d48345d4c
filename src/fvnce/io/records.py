"""Records, which are tensors and JSON in one safetensors file, and documents, which are JSON that people read as well.

Both are written whole or not at all. The JSON of a record is in the file's header, with a SHA-256 over itself and every
tensor. A document is an object as any other, plus one entry ``"fvnce"`` with its kind, the number of the format and a
SHA-256 over both and over everything else, without the blanks: a change of blanks is no change. Reading compares the
checksum and runs no code: nothing is pickled. How much memory a text may cost is decided before it is parsed.
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

from .._validation import FileError, fields, short
from .files import atomic_write, write_text

#: The format of every file that this package writes, counted up when it changes. Older files are refused.
FORMAT_VERSION = 2
_MARK = "fvnce"
#: Bytes of JSON that are parsed by default.
MAX_TEXT = 64 * 2**20
#: Levels of lists and dictionaries within one another, far more than any state of ours has.
MAX_DEPTH = 100


def encode(content: object) -> str:
    """Return the JSON text of a content, in ASCII and without blanks; keys stay in their order.

    >>> encode({"b": 1, "a": (0.5, None)})
    '{"b":1,"a":[0.5,null]}'
    """
    if _is_too_deep(content):
        raise ValueError(f"content must not be nested deeper than {MAX_DEPTH} levels to be written, found more")
    text = json.dumps(content, separators=(",", ":"))  # ASCII, as UTF-8 cannot hold all that a name in a file may be
    if len(text) > MAX_TEXT:
        raise ValueError(f"content must take at most {MAX_TEXT:,} bytes of JSON to be read again, found {len(text):,}")
    return text


def decode(text: str | bytes, what: object, *, max_bytes: int = MAX_TEXT) -> Any:
    """Return the content of a JSON text.

    Args:
        text: the text.
        what: what errors call it.
        max_bytes: how long it may be.

    Raises:
        FileError: if it is longer than that, nested too deeply, or not JSON.

    >>> decode("[" * 200 + "]" * 200, "analysis.json")
    Traceback (most recent call last):
    fvnce.io.FileError: analysis.json must not be nested deeper than 100 levels, found more; no file that fvnce wrote is
    """
    if len(text) > max_bytes:
        raise FileError(
            f"{what} must hold at most {max_bytes:,} bytes of JSON, found {len(text):,}; if you trust it, raise "
            "max_bytes"
        )
    try:
        content = json.loads(text)
        too_deep = _is_too_deep(content)
    except RecursionError:
        too_deep = True
    except ValueError as error:  # UnicodeDecodeError and a number of too many digits among them
        raise FileError(f"{what} is damaged: it is no JSON ({error})") from None
    if too_deep:
        raise FileError(
            f"{what} must not be nested deeper than {MAX_DEPTH} levels, found more; no file that fvnce wrote is"
        )
    return content


def _is_too_deep(content: object) -> bool:
    """Return whether a nest would exhaust the stack of whatever walks through it."""
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
    sha256 = checksum(text, plain)
    data = safetensors.torch.save(plain, metadata={_MARK: text, "sha256": sha256})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)
    return sha256


def read_record(path: Path, kind: str, sha256: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (content, tensors) of a record, after its checksum has been compared.

    Args:
        path: the file.
        kind: what it must be.
        sha256: the checksum it must have, if another record names it.

    Raises:
        FileError: if it is damaged, or of another kind or version.
    """
    header, stored_kind, content = _header(path, kind)
    try:
        tensors = safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise FileError(f"{path} is damaged: {error}") from None
    if header.get("sha256") != checksum(header[_MARK], tensors):
        raise FileError(f"{path} is damaged: its content does not match its SHA-256")
    if sha256 is not None and header["sha256"] != sha256:
        raise FileError(f"{path} does not belong to the {kind} that names it")
    if stored_kind != kind:
        raise FileError(f"{path} is a {stored_kind[:100]} of fvnce, not a {kind}")
    return content, tensors


def kind_of(path: Path) -> str:
    """Return what a record is, from its header alone."""
    return _header(path, "file")[1]


def checksum_of(path: Path) -> str:
    """Return the SHA-256 that a record states, from its header; :func:`read_record` compares it with the content."""
    return str(_header(path, "file")[0].get("sha256"))


def _header(path: Path, kind: str) -> tuple[dict[str, str], str, dict[str, Any]]:
    """Return the header of a record, and the kind and the content in it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a {kind} of fvnce, found no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise FileError(f"{path} is damaged or not a {kind} of fvnce: {error}") from None
    if _MARK not in header:
        raise FileError(f"{path} is not a {kind} of fvnce: its header does not say so")
    document = decode(header[_MARK], f"the header of {path}")
    _check_version(path, document.get("version") if isinstance(document, dict) else None)
    stored_kind, _, content = fields(document, f"the header of {path}", "kind", "version", "content")
    if not isinstance(stored_kind, str) or not isinstance(content, dict):
        raise FileError(f"{path} is damaged: its header cannot be read")
    return header, stored_kind, content


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
    mark = {"kind": kind, "version": FORMAT_VERSION, "sha256": checksum(encode([kind, FORMAT_VERSION, plain]))}
    write_text(path, encode({_MARK: mark, **plain}) + "\n")


def read_document(path: str | os.PathLike[str], kind: str, *, max_bytes: int = MAX_TEXT) -> dict[str, Any]:
    """Return the content of a document, after its checksum has been compared.

    Args:
        path: the file.
        kind: what it must be.
        max_bytes: how long it may be, by default 64 MiB.

    Raises:
        FileError: if it is damaged, of another kind or version, or longer than that.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"{place} must be a {kind} of fvnce, found no such file")
    with place.open("rb") as file:
        content = decode(file.read(max_bytes + 1), place, max_bytes=max_bytes)
    if not isinstance(content, dict) or not isinstance(content.get(_MARK), dict):
        raise FileError(f"{place} is damaged or not a {kind} of fvnce: it has no checksum")
    mark = content.pop(_MARK)
    _check_version(place, mark.get("version"))
    stored_kind, _, sha256 = fields(mark, f"the checksum of {place}", "kind", "version", "sha256")
    if sha256 != checksum(encode([stored_kind, FORMAT_VERSION, content])):
        raise FileError(f"{place} is damaged: its content does not match its SHA-256")
    if stored_kind != kind:
        raise FileError(f"{place} is a {short(stored_kind)} of fvnce, not a {kind}")
    return content


def _check_version(path: Path, version: object) -> None:
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise FileError(
            f"{path} has version {short(version)} of the format; this fvnce reads version {FORMAT_VERSION}: make the "
            "file again with it"
        )


def checksum(text: str, tensors: Mapping[str, Tensor] | None = None) -> str:
    """Return the SHA-256 of a text in UTF-8, and of tensors with their names."""
    digest = hashlib.sha256(text.encode())
    for name, value in sorted((tensors or {}).items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
