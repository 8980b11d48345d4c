r"""Models of a density ratio r(x) = p(x)/q(x) itself.

kernels      r(x) = Σ_l θ_l exp(−‖x − c_l‖²/2h²),  θ_l ≥ 0
telescoped   log r(x) = Σ_k (g_k(x) − o_k),  each g_k the log-ratio of two neighbours in a chain from q to p
multinomial  log r(x) = h_0(x) − h_K(x),  h the logits of a classifier of all levels between p and q
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from .. import _checks
from .fixed import FixedDistribution, wide
from .networks import run

#: Far from every centre a kernel ratio is 0 in floating point; its logarithm stays finite.
SMALLEST_RATIO = 1e-12


class KernelRatio(nn.Module):
    """A ratio that is linear in non-negative coefficients of Gaussian kernels.

    Args:
        centres: c, shape (L, D).
        coefficients: θ, shape (L,).
        bandwidth: h.

    >>> ratio = KernelRatio(torch.zeros(1, 2), torch.tensor([3.0]), 1.0)
    >>> ratio(torch.zeros(1, 2))
    tensor([3.])
    """

    def __init__(self, centres: Tensor, coefficients: Tensor, bandwidth: float) -> None:
        super().__init__()
        self.bandwidth = _checks.number("bandwidth", bandwidth, low=0.0, open_low=True)
        self.register_buffer("centres", _checks.table("centres", centres).detach().clone())
        self.register_buffer("coefficients", coefficients.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """r(x), shape (n,)."""
        assert isinstance(self.centres, Tensor)
        assert isinstance(self.coefficients, Tensor)
        return gaussian_kernels(x, self.centres, self.bandwidth) @ wide(self.coefficients)

    def log_ratio(self, x: Tensor) -> Tensor:
        """log r(x), not below log 1e-12."""
        return self(x).clamp(min=SMALLEST_RATIO).log()  # type: ignore[no-any-return]


def gaussian_kernels(x: Tensor, centres: Tensor, bandwidth: float) -> Tensor:
    """exp(−‖x − c‖²/2h²), shape (n, L).

    >>> gaussian_kernels(torch.zeros(1, 1), torch.ones(1, 1), 1.0)
    tensor([[0.6065]])
    """
    return (-torch.cdist(wide(x), wide(centres)).square() / (2 * bandwidth**2)).exp()


class _NoiseRatio(nn.Module, ABC):
    """A log-ratio p/q that may know q, and is then an unnormalised density of p."""

    normalised = False
    _noise: FixedDistribution | None

    @property
    def noise(self) -> Distribution | None:
        """q."""
        return None if self._noise is None else self._noise.distribution

    @abstractmethod
    def log_ratio(self, x: Tensor) -> Tensor:
        """log p(x)/q(x), shape (n,)."""

    def log_prob(self, x: Tensor) -> Tensor:
        """log q(x) + log r(x): nearly normalised; ``log_partition`` of an objective tells how nearly."""
        if self.noise is None:
            raise ValueError("log_prob needs the density of the noise, found a ratio of two samples; use log_ratio")
        found: Tensor = self.noise.log_prob(x)
        return found + self.log_ratio(x)


class TelescopedRatio(_NoiseRatio):
    """The sum of the log-ratios of a chain of distributions, and with noise at its end an unnormalised density.

    Args:
        bridges: networks from x to one number each.
        offsets: o_k, one number for each bridge.
        noise: q, where its density is known; ``log_prob`` needs it.

    >>> ratio = TelescopedRatio([nn.Linear(2, 1), nn.Linear(2, 1)])
    >>> ratio.log_ratio(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        bridges: nn.Sequential | Sequence[nn.Module],
        offsets: Tensor | None = None,
        noise: Distribution | None = None,
    ) -> None:
        super().__init__()
        self.bridges = bridges if isinstance(bridges, nn.Sequential) else nn.Sequential(*bridges)
        self.register_buffer("offsets", torch.zeros(len(self.bridges)) if offsets is None else offsets.detach().clone())
        self._noise = None if noise is None else FixedDistribution(noise)

    def parts(self, x: Tensor) -> Tensor:
        """The log-ratio of each bridge, shape (bridges, n)."""
        assert isinstance(self.offsets, Tensor)
        return torch.stack(
            [run(bridge, x).squeeze(-1) - o for bridge, o in zip(self.bridges, self.offsets, strict=True)]
        )

    def log_ratio(self, x: Tensor) -> Tensor:
        """log p(x)/q(x), shape (n,)."""
        return self.parts(x).sum(0)


class MultinomialRatio(_NoiseRatio):
    """The difference of the first and the last logit of a classifier of levels, and with noise a density.

    Args:
        network: from x to the logits of K + 1 levels, of which the first is p and the last q.
        noise: q, where its density is known; ``log_prob`` needs it.

    >>> MultinomialRatio(nn.Linear(2, 4)).log_ratio(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(self, network: nn.Module, noise: Distribution | None = None) -> None:
        super().__init__()
        self.network = network
        self._noise = None if noise is None else FixedDistribution(noise)

    def log_ratio(self, x: Tensor) -> Tensor:
        """log p(x)/q(x), shape (n,)."""
        logits = run(self.network, x)
        return logits[..., 0] - logits[..., -1]


class AveragedRatio(nn.Module):
    """The mean of several log-ratios.

    Args:
        members: modules from x to one number each.

    >>> AveragedRatio([nn.Linear(2, 1), nn.Linear(2, 1)])(torch.zeros(5, 2)).shape
    torch.Size([5, 1])
    """

    def __init__(self, members: nn.Sequential | Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = members if isinstance(members, nn.Sequential) else nn.Sequential(*members)

    def forward(self, x: Tensor) -> Tensor:
        """The mean, shape (n, 1)."""
        return torch.stack([member(x) for member in self.members]).mean(0)


class DistributionRatio(nn.Module):
    """log p(x)/q(x) of two distributions with densities.

    Args:
        numerator: p.
        denominator: q.

    >>> from torch.distributions import Independent, Normal
    >>> p, q = (Independent(Normal(torch.zeros(2), scale * torch.ones(2)), 1) for scale in (1.0, 2.0))
    >>> DistributionRatio(p, q)(torch.zeros(1, 2))  # 2 log 2
    tensor([[1.3863]])
    """

    def __init__(self, numerator: Distribution, denominator: Distribution) -> None:
        super().__init__()
        self._numerator, self._denominator = FixedDistribution(numerator), FixedDistribution(denominator)

    @property
    def numerator(self) -> Distribution:
        """p."""
        return self._numerator.distribution

    @property
    def denominator(self) -> Distribution:
        """q."""
        return self._denominator.distribution

    def forward(self, x: Tensor) -> Tensor:
        """The log-ratio, shape (n, 1)."""
        found: Tensor = self.numerator.log_prob(x) - self.denominator.log_prob(x)
        return found.unsqueeze(-1)
