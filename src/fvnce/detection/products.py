"""Products of matrices whose last bit does not depend on the other rows: in blocks of one size, of even sizes.

Kernels process several rows and columns at a time, and what remains at the end by other code, which may add in another
order. So the last bit of a row's product may depend on its place among the others and on their number. Blocks of a
fixed number of rows, with all sizes multiples of 16, leave no remainder. ``blocks`` does the same for torch's modules.
"""

from __future__ import annotations

import numpy as np

from .rows import Array

#: Rows of a product, few, since a single row costs as much; all sizes of its factors are multiples of this.
BLOCK = 16


def even(values: Array, dims: int) -> Array:
    """Pad the last dimensions with zeros at their ends.

    >>> even(np.ones((3, 20)), 1).shape
    (3, 32)
    """
    padding = [(0, 0)] * (values.ndim - dims) + [(0, -size % BLOCK) for size in values.shape[values.ndim - dims :]]
    return np.ascontiguousarray(np.pad(values, padding))


def in_blocks(X: Array) -> Array:
    """Return rows in blocks, padded with zeros, shape (blocks, 16, even width).

    >>> in_blocks(np.ones((20, 3))).shape
    (2, 16, 16)
    """
    rows = even(X, 2)
    return rows.reshape(-1, BLOCK, rows.shape[1])


def project(X: Array, directions: Array) -> Array:
    """Return X @ directions.T, each row with the same bits whatever the other rows.

    >>> project(np.array([[1.0, 2.0]]), np.array([[1.0, 1.0]]))
    array([[3.]])
    """
    product = in_blocks(X) @ even(directions.T, 2)
    return np.ascontiguousarray(product.reshape(-1, product.shape[-1])[: len(X), : len(directions)])
