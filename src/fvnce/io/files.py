"""Files that are written whole or not at all, never through a symbolic link, and by one writer at a time.

The content goes to a new file in the target's folder, made exclusively under a random name, is flushed to the disk, and
is put in place by one atomic rename. A killed process or a full disk leaves the earlier file as it was; a link in the
target's place is replaced, and its own target stays untouched; nobody can predict the temporary name.

A folder is locked by ``flock``, which the kernel releases when its process ends, however it ends. (The ``filelock``
package that torch brings empties the file when a second process asks, and with it who holds it.) The holder writes into
the file who it is, for the others' error message.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, overload

if sys.platform != "win32":
    import fcntl


_INCOMPLETE = re.compile(r"\.fvnce-[0-9a-f]{16}\.incomplete")
# O_BINARY exists on Windows alone, O_NOFOLLOW everywhere else. O_EXCL by itself refuses a link that ends the path.
_EXCLUSIVE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb"] = "wb") -> AbstractContextManager[BinaryIO]: ...


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["w"]) -> AbstractContextManager[TextIO]: ...


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> Iterator[Any]:
    """Open a file that takes the place of ``path`` when the block ends, and vanishes if the block fails.

    Args:
        path: the file; its folder must exist. A symbolic link in its place is replaced, not followed.
        mode: ``"wb"`` for bytes, or ``"w"`` for text in UTF-8, whose line ends are written as they are given.

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
        handle = os.open(hidden, _EXCLUSIVE, 0o666)  # less the umask, as for any new file
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
    """Write a text in UTF-8, whole or not at all; see :func:`atomic_write`."""
    with atomic_write(path, "w") as file:
        file.write(text)


def sweep(folder: Path) -> None:
    """Remove files that killed processes left half written, by the pattern of their names."""
    for entry in os.scandir(folder):
        if _INCOMPLETE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            Path(entry).unlink(missing_ok=True)


def _about(place: Path, error: OSError) -> OSError:
    """Return an error with the caller's path instead of the temporary file's; of a link in the way, as it is."""
    named = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
    return OSError(error.errno, error.strerror, str(place)) if named else error


def _flush_folder(folder: Path) -> None:
    # Windows cannot open folders; there the rename is all one can do.
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


#: Errors of a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FolderInUse(RuntimeError):
    """The error that another process, or another thread of this one, writes into the folder.

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
    """Hold the lock ``path`` of ``folder``, and remove it at the end.

    Raises:
        FolderInUse: if another process or thread holds it; the message says which.

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
        return None  # there is no lock that the system releases
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
        # The previous holder may have removed the file between its opening and its locking: then it locks nothing.
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
