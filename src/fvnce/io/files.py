"""Atomic files, records with checksums, and locks of folders.

Content is written to a new file in the target's folder with an unpredictable name, opened exclusively, flushed to disk,
and put in place by one atomic rename. A killed process or a full disk leaves the earlier file unchanged. A symbolic
link in place of the target is replaced; the file it points to is not touched.

A record is tensors and JSON in one safetensors file. The JSON is in the file's header, with a SHA-256 over itself and
every tensor. Reading compares the checksum and runs no code: nothing is pickled. How much memory a text may cost is
decided before it is parsed. Tensors are torch's or NumPy's; who writes and reads arrays needs no torch.

A folder is locked by ``flock``, which the kernel releases when the process ends for any reason. The holder writes its
identity into the lock file, for the error message of others. (The ``filelock`` package that torch installs would empty
the file when a second process tries to lock it.)
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TextIO, overload

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from .._validation import FileError, fields, reading, short

if TYPE_CHECKING:
    from torch import Tensor

if sys.platform != "win32":
    import fcntl


_INCOMPLETE = re.compile(r"\.fvnce-[0-9a-f]{16}\.incomplete")
# O_BINARY exists on Windows only, O_NOFOLLOW everywhere else. O_EXCL alone already rejects a link at the path's end.
_EXCLUSIVE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
#: Errors of a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
#: Version of the format of all files of this package. Files of other versions are rejected.
FORMAT_VERSION = 2
_MARK = "fvnce"
#: Maximum number of bytes of JSON that are parsed.
MAX_TEXT = 64 * 2**20
#: Maximum nesting of lists and dictionaries, far more than any state has.
MAX_NESTING = 100


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb"] = "wb") -> AbstractContextManager[BinaryIO]: ...


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["w"]) -> AbstractContextManager[TextIO]: ...


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> Iterator[Any]:
    """Open a temporary file that replaces ``path`` when the block ends, and is removed if the block fails.

    Args:
        path: the file; its folder must exist. A symbolic link is replaced, not followed.
        mode: ``"wb"`` for bytes, or ``"w"`` for text in UTF-8 without conversion of line ends.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(f"{folder}/scores.csv", "w") as file:
    ...         _ = file.write("row,score\\n")
    ...     Path(folder, "scores.csv").read_text(), len(os.listdir(folder))
    ('row,score\\n', 1)
    """
    target = Path(path)
    if target.is_dir() and not target.is_symlink():
        raise IsADirectoryError(f"{target} must be a file, found a folder; name a file in it")
    hidden = target.with_name(f".fvnce-{secrets.token_hex(8)}.incomplete")
    try:
        handle = os.open(hidden, _EXCLUSIVE, 0o666)  # minus the umask, as for any new file
    except OSError as error:
        raise _about(target, error) from None
    try:
        text = {} if mode == "wb" else {"encoding": "utf-8", "newline": ""}
        with open(handle, mode, **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text in UTF-8 atomically; see :func:`atomic_write`."""
    with atomic_write(path, "w") as file:
        file.write(text)


def sweep(folder: Path) -> None:
    """Remove temporary files that killed processes left behind."""
    for entry in os.scandir(folder):
        if _INCOMPLETE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            Path(entry).unlink(missing_ok=True)


def _about(place: Path, error: OSError) -> OSError:
    """Return the error with the caller's path instead of the temporary file's."""
    named = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
    return OSError(error.errno, error.strerror, str(place)) if named else error


def _flush_folder(folder: Path) -> None:
    # Windows cannot open folders, so nothing can be flushed there.
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def encode(content: object) -> str:
    """Encode content as JSON, in ASCII and without blanks; keys keep their order.

    >>> encode({"b": 1, "a": (0.5, None)})
    '{"b":1,"a":[0.5,null]}'
    """
    if _is_too_deep(content):
        raise ValueError(f"content must not be nested deeper than {MAX_NESTING} levels to be written, found more")
    text = json.dumps(content, separators=(",", ":"))  # ASCII, as file names may not be valid UTF-8
    if len(text) > MAX_TEXT:
        raise ValueError(f"content must take at most {MAX_TEXT:,} bytes of JSON to be read again, found {len(text):,}")
    return text


def decode(text: str | bytes, what: object) -> Any:
    """Decode JSON.

    Args:
        text: the JSON text.
        what: name of the text in errors.

    Raises:
        FileError: if it is longer than ``MAX_TEXT``, nested too deeply, or not JSON.

    >>> decode("[" * 200 + "]" * 200, "analysis.json")
    Traceback (most recent call last):
    fvnce.io.FileError: analysis.json must not be nested deeper than 100 levels, found more; fvnce did not write it
    """
    if len(text) > MAX_TEXT:
        raise FileError(f"{what} must hold at most {MAX_TEXT:,} bytes of JSON, found {len(text):,}")
    try:
        content = json.loads(text)
        too_deep = _is_too_deep(content)
    except RecursionError:
        too_deep = True
    except ValueError as error:  # includes UnicodeDecodeError and numbers with too many digits
        raise FileError(f"{what} is damaged: it is not JSON ({error})") from None
    if too_deep:
        raise FileError(
            f"{what} must not be nested deeper than {MAX_NESTING} levels, found more; fvnce did not write it"
        )
    return content


def _is_too_deep(content: object) -> bool:
    """Return whether content is nested deeper than ``MAX_NESTING``, so that recursion could exhaust the stack."""
    level = [content]
    for _ in range(MAX_NESTING + 1):
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


def write_record(
    path: Path, kind: str, content: Mapping[str, Any], tensors: Mapping[str, Tensor | NDArray[Any]]
) -> None:
    """Write a record, in place of one of that name.

    Args:
        path: the file.
        kind: what it is; :func:`read_record` checks it.
        content: what JSON can hold.
        tensors: tensors or arrays by name.
    """
    text = encode({"kind": kind, "version": FORMAT_VERSION, "content": content})
    data = _serialized(tensors, {_MARK: text, "sha256": checksum(text, tensors)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(data)


@overload
def read_record(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]: ...


@overload
def read_record(path: Path, kind: str, *, arrays: Literal[True]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]: ...


def read_record(path: Path, kind: str, *, arrays: bool = False) -> tuple[dict[str, Any], Any]:
    """Return (content, tensors) of a record, after its checksum has been compared.

    Args:
        path: the file.
        kind: what it must be.
        arrays: return NumPy arrays instead, without importing torch.

    Raises:
        FileError: if the file is damaged, or of another kind or version.
    """
    header, stored_kind, content = _header(path, kind)
    tensors: Mapping[str, Any]
    try:
        if arrays:
            with reading(path):  # of a type that NumPy does not have
                tensors = safetensors.numpy.load_file(path)
        else:
            from safetensors.torch import load_file

            tensors = load_file(path)
    except SafetensorError as error:
        raise FileError(f"{path} is damaged: {error}") from None
    if header.get("sha256") != checksum(header[_MARK], tensors):
        raise FileError(f"{path} is damaged: its content does not match its SHA-256")
    if stored_kind != kind:
        raise FileError(f"{path} is a {stored_kind[:100]} of fvnce, not a {kind}")
    return content, dict(tensors)


def kind_of(path: Path) -> str:
    """Return the kind of a record from its header."""
    return _header(path, "file")[1]


def checksum_of(path: Path) -> str:
    """Return the SHA-256 stated in a record's header, which :func:`read_record` verifies."""
    return str(_header(path, "file")[0].get("sha256"))


def _header(path: Path, kind: str) -> tuple[dict[str, str], str, dict[str, Any]]:
    """Return the header of a record, and the kind and content in it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a {kind} of fvnce, found no such file")
    try:
        with safe_open(path, framework="np") as file:
            header: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise FileError(f"{path} is damaged or not a {kind} of fvnce: {error}") from None
    if _MARK not in header:
        raise FileError(f"{path} is not a {kind} of fvnce: its header does not say so")
    document = decode(header[_MARK], f"the header of {path}")
    version = document.get("version") if isinstance(document, dict) else None
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise FileError(
            f"{path} must have version {FORMAT_VERSION} of the format, found {short(version)}; write the file again "
            "with this version of fvnce"
        )
    stored_kind, _, content = fields(document, f"the header of {path}", "kind", "version", "content")
    if not isinstance(stored_kind, str) or not isinstance(content, dict):
        raise FileError(f"{path} is damaged: its header cannot be read")
    return header, stored_kind, content


def checksum(text: str, tensors: Mapping[str, Tensor | NDArray[Any]]) -> str:
    """Return the SHA-256 of a text in UTF-8, and of tensors or arrays with their names."""
    digest = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name}:torch.{_dtype(value)}:{tuple(value.shape)};".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def _serialized(tensors: Mapping[str, Any], header: dict[str, str]) -> bytes:
    # Contiguous copies, each with storage of its own, as safetensors wants them.
    if all(isinstance(value, np.ndarray) for value in tensors.values()):
        return safetensors.numpy.save({name: np.array(value, order="C") for name, value in tensors.items()}, header)
    import torch
    from safetensors.torch import save

    plain = {
        name: torch.empty_like(value, device="cpu", memory_format=torch.contiguous_format).copy_(value)
        for name, value in tensors.items()
    }
    return save(plain, header)


def _dtype(value: Tensor | NDArray[Any]) -> str:
    return str(value.dtype).removeprefix("torch.")


def _bytes(value: Tensor | NDArray[Any]) -> bytes:
    """Return the numbers of a tensor or an array in their order."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    import torch

    # A copy, since a tensor of one number may count as contiguous with a stride of zero.
    plain = torch.empty_like(value, device="cpu", memory_format=torch.contiguous_format).copy_(value.detach())
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


class FolderInUse(RuntimeError):
    """Raised if another process, or another thread of this one, is writing into the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place) / ".lock", Path(place)):
    ...     with locked(Path(place) / ".lock", Path(place)):
    ...         pass
    Traceback (most recent call last):
        ...
    fvnce.io.files.FolderInUse: ... is being written by ...
    """


@contextmanager
def locked(path: Path, folder: Path) -> Iterator[None]:
    """Hold a lock on ``folder`` in the block.

    Args:
        path: the lock file, which is removed at the end.
        folder: the folder, for errors.

    Raises:
        FolderInUse: if another process or thread holds the lock; the message names it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with locked(Path(place) / ".lock", Path(place)):
    ...         (Path(place) / ".lock").exists()
    ...     (Path(place) / ".lock").exists()
    True
    False
    """
    handle = _take(path, folder)
    try:
        yield
    finally:
        if handle is not None:
            path.unlink(missing_ok=True)
            os.close(handle)


def _take(path: Path, folder: Path) -> int | None:
    if sys.platform == "win32":
        return None  # the system has no locks that are released when a process ends
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        except OSError as error:
            raise _about(folder, error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise FolderInUse(
                    f"{folder} is being written by {holder}: wait for it to end, stop it, or choose another folder"
                ) from None
            if error.errno in _NO_LOCKS:
                warnings.warn(
                    f"{folder} is on a file system without locks; make sure that nobody else writes to it", stacklevel=4
                )
                return None
            raise
        # The previous holder may have removed the file after it was opened here: then the lock is void.
        if _same_file(handle, path):
            break
        os.close(handle)
    os.truncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return handle


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
