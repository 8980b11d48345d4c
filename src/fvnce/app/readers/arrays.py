"""Arrays in files, read in parts of bounded size: npy, npz and idx, compressed or not, and folders of PNG images.

Parts are read with ordinary reads: the pages of a memory map would count as memory of the process. The idx format of
MNIST is two zero bytes, a type, a rank, the sizes as big-endian 32-bit integers, and the values.
"""

from __future__ import annotations

import gzip
import io
import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, budget, explained, listed, over_budget, within_budget

NPY_MAGIC = b"\x93NUMPY"
#: Preferred names of the rows in an npz file.
USUAL = ("X", "x", "data", "x_train", "train", "images", "arr_0")
#: Bytes asked of a file at once: whoever asks for all that a header promises has allocated it.
CHUNK = 2**20
#: Bytes of an npy header; NumPy itself reads no longer one.
HEADER = 10_000
#: Types of the idx format by their code.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
#: What the readers of compressed files raise on a damaged one.
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, struct.error)
#: Of PNG images: the first bytes, samples of a pixel by the type of colour (a palette stands for red, green, blue and
#: opacity), and what Pillow raises on one that is not whole.
_PNG = b"\x89PNG\r\n\x1a\n"
_SAMPLES = {0: 1, 2: 3, 3: 4, 4: 2, 6: 4}
_NO_IMAGE = (*DAMAGED, SyntaxError, ValueError, TypeError, LookupError, OverflowError, AttributeError, Warning)


@contextmanager
def closed_on_error(file: Any) -> Iterator[None]:
    """Let go of a file if what is made of it fails; else whoever made it does."""
    try:
        yield
    except BaseException:
        file.close()
        raise


class ArrayReader:
    """An array whose first axis are rows, read once from front to back."""

    #: Rows of an array have no names, as those of a folder have.
    names: list[str] | None = None

    def __init__(self, name: str, file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.name, self._file = name, file
        self.dtype, self.shape = dtype, shape
        with closed_on_error(file):
            self._check_length()
            within_budget(name, "one row", 8 * math.prod(shape[1:]))  # as float64

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the file."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def _check_length(self) -> None:
        """What is left of an ordinary file, which tells its length, must be what the header promises."""
        if not isinstance(self._file, io.BufferedReader) or not self._file.seekable():
            return  # compressed, or a pipe
        here = self._file.tell()
        left = self._file.seek(0, os.SEEK_END) - here
        self._file.seek(here)
        if left < self.shape[0] * self.row_bytes:
            raise self._cut_short(left // self.row_bytes)

    def parts(self, rows: int) -> Iterator[NDArray[Any]]:
        """The array in parts of at most so many rows."""
        try:
            yield from self._parts(rows)
        finally:
            self.close()

    def _parts(self, rows: int) -> Iterator[NDArray[Any]]:
        size = self.row_bytes
        for start in range(0, self.shape[0], rows):
            count = min(rows, self.shape[0] - start)
            content = read_exactly(self._file, count * size, self.name)
            if len(content) < count * size:
                raise self._cut_short(start + len(content) // size)
            values = np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
            yield values if self.dtype.isnative else values.astype(self.dtype.newbyteorder("="))
        if read_exactly(self._file, 1, self.name):
            raise DataError(f"{self.name} is damaged: more bytes follow than its header promises; write it again")

    def _cut_short(self, rows: int) -> DataError:
        return DataError(
            f"{self.name} is damaged: its header promises {self.shape[0]} rows, and it ends in row {rows + 1}; "
            "fetch or write it again"
        )

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_npy(path: Path) -> ArrayReader:
    """An npy file."""
    file = path.open("rb")
    with closed_on_error(file):
        return npy_from(file, str(path), path)


def npy_from(file: IO[bytes], name: str, path: Path | None = None) -> ArrayReader:
    """An npy array in a file or a pipe; one stored by columns is mapped from its path, or else read whole."""
    shape, by_column, dtype = read_header(file, name)
    check_layout(name, dtype, shape)
    if not by_column:
        return ArrayReader(name, file, dtype, shape)
    if path is None:
        within_budget(name, f"{shape[0]:,} rows stored by columns", dtype.itemsize * math.prod(shape))
        # As many rows as there are columns, and the other way round: what is stored by columns is its transpose.
        [turned] = ArrayReader(name, file, dtype, shape[::-1]).parts(shape[-1])
        return _Whole(name, turned.T)
    file.close()
    return _Whole(name, map_npy(path))


def map_npy(path: Path) -> NDArray[Any]:
    """An npy file as a memory map, which takes no memory until it is read."""
    with explained(f"{path} is damaged", "write it again", (ValueError, OSError, TypeError, OverflowError)):
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))


def read_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """(shape, whether it is stored by columns, type) from the header of an npy array."""
    magic = read_exactly(file, len(NPY_MAGIC) + 2, name)
    version = tuple(magic[len(NPY_MAGIC) :])
    if not magic.startswith(NPY_MAGIC) or len(version) < 2:
        raise DataError(
            f"{name} is not an npy file, or damaged: it starts with {magic.hex(' ') or 'nothing'}; save it again"
        )
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{name} has version {version} of the npy format, which is not known; save it with numpy")
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    length = read_exactly(file, 2 * version[0], name)
    # NumPy would read as many bytes as the length says before it looks whether that is too many.
    wanted = int.from_bytes(length, "little")
    if wanted > HEADER:
        raise DataError(f"{name} is damaged: its header claims {wanted:,} bytes; save it again with numpy")
    kinds = (ValueError, tokenize.TokenError, SyntaxError, TypeError, EOFError, RecursionError, MemoryError)
    with explained(f"{name} is not an npy file, or damaged", "save it again", kinds):
        return read(io.BytesIO(length + read_exactly(file, wanted, name)))


def open_npz(path: Path, array: str | None) -> ArrayReader:
    """One array of an npz file: the one named, or the only one that can hold rows."""
    with _members(path) as (archive, members):
        chosen = choose_array(str(path), list(members), array)
        # The member keeps the file open for as long as it needs it.
        return npy_from(archive.open(members[chosen]), f"{path} ({chosen})")


def read_npz_labels(path: Path, name: str, count: int) -> NDArray[Any] | None:
    """The array of that name beside the rows of an npz file, one entry for each row; None if there is none."""
    with _members(path) as (archive, members):
        if name not in members:
            return None
        where = f"{path} ({name})"
        with archive.open(members[name]) as file:
            shape, _, dtype = read_header(file, where)
            if shape != (count,) or dtype.hasobject:
                found = "Python objects, which are never unpickled" if dtype.hasobject else str(shape)
                raise DataError(f"array {name!r} must hold one label for each of {count} rows, found {found}")
            within_budget(where, "its labels", count * dtype.itemsize)
            content = read_exactly(file, count * dtype.itemsize, where)
    if len(content) < count * dtype.itemsize:
        raise DataError(f"{where} is damaged: it ends before its last label; write it again")
    return np.frombuffer(content, dtype)


@contextmanager
def _members(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """A zip file and its members without their ending; whatever is wrong with it is one sentence."""
    # RuntimeError stands for a password that is asked for, NotImplementedError for an unknown compression.
    kinds = (*DAMAGED, RuntimeError, NotImplementedError, ValueError)
    wrong = explained(f"{path} is not an npz file, or damaged", "save it again with numpy", kinds)
    with wrong, zipfile.ZipFile(path) as archive:
        yield archive, {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}


def choose_array(name: str, members: list[str], wanted: str | None) -> str:
    """Which array of an npz file holds the rows.

    >>> choose_array("a.npz", ["y", "X"], None), choose_array("a.npz", ["rows"], None)
    ('X', 'rows')
    """
    if not members:
        raise DataError(f"{name} holds no array; save one with numpy.savez")
    if wanted is not None:
        if wanted not in members:
            raise DataError(f"{name} has no array {wanted!r}; its arrays are {listed(members)}")
        return wanted
    if len(members) == 1:
        return members[0]
    usual = next((usual for usual in USUAL if usual in members), None)
    if usual is not None:
        return usual
    raise DataError(f"{name} holds several arrays ({listed(members)}); choose one with --array")


def check_layout(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse what is not numbers in rows."""
    if dtype.kind not in "biuf":
        what = "Python objects, which are never unpickled" if dtype.hasobject else f"values of type {dtype}"
        raise DataError(f"{name} must hold numbers, found {what}; save a numeric array")
    if len(shape) not in (2, 3, 4) or any(side < 1 or side > 2**62 for side in shape):
        raise DataError(
            f"{name} must hold rows of shape (n, D) or images of shape (n, H, W) or (n, C, H, W), none of them 0, "
            f"found shape {shape}; save an array of such a shape"
        )


class _Whole(ArrayReader):
    """An array in memory or in a memory map."""

    def __init__(self, name: str, values: NDArray[Any]) -> None:
        super().__init__(name, io.BytesIO(), values.dtype, values.shape)
        self._values = values

    def _parts(self, rows: int) -> Iterator[NDArray[Any]]:
        for start in range(0, self.shape[0], rows):
            yield np.ascontiguousarray(self._values[start : start + rows])


def read_exactly(file: IO[bytes], count: int, name: str) -> bytes:
    """So many bytes, or fewer at the end: a pipe gives what it has."""
    parts: list[bytes] = []
    missing = count
    with explained(f"{name} is damaged", "fetch or write it again", DAMAGED):
        while missing and (part := file.read(min(missing, CHUNK))):
            parts.append(part)
            missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_idx(path: Path | str) -> NDArray[Any]:
    """The array in an idx file, compressed with gzip or not. A file that is not whole is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.idx"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]))
    ...     read_idx(path)
    array([5, 6, 7], dtype=uint8)
    """
    content = Path(path).read_bytes()
    if content.startswith(_GZIP):
        limit = budget()
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file ({error}); delete it and fetch it again") from None
        if len(content) > limit:
            raise over_budget(str(path), "what is compressed in it")
    return parse_idx(content, str(path))


def parse_idx(content: bytes, name: str) -> NDArray[Any]:
    """The array in the bytes of an idx file; ``name`` is for the error."""
    dtype, rank = _type_and_rank(content[:4], name)
    start = 4 + 4 * rank
    if len(content) < start:
        raise ValueError(
            f"{name} is a truncated idx file: its header promises {rank} dimensions and ends before them; "
            "fetch it again"
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", rank, offset=4))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise ValueError(
            f"{name} is a damaged idx file: {shape} values of {dtype.itemsize} bytes make {expected} bytes, "
            f"found {len(content)}; fetch it again"
        )
    try:
        values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    except ValueError as error:  # more dimensions than NumPy has, or none of one size and too many of another
        raise ValueError(f"{name} is a damaged idx file: {error}; fetch it again") from None
    return values.astype(dtype.newbyteorder("="))


def open_idx(path: Path) -> ArrayReader:
    """An idx file, compressed with gzip or not, to be read in parts."""
    with path.open("rb") as start:
        compressed = start.read(2) == _GZIP
    file: IO[bytes] = gzip.GzipFile(path) if compressed else path.open("rb")  # type: ignore[assignment]
    with closed_on_error(file):
        name = str(path)
        dtype, rank = _type_and_rank(read_exactly(file, 4, name), name)
        sizes = read_exactly(file, 4 * rank, name)
        if len(sizes) < 4 * rank:
            raise DataError(f"{name} is a truncated idx file: it ends within its header; fetch it again")
        shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
        check_layout(name, dtype, shape)
        return ArrayReader(name, file, dtype, shape)


def _type_and_rank(head: bytes, name: str) -> tuple[np.dtype[Any], int]:
    """What the first four bytes of an idx file say."""
    if len(head) < 4 or head[:2] != b"\x00\x00" or head[2] not in IDX_TYPES or head[3] == 0:
        raise DataError(f"{name} is not an idx file: it starts with {head.hex(' ') or 'nothing'}; fetch it again")
    return np.dtype(IDX_TYPES[head[2]]), head[3]


class ImageReader:
    """A folder of images of one size, as arrays of shape (n, H, W), in colour (n, C, H, W), with values in [0, 1]."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.files = images_below(folder)
        if not self.files:
            raise DataError(f"{folder} must hold PNG images, found none in it or below it")
        # A name that is no text in UTF-8 is kept as text that can be written.
        self.names: list[str] | None = [
            os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace") for path in self.files
        ]
        self.dtype = np.dtype(np.float32)
        self.shape = (len(self.files), *read_png(self.files[0]).shape)

    def parts(self, rows: int) -> Iterator[NDArray[Any]]:
        """The images in parts of at most so many."""
        for start in range(0, len(self.files), rows):
            images = []
            for path in self.files[start : start + rows]:
                image = read_png(path)
                if image.shape != self.shape[1:]:
                    raise DataError(
                        f"{path} has shape {image.shape} where {self.files[0].name} has {self.shape[1:]}; "
                        "all images must be of one size and colour, so leave it out or scale it"
                    )
                images.append(image)
            yield np.stack(images)


def images_below(folder: Path) -> list[Path]:
    """The PNG files of a folder and those below it, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".png" and path.is_file())


def read_png(path: Path) -> NDArray[np.float32]:
    """One image: (H, W) if grey, (C, H, W) in colour; transparency is left out."""
    from matplotlib.image import imread

    _check_size(path)
    with explained(f"{path} is not a PNG image, or damaged", "leave it out or save it again", _NO_IMAGE):
        image = np.asarray(imread(path, format="png"), dtype=np.float32)
    if image.ndim == 2:
        return image
    colours = image[..., :1] if image.shape[-1] == 2 else image[..., :3]
    # A grey picture stored in colour is a grey picture.
    if colours.shape[-1] == 1 or (colours == colours[..., :1]).all():
        return np.ascontiguousarray(colours[..., 0])
    return np.ascontiguousarray(np.moveaxis(colours, -1, 0))


def _check_size(path: Path) -> None:
    """Compare the size that the header of an image promises with the budget: a megabyte can unfold to gigabytes."""
    with path.open("rb") as file:
        head = file.read(26)
    if len(head) < 26 or not head.startswith(_PNG) or head[12:16] != b"IHDR" or head[25] not in _SAMPLES:
        raise DataError(f"{path} is not a PNG image, or damaged: it has no header; leave it out or save it again")
    width, height = struct.unpack(">II", head[16:24])
    # Decoded, as float32, and a copy of that with the channels in front.
    within_budget(str(path), f"an image of {width}×{height}", width * height * _SAMPLES[head[25]] * (2 + 4 + 4))
