"""A latent-variable model: p_θ(x, z) = p_Z(z) p_θ(x|z).

Objectives ask a model for nothing but ``log_joint(x, z)``, and without latents for ``log_prob(x)``; neither need
integrate to one. So an unnormalised model is any module that has one of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from .distributions import DiagonalNormal, map_tensors


class FixedDistribution(nn.Module):
    """A distribution without parameters, as a module, so that ``.to(device)`` and ``.double()`` reach it."""

    def __init__(self, distribution: Distribution) -> None:
        super().__init__()
        self.distribution = map_tensors(distribution, lambda tensor: tensor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FixedDistribution:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.distribution = map_tensors(self.distribution, fn)
        return self

    def forward(self) -> Distribution:
        """The distribution."""
        return self.distribution

    def extra_repr(self) -> str:
        """The distribution's own."""
        return repr(self.distribution)


class LatentVariableModel(nn.Module):
    """p_θ(x, z) = p_Z(z) p_θ(x|z), with a normalised prior and decoder.

    Args:
        prior: p_Z, a torch distribution, or a module that returns one when called without arguments.
        decoder: a module from z to a distribution of x.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianDecoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = LatentVariableModel(prior, GaussianDecoder(nn.Linear(2, 5), scale=0.5))
    >>> model.log_joint(torch.zeros(3, 5), torch.zeros(3, 2)).shape
    torch.Size([3])
    >>> model.sample(4).shape
    torch.Size([4, 5])
    """

    def __init__(self, prior: Distribution | nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        if not isinstance(prior, (Distribution, nn.Module)):
            raise TypeError(
                f"prior must be a torch distribution or a module that returns one, found {type(prior).__name__}"
            )
        self._prior = FixedDistribution(_lean(prior)) if isinstance(prior, Distribution) else prior
        self.decoder = decoder
        self._known_mode: tuple[Distribution, float] | None = None

    @property
    def prior(self) -> Distribution:
        """p_Z."""
        prior: Distribution = self._prior()
        return prior

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p_θ(x, z) for x of shape (B, …) and z of shape (B, …) or (K, B, …)."""
        return self.log_likelihood(x, z) + self.prior.log_prob(z)

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """log p_θ(x|z)."""
        likelihood: Distribution = self.decoder(z)
        event = likelihood.event_shape
        if x.shape[x.dim() - len(event) :] != event:
            raise ValueError(
                f"x must have rows of the shape that the decoder gives, {tuple(event)}, found x of shape "
                f"{tuple(x.shape)}; change the decoder's last layer or reshape the data"
            )
        return likelihood.log_prob(x)

    def highest_log_prior(self) -> float:
        """γ = max_z log p_Z(z), the constant that makes a deterministic encoder's objectives comparable.

        It is 0 for a discrete prior, whose probabilities are at most 1, and for one whose mode is not known.
        """
        prior = self.prior
        if self._known_mode is not None and self._known_mode[0] is prior:
            return self._known_mode[1]
        highest = self._highest_log_prob(prior)
        # A fixed prior is one object for as long as it is the same distribution; a learned one is made anew.
        self._known_mode = (prior, highest) if isinstance(self._prior, FixedDistribution) else None
        return highest

    @staticmethod
    def _highest_log_prob(prior: Distribution) -> float:
        if getattr(prior.support, "is_discrete", False):
            return 0.0
        try:
            mode = prior.mode
        except NotImplementedError:
            return 0.0
        return float(prior.log_prob(mode).max().detach())

    @torch.no_grad()
    def sample(self, n: int, *, return_latent: bool = False) -> Any:
        """n draws of x, or of (x, z)."""
        z = self.prior.sample((n,))
        x = self.decoder(z).sample()
        return (x, z) if return_latent else x


def _lean(prior: Distribution) -> Distribution:
    """A diagonal Gaussian in the form that is quick to evaluate."""
    if not isinstance(prior, Independent) or not isinstance(prior.base_dist, Normal) or len(prior.batch_shape):
        return prior
    loc, scale = prior.base_dist.loc, prior.base_dist.scale
    one = scale.flatten()[0]
    return DiagonalNormal(loc, one if bool((scale == one).all()) else scale, loc.dim())
