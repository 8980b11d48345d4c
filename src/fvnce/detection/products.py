"""Matrix products whose last bit does not depend on the other rows.

Kernels process several rows and columns at a time, and handle the remainder by other code, which may add in another
order. So the last bit of the product of a row may depend on its position and on the number of rows. Blocks of a fixed
number of rows, with all sizes multiples of 16, leave no remainder. ``blocks`` does the same for torch modules.
:class:`SquaredDistances` bounds the rounding error instead, for results that are computed again without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rows import Array

#: Rows of a block, and divisor of all sizes; small, since a single row costs as much as a block.
BLOCK = 16


def even(values: Array, dims: int) -> Array:
    """Pad the last dimensions with zeros to multiples of 16.

    >>> even(np.ones((3, 20)), 1).shape
    (3, 32)
    """
    padding = [(0, 0)] * (values.ndim - dims) + [(0, -size % BLOCK) for size in values.shape[values.ndim - dims :]]
    return np.ascontiguousarray(np.pad(values, padding))


def in_blocks(X: Array) -> Array:
    """Split rows into blocks, padded with zeros, shape (blocks, 16, even width).

    >>> in_blocks(np.ones((20, 3))).shape
    (2, 16, 16)
    """
    rows = even(X, 2)
    return rows.reshape(-1, BLOCK, rows.shape[1])


def project(X: Array, directions: Array) -> Array:
    """Return X @ directions.T; the bits of a row do not depend on the other rows.

    >>> project(np.array([[1.0, 2.0]]), np.array([[1.0, 1.0]]))
    array([[3.]])
    """
    product = in_blocks(X) @ even(directions.T, 2)
    return np.ascontiguousarray(product.reshape(-1, product.shape[-1])[: len(X), : len(directions)])


class SquaredDistances:
    """Function from rows x to ½|x − y|² − ½|x|² for all points y, by one product, and the largest error in each row.

    Values and errors that overflow are infinite or NaN.

    >>> SquaredDistances(np.array([[0.0], [2.0]]))(np.array([[3.0]]))[0]
    array([[ 0., -4.]], dtype=float32)
    """

    def __init__(self, points: Array, dtype: Any = np.float32) -> None:
        with np.errstate(over="ignore"):
            factor = np.vstack([-points.T, (points**2).sum(1) / 2])
            self.factor = factor.astype(dtype)
            limits, norm = np.finfo(dtype), float(np.linalg.norm(factor, axis=0).max())
            self.norm = (len(factor) + 3) * float(limits.eps) * norm + float(limits.tiny)  # rounding, and underflow

    def __call__(self, X: Array) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return values, shape (n, points), and bounds of their errors, shape (n,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            x = np.concatenate([X, np.ones((len(X), 1))], 1).astype(self.factor.dtype)
            return x @ self.factor, self.norm * np.linalg.norm(x, axis=1)
