"""Rows that networks see a fixed number at a time, so that a row's score does not depend on the rows beside it.

A matrix product of a few rows is not summed in the order of one of many: libraries choose by the shape, and the last
bits differ. In blocks of one shape every row is summed alike, wherever it stands; the last block is filled up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Few enough that one row alone costs little, and many enough that the calls do not.
ROWS = 256


def in_blocks(function: Callable[[Array], Array], X: Array) -> Array:
    """``function(X)``, row by row of shape (n, …), from calls on exactly ``ROWS`` rows of X.

    >>> in_blocks(lambda rows: rows.sum(1) + len(rows), np.ones((300, 2)))[[0, 299]]
    array([258., 258.])
    """
    parts = []
    for start in range(0, len(X), ROWS):
        part = X[start : start + ROWS]
        there = len(part)
        if there < ROWS:
            part = np.concatenate([part, np.repeat(part[-1:], ROWS - there, axis=0)])
        parts.append(function(part)[:there])
    return np.concatenate(parts) if parts else function(X)
