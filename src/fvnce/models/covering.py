r"""An encoder that covers the prior: q_0(z|x) = (1 − w) q(z|x) + w p_Z(z).

The noise term of fvNCE is a bound only if q_0 covers p_θ(x, ·). A learned q that misses mass sees ratios near 0, is
rewarded for it, and runs away: the term it should bound is then dead. With a share w of the prior p_θ(x, z)/q_0(z|x) is
at most p_θ(x|z)/w, so every draw tells the truth (defensive importance sampling).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints

from .. import _checks
from .fixed import FixedDistribution


class CoveringEncoder(nn.Module):
    """(1 − w) q(z|x) + w p_Z(z), reparameterised, for the noise term or for log Z.

    Args:
        encoder: q(z|x), reparameterised.
        prior: p_Z, or any distribution of z that is wide enough, over vectors.
        share: w, in (0, 1).

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianEncoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> q = CoveringEncoder(GaussianEncoder(nn.Linear(5, 4)), prior)(torch.zeros(3, 5))
    >>> q.log_prob(q.rsample((4,))).shape
    torch.Size([4, 3])
    """

    def __init__(self, encoder: nn.Module, prior: Distribution, *, share: float = 0.5) -> None:
        super().__init__()
        _checks.distribution("prior", prior)
        self.encoder = encoder
        self._prior = FixedDistribution(prior)
        self.share = _checks.number("share", share, low=0.0, high=1.0, open_low=True)
        if self.share == 1:
            raise ValueError("share must be below 1, found 1.0: nothing of the encoder would be left")

    @property
    def prior(self) -> Distribution:
        """p_Z."""
        return self._prior.distribution

    def forward(self, x: Tensor) -> Covered:
        """q_0(z|x)."""
        return Covered(self.encoder(x), self.prior, self.share)


class Covered(Distribution):
    """What a :class:`CoveringEncoder` returns."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, q: Distribution, prior: Distribution, share: float) -> None:
        self._q, self._prior, self._share = q, prior, share
        super().__init__(q.batch_shape, q.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean of both, weighted."""
        return (1 - self._share) * self._q.mean + self._share * self._prior.mean

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """From either by a coin, which does not depend on any parameter: the gradient is exact."""
        z = self._q.rsample(sample_shape)
        wide = self._prior.sample(z.shape[:-1]).to(z.dtype)
        coin = torch.rand(z.shape[:-1], device=z.device).unsqueeze(-1)
        return torch.where(coin < self._share, wide, z)

    def log_prob(self, value: Tensor) -> Tensor:
        """log of the weighted mean of both densities."""
        near: Tensor = self._q.log_prob(value)
        wide: Tensor = self._prior.log_prob(value)
        return torch.logaddexp(near + math.log1p(-self._share), wide + math.log(self._share))
