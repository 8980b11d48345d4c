"""Memory maps that are read without being held: what was looked at is let go again.

The pages of a mapped file that were read count as memory of the process until the system wants them back. Let go part
by part, a file of any size takes no more memory than a part of it.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Rows gathered before their pages are let go; the system reads some 64 kB around each.
ROWS = 1024


def release(X: Any) -> None:
    """Let go of the pages of a read-only memory map; the next look reads them again. Other arrays are left alone.

    Pages of a map that is written to are not touched: what was written to a private one is nowhere else.
    """
    if not isinstance(X, np.memmap) or X.mode != "r" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base: Any = X
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def take(X: Any, rows: slice | NDArray[np.int64]) -> Any:
    """``X[rows]``, in memory; of a memory map part by part.

    >>> take(np.array([[1.0], [2.0], [3.0]]), np.array([0, 2])).tolist()
    [[1.0], [3.0]]
    """
    if not isinstance(X, np.memmap) or isinstance(rows, slice):
        return X[rows]
    found = np.empty((len(rows), *X.shape[1:]), dtype=X.dtype)
    for start in range(0, len(rows), ROWS):
        found[start : start + ROWS] = X[rows[start : start + ROWS]]
        release(X)
    return found
