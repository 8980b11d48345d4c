r"""The noise of the detector: what rows are told apart from.

    p_n = λ · mean_h KDE(known outliers, h) + (1 − λ) · mean_h KDE(training rows, h),

each over several bandwidths at once, because the best one differs from table to table. Without known outliers the noise
is broad: uniform over the box that holds the data.

A Gaussian around an integer is told from integers by its fraction alone, and a ratio learns nothing else. So
:class:`Support` keeps draws to the values that a column has: integers stay integers, flags stay flags, zeros zeros.

A model can be written relative to the noise, p_θ = e^f p_n. Densities are then taken with respect to the measure p_n,
under which the noise has density one and Δ = f: :class:`~fvnce.noise.EmpiricalNoise` is the noise as it looks there,
and p_n is drawn from but never evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from .. import _random
from ..noise import KernelDensity, NoiseMixture, fit_gaussian, smoothed
from .plan import Array, Folds, LatentSettings, Plan, TrainingRows

#: Shares of the outlier bandwidth, and of the data bandwidth, that are used side by side.
OUTLIER_SCALES = (0.2, 0.6, 1.0)
DATA_SCALES = (0.3, 1.0, 1.7)
#: Centres of the smoothed data, and of kernel densities for latent-variable detectors.
CENTRES, LATENT_CENTRES = 1024, 5000
#: Deviations of a column, or of the range of images, that a kernel of the latter spans unless told.
TABLE_BANDWIDTHS = {"outliers": 0.5, "data": 1.0}
IMAGE_BANDWIDTH = 0.25
#: A column has a grid if its values are at most this share of its rows.
SHARE = 0.5


def mixture_noise(rows: TrainingRows, plan: Plan, generator: torch.Generator) -> NoiseMixture:
    """Smoothed known outliers and smoothed data, in single precision; without known outliers, these and a box."""
    x, weights = torch.from_numpy(rows.X).float(), torch.from_numpy(rows.weights)
    if len(x) > CENTRES:
        chosen = torch.multinomial(weights, CENTRES, generator=generator).sort().values
        x, weights = x[chosen], weights.new_ones(CENTRES)
    smooth = [KernelDensity(x, plan.data_bandwidth * scale, weights) for scale in DATA_SCALES]
    if len(rows.outliers) == 0:
        return NoiseMixture([box(x), *smooth], [len(smooth), *[1.0] * len(smooth)])
    outliers, own = torch.from_numpy(rows.outliers).float(), torch.from_numpy(rows.outlier_weights)
    near = [KernelDensity(outliers, plan.outlier_bandwidth * scale, own) for scale in OUTLIER_SCALES]
    shares = [plan.outlier_share / len(near)] * len(near) + [(1 - plan.outlier_share) / len(smooth)] * len(smooth)
    return NoiseMixture([*near, *smooth], shares)


def draw_mixture(
    rows: TrainingRows, plan: Plan, n: int, generator: torch.Generator, folds: Folds | None = None
) -> tuple[Tensor, Tensor]:
    """n draws of that mixture without its density, in single precision, and the fold of the row each lies around.

    Smoothed data have all rows for centres here. The fold is −1 for draws around nothing, and without folds.
    """
    known = len(rows.outliers) > 0
    first = plan.outlier_share if known else 0.5
    is_first = torch.rand(n, generator=generator, dtype=torch.float64) < first
    drawn, fold = torch.empty(n, rows.X.shape[1]), torch.full((n,), -1)
    parts = [(~is_first, rows.X, rows.weights, plan.data_bandwidth, DATA_SCALES, folds and folds.rows)]
    if known:
        outliers = (rows.outliers, rows.outlier_weights, plan.outlier_bandwidth, OUTLIER_SCALES)
        parts.append((is_first, *outliers, folds and folds.outliers))
    else:
        drawn[is_first] = box(torch.from_numpy(rows.X).float()).draw(int(is_first.sum()), generator)
    for here, centres, weights, bandwidth, scales, of in parts:
        count = int(here.sum())
        chosen = torch.multinomial(torch.from_numpy(weights), max(count, 1), replacement=True, generator=generator)[
            :count
        ]
        width = bandwidth * torch.tensor(scales)[torch.randint(len(scales), (count, 1), generator=generator)]
        around = torch.from_numpy(centres).float()[chosen]
        drawn[here] = torch.randn(around.shape, generator=generator).mul_(width).add_(around)
        if of is not None:
            fold[here] = torch.from_numpy(of)[chosen]
    return drawn, fold


def latent_noise(
    x: Tensor, outliers: Tensor, settings: LatentSettings, generator: torch.Generator, *, image: bool
) -> Distribution | None:
    """p_n of a latent-variable detector by its completed settings, or None."""

    def bandwidth(of: str) -> float:
        return settings.bandwidth or (IMAGE_BANDWIDTH if image else TABLE_BANDWIDTHS[of])

    def cover() -> KernelDensity:
        return smoothed(x, bandwidth("data"), max_centres=LATENT_CENTRES, generator=generator)

    if settings.noise == "none":
        return None
    if settings.noise == "gaussian":
        return fit_gaussian(x, "diagonal", shrinkage=0.01)
    if settings.noise == "data":
        return cover()
    near = smoothed(outliers, bandwidth("outliers"), max_centres=LATENT_CENTRES, generator=generator)
    if settings.noise == "outliers":
        return near
    share = settings.outlier_share
    return NoiseMixture([near, cover()], [share, 1 - share])


def draw_from_marginals(rows: Tensor, weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n draws of Π_j p_j: every column from a row of its own.

    >>> draw_from_marginals(torch.eye(3), torch.ones(3), 2, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    chosen = torch.multinomial(weights, n * rows.shape[1], replacement=True, generator=generator)
    return rows.gather(0, chosen.reshape(n, rows.shape[1]))


class Box(Independent[Uniform]):
    """Uniform between ``low`` and ``high``, with draws that follow a generator of their own."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__(Uniform(low, high, validate_args=False), 1)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws, low + (high − low) u."""
        low, high = self.base_dist.low, self.base_dist.high
        if generator is not None:
            # One number of the caller's stream, whatever n is.
            seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
            generator = torch.Generator(generator.device).manual_seed(int(seed))
        level = torch.rand(
            n, len(low), dtype=low.dtype, generator=generator, device=_random.place(generator, low.device)
        )
        return low + level.to(low.device, non_blocking=True) * (high - low)


def box(rows: Tensor) -> Box:
    """The uniform distribution over the smallest box that holds the rows, with constant columns widened.

    >>> box(torch.tensor([[0.0, 1.0], [2.0, 1.0]])).base_dist.high
    tensor([2.0000, 1.5000])
    """
    low, high = rows.amin(0), rows.amax(0)
    flat = (high - low) < 1e-6
    low, high = torch.where(flat, low - 0.5, low), torch.where(flat, high + 0.5, high)
    return Box(low, high)


@dataclass(frozen=True)
class Support:
    r"""The values of columns. In a column with few values, measured by how many rows share them, a draw x′ is moved to
    the nearest value v that occurs,

        P(v | x) = ∫ over the cell of v of N(x′; x, h²) dx′,     the cell of v = all that is nearer to v than to others,

    which is a step along the grid for integers and a flip for flags; where most values are zero, half of the steps from
    there go outside of the values and come back to zero. Other columns are left as they are.

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
