r"""Noise that keeps to the values a column has: integers stay integers, flags stay flags, zeros stay zeros.

A Gaussian around an integer is told from integers by its fraction alone, and a ratio learns nothing else. In a column
with few values, measured by how many rows share them, every draw x′ is moved to the nearest value v that occurs,

    P(v | x) = ∫ over the cell of v of N(x′; x, h²) dx′,       the cell of v = all that is nearer to v than to others,

which is a step along the grid for integers and a flip for flags; where most values are zero, half of the steps from
there go outside of the values and come back to zero. Other columns are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from .plan import Array, TrainingRows

#: A column has a grid if its values are at most this share of its rows.
SHARE = 0.5


@dataclass(frozen=True)
class Support:
    """The values of columns.

    Attributes:
        grids: for each column its values in order, or None if any number will do.
    """

    grids: list[Tensor | None]

    @classmethod
    def learn(cls, rows: TrainingRows) -> Self:
        """From training rows and known outliers.

        >>> rows = np.array([[0.0, 0.1], [1.0, 0.2], [1.0, 0.3], [0.0, 0.5]])
        >>> Support.learn(TrainingRows(rows, np.ones(4), rows[:0], np.empty(0))).grids
        [tensor([0., 1.]), None]
        """
        return cls([_grid(column) for column in np.concatenate([rows.X, rows.outliers]).T])

    def nearest(self, x: Tensor) -> Tensor:
        """x with the nearest value of each column that has a grid, shape (n, D)."""
        found = x.clone()
        for place, grid in enumerate(self.grids):
            if grid is not None:
                borders = (grid[1:] + grid[:-1]) / 2
                found[:, place] = grid[torch.searchsorted(borders, x[:, place].contiguous())]
        return found


def _grid(column: Array) -> Tensor | None:
    values = np.unique(column.astype(np.float32))
    return torch.from_numpy(values) if len(values) <= SHARE * len(column) else None
