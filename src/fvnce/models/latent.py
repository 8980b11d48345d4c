"""Latent-variable models p_θ(x, z) = p_Z(z) p_θ(x|z), of a prior and a decoder.

Objectives need nothing of a model but ``log_joint(x, z)``, or without latents ``log_prob(x)``; neither must integrate
to one. So an unnormalized model is any module that has one of the two.

A decoder is a module from z to the distribution p_θ(x|z). Its network gives one x for each z. What the output has
beyond the dimensions that it shares with z is one event: rows of a table, (B, D), and images, (B, C, H, W), need no
argument that says which they are.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, ContinuousBernoulli, Distribution, Independent, Normal, Uniform

from .. import _validation
from ..io import register
from .distributions import DiagonalNormal, log_prob_inside, over_rows, run, wide
from .fixed import FixedDistribution, TensorMap, at_least_single, map_tensors
from .networks import given


class LatentVariableModel(nn.Module):
    """p_θ(x, z) = p_Z(z) p_θ(x|z), with a normalized prior and a decoder, normalized unless it is an energy.

    With a decoder that takes a context it is p_θ(x, z|c) = p_Z(z) p_θ(x|z, c): the prior does not depend on c.

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

    context_part = "decoder"

    def __init__(
        self, prior: Distribution | nn.Module, decoder: nn.Module, *, highest_log_prior: float | None = None
    ) -> None:
        super().__init__()
        if isinstance(prior, Distribution) or not isinstance(prior, nn.Module):
            _validation.distribution("prior", prior)
            _refuse_learned(prior)
            # Of a fixed prior known once and for all; a learned one is asked every time.
            highest_log_prior = _height(prior) if highest_log_prior is None else highest_log_prior
        self._gamma = highest_log_prior
        self._prior = FixedDistribution(_lean(prior)) if isinstance(prior, Distribution) else prior
        self._latent_dims = len(prior.event_shape) if isinstance(prior, Distribution) else None
        self.decoder = decoder

    @property
    def normalized(self) -> bool:
        """Whether p_θ(x|z) integrates to one, as all decoders do that are not energies."""
        return is_normalized(self.decoder)

    @property
    def prior(self) -> Distribution:
        """The prior p_Z over latents."""
        if isinstance(self._prior, FixedDistribution):
            return self._prior.distribution
        prior: Distribution = self._prior()
        _validation.distribution("prior", prior)
        return prior

    def log_joint(self, x: Tensor, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Return log p_θ(x, z) for x of shape (B, …) and z of shape (B, …) or (K, B, …)."""
        return self.log_likelihood(x, z, *given(context)) + log_prob_inside(self.prior, z)

    def log_likelihood(self, x: Tensor, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Return log p_θ(x|z) of rows x and latents z."""
        value: Tensor = self.likelihood_of(x, z, *given(context)).log_prob(wide(x))
        if value.shape != z.shape[: z.dim() - (self._latent_dims or 0)]:
            raise ValueError(f"decoder must give one x for each z of {tuple(z.shape)}, found {tuple(value.shape)}")
        return value

    def likelihood_of(self, x: Tensor, z: Tensor, context: Tensor | None = None) -> Distribution:
        """Return p_θ(·|z), whose events have the shape of rows of x."""
        if self._latent_dims is None:
            self._latent_dims = len(self.prior.event_shape)
        batch = z.shape[: z.dim() - self._latent_dims]
        likelihood: Distribution = self.decoder(z, *given(context))
        if len(likelihood.batch_shape) != len(batch):
            likelihood = over_rows(likelihood, len(batch))
        event = likelihood.event_shape
        # The first dimension of x counts rows, also where x has the shape of one event; only draws of z are broadcast.
        if x.shape[1:] != event or x.shape[:1] != batch[-1:]:
            raise ValueError(
                f"x must have shape {(*batch[-1:], *event)} for a decoder that gives {tuple(event)}, found x of shape "
                f"{tuple(x.shape)}; change the decoder's last layer or reshape the data"
            )
        # What the network gave in half precision is the likelihood's parameter, not its density.
        return likelihood if wide(x) is x else map_tensors(likelihood, wide)

    def highest_log_prior(self) -> float:
        """Return γ = max_z log p_Z(z), the constant that makes a deterministic encoder's objectives comparable.

        It is 0 for a discrete prior, whose probabilities are at most 1. A continuous prior that does not know its mode,
        such as a mixture, needs it given, or the chain J_AE ≥ J_VAE is not promised (it is then taken as 0).
        """
        return self._gamma if self._gamma is not None else _height(self.prior)

    @torch.no_grad()
    def sample(self, n: int, *, context: Tensor | None = None, return_latent: bool = False) -> Any:
        """Return n draws of x, or of (x, z); with a context of n rows, one draw for each."""
        z = self.prior.sample((n,))
        x = self.decoder(z, *given(context)).sample()
        return (x, z) if return_latent else x


def is_normalized(model: Any) -> bool:
    """Return whether a model or a decoder integrates to one, as each does that has no attribute ``normalized``.

    >>> is_normalized(nn.Linear(2, 1))
    True
    """
    old = getattr(model, "normalised", None)
    if isinstance(old, bool):  # of a class written for 0.2
        message = f"the attribute normalised of {type(model).__name__} is deprecated; call it normalized"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return old
    return bool(getattr(model, "normalized", True))


def _refuse_learned(prior: Distribution) -> None:
    def check(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            raise ValueError(
                "prior must not hold tensors that require gradients, found one that an optimizer would not see; pass a "
                "module that returns the distribution when called"
            )
        return tensor

    map_tensors(prior, check)


def _lean(prior: Distribution) -> Distribution:
    """Return a diagonal Gaussian in the form that is quick to evaluate."""
    if not isinstance(prior, Independent) or not isinstance(prior.base_dist, Normal) or len(prior.batch_shape):
        return prior
    loc, scale = prior.base_dist.loc, prior.base_dist.scale
    one = scale.flatten()[0]
    if not bool((scale == one).all()):
        return DiagonalNormal(loc, scale, loc.dim())
    return DiagonalNormal(loc, one, loc.dim(), standard=bool((loc == 0).all() and one == 1))


def _height(prior: Distribution) -> float:
    """Return max log p_Z, or 0 where the prior does not know it."""
    base: Any = prior
    while isinstance(base, Independent):
        base = base.base_dist
    try:
        if getattr(prior.support, "is_discrete", False):
            return 0.0
        # A uniform distribution has no mode, but is as high at its mean.
        height = float(prior.log_prob(prior.mean if isinstance(base, Uniform) else prior.mode).max().detach())
    except (NotImplementedError, ValueError):  # flows state no support; torch refuses the NaN that some call their mode
        return 0.0
    return height if math.isfinite(height) else 0.0


class GaussianDecoder(nn.Module):
    r"""p(x|z) = N(network(z), σ²): the squared reconstruction error, in nats.

    Args:
        network: from z to the mean of x.
        scale: σ, or where it starts if it is learned.
        learned: ``None`` for a fixed σ, ``"shared"`` for one learned σ, ``"per_dimension"`` for one per dimension
            of x (give ``event_shape``). A fixed σ is a silent weight between reconstruction and prior; one learned
            σ settles it from the data (arXiv 2006.13202).
        event_shape: the shape of one x; by default that of what the network gives.

    >>> decoder = GaussianDecoder(nn.Linear(2, 5), scale=1 / 8)
    >>> decoder(torch.zeros(3, 2)).event_shape
    torch.Size([5])
    """

    context_part = "network"

    def __init__(
        self,
        network: nn.Module,
        scale: float = 1.0,
        *,
        learned: Literal["shared", "per_dimension"] | None = None,
        event_shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        log_scale = torch.tensor(math.log(_validation.number("scale", scale, low=0.0, open_low=True)))
        _validation.choice("learned", learned, (None, "shared", "per_dimension"))
        if learned == "per_dimension":
            if event_shape is None:
                raise ValueError("event_shape must be given when learned='per_dimension', found None")
            log_scale = log_scale.repeat(*event_shape)
        self.learned = learned
        self.event_shape = None if event_shape is None else tuple(event_shape)
        if learned is None:
            self.register_buffer("log_scale", log_scale)
        else:
            self.log_scale = nn.Parameter(log_scale)

    @property
    def scale(self) -> Tensor:
        """The standard deviation σ of x."""
        return self.log_scale.exp()

    def _apply(self, fn: TensorMap, recurse: bool = True) -> GaussianDecoder:
        fixed = self.log_scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.learned is None:  # rounded to half precision, σ would change by as much as D log σ by nats
            self._buffers["log_scale"] = at_least_single(fn)(fixed)
        return self

    def forward(self, z: Tensor, context: Tensor | None = None) -> DiagonalNormal:
        """Return p(x|z), or p(x|z, c) if the network takes a context, for latents z."""
        mean = run(self.network, z, *given(context))
        event_dims = _event_dims(z, mean) if self.event_shape is None else len(self.event_shape)
        if self.event_shape is not None and mean.shape[mean.dim() - event_dims :] != self.event_shape:
            raise ValueError(f"network must give x of event_shape {self.event_shape}, found shape {tuple(mean.shape)}")
        log_scale = wide(self.log_scale)
        return DiagonalNormal(mean, log_scale.exp(), event_dims, log_scale=log_scale)


class _Binary(Bernoulli):
    """Refuses gray values whether or not torch validates: torch.compile turns its validation off for good."""

    def log_prob(self, value: Tensor) -> Tensor:
        value = _validation.binary("x", value, "use a ContinuousBernoulliDecoder for gray values, or round them")
        density: Tensor = super().log_prob(wide(value))  # type: ignore[no-untyped-call]
        return density


class _BoundedContinuousBernoulli(ContinuousBernoulli):
    """Has log p = −∞ outside [0, 1], where noise may well lie, instead of an error."""

    def log_prob(self, value: Tensor) -> Tensor:
        value = wide(value)
        inside = (value >= 0) & (value <= 1)
        density: Tensor = super().log_prob(value.clamp(0, 1))  # type: ignore[no-untyped-call]
        return torch.where(inside, density, -math.inf)


class _LogitDecoder(nn.Module):
    """p(x|z) = Π p(x_i; network(z)_i) with logits as parameters."""

    context_part = "network"
    _family: ClassVar[Callable[..., Distribution]]

    def __init__(self, network: nn.Module, *, event_dims: int | None = None) -> None:
        super().__init__()
        self.network = network
        warn_of_event_dims(type(self).__name__, event_dims)

    def forward(self, z: Tensor, context: Tensor | None = None) -> Independent[Any]:
        """Return p(x|z) for latents z."""
        logits = run(self.network, z, *given(context))
        return Independent(type(self)._family(logits=logits, validate_args=False), _event_dims(z, logits))


class BernoulliDecoder(_LogitDecoder):
    """p(x|z) = Π Bernoulli(x_i; σ(network(z)_i)), for binary x; gray values are refused.

    >>> BernoulliDecoder(nn.Linear(2, 5))(torch.zeros(3, 2)).log_prob(torch.ones(3, 5)).shape
    torch.Size([3])
    """

    _family = _Binary


class ContinuousBernoulliDecoder(_LogitDecoder):
    """p(x|z) = Π ContinuousBernoulli(x_i), a normalized density for gray values in [0, 1], and 0 elsewhere.

    >>> decoder = ContinuousBernoulliDecoder(nn.Linear(2, 5))
    >>> decoder(torch.zeros(3, 2)).log_prob(torch.full((3, 5), 0.3)).shape
    torch.Size([3])
    """

    _family = _BoundedContinuousBernoulli


def _event_dims(z: Tensor, output: Tensor) -> int:
    """Return how many dimensions of the output are one x: those after the dimensions that it shares with z.

    A code is a vector or an integer. A model knows the shape of its codes and corrects what this cannot see.
    """
    most = max(1, z.dim() - 1) if z.is_floating_point() else z.dim()
    shared = 0
    while shared < min(most, output.dim() - 1) and z.shape[shared] == output.shape[shared]:
        shared += 1
    return output.dim() - shared


def warn_of_event_dims(name: str, event_dims: int | None) -> None:
    """Warn that the argument ``event_dims`` of a class is deprecated, where it is given."""
    if event_dims is not None:
        message = f"event_dims of {name} is ignored and will be removed; the network's output has the shape of x"
        warnings.warn(message, DeprecationWarning, stacklevel=3)


register(LatentVariableModel, stand_ins={"highest_log_prior": lambda model: model._gamma})
