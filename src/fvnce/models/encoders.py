"""Encoders: modules from x to the distribution q(z|x). Any module that returns a torch distribution can be used.

For bent, skewed or multimodal posteriors use a conditional flow of zuko, such as ``zuko.flows.NSF(latents, inputs)``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.distributions import Categorical, Distribution, constraints
from torch.nn.functional import hardtanh

from .. import _validation
from .distributions import BinaryVector, DiagonalNormal, PointMass, log_prob_inside, run
from .fixed import FixedDistribution
from .networks import given

#: σ of a Gaussian encoder stays within e^±7: wider than a unit prior needs, and far from overflow.
LOG_SCALE_LIMIT = 7.0


class _NetworkEncoder(nn.Module):
    """Base class of encoders with one network, which receives the context if it takes one."""

    context_part = "network"

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network


class PointEncoder(_NetworkEncoder):
    """Deterministic encoder of an autoencoder: q(z|x) = 1[z = network(x)], with log q = 0.

    It makes p_θ(x, g(x)) an unnormalized density of x, so that a noise term can be applied to an autoencoder. The noise
    term is then a penalty, not a bound, because q misses mass of p_θ(x, ·).

    Args:
        network: from x to z.

    >>> PointEncoder(nn.Linear(5, 2))(torch.zeros(3, 5)).rsample().shape
    torch.Size([3, 2])
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> PointMass:
        """Return q(z|x) for rows x."""
        return PointMass(run(self.network, x, *given(context)))


class GaussianEncoder(_NetworkEncoder):
    """Gaussian encoder q(z|x) = N(m(x), diag s(x)²), reparameterized.

    Args:
        network: from x to m and log s, concatenated: 2 × latents outputs.
        generator: for draws of z; by default torch's global one.

    >>> GaussianEncoder(nn.Linear(5, 4))(torch.zeros(3, 5)).event_shape
    torch.Size([2])
    """

    def __init__(self, network: nn.Module, *, generator: torch.Generator | None = None) -> None:
        super().__init__(network)
        self._generator = generator

    def forward(self, x: Tensor, context: Tensor | None = None) -> DiagonalNormal:
        """Return q(z|x), or q(z|x, u) if the network takes a context, for rows x."""
        output = run(self.network, x, *given(context))
        if output.shape[-1] % 2:
            raise ValueError(
                "network must have an even number of outputs, means and log-scales, found "
                f"{output.shape[-1]}; change its last layer"
            )
        mean, log_scale = output.chunk(2, dim=-1)
        # clamp, as its backward pass is one operation.
        log_scale = hardtanh(log_scale, -LOG_SCALE_LIMIT, LOG_SCALE_LIMIT)
        return DiagonalNormal(mean, log_scale.exp(), log_scale=log_scale, generator=self._generator)


class CategoricalEncoder(_NetworkEncoder):
    """Categorical encoder q(z|x) over z = 0 … C−1. Objectives sum over z exactly.

    Args:
        network: from x to C logits.

    >>> CategoricalEncoder(nn.Linear(5, 4))(torch.zeros(3, 5)).enumerate_support().shape
    torch.Size([4, 3])
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> Categorical:
        """Return q(z|x) for rows x."""
        return Categorical(logits=run(self.network, x, *given(context)), validate_args=False)


class BinaryEncoder(_NetworkEncoder):
    """Binary encoder q(h|x) = Π_j Bernoulli(h_j; σ(network(x)_j)). Objectives sum over h exactly.

    Args:
        network: from x to one logit for each bit.

    >>> BinaryEncoder(nn.Linear(5, 3))(torch.zeros(2, 5)).event_shape
    torch.Size([3])
    """

    def forward(self, x: Tensor, context: Tensor | None = None) -> BinaryVector:
        """Return q(h|x) for rows x."""
        return BinaryVector(run(self.network, x, *given(context)))


class CoveringEncoder(nn.Module):
    """Encoder mixed with the prior, q0(z|x) = (1 − w) q(z|x) + w p_Z(z), for the noise term or for log Z.

    The noise term of fvNCE is a bound only if q0 covers p_θ(x, ·). A learned q that misses mass has ratios near 0,
    which the objective rewards, so training makes q miss even more until the noise term has no effect. With the share w
    of the prior, p_θ(x, z)/q0(z|x) is at most p_θ(x|z)/w (defensive importance sampling).

    Args:
        encoder: q(z|x), reparameterized.
        prior: p_Z, or another wide distribution over vectors z.
        share: w, in (0, 1).

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianEncoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> q = CoveringEncoder(GaussianEncoder(nn.Linear(5, 4)), prior)(torch.zeros(3, 5))
    >>> q.log_prob(q.rsample((4,))).shape
    torch.Size([4, 3])
    """

    context_part = "encoder"

    def __init__(self, encoder: nn.Module, prior: Distribution, *, share: float = 0.5) -> None:
        super().__init__()
        _validation.distribution("prior", prior)
        if len(prior.event_shape) != 1:
            raise ValueError(f"prior must be over vectors, found event shape {tuple(prior.event_shape)}")
        self.encoder = encoder
        self._prior = FixedDistribution(prior)
        self.share = _validation.number("share", share, low=0.0, high=1.0, open_low=True)
        if self.share == 1:
            raise ValueError("share must be below 1, found 1.0; without the encoder use the prior itself")

    @property
    def prior(self) -> Distribution:
        """The prior p_Z that is mixed in."""
        return self._prior.distribution

    def forward(self, x: Tensor, context: Tensor | None = None) -> Covered:
        """Return q0(z|x) for rows x."""
        q = self.encoder(x, *given(context))
        _validation.latents(q, self.prior)
        return Covered(q, self.prior, self.share)


class Covered(Distribution):
    """Mixture of q(z|x) and the prior, returned by :class:`CoveringEncoder`."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, q: Distribution, prior: Distribution, share: float) -> None:
        self._q, self._prior, self._share = q, prior, share
        super().__init__(q.batch_shape, q.event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the two means."""
        return (1 - self._share) * self._q.mean + self._share * self._prior.mean

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """Draw from either component with fixed probabilities, so that the gradient is exact."""
        z = self._q.rsample(sample_shape)
        wide = self._prior.sample(z.shape[:-1]).to(z.dtype)
        coin = torch.rand(z.shape[:-1], device=z.device).unsqueeze(-1)
        return torch.where(coin < self._share, wide, z)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log of the weighted mean of the two densities."""
        near: Tensor = self._q.log_prob(value)
        wide = log_prob_inside(self._prior, value)
        return torch.logaddexp(near + math.log1p(-self._share), wide + math.log(self._share))
