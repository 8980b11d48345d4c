"""Samples in place of a distribution whose density nobody knows.

A ratio p/q is estimated from samples of both. Where only samples of q exist, q itself is the base measure: its density
with respect to itself is 1, log q = 0, and what a model calls log p(x) is then log p(x)/q(x).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import _checks


class Rows(Distribution):
    """The rows of a table as noise: draws are rows at random, and log_prob is 0 everywhere.

    >>> noise = Rows(torch.tensor([[1.0], [2.0]]))
    >>> noise.log_prob(torch.tensor([[7.0]]))
    tensor([0.])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own declaration)
    has_rsample = False

    def __init__(self, rows: Tensor) -> None:
        self.rows = _checks.samples("rows", rows)
        super().__init__(torch.Size(), self.rows.shape[1:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """All of space."""
        return constraints.independent(constraints.real, len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Zero: the density with respect to itself."""
        x = _checks.points("x", value, self.event_shape)
        return x.new_zeros(x.shape[: x.ndim - len(self.event_shape)])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Rows, with replacement."""
        return self.rows[torch.randint(len(self.rows), tuple(sample_shape))]

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n rows, with replacement."""
        index = torch.randint(len(self.rows), (_checks.count("n", n, low=0),), generator=generator)
        return self.rows[index.to(self.rows.device)]
