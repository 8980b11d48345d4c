"""Arrays in files, read in parts of bounded size: npy, npz and idx, compressed or not, and npy from a pipe.

Parts are read with ordinary reads: the pages of a memory map would count as memory of the process.
"""

from __future__ import annotations

import gzip
import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .frame import DataError
from .idx import TYPES

NPY_MAGIC = b"\x93NUMPY"
#: Preferred names of the rows in an npz file.
USUAL = ("X", "x", "data", "x_train", "train", "images", "arr_0")


class ArrayReader:
    """An array whose first axis are rows, read once from front to back."""

    def __init__(self, name: str, file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.name, self._file = name, file
        self.dtype, self.shape = dtype, shape

    def parts(self, rows: int) -> Iterator[NDArray[Any]]:
        """The array in parts of at most so many rows."""
        try:
            yield from self._parts(rows)
        finally:
            self.close()

    def _parts(self, rows: int) -> Iterator[NDArray[Any]]:
        size = self.dtype.itemsize * math.prod(self.shape[1:])
        for start in range(0, self.shape[0], rows):
            count = min(rows, self.shape[0] - start)
            content = _read_exactly(self._file, count * size, self.name)
            if len(content) < count * size:
                raise DataError(
                    f"{self.name} is damaged: its header promises {self.shape[0]} rows, and it ends in row "
                    f"{start + len(content) // size + 1}"
                )
            values = np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
            yield values if self.dtype.isnative else values.astype(self.dtype.newbyteorder("="))
        if self._file.read(1):
            raise DataError(f"{self.name} is damaged: more bytes follow than its header promises")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_npy(path: Path) -> ArrayReader:
    """An npy file; one stored by columns is read through a memory map."""
    file = path.open("rb")
    try:
        return npy_from(file, str(path))
    except _ByColumns:
        file.close()
        return _Mapped(str(path), np.load(path, mmap_mode="r", allow_pickle=False))
    except BaseException:
        file.close()
        raise


def npy_from(file: IO[bytes], name: str) -> ArrayReader:
    """An npy array in a file or a pipe."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise DataError(f"{name} has version {version} of the npy format, which is not known; save it with numpy")
        shape, by_column, dtype = read[version](file)
    except (ValueError, tokenize.TokenError, SyntaxError, TypeError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name} is not an npy file, or damaged: {error}") from None
    dtype = check_layout(name, dtype, shape)
    if by_column and len(shape) > 1:
        raise _ByColumns(f"{name} is stored by columns; save numpy.ascontiguousarray(array) instead")
    return ArrayReader(name, file, dtype, shape)


def open_npz(path: Path, array: str | None) -> ArrayReader:
    """One array of an npz file: the one named, or the only one that can hold rows."""
    try:
        archive = zipfile.ZipFile(path)
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    except (zipfile.BadZipFile, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise DataError(f"{path} is not an npz file, or damaged: {error}") from None
    try:
        chosen = choose_array(str(path), list(members), array)
        return npy_from(archive.open(members[chosen]), f"{path} ({chosen})")
    except zipfile.BadZipFile as error:
        raise DataError(f"{path} is damaged: {error}") from None
    finally:
        # The member keeps the file open for as long as it needs it.
        archive.close()


def choose_array(name: str, members: list[str], wanted: str | None) -> str:
    """Which array of an npz file holds the rows.

    >>> choose_array("a.npz", ["y", "X"], None), choose_array("a.npz", ["rows"], None)
    ('X', 'rows')
    """
    if not members:
        raise DataError(f"{name} holds no array")
    if wanted is not None:
        if wanted not in members:
            raise DataError(f"{name} has no array {wanted!r}; its arrays are {', '.join(members)}")
        return wanted
    if len(members) == 1:
        return members[0]
    for usual in USUAL:
        if usual in members:
            return usual
    raise DataError(f"{name} holds several arrays ({', '.join(members)}); choose one with --array")


def open_idx(path: Path) -> ArrayReader:
    """An idx file, compressed with gzip or not."""
    with path.open("rb") as start:
        compressed = start.read(2) == b"\x1f\x8b"
    file: IO[bytes] = gzip.GzipFile(path) if compressed else path.open("rb")  # type: ignore[assignment]
    try:
        return _idx_from(file, str(path))
    except BaseException:
        file.close()
        raise


def _idx_from(file: IO[bytes], name: str) -> ArrayReader:
    head = _read_exactly(file, 4, name)
    if len(head) < 4 or head[:2] != b"\x00\x00" or head[2] not in TYPES or head[3] == 0:
        raise DataError(f"{name} is not an idx file: it starts with {head.hex(' ') or 'nothing'}")
    sizes = _read_exactly(file, 4 * head[3], name)
    if len(sizes) < 4 * head[3]:
        raise DataError(f"{name} is a truncated idx file: it ends within its header")
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    return ArrayReader(name, file, check_layout(name, np.dtype(TYPES[head[2]]), shape), shape)


def check_layout(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.dtype[Any]:
    """Numbers in rows."""
    if dtype.kind not in "biuf":
        what = "Python objects, which are never unpickled" if dtype.hasobject else f"values of type {dtype}"
        raise DataError(f"{name} must hold numbers, found {what}; save a numeric array")
    if len(shape) not in (2, 3, 4) or 0 in shape:
        raise DataError(
            f"{name} must hold rows of shape (n, D) or images of shape (n, H, W) or (n, C, H, W), found shape {shape}"
        )
    return dtype


class _ByColumns(DataError):
    """Stored in Fortran's order."""


class _Mapped(ArrayReader):
    def __init__(self, name: str, values: NDArray[Any]) -> None:
        super().__init__(name, io.BytesIO(), values.dtype, values.shape)
        self._values = values

    def _parts(self, rows: int) -> Iterator[NDArray[Any]]:
        for start in range(0, self.shape[0], rows):
            yield np.ascontiguousarray(self._values[start : start + rows])


def _read_exactly(file: IO[bytes], count: int, name: str) -> bytes:
    """So many bytes, or fewer at the end: a pipe gives what it has."""
    parts: list[bytes] = []
    missing = count
    try:
        while missing and (part := file.read(missing)):
            parts.append(part)
            missing -= len(part)
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise DataError(f"{name} is damaged: {error}; fetch or write it again") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)
