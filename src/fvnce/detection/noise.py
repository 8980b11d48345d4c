r"""The noise of the detector: what rows are told apart from.

    p_n = λ · mean_h KDE(known outliers, h) + (1 − λ) · mean_h KDE(training rows, h),

each over several bandwidths at once, because the best one differs from table to table. Without known outliers the noise
is broad: uniform over the box that holds the data.

A model can be written relative to the noise, p_θ = e^f p_n. Densities are then taken with respect to the measure p_n,
under which the noise has density one and Δ = f: :class:`BaseMeasure` is the noise as it looks there, and p_n is drawn
from but never evaluated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform, constraints

from ..noise import KernelDensity, NoiseMixture, draw
from .plan import Plan, TrainingRows

#: Shares of the outlier bandwidth, and of the data bandwidth, that are used side by side.
OUTLIER_SCALES = (0.2, 0.6, 1.0)
DATA_SCALES = (0.3, 1.0, 1.7)
#: Centres of the smoothed data.
CENTRES = 1024


class BaseMeasure(Distribution):
    """p_n with respect to itself: its draws, with log-density zero.

    >>> inner = KernelDensity(torch.zeros(1, 2), 1.0)
    >>> BaseMeasure(inner).log_prob(torch.ones(3, 2))
    tensor([0., 0., 0.])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own declaration)
    has_rsample = False

    def __init__(self, noise: Distribution) -> None:
        self.noise = noise
        super().__init__(torch.Size(), noise.event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All rows: where p_n vanishes no row is drawn."""
        return constraints.real_vector

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero."""
        return value.new_zeros(value.shape[: value.dim() - len(self.event_shape)])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws of p_n."""
        return self.noise.sample(sample_shape)

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws of p_n."""
        return draw(self.noise, n, generator)

    def draw_with_log_prob(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """n draws of p_n and zeros."""
        x = self.draw(n, generator)
        return x, x.new_zeros(n)


def mixture_noise(
    rows: Tensor,
    weights: Tensor,
    outliers: Tensor,
    outlier_weights: Tensor,
    *,
    outlier_share: float,
    outlier_bandwidth: float,
    data_bandwidth: float,
    generator: torch.Generator,
) -> NoiseMixture:
    """Smoothed known outliers and smoothed data; without known outliers, smoothed data and a box."""
    if len(rows) > CENTRES:
        chosen = torch.multinomial(weights, CENTRES, generator=generator).sort().values
        rows, weights = rows[chosen], weights.new_ones(CENTRES)
    smooth = [KernelDensity(rows, data_bandwidth * scale, weights) for scale in DATA_SCALES]
    if len(outliers) == 0:
        return NoiseMixture([box(rows), *smooth], [len(smooth), *[1.0] * len(smooth)])
    near = [KernelDensity(outliers, outlier_bandwidth * scale, outlier_weights) for scale in OUTLIER_SCALES]
    shares = [outlier_share / len(near)] * len(near) + [(1 - outlier_share) / len(smooth)] * len(smooth)
    return NoiseMixture([*near, *smooth], shares)


def mixture_of(rows: TrainingRows, plan: Plan, generator: torch.Generator) -> NoiseMixture:
    """:func:`mixture_noise` of training rows, in single precision."""
    return mixture_noise(
        torch.from_numpy(rows.X).float(),
        torch.from_numpy(rows.weights),
        torch.from_numpy(rows.outliers).float(),
        torch.from_numpy(rows.outlier_weights),
        outlier_share=plan.outlier_share,
        outlier_bandwidth=plan.outlier_bandwidth,
        data_bandwidth=plan.data_bandwidth,
        generator=generator,
    )


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
            generator = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, (), generator=generator)))
        return low + torch.rand(n, len(low), dtype=low.dtype, generator=generator) * (high - low)


def box(rows: Tensor) -> Box:
    """The uniform distribution over the smallest box that holds the rows, with constant columns widened.

    >>> box(torch.tensor([[0.0, 1.0], [2.0, 1.0]])).base_dist.high
    tensor([2.0000, 1.5000])
    """
    low, high = rows.amin(0), rows.amax(0)
    flat = (high - low) < 1e-6
    low, high = torch.where(flat, low - 0.5, low), torch.where(flat, high + 0.5, high)
    return Box(low, high)
