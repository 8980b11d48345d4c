r"""Independent binary pixels.

p_n(x) = Π_k π_k^{x_k} (1 − π_k)^{1 − x_k},   x in {0, 1}^D
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import _checks
from .drawing import expanded, over_batch


class BernoulliNoise(Distribution):
    """Independent binary variables, noise for binary data such as that of a restricted Boltzmann machine.

    Args:
        probs: probability of a 1, shape (D,) or any event shape, in [0, 1]. At 0 or 1 the other value has log
            density −inf.

    Example:
        >>> noise = BernoulliNoise(torch.tensor([0.5, 0.25]))
        >>> noise.log_prob(torch.tensor([[1.0, 0.0]])).exp()
        tensor([0.3750])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (torch's own declaration)
    has_rsample = False

    def __init__(self, probs: Tensor) -> None:
        found = _checks.floating("probs", probs).detach()
        if not found.ndim or not found.numel():
            raise ValueError(f"probs must have shape (D,) or that of an array, found shape {tuple(found.shape)}")
        self.probs = _checks.entries("probs", found, (found >= 0) & (found <= 1), "lie in [0, 1]")
        super().__init__(torch.Size(), found.shape, validate_args=False)

    @classmethod
    def from_data(cls, X: Tensor, smoothing: float = 1.0) -> BernoulliNoise:
        """Frequencies of ones with ``smoothing`` extra zeros and as many ones in each column.

        >>> BernoulliNoise.from_data(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).probs
        tensor([0.7500, 0.5000])
        """
        data = _checks.samples("X", X)
        _check_binary("X", data)
        smoothing = _checks.number("smoothing", smoothing, low=0)
        return cls((data.sum(0) + smoothing) / (len(data) + 2 * smoothing))

    @property
    def support(self) -> constraints.Constraint:
        """Vectors, or arrays, of zeros and ones."""
        return constraints.independent(constraints.boolean, len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """Probabilities of ones, shape batch_shape + event_shape."""
        return self.probs.expand(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        """Variance of each variable, shape batch_shape + event_shape."""
        return self.mean * (1 - self.mean)

    def expand(self, batch_shape: Any, _instance: Distribution | None = None) -> BernoulliNoise:
        """The same distribution with another batch shape."""
        return expanded(self, batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p_n of points of shape (...) + event_shape with entries 0 and 1; the result has shape (...)."""
        x = _checks.finite_rows("x", _checks.points("x", value, self.event_shape))
        _check_binary("x", x)
        x = over_batch(self, x)
        # xlogy is 0 where its first argument is, so an impossible value that does not occur costs nothing.
        ones: Tensor = torch.xlogy(x, self.probs)
        zeros: Tensor = torch.special.xlog1py(1 - x, -self.probs)
        return (ones + zeros).sum(tuple(range(-len(self.event_shape), 0)))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Samples of shape sample_shape + batch_shape + event_shape, from torch's global generator."""
        return torch.bernoulli(self.probs.expand(self._extended_shape(torch.Size(sample_shape))))

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n samples of shape (n,) + event_shape."""
        n = _checks.count("n", n, low=0)
        return torch.bernoulli(self.probs.expand(n, *self.event_shape), generator=generator)

    def __repr__(self) -> str:
        return f"BernoulliNoise(probs: tensor of shape {tuple(self.event_shape)})"


def _check_binary(name: str, x: Tensor) -> None:
    bad = (x != 0) & (x != 1)
    if bool(bad.any()):
        index = bad.nonzero()[0].tolist()
        found = x[tuple(index)].item()
        raise ValueError(f"{name} must hold only 0 and 1, found {found} at index {tuple(index)}")
