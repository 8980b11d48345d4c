"""Readers of arrays in parts of bounded size: npy and npz files, and folders of PNG images.

Parts are read with ordinary reads, as the pages of a memory map would count as memory of the process.
"""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .._validation import FileError
from .errors import DAMAGED, closed_on_error, explained, listed, read_exactly, within_budget
from .frame import PART_ROWS, Part

NPY_MAGIC = b"\x93NUMPY"
#: Size of a part of an array in bytes.
PART_BYTES = 4 * 2**20
#: Preferred names of the array of rows in an npz file.
ROW_ARRAYS = ("X", "x", "data", "x_train", "train", "images", "arr_0")
#: Maximum size of an npy header in bytes, as in NumPy.
HEADER_LIMIT = 10_000
_PNG = b"\x89PNG\r\n\x1a\n"
#: Samples per pixel for each color type of PNG; a palette has red, green, blue and opacity.
_SAMPLES = {0: 1, 2: 3, 3: 4, 4: 2, 6: 4}
#: Exceptions of Pillow for a damaged image.
_DAMAGED_IMAGE = (*DAMAGED, SyntaxError, ValueError, TypeError, LookupError, OverflowError, AttributeError, Warning)


def channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether an image has its channels last: one, three or four, unless the first dimension is such a number.

    >>> channels_last((28, 28, 3)), channels_last((3, 28, 28)), channels_last((28, 28))
    (True, False, False)
    """
    return len(shape) == 3 and shape[2] in (1, 3, 4) and shape[0] > 4


class ArraySource(ABC):
    """Base class of readers of an array in a file, whose first axis is rows; it can be read once.

    Attributes:
        kind: "npy", "npz" or "images".
        name: name of the file.
        dtype: type of the values.
        shape: shape of the whole array, with the channels of images first.
        names: names of the rows, or None.

    >>> import tempfile
    >>> from fvnce.tables import open_source
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/images.npz", X=np.zeros((5, 8, 8, 3)))
    ...     source = open_source(f"{folder}/images.npz")
    ...     source.shape, sum(len(part.rows) for part in source.parts())
    ((5, 3, 8, 8), 5)
    """

    def __init__(self, kind: str, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.kind, self.name, self.dtype = kind, name, dtype
        self.names: list[str] | None = None
        self._turned = channels_last(shape[1:])
        self.shape = (shape[0], shape[-1], *shape[1:-1]) if self._turned else shape

    @abstractmethod
    def stored(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the array as stored, in parts of at most ``rows`` rows."""

    def close(self) -> None:  # noqa: B027 - most have no file open
        """Close the file that is being read."""

    def parts(self) -> Iterator[Part]:
        """Yield all rows in parts that fit in memory."""
        rows = max(1, min(PART_ROWS, PART_BYTES // (8 * math.prod(self.shape[1:]))))
        start, names = 0, self.names
        for values in map(self._in_front, self.stored(rows)):
            stop = start + len(values)
            yield Part(values, start, None if names is None else names[start:stop], stop / self.shape[0])
            start = stop

    def read(self) -> NDArray[Any]:
        """Return the whole array; an npy file as a memory map, which does not need to fit in memory."""
        if self.kind == "npy" and os.path.isfile(self.name):
            self.close()
            return self._in_front(_map_npy(Path(self.name)))
        dtype = self.dtype.newbyteorder("=")
        with closed_on_error(self):
            within_budget(self.name, f"{self.shape[0]:,} rows", dtype.itemsize * math.prod(self.shape))
        whole = np.empty(self.shape, dtype)
        for part in self.parts():
            whole[part.start : part.start + len(part.rows)] = part.rows
        return whole

    def _in_front(self, images: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(images, -1, 1) if self._turned else images


class StreamedArray(ArraySource):
    """Reader of an array from a sequential stream."""

    def __init__(self, kind: str, name: str, file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        super().__init__(kind, name, dtype, shape)
        self._file, self._stored_shape = file, shape
        self._row_bytes = dtype.itemsize * math.prod(shape[1:])
        with closed_on_error(file):
            # The length of an ordinary file can be checked now; a compressed file or a pipe must be read.
            if isinstance(file, io.BufferedReader) and file.seekable():
                here = file.tell()
                left = file.seek(0, os.SEEK_END) - here
                file.seek(here)
                if left < shape[0] * self._row_bytes:
                    raise self._cut_short(left // self._row_bytes)
            within_budget(name, "one row", 8 * math.prod(shape[1:]))  # as float64

    def stored(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the array in parts of at most ``rows`` rows."""
        size, (length, *row) = self._row_bytes, self._stored_shape
        try:
            for start in range(0, length, rows):
                count = min(rows, length - start)
                content = read_exactly(self._file, count * size, self.name)
                if len(content) < count * size:
                    raise self._cut_short(start + len(content) // size)
                values = np.frombuffer(content, self.dtype).reshape(count, *row)
                yield values if self.dtype.isnative else values.astype(self.dtype.newbyteorder("="))
            if read_exactly(self._file, 1, self.name):
                raise FileError(f"{self.name} is damaged: it has more bytes than its header states; write it again")
        finally:
            self.close()

    def close(self) -> None:
        """Close the file that is being read."""
        self._file.close()

    def _cut_short(self, rows: int) -> FileError:
        return FileError(
            f"{self.name} is damaged: its header states {self.shape[0]} rows, but it ends in row {rows + 1}; "
            "fetch or write it again"
        )


class WholeArray(ArraySource):
    """Reader of an array in memory or in a memory map."""

    def __init__(self, kind: str, name: str, values: NDArray[Any]) -> None:
        super().__init__(kind, name, values.dtype, values.shape)
        self._values = values

    def stored(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the array in parts of at most ``rows`` rows."""
        for start in range(0, len(self._values), rows):
            yield np.ascontiguousarray(self._values[start : start + rows])


def open_npy(path: Path) -> ArraySource:
    """Open an npy file as an array source."""
    file = path.open("rb")
    with closed_on_error(file):
        return npy_from("npy", str(path), file, path)


def npy_from(kind: str, name: str, file: IO[bytes], path: Path | None = None) -> ArraySource:
    """Open an npy array in a file or a pipe; Fortran order is memory-mapped if there is a path, else read whole."""
    shape, by_column, dtype = _read_header(file, name)
    _check_layout(name, dtype, shape)
    if not by_column:
        return StreamedArray(kind, name, file, dtype, shape)
    if path is None:
        within_budget(name, f"{shape[0]:,} rows stored by columns", dtype.itemsize * math.prod(shape))
        # An array in Fortran order is the transpose of one in C order.
        [turned] = StreamedArray(kind, name, file, dtype, shape[::-1]).stored(shape[-1])
        return WholeArray(kind, name, turned.T)
    file.close()
    return WholeArray(kind, name, _map_npy(path))


def _map_npy(path: Path) -> NDArray[Any]:
    """Return a memory map of an npy file."""
    with explained(f"{path} is damaged", "write it again", (ValueError, OSError, TypeError, OverflowError)):
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _read_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an npy array: shape, whether it is in Fortran order, dtype."""
    magic = read_exactly(file, len(NPY_MAGIC) + 2, name)
    version = tuple(magic[len(NPY_MAGIC) :])
    if not magic.startswith(NPY_MAGIC) or len(version) < 2:
        raise FileError(
            f"{name} is not an npy file, or damaged: it starts with {magic.hex(' ') or 'nothing'}; save it again"
        )
    if version not in ((1, 0), (2, 0)):
        raise FileError(f"{name} must have a known version of the npy format, found {version}; save it with numpy")
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    length = read_exactly(file, 2 * version[0], name)
    # NumPy would read the stated number of bytes before checking that number.
    size = int.from_bytes(length, "little")
    if size > HEADER_LIMIT:
        raise FileError(f"{name} is damaged: its header states {size:,} bytes; save it again with numpy")
    kinds = (ValueError, tokenize.TokenError, SyntaxError, TypeError, EOFError, RecursionError, MemoryError)
    with explained(f"{name} is not an npy file, or damaged", "save it again", kinds):
        return read(io.BytesIO(length + read_exactly(file, size, name)))


def open_npz(path: Path, array: str | None) -> ArraySource:
    """Open one array of an npz file: the one named, or the only one that can hold rows."""
    with _arrays_of(path) as (archive, entries):
        chosen = choose_array(str(path), list(entries), array)
        # The array keeps the file open as long as needed.
        return npy_from("npz", f"{path} ({chosen})", archive.open(entries[chosen]))


def read_npz_labels(path: Path, name: str, count: int) -> NDArray[Any] | None:
    """Read an array of labels, one for each row, from an npz file; None if it has no array of that name."""
    with _arrays_of(path) as (archive, entries):
        if name not in entries:
            return None
        where = f"{path} ({name})"
        with archive.open(entries[name]) as file:
            shape, _, dtype = _read_header(file, where)
            if shape != (count,) or dtype.hasobject:
                content = "Python objects, which are never unpickled" if dtype.hasobject else str(shape)
                raise FileError(f"array {name!r} must hold one label for each of {count} rows, found {content}")
            within_budget(where, "its labels", count * dtype.itemsize)
            [labels] = StreamedArray("npz", where, file, dtype, shape).stored(count)
            return labels


@contextmanager
def _arrays_of(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open an npz file and yield the zip file and its entries by array name."""
    # zipfile raises RuntimeError if a password is needed, NotImplementedError for an unknown compression.
    kinds = (*DAMAGED, RuntimeError, NotImplementedError, ValueError)
    wrong = explained(f"{path} is not an npz file, or damaged", "save it again with numpy", kinds)
    with wrong, zipfile.ZipFile(path) as archive:
        yield archive, {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}


def choose_array(name: str, arrays: list[str], asked: str | None) -> str:
    """Choose the array of an npz file that holds the rows.

    >>> choose_array("a.npz", ["y", "X"], None), choose_array("a.npz", ["rows"], None)
    ('X', 'rows')
    """
    if not arrays:
        raise FileError(f"{name} must hold an array, found none; save one with numpy.savez")
    if asked is not None and asked not in arrays:
        raise FileError(f"{name} has no array {asked!r}; its arrays are {listed(arrays)}")
    usual = next((usual for usual in ROW_ARRAYS if usual in arrays), None)
    chosen = asked if asked is not None else arrays[0] if len(arrays) == 1 else usual
    if chosen is None:
        raise FileError(f"{name} holds several arrays ({listed(arrays)}); choose one with --array")
    return chosen


def _check_layout(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise FileError unless an array has numbers and at least one row."""
    if dtype.kind not in "biuf":
        what = "Python objects, which are never unpickled" if dtype.hasobject else f"values of type {dtype}"
        raise FileError(f"{name} must hold numbers, found {what}; save a numeric array")
    if len(shape) not in (2, 3, 4) or any(side < 1 or side > 2**62 for side in shape):
        raise FileError(
            f"{name} must hold rows of shape (n, D) or images of shape (n, H, W) or (n, C, H, W), none of them 0, "
            f"found shape {shape}; save an array of such a shape"
        )


class ImageFolder(ArraySource):
    """Reader of a folder of images of one size: shape (n, H, W), in color (n, C, H, W), with values in [0, 1]."""

    def __init__(self, folder: Path) -> None:
        self.files = images_below(folder)
        if not self.files:
            raise FileError(f"{folder} must hold PNG images, found none in it or below it")
        self._image_shape = read_png(self.files[0]).shape
        super().__init__("images", str(folder), np.dtype(np.float32), (len(self.files), *self._image_shape))
        # Escape names that are not valid UTF-8, so that they can be written.
        self.names = [os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace") for path in self.files]

    def stored(self, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the images in parts of at most ``rows`` images."""
        for start in range(0, len(self.files), rows):
            yield np.stack([self._image(path) for path in self.files[start : start + rows]])

    def _image(self, path: Path) -> NDArray[np.float32]:
        image = read_png(path)
        if image.shape != self._image_shape:
            raise FileError(
                f"{path} has shape {image.shape} where {self.files[0].name} has {self._image_shape}; all images must "
                "be of one size and color, so leave it out or scale it"
            )
        return image


def images_below(folder: Path) -> list[Path]:
    """Return the PNG files of a folder and its subfolders, sorted by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".png" and path.is_file())


def read_png(path: Path) -> NDArray[np.float32]:
    """Read one image: shape (H, W) if gray, (C, H, W) in color; transparency is dropped."""
    from matplotlib.image import imread

    _check_size(path)
    with explained(f"{path} is not a PNG image, or damaged", "leave it out or save it again", _DAMAGED_IMAGE):
        image = np.asarray(imread(path, format="png"), dtype=np.float32)
    if image.ndim == 2:
        return image
    colors = image[..., :1] if image.shape[-1] == 2 else image[..., :3]
    # A color image with equal channels is gray.
    if colors.shape[-1] == 1 or (colors == colors[..., :1]).all():
        return np.ascontiguousarray(colors[..., 0])
    return np.ascontiguousarray(np.moveaxis(colors, -1, 0))


def _check_size(path: Path) -> None:
    """Compare the size in the header of an image with the budget, as a megabyte can decompress to gigabytes."""
    with path.open("rb") as file:
        head = file.read(26)
    if len(head) < 26 or not head.startswith(_PNG) or head[12:16] != b"IHDR" or head[25] not in _SAMPLES:
        raise FileError(f"{path} is not a PNG image, or damaged: it has no header; leave it out or save it again")
    width, height = struct.unpack(">II", head[16:24])
    # Bytes of a sample: decoded, as float32, and a copy with the channels first.
    within_budget(str(path), f"an image of {width}×{height}", width * height * _SAMPLES[head[25]] * (2 + 4 + 4))
