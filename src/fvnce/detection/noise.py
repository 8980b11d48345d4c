r"""Noise of the detector: samples that rows are distinguished from.

    p_n = λ · mean_h KDE(known outliers, h) + (1 − λ) · mean_h KDE(training rows, h),

each over several bandwidths at once, because the best bandwidth depends on the table. Without known outliers half of
the draws are uniform over the bounding box of the data. Only draws are needed, not the density: members model p_θ/p_n.

Gaussian noise around integers is easily recognized by its fractional part, and a ratio would learn nothing else.
:class:`Support` therefore rounds draws to values that occur in a column, so that integers, flags and zeros are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from .members.base import MemberSettings
from .rows import Folds, TrainingRows

#: Bandwidths that are used together, as fractions of the outlier bandwidth and of the data bandwidth.
OUTLIER_SCALES = (0.2, 0.6, 1.0)
DATA_SCALES = (0.3, 1.0, 1.7)
#: Largest number of distinct values per row for which a column has a grid.
VALUES_PER_ROW = 0.5


def draw_mixture(
    rows: TrainingRows, settings: MemberSettings, n: int, seed: int, folds: Folds | None = None
) -> tuple[Tensor, Tensor]:
    """Draw samples from the mixture, in single precision.

    Returns:
        The n draws, and for each the fold of the row that it is centered at; −1 for draws from the box, and without
        folds.
    """
    generator = torch.Generator().manual_seed(seed)
    known = len(rows.outliers) > 0
    is_first = torch.rand(n, generator=generator, dtype=torch.float64) < (settings.outlier_share if known else 0.5)
    drawn, fold = torch.empty(n, rows.X.shape[1]), torch.full((n,), -1)
    parts = [(~is_first, rows.X, rows.weights, settings.data_bandwidth, DATA_SCALES, folds and folds.rows)]
    if known:
        outliers = (rows.outliers, rows.outlier_weights, settings.outlier_bandwidth, OUTLIER_SCALES)
        parts.append((is_first, *outliers, folds and folds.outliers))
    else:
        drawn[is_first] = draw_box(torch.from_numpy(rows.X).float(), int(is_first.sum()), generator)
    for here, centers, weights, bandwidth, scales, fold_of in parts:
        count = int(here.sum())
        probability = torch.from_numpy(weights)
        chosen = torch.multinomial(probability, max(count, 1), replacement=True, generator=generator)[:count]
        width = bandwidth * torch.tensor(scales)[torch.randint(len(scales), (count, 1), generator=generator)]
        around = torch.from_numpy(centers).float()[chosen]
        drawn[here] = torch.randn(around.shape, generator=generator).mul_(width).add_(around)
        if fold_of is not None:
            fold[here] = torch.from_numpy(fold_of)[chosen]
    return drawn, fold


def draw_box(rows: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw uniformly from the bounding box of the rows; constant columns are widened to length 1.

    >>> draw_box(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), 3, torch.Generator()).amax(0) <= torch.tensor([2, 1.5])
    tensor([True, True])
    """
    low, high = rows.amin(0), rows.amax(0)
    flat = (high - low) < 1e-6
    low, high = torch.where(flat, low - 0.5, low), torch.where(flat, high + 0.5, high)
    # Use one number of the caller's generator, whatever n is.
    separate = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, (), generator=generator)))
    return low + torch.rand(n, len(low), dtype=low.dtype, generator=separate) * (high - low)


@dataclass(frozen=True)
class Support:
    r"""Values of columns with few distinct values. A draw x′ is moved to the nearest value v that occurs,

        P(v | x) = ∫ over the cell of v of N(x′; x, h²) dx′,     the cell of v = points nearer to v than to other
        values,

    which is a step along the grid for integers and a flip for flags. If most values are zero, half of the steps from
    zero leave the range and return to zero. Other columns are unchanged.

    Attributes:
        grids: ascending values of each column, or None if it has many.
    """

    grids: list[Tensor | None]

    @classmethod
    def learn(cls, rows: TrainingRows) -> Self:
        """Learn the values from training rows and known outliers.

        >>> rows = np.array([[0.0, 0.1], [1.0, 0.2], [1.0, 0.3], [0.0, 0.5]])
        >>> Support.learn(TrainingRows(rows, np.ones(4), rows[:0], np.empty(0))).grids
        [tensor([0., 1.]), None]
        """
        columns = np.concatenate([rows.X, rows.outliers]).astype(np.float32).T
        values = [np.unique(column) for column in columns]
        few = [len(each) <= VALUES_PER_ROW * columns.shape[1] for each in values]
        return cls([torch.from_numpy(each) if is_grid else None for each, is_grid in zip(values, few, strict=True)])

    def nearest(self, x: Tensor) -> Tensor:
        """Return x with the nearest value in each column that has a grid, shape (n, D)."""
        moved = x.clone()
        for place, grid in enumerate(self.grids):
            if grid is not None:
                borders = (grid[1:] + grid[:-1]) / 2
                moved[:, place] = grid[torch.searchsorted(borders, x[:, place].contiguous())]
        return moved
