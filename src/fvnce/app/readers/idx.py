"""The idx format of MNIST: two zero bytes, a type, a rank, the sizes as big-endian 32-bit integers, the values.

Read as a whole, or in parts as any other array.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .arrays import ArrayReader, check_layout, closed_on_error, read_exactly
from .errors import DataError, budget, over_budget

#: Types by their code.
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


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
    if len(head) < 4 or head[:2] != b"\x00\x00" or head[2] not in TYPES or head[3] == 0:
        raise DataError(f"{name} is not an idx file: it starts with {head.hex(' ') or 'nothing'}; fetch it again")
    return np.dtype(TYPES[head[2]]), head[3]
