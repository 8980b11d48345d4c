"""A latent-variable model: p_θ(x, z) = p_Z(z) p_θ(x|z).

Objectives ask a model for nothing but ``log_joint(x, z)``, and without latents for ``log_prob(x)``; neither need
integrate to one. So an unnormalised model is any module that has one of the two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, Uniform

from .. import _checks
from ..serialization import register
from .distributions import DiagonalNormal, log_prob_inside, over_rows
from .fixed import FixedDistribution, map_tensors, wide


class LatentVariableModel(nn.Module):
    """p_θ(x, z) = p_Z(z) p_θ(x|z), with a normalised prior and a decoder, normalised unless it is an energy.

    Args:
        prior: p_Z, a torch distribution, or a module that returns one when called without arguments.
        decoder: a module from z to a distribution of x.
        highest_log_prior: γ = max log p_Z, where the prior does not know its mode.

    >>> from torch.distributions import Independent, Normal
    >>> from fvnce import GaussianDecoder
    >>> prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> model = LatentVariableModel(prior, GaussianDecoder(nn.Linear(2, 5), scale=0.5))
    >>> model.log_joint(torch.zeros(3, 5), torch.zeros(3, 2)).shape
    torch.Size([3])
    >>> model.sample(4).shape
    torch.Size([4, 5])
    """

    def __init__(
        self, prior: Distribution | nn.Module, decoder: nn.Module, *, highest_log_prior: float | None = None
    ) -> None:
        super().__init__()
        if not isinstance(prior, (Distribution, nn.Module)):
            raise TypeError(
                f"prior must be a torch distribution or a module that returns one, found {type(prior).__name__}"
            )
        if isinstance(prior, Distribution):
            _checks.distribution("prior", prior)
            _refuse_learned(prior)
        # Of a fixed prior known once and for all; a learned one is asked every time.
        fixed = isinstance(prior, Distribution) and highest_log_prior is None
        self._gamma = _height(prior) if isinstance(prior, Distribution) and fixed else highest_log_prior
        self._prior = FixedDistribution(_lean(prior)) if isinstance(prior, Distribution) else prior
        self._latent_dims = len(prior.event_shape) if isinstance(prior, Distribution) else None
        self.decoder = decoder

    @property
    def normalised(self) -> bool:
        """Whether p_θ(x|z) integrates to one, as all decoders do that are not energies."""
        return bool(getattr(self.decoder, "normalised", True))

    @property
    def prior(self) -> Distribution:
        """p_Z."""
        prior: Distribution = self._prior()
        _checks.distribution("prior", prior)
        return prior

    def log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """log p_θ(x, z) for x of shape (B, …) and z of shape (B, …) or (K, B, …)."""
        return self.log_likelihood(x, z) + log_prob_inside(self.prior, z)

    def log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """log p_θ(x|z)."""
        value: Tensor = self.likelihood_of(x, z).log_prob(wide(x))
        batch = self._batch(z)
        if value.shape != batch:
            raise ValueError(
                f"decoder must give one x for each z of shape {tuple(z.shape)}, batch shape {tuple(batch)}, found "
                f"log-densities of shape {tuple(value.shape)} for x of shape {tuple(x.shape)}"
            )
        return value

    def likelihood_of(self, x: Tensor, z: Tensor) -> Distribution:
        """p_θ(·|z), whose events have the shape of rows of x."""
        batch = self._batch(z)
        likelihood = over_rows(self.decoder(z), len(batch))
        event = likelihood.event_shape
        # The first dimension of x counts rows, also where x has the shape of one event; only draws of z are broadcast.
        if x.shape[1:] != event or x.shape[:1] != batch[-1:]:
            raise ValueError(
                f"x must have shape {(*batch[-1:], *event)}, rows of the shape that the decoder gives, {tuple(event)}, "
                f"found x of shape {tuple(x.shape)}; change the decoder's last layer or reshape the data"
            )
        # What the network gave in half precision is the likelihood's parameter, not its density.
        return map_tensors(likelihood, wide) if _checks.is_half(x) else likelihood

    def _batch(self, z: Tensor) -> torch.Size:
        if self._latent_dims is None:
            self._latent_dims = len(self.prior.event_shape)
        return z.shape[: z.dim() - self._latent_dims]

    def highest_log_prior(self) -> float:
        """γ = max_z log p_Z(z), the constant that makes a deterministic encoder's objectives comparable.

        It is 0 for a discrete prior, whose probabilities are at most 1. A continuous prior that does not know its mode,
        such as a mixture, needs it given, or the chain J_AE ≥ J_VAE is not promised (it is then taken as 0).
        """
        return self._gamma if self._gamma is not None else _height(self.prior)

    @torch.no_grad()
    def sample(self, n: int, *, return_latent: bool = False) -> Any:
        """n draws of x, or of (x, z)."""
        z = self.prior.sample((n,))
        x = self.decoder(z).sample()
        return (x, z) if return_latent else x


def _refuse_learned(prior: Distribution) -> None:
    def check(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            raise ValueError(
                "prior must not hold tensors that require gradients, found one: an optimiser would not see them. "
                "Pass a module that returns the distribution when called"
            )
        return tensor

    map_tensors(prior, check)


def _lean(prior: Distribution) -> Distribution:
    """A diagonal Gaussian in the form that is quick to evaluate."""
    if not isinstance(prior, Independent) or not isinstance(prior.base_dist, Normal) or len(prior.batch_shape):
        return prior
    loc, scale = prior.base_dist.loc, prior.base_dist.scale
    one = scale.flatten()[0]
    if not bool((scale == one).all()):
        return DiagonalNormal(loc, scale, loc.dim())
    lean = DiagonalNormal(loc, one, loc.dim())
    lean.keep_constants()
    lean.is_standard  # noqa: B018  known from here on, also to a compiler
    return lean


def _height(prior: Distribution) -> float:
    """max log p_Z, as far as the prior knows."""
    try:
        if getattr(prior.support, "is_discrete", False):
            return 0.0
    except NotImplementedError:  # flows do not tell their support
        return 0.0
    for name in ("mode", "mean"):  # a uniform distribution has no mode, but is as high at its mean
        try:
            height = float(prior.log_prob(getattr(prior, name)).max().detach())
        except (NotImplementedError, ValueError):  # torch refuses the NaN that some call their mode
            continue
        if math.isfinite(height) and (name == "mode" or isinstance(_base(prior), Uniform)):
            return height
    return 0.0


def _base(prior: Distribution) -> Distribution:
    return _base(prior.base_dist) if isinstance(prior, Independent) else prior


register(LatentVariableModel, stand_ins={"highest_log_prior": lambda model: model._gamma})
