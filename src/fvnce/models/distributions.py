"""Two distributions that torch does not have: a diagonal Gaussian without the overhead, and a point mass."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, Independent, Normal, constraints


class DiagonalNormal(Independent[Normal]):
    """N(loc, diag(scale²)) over the last ``event_dims`` dimensions.

    As ``Independent(Normal(loc, scale), event_dims)``, but with one pass over the event where the scale is a
    single number: log N = −‖x − loc‖²/2σ² − D log σ − (D/2) log 2π.

    >>> q = DiagonalNormal(torch.zeros(5, 3), torch.tensor(0.5))
    >>> q.batch_shape, q.event_shape
    (torch.Size([5]), torch.Size([3]))
    """

    def __init__(self, loc: Tensor, scale: Tensor, event_dims: int = 1) -> None:
        self._loc, self._scale = loc, scale
        self.reinterpreted_batch_ndims = event_dims
        split = loc.dim() - event_dims
        # Not Independent's own: one of these is made for every batch, and its parts are seldom asked for.
        Distribution.__init__(self, loc.shape[:split], loc.shape[split:], validate_args=False)

    @property
    def base_dist(self) -> Normal:  # type: ignore[override]
        """The Gaussian of each dimension."""
        return Normal(self._loc, self._scale, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> DiagonalNormal:
        """The same distribution over a larger batch."""
        shape = Size(batch_shape) + self.event_shape
        scale = self._scale if self._scale.dim() == 0 else self._scale.expand(shape)
        return DiagonalNormal(self._loc.expand(shape), scale, len(self.event_shape))

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """loc + scale·ε."""
        shape = Size(sample_shape) + self._loc.shape
        noise = torch.randn(shape, dtype=self._loc.dtype, device=self._loc.device)
        return torch.addcmul(self._loc, noise, self._scale)

    def log_prob(self, value: Tensor) -> Tensor:
        """Sum over the event."""
        size = self.event_shape.numel()
        dims = tuple(range(-len(self.event_shape), 0))
        difference = value - self._loc
        if self._scale.dim() == 0:
            exponent = difference.square().sum(dims) / (2 * self._scale.square())
            log_scale = size * self._scale.log()
        else:
            exponent = (difference / self._scale).square().sum(dims) / 2
            log_scale = self._scale.log().expand(self._loc.shape).sum(dims)
        return -exponent - log_scale - size / 2 * math.log(2 * math.pi)

    def reparameterised_at(self, value: Tensor) -> Tensor:
        """``value`` as loc + scale·ε with ε held fixed: the same draw, with this distribution's gradient."""
        loc, scale = self.base_dist.loc, self.base_dist.scale
        noise: Tensor = ((value - loc) / scale).detach()
        return loc + scale * noise


class PointMass(Distribution):
    """q(z) = 1[z = location], with log q = 0 by convention: the deterministic encoder's distribution.

    >>> PointMass(torch.ones(4, 2)).rsample((3,)).shape
    torch.Size([3, 4, 2])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012  torch's own interface
    has_rsample = True

    def __init__(self, location: Tensor, event_dims: int = 1) -> None:
        self.location = location
        split = location.dim() - event_dims
        super().__init__(location.shape[:split], location.shape[split:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The location."""
        return self.location

    @property
    def mode(self) -> Tensor:
        """The location."""
        return self.location

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.location)

    def rsample(self, sample_shape: Any = Size()) -> Tensor:  # noqa: B008  torch's own interface
        """The location, repeated."""
        return self.location.expand(Size(sample_shape) + self.location.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero, wherever."""
        return self.location.new_zeros(value.shape[: value.dim() - len(self.event_shape)])

    def reparameterised_at(self, value: Tensor) -> Tensor:
        """The location."""
        return self.location.expand(value.shape)


def map_tensors(distribution: Distribution, function: Callable[[Tensor], Tensor]) -> Distribution:
    """A copy of a distribution with every tensor in it passed through ``function``: how priors change device.

    The copy does not validate what it is asked: objectives do, with words that name the row.
    """
    moved = copy.copy(distribution)
    moved._validate_args = False
    for name, value in vars(distribution).items():
        if isinstance(value, Tensor):
            moved.__dict__[name] = function(value)
        elif isinstance(value, Distribution):
            moved.__dict__[name] = map_tensors(value, function)
    return moved
