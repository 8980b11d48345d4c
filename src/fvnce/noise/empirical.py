"""Noise that is known by its draws alone.

A ratio p/q is estimated from draws of both. Where nobody knows the density of q, or nobody needs it, q itself is the
base measure: its density with respect to itself is 1, log q = 0, and what a model calls log p(x) is then log p(x)/q(x).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import _checks
from .drawing import draw


class EmpiricalNoise(Distribution):
    """Draws of q with respect to q itself, so that log_prob is 0 everywhere.

    Args:
        samples: rows of a table, shape (n, …), which are drawn at random with replacement; or a distribution that is
            drawn from and never evaluated.

    >>> noise = EmpiricalNoise(torch.tensor([[1.0], [2.0]]))
    >>> noise.log_prob(torch.tensor([[7.0]]))
    tensor([0.])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own declaration)
    has_rsample = False

    def __init__(self, samples: Tensor | Distribution) -> None:
        self.samples: Tensor | Distribution
        if isinstance(samples, Distribution):
            _checks.distribution("samples", samples)
            self.samples, event_shape = samples, samples.event_shape
        else:
            self.samples = _checks.samples("samples", samples)
            event_shape = self.samples.shape[1:]
        super().__init__(torch.Size(), event_shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All of space: where q vanishes nothing is drawn."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero: the density with respect to itself."""
        x = _checks.points("x", value, self.event_shape)
        return x.new_zeros(x.shape[: x.ndim - len(self.event_shape)])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws from the global generator."""
        if isinstance(self.samples, Distribution):
            return self.samples.sample(sample_shape)
        return self.samples[torch.randint(len(self.samples), tuple(sample_shape))]

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n draws, seeded by the generator."""
        if isinstance(self.samples, Distribution):
            return draw(self.samples, n, generator)
        index = torch.randint(len(self.samples), (_checks.count("n", n, low=0),), generator=generator)
        return self.samples[index.to(self.samples.device)]

    def draw_with_log_prob(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """n draws and zeros."""
        x = self.draw(n, generator)
        return x, x.new_zeros(n)
