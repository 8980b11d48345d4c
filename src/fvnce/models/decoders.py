"""Decoders: modules from a latent z to the distribution p_θ(x|z).

A network gives one x for each z. What its output has beyond the dimensions that it shares with z is one event: rows of
a table, (B, D), and images, (B, C, H, W), need no argument that says which they are.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, ContinuousBernoulli, Independent

from .. import _checks
from .distributions import Constants, DiagonalNormal
from .fixed import TensorMap, at_least_single, wide
from .networks import run


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
        log_scale = torch.tensor(math.log(_checks.number("scale", scale, low=0.0, open_low=True)))
        _checks.choice("learned", learned, (None, "shared", "per_dimension"))
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
        self._kept: tuple[object, Tensor, Constants] | None = None

    @property
    def scale(self) -> Tensor:
        """σ."""
        return self.log_scale.exp()

    def _apply(self, fn: TensorMap, recurse: bool = True) -> GaussianDecoder:
        fixed = self.log_scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.learned is None:  # rounded to half precision, σ would change by as much as D log σ by nats
            self._buffers["log_scale"] = at_least_single(fn)(fixed)
        return self

    def forward(self, z: Tensor) -> DiagonalNormal:
        """p(x|z)."""
        mean = run(self.network, z)
        event_dims = _event_dims(z, mean) if self.event_shape is None else len(self.event_shape)
        if self.event_shape is not None and mean.shape[mean.dim() - event_dims :] != self.event_shape:
            raise ValueError(
                f"network of a GaussianDecoder must give x of event_shape {self.event_shape}, found shape "
                f"{tuple(mean.shape)}"
            )
        log_scale = wide(self.log_scale)
        # What is made in inference mode serves no gradient later.
        hidden = _checks.values_are_hidden() or torch.is_inference_mode_enabled()
        if self.learned is not None or mean.device.type != "cpu" or hidden:
            return DiagonalNormal(mean, log_scale.exp(), event_dims, log_scale=log_scale)
        # A fixed σ is the same at every call; on an accelerator, asking whether it is would make it wait.
        key = (log_scale.item(), log_scale.dtype, mean.shape[mean.dim() - event_dims :])
        if self._kept is None or self._kept[0] != key:
            likelihood = DiagonalNormal(mean, log_scale.exp(), event_dims, log_scale=log_scale)
            self._kept = (key, likelihood.scale, likelihood.keep_constants())
            return likelihood
        _, scale, constants = self._kept
        likelihood = DiagonalNormal(mean, scale, event_dims, log_scale=log_scale)
        likelihood.keep_constants(constants)
        return likelihood


class BernoulliDecoder(nn.Module):
    """p(x|z) = Π Bernoulli(x_i; σ(network(z)_i)), for binary x; grey values are refused.

    >>> BernoulliDecoder(nn.Linear(2, 5))(torch.zeros(3, 2)).log_prob(torch.ones(3, 5)).shape
    torch.Size([3])
    """

    def __init__(self, network: nn.Module, *, event_dims: int | None = None) -> None:
        super().__init__()
        self.network = network
        _no_event_dims(type(self).__name__, event_dims)

    def forward(self, z: Tensor) -> Independent[Bernoulli]:
        """p(x|z)."""
        logits = run(self.network, z)
        return Independent(_Binary(logits=logits, validate_args=False), _event_dims(z, logits))


class _Binary(Bernoulli):
    """Refuses grey values whether or not torch validates: torch.compile turns its validation off for good."""

    def log_prob(self, value: Tensor) -> Tensor:
        value = _checks.binary("x", value, "use a ContinuousBernoulliDecoder for grey values, or round them")
        density: Tensor = super().log_prob(wide(value))  # type: ignore[no-untyped-call]
        return density


class ContinuousBernoulliDecoder(nn.Module):
    """p(x|z) = Π ContinuousBernoulli(x_i), a normalised density for grey values in [0, 1], and 0 elsewhere.

    >>> decoder = ContinuousBernoulliDecoder(nn.Linear(2, 5))
    >>> decoder(torch.zeros(3, 2)).log_prob(torch.full((3, 5), 0.3)).shape
    torch.Size([3])
    """

    def __init__(self, network: nn.Module, *, event_dims: int | None = None) -> None:
        super().__init__()
        self.network = network
        _no_event_dims(type(self).__name__, event_dims)

    def forward(self, z: Tensor) -> Independent[ContinuousBernoulli]:
        """p(x|z)."""
        logits = run(self.network, z)
        return Independent(_BoundedContinuousBernoulli(logits=logits, validate_args=False), _event_dims(z, logits))


class _BoundedContinuousBernoulli(ContinuousBernoulli):
    """log p = −∞ outside [0, 1], where noise may well lie, instead of an error."""

    def log_prob(self, value: Tensor) -> Tensor:
        value = wide(value)
        inside = (value >= 0) & (value <= 1)
        density: Tensor = super().log_prob(value.clamp(0, 1))  # type: ignore[no-untyped-call]
        return torch.where(inside, density, -math.inf)


def _event_dims(z: Tensor, output: Tensor) -> int:
    """How many dimensions of the output are one x: those after the dimensions that it shares with z.

    A code is a vector or an integer. A model knows the shape of its codes and corrects what this cannot see.
    """
    most = max(1, z.dim() - 1) if z.is_floating_point() else z.dim()
    shared = 0
    while shared < min(most, output.dim() - 1) and z.shape[shared] == output.shape[shared]:
        shared += 1
    return output.dim() - shared


def _no_event_dims(name: str, event_dims: int | None) -> None:
    if event_dims is not None:
        warnings.warn(
            f"event_dims of {name} is ignored and will be removed: the dimensions of one x are read off what the "
            "network gives",
            DeprecationWarning,
            stacklevel=3,
        )
