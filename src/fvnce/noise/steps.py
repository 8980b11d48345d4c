r"""Noise that starts from a data point: steps u ~ c(·|x), as modules from x to a distribution of u.

Both kinds here are symmetric, c(u|x) = c(x|u), so that a ratio of the two need not be evaluated:

    GaussianSteps   u = x + s ξ,  ξ ~ N(0, I)
    BitFlips        every bit of x flips by itself with probability p
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, Normal

from .. import _checks
from ..serialization import register

#: From rows x to the distribution of a step away from each.
Steps = Callable[[Tensor], Distribution]


class GaussianSteps(nn.Module):
    """u = x + s ξ with ξ ~ N(0, I).

    Args:
        scale: s, one number or one for each entry of a row.

    >>> GaussianSteps(0.1)(torch.zeros(5, 3)).batch_shape
    torch.Size([5])
    """

    symmetric = True

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        found = torch.as_tensor(scale, dtype=torch.get_default_dtype()) if not isinstance(scale, Tensor) else scale
        self.register_buffer("scale", _checks.scale("scale", found, tuple(found.shape), found).detach().clone())

    def forward(self, x: Tensor) -> Distribution:
        """c(·|x)."""
        assert isinstance(self.scale, Tensor)
        scale = self.scale.to(x).expand_as(x)
        return Independent(Normal(x, scale, validate_args=False), x.dim() - 1, validate_args=False)


class BitFlips(nn.Module):
    """Every bit of x flips by itself with the given probability.

    Args:
        probability: p, above 0 and below 1. Without it 1/D for rows of D bits: one flip of each row on average.

    >>> BitFlips()(torch.zeros(2, 4)).mean
    tensor([[0.2500, 0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """

    symmetric = True

    def __init__(self, probability: float | None = None) -> None:
        super().__init__()
        if probability is not None:
            probability = _checks.number("probability", probability, low=0.0, high=math.nextafter(1, 0), open_low=True)
        self.probability = probability

    def forward(self, x: Tensor) -> Distribution:
        """c(·|x)."""
        _checks.binary("x", x, "use GaussianSteps for numbers")
        bits = x[0].numel()
        flip = min(0.5, 1 / bits) if self.probability is None else self.probability
        return Independent(Bernoulli(probs=x + flip * (1 - 2 * x), validate_args=False), x.dim() - 1, False)

    def extra_repr(self) -> str:
        """The probability."""
        return "" if self.probability is None else f"probability={self.probability}"


register(GaussianSteps, BitFlips)
