r"""Noise that keeps to the values a column has: integers stay integers, flags stay flags, zeros stay zeros.

A Gaussian around an integer is told from integers by its fraction alone, and a ratio learns nothing else. In a column
with few values, measured by how many rows share them, every draw x′ is moved to the nearest value v that occurs,

    P(v | x) = ∫ over the cell of v of N(x′; x, h²) dx′,       the cell of v = all that is nearer to v than to others,

which is a step along the grid for integers and a flip for flags; where most values are zero, half of the steps from
there go outside of the values and come back to zero. Other columns are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from ..noise import draw
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


class OnSupport(Distribution):
    """Draws of a distribution, each moved to the values that columns have; it is drawn from and never evaluated."""

    has_rsample = False
    arg_constraints = {}  # noqa: RUF012

    def __init__(self, noise: Distribution, values: Support) -> None:
        self.noise, self.values = noise, values
        super().__init__(noise.batch_shape, noise.event_shape, validate_args=False)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws, each column at one of its values."""
        return self.values.nearest(draw(self.noise, n, generator))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """The same from the global generator."""
        found = self.noise.sample(torch.Size(sample_shape))
        return self.values.nearest(found.reshape(-1, found.shape[-1])).reshape(found.shape)


def _grid(column: Array) -> Tensor | None:
    values = np.unique(column.astype(np.float32))
    return torch.from_numpy(values) if len(values) <= SHARE * len(column) else None
