"""Files that are written whole or not at all, and never through a symbolic link.

The content goes to a new file beside the target, made exclusively under a random name, is flushed to the disk, and is
put in place by one atomic rename. A killed process or a full disk leaves the earlier file as it was; a link in the
target's place is replaced, and what it points to stays untouched; nobody can foretell the temporary name.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, overload

_INCOMPLETE = re.compile(r"\.fvnce-[0-9a-f]{16}\.incomplete")
# O_BINARY exists on Windows alone, O_NOFOLLOW everywhere else. O_EXCL by itself refuses a link that ends the path.
_EXCLUSIVE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb"] = "wb") -> AbstractContextManager[BinaryIO]: ...


@overload
def atomic_write(path: str | os.PathLike[str], mode: Literal["w"]) -> AbstractContextManager[TextIO]: ...


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> Iterator[Any]:
    """A file to write to, which takes the place of ``path`` when the block ends, and vanishes if the block fails.

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
    handle = os.open(hidden, _EXCLUSIVE, 0o666)  # less the umask, as for any new file
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
    """Remove what killed processes left half written; nothing but a file named as one of ours is touched."""
    for entry in os.scandir(folder):
        if _INCOMPLETE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            Path(entry).unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    # Windows cannot open folders; there the rename is all one can do.
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
