"""One writer at a time: a lock on a folder, held by the kernel for as long as its process lives.

``flock`` is released when its process ends, however it ends, so a dead writer locks nobody out and no process number
has to be guessed from a file. (The ``filelock`` package that torch brings empties the file when a second process asks,
and with it who holds it.) The holder writes into the file who it is, for the others' error message.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

#: What a file system without locks answers.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FolderInUse(RuntimeError):
    """Another process, or another thread of this one, writes into the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place) / ".lock", Path(place)):
    ...     with locked(Path(place) / ".lock", Path(place)):
    ...         pass
    Traceback (most recent call last):
        ...
    fvnce.serialization.lock.FolderInUse: ... is being written by ...
    """


@contextmanager
def locked(path: Path, folder: Path) -> Iterator[None]:
    """Hold the lock ``path`` of ``folder``, and remove it at the end.

    Raises:
        FolderInUse: somebody else holds it; the message says who.

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
        return None  # two writers there are not told apart
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(handle)
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise FolderInUse(
                    f"{folder} is being written by {holder}: wait for it to end, stop it, or choose another folder"
                ) from None
            if error.errno in _NO_LOCKS:
                warnings.warn(
                    f"{folder} is on a file system without locks: see that nobody else writes to it", stacklevel=4
                )
                return None
            raise
        # The holder before may have removed the file between its opening and its locking: then it locks nothing.
        if _same_file(handle, path):
            break
        os.close(handle)
    os.truncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return handle


def _holder(handle: int) -> str:
    return os.pread(handle, 200, 0).decode(errors="replace") or "another process"


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
