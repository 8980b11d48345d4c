"""Latent-variable models p_θ(x, z) = p_Z(z) p_θ(x|z) from a prior and a decoder.

A model for objectives is any module with ``log_joint(x, z)``, or ``log_prob(x)`` if it has no latents. Neither needs to
integrate to one.

A decoder is a module from z to the distribution p_θ(x|z). Its network returns one x for each z. The dimensions of the
output after those shared with z are one event, so rows of a table, (B, D), and images, (B, C, H, W), need no argument
for the shape.
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
    """Latent-variable model p_θ(x, z) = p_Z(z) p_θ(x|z) from a normalized prior and a decoder.

    If the decoder takes a context, the model is p_θ(x, z|u) = p_Z(z) p_θ(x|z, u): the prior does not depend on u.

    Args:
        prior: p_Z, a torch distribution, or a module that returns one when called without arguments.
        decoder: a module from z to a distribution of x.
        highest_log_prior: γ = max log p_Z, if the prior has no mode attribute.

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
            # Computed once for a fixed prior, and at every call for a learned one.
            highest_log_prior = _height(prior) if highest_log_prior is None else highest_log_prior
        self._gamma = highest_log_prior
        self._prior = FixedDistribution(_lean(prior)) if isinstance(prior, Distribution) else prior
        self._latent_dims = len(prior.event_shape) if isinstance(prior, Distribution) else None
        self.decoder = decoder

    @property
    def normalized(self) -> bool:
        """Whether p_θ(x|z) integrates to one, as for all decoders that are not energies."""
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
        # The first dimension of x always counts rows, even if x has the shape of one event; only z is broadcast.
        if x.shape[1:] != event or x.shape[:1] != batch[-1:]:
            raise ValueError(
                f"x must have shape {(*batch[-1:], *event)} for a decoder that gives {tuple(event)}, found x of shape "
                f"{tuple(x.shape)}; change the decoder's last layer or reshape the data"
            )
        # Only the parameters of the likelihood may come from half precision, not its density.
        return likelihood if wide(x) is x else map_tensors(likelihood, wide)

    def highest_log_prior(self) -> float:
        """Return γ = max_z log p_Z(z), which makes objectives with a deterministic encoder comparable.

        It is 0 for a discrete prior, whose probabilities are at most 1. For a continuous prior without a known mode,
        such as a mixture, pass ``highest_log_prior``; otherwise 0 is used, and J_AE ≥ J_VAE is not guaranteed.
        """
        return self._gamma if self._gamma is not None else _height(self.prior)

    @torch.no_grad()
    def sample(self, n: int, *, context: Tensor | None = None, return_latent: bool = False) -> Any:
        """Draw n samples of x.

        Args:
            n: number of samples.
            context: n rows of context, one for each sample.
            return_latent: whether to return (x, z) instead of x.
        """
        z = self.prior.sample((n,))
        x = self.decoder(z, *given(context)).sample()
        return (x, z) if return_latent else x


def is_normalized(model: Any) -> bool:
    """Return whether a model or a decoder integrates to one: its attribute ``normalized``, by default True.

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
    """Convert a diagonal Gaussian to the form that is fast to evaluate."""
    if not isinstance(prior, Independent) or not isinstance(prior.base_dist, Normal) or len(prior.batch_shape):
        return prior
    loc, scale = prior.base_dist.loc, prior.base_dist.scale
    one = scale.flatten()[0]
    if not bool((scale == one).all()):
        return DiagonalNormal(loc, scale, loc.dim())
    return DiagonalNormal(loc, one, loc.dim(), standard=bool((loc == 0).all() and one == 1))


def _height(prior: Distribution) -> float:
    """Return max log p_Z, or 0 if the prior has no mode."""
    base: Any = prior
    while isinstance(base, Independent):
        base = base.base_dist
    try:
        if getattr(prior.support, "is_discrete", False):
            return 0.0
        # A uniform distribution has no mode, but its density at the mean is the maximum.
        height = float(prior.log_prob(prior.mean if isinstance(base, Uniform) else prior.mode).max().detach())
    except (NotImplementedError, ValueError):  # flows state no support; torch refuses the NaN that some call their mode
        return 0.0
    return height if math.isfinite(height) else 0.0


class GaussianDecoder(nn.Module):
    r"""Gaussian decoder p(x|z) = N(network(z), σ²): squared reconstruction error, in nats.

    Args:
        network: from z to the mean of x.
        scale: σ, or its initial value if it is learned.
        learned: ``None`` for a fixed σ, ``"shared"`` for one learned σ, ``"per_dimension"`` for one per dimension
            of x (requires ``event_shape``). A fixed σ implicitly weights reconstruction against the prior; a learned
            σ sets this weight from the data (arXiv 2006.13202).
        event_shape: the shape of one x; by default that of the network's output.

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
        if self.learned is None:  # rounding σ to half precision would change D log σ by nats
            self._buffers["log_scale"] = at_least_single(fn)(fixed)
        return self

    def forward(self, z: Tensor, context: Tensor | None = None) -> DiagonalNormal:
        """Return p(x|z), or p(x|z, u) if the network takes a context, for latents z."""
        mean = run(self.network, z, *given(context))
        event_dims = _event_dims(z, mean) if self.event_shape is None else len(self.event_shape)
        if self.event_shape is not None and mean.shape[mean.dim() - event_dims :] != self.event_shape:
            raise ValueError(f"network must give x of event_shape {self.event_shape}, found shape {tuple(mean.shape)}")
        log_scale = wide(self.log_scale)
        return DiagonalNormal(mean, log_scale.exp(), event_dims, log_scale=log_scale)


class _Binary(Bernoulli):
    """Bernoulli that always rejects gray values: torch.compile turns off torch's validation permanently."""

    def log_prob(self, value: Tensor) -> Tensor:
        value = _validation.binary("x", value, "use a ContinuousBernoulliDecoder for gray values, or round them")
        density: Tensor = super().log_prob(wide(value))  # type: ignore[no-untyped-call]
        return density


class _BoundedContinuousBernoulli(ContinuousBernoulli):
    """Continuous Bernoulli with log p = −∞ outside [0, 1], where noise samples may be, instead of an error."""

    def log_prob(self, value: Tensor) -> Tensor:
        value = wide(value)
        inside = (value >= 0) & (value <= 1)
        density: Tensor = super().log_prob(value.clamp(0, 1))  # type: ignore[no-untyped-call]
        return torch.where(inside, density, -math.inf)


class _LogitDecoder(nn.Module):
    """Base class of decoders p(x|z) = Π p(x_i; network(z)_i) with logits as parameters."""

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
    """Bernoulli decoder p(x|z) = Π Bernoulli(x_i; σ(network(z)_i)) for binary x; gray values raise an error.

    Args:
        network: from z to the logits of x.
        event_dims: deprecated and ignored.

    >>> BernoulliDecoder(nn.Linear(2, 5))(torch.zeros(3, 2)).log_prob(torch.ones(3, 5)).shape
    torch.Size([3])
    """

    _family = _Binary


class ContinuousBernoulliDecoder(_LogitDecoder):
    """Continuous Bernoulli decoder p(x|z) = Π ContinuousBernoulli(x_i) for gray values, a normalized density on [0, 1].

    Args:
        network: from z to the logits of x.
        event_dims: deprecated and ignored.

    >>> decoder = ContinuousBernoulliDecoder(nn.Linear(2, 5))
    >>> decoder(torch.zeros(3, 2)).log_prob(torch.full((3, 5), 0.3)).shape
    torch.Size([3])
    """

    _family = _BoundedContinuousBernoulli


def _event_dims(z: Tensor, output: Tensor) -> int:
    """Return the number of dimensions of the output that are one x: those after the dimensions shared with z.

    A code is assumed to be a vector or an integer; a model knows the shape of its codes and corrects this.
    """
    most = max(1, z.dim() - 1) if z.is_floating_point() else z.dim()
    shared = 0
    while shared < min(most, output.dim() - 1) and z.shape[shared] == output.shape[shared]:
        shared += 1
    return output.dim() - shared


def warn_of_event_dims(name: str, event_dims: int | None) -> None:
    """Warn that the argument ``event_dims`` of a class is deprecated, if it is given."""
    if event_dims is not None:
        message = f"event_dims of {name} is ignored and will be removed; the network's output has the shape of x"
        warnings.warn(message, DeprecationWarning, stacklevel=3)


register(LatentVariableModel, stand_ins={"highest_log_prior": lambda model: model._gamma})
