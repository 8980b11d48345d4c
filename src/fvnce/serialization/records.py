"""Records, which are tensors and JSON in one safetensors file, and documents, which are JSON that people read as well.

Both are written whole or not at all. The JSON of a record stands in the file's header, beside a SHA-256 over itself and
every tensor. A document is an object as any other, plus one entry ``"fvnce"`` with its kind, the number of the format
and a SHA-256 over both and over everything else, without the blanks: a change of blanks is no change. Reading compares
the checksum and runs no code: nothing is pickled. What a stranger's text may cost is decided before it is parsed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .files import atomic_write, write_text

#: The format of every file that this package writes, counted up when it changes. Older files are refused.
FORMAT_VERSION = 2
_MARK = "fvnce"
#: Bytes of JSON that are parsed unless a reader is told to take more.
MAX_TEXT = 64 * 2**20
#: Levels of lists and dictionaries within one another, far more than any state of ours has.
MAX_DEPTH = 100


class RecordError(ValueError):
    """A file that cannot be trusted: torn, altered, made by another version, or not one of ours.

    >>> import tempfile
    >>> import fvnce
    >>> with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
    ...     fvnce.load(file.name)
    Traceback (most recent call last):
        ...
    fvnce.serialization.records.RecordError: ... is damaged or not a file of fvnce: ...
    """


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turn whatever a crafted content makes the code in the block stumble over into one :class:`RecordError`.

    A checksum proves that a file is as it was written, not that it was written by us: a stranger's file may lack a key,
    hold text where a number belongs, or name shapes that do not fit. Errors of the file system pass.

    >>> with reading("run.safetensors"):
    ...     {}["module"]
    Traceback (most recent call last):
    fvnce.serialization.records.RecordError: run.safetensors does not hold what it must (KeyError: 'module'); write it \
again with this version of fvnce
    """
    try:
        yield
    except RecordError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise RecordError(
            f"{what} does not hold what it must ({type(error).__name__}: {first[:200]}); write it again with this "
            "version of fvnce"
        ) from error


def fields(content: object, where: str, *names: str) -> list[Any]:
    """The values of a mapping that must have these keys and no other, in this order.

    >>> fields({"rows": 3}, "the layout", "rows", "columns")
    Traceback (most recent call last):
    fvnce.serialization.records.RecordError: the layout must hold rows and columns, found no 'columns'; write it again \
with this version of fvnce
    """
    wanted = f"{where} must hold {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"
    again = "write it again with this version of fvnce"
    if not isinstance(content, Mapping):
        raise RecordError(f"{wanted}, found a {type(content).__name__}; {again}")
    for name in names:
        if name not in content:
            raise RecordError(f"{wanted}, found no {name!r}; {again}")
    unknown = sorted(map(str, content.keys() - set(names)))
    if unknown:
        raise RecordError(f"{wanted}, found {shown(unknown[0])} as well; {again}")
    return [content[name] for name in names]


def shown(value: object) -> str:
    """What an error tells of a value that may be anything and of any length.

    >>> shown("method"), shown([0] * 1000)
    ("'method'", 'a list')
    """
    plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value)[:100] if plain else f"a {type(value).__name__}"


def encode(content: object) -> str:
    """The text of a content, in ASCII and without blanks; keys stay in their order, which may mean something.

    >>> encode({"b": 1, "a": (0.5, None)})
    '{"b":1,"a":[0.5,null]}'
    """
    if _is_too_deep(content):
        raise ValueError(f"content must not be nested deeper than {MAX_DEPTH} levels to be written, found more")
    text = json.dumps(content, separators=(",", ":"))  # ASCII, as UTF-8 cannot hold all that a name in a file may be
    if len(text) > MAX_TEXT:
        raise ValueError(f"content must take at most {MAX_TEXT:,} bytes of JSON to be read again, found {len(text):,}")
    return text


def decode(text: str | bytes, what: object, *, max_bytes: int | None = None) -> Any:
    """The content of a JSON text; one that is too long, too deep or no JSON is refused as ``what``.

    >>> decode("[" * 200 + "]" * 200, "analysis.json")
    Traceback (most recent call last):
    fvnce.serialization.records.RecordError: analysis.json must not be nested deeper than 100 levels, found more; no \
file that fvnce wrote is
    """
    limit = MAX_TEXT if max_bytes is None else max_bytes
    if len(text) > limit:
        raise RecordError(
            f"{what} must hold at most {limit:,} bytes of JSON, found {len(text):,}; if you trust it, raise max_bytes"
        )
    too_deep = f"{what} must not be nested deeper than {MAX_DEPTH} levels, found more; no file that fvnce wrote is"
    try:
        content = json.loads(text)
    except RecursionError:
        raise RecordError(too_deep) from None
    except ValueError as error:  # UnicodeDecodeError and a number of too many digits among them
        raise RecordError(f"{what} is damaged: it is no JSON ({error})") from None
    if _is_too_deep(content):
        raise RecordError(too_deep)
    return content


def _is_too_deep(content: object) -> bool:
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
    found = checksum(text, plain)
    data = safetensors.torch.save(plain, metadata={_MARK: text, "sha256": found})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)
    return found


def read_record(path: Path, kind: str, sha256: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(content, tensors) of a record, after its checksum has been compared.

    Args:
        path: the file.
        kind: what it must be.
        sha256: the checksum it must have, if another record names it.
    """
    header = _header(path, kind)
    document = _document(path, header)
    try:
        tensors = safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise RecordError(f"{path} is damaged: {error}") from None
    if header.get("sha256") != checksum(header[_MARK], tensors):
        raise RecordError(f"{path} is damaged: its content does not match its SHA-256")
    if sha256 is not None and header["sha256"] != sha256:
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
    _check_version(place, mark.get("version"))
    if mark.get("sha256") != _document_checksum(mark.get("kind"), content):
        raise RecordError(f"{place} is damaged: its content does not match its SHA-256")
    if mark["kind"] != kind:
        raise RecordError(f"{place} is a {shown(mark['kind'])} of fvnce, not a {kind}")
    if set(mark) != {"kind", "version", "sha256"}:
        raise RecordError(f"{place} is damaged: its checksum has an entry too many")
    return content


def _header(path: Path, kind: str) -> dict[str, str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a {kind} of fvnce, found no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise RecordError(f"{path} is damaged or not a {kind} of fvnce: {error}") from None
    if _MARK not in header:
        raise RecordError(f"{path} is not a {kind} of fvnce: its header does not say so")
    return header


def _check_version(path: Path, version: object) -> None:
    """Refuse a file of another format than today's, in one sentence."""
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise RecordError(
            f"{path} has version {shown(version)} of the format; this fvnce reads version {FORMAT_VERSION}: make the "
            "file again with it"
        )


def _document(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    document = decode(header[_MARK], f"the header of {path}")
    _check_version(path, document.get("version") if isinstance(document, dict) else None)
    kind, _, content = fields(document, f"the header of {path}", "kind", "version", "content")
    if not isinstance(kind, str) or not isinstance(content, dict):
        raise RecordError(f"{path} is damaged: its header cannot be read")
    return document  # type: ignore[no-any-return]


def checksum(text: str, tensors: Mapping[str, Tensor] | None = None) -> str:
    """SHA-256 of a text in UTF-8, and of tensors with their names."""
    digest = hashlib.sha256(text.encode())
    for name, value in sorted((tensors or {}).items()):
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _document_checksum(kind: object, content: Mapping[str, Any]) -> str:
    return checksum(encode([kind, FORMAT_VERSION, content]))
