r"""Mixtures of noise distributions over one event space.

p_n(x) = Σ_k w_k p_k(x),    log p_n(x) = logsumexp_k(log w_k + log p_k(x))
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from .. import _validation
from ..io import register
from .base import Noise, draw, inside_support, jitter, log_prob_or_minus_inf, row_flops


class _Union(constraints.Constraint):
    """Union of the components' supports."""

    is_discrete = False
    event_dim = 1

    def __init__(self, components: Sequence[Distribution]) -> None:
        self.components = components
        self.event_dim = len(components[0].event_shape)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        inside = [inside_support(component, value) for component in self.components]
        return torch.stack(inside).any(0)


class NoiseMixture(Noise):
    """Mixture of distributions of any families with the same event shape.

    A component contributes density 0 outside its support.

    Args:
        components: distributions with empty batch shape and equal event shape.
        weights: one non-negative number per component, divided by their sum; by default equal.

    Example:
        >>> wide = torch.distributions.MultivariateNormal(torch.zeros(1), 9 * torch.eye(1))
        >>> box = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(1), 1.0), 1)
        >>> noise = NoiseMixture([wide, box], weights=[1, 3])
        >>> noise.log_prob(torch.tensor([[0.5], [5.0]]))
        tensor([-0.2449, -4.7927])
        >>> noise.draw(100, torch.Generator().manual_seed(0)).shape
        torch.Size([100, 1])
    """

    everywhere = False
    #: Tensors that keep device and precision: weights are always in float64.
    kept_as_is = ("weights", "given_weights")

    def __init__(self, components: Sequence[Distribution], weights: Sequence[float] | Tensor | None = None) -> None:
        self.components = tuple(components)
        if not self.components:
            raise ValueError("components must hold at least one distribution, found none")
        event_shape = getattr(self.components[0], "event_shape", None)
        for position, component in enumerate(self.components):
            _validation.distribution(f"components[{position}]", component)
            if component.event_shape != event_shape:
                raise ValueError(
                    f"components[{position}] must have the event shape {tuple(event_shape or ())} of the first, "
                    f"found {tuple(component.event_shape)}"
                )
        size = len(self.components)
        self.given_weights = torch.as_tensor([1.0] * size if weights is None else weights, dtype=torch.float64)
        self.weights = _validation.weights("weights", self.given_weights, size)
        super().__init__(self.components[0].event_shape)

    @property
    def support(self) -> constraints.Constraint:
        """The union of the components' supports."""
        return _Union(self.components)

    @property
    def mean(self) -> Tensor:
        """The weighted mean of the components' means, shape event_shape."""
        weighted = [float(w) * c.mean for w, c in zip(self.weights, self.components, strict=True)]
        return functools.reduce(torch.add, weighted)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log p_n of points of shape (...) + event_shape; the result has shape (...)."""
        x = _validation.finite_rows("x", _validation.points("x", value, self.event_shape))
        return self._combine([log_prob_or_minus_inf(component, x) for component in self.components])

    def jitter(self, x: Tensor) -> Tensor:
        """Perturb each point by the kernel of a component, drawn with probability its weight."""
        which = torch.multinomial(self.weights, len(x), replacement=True).to(x.device, non_blocking=True)
        moved = torch.stack([jitter(component, x) for component in self.components])
        return moved[which, torch.arange(len(x), device=x.device)]

    def row_flops(self) -> float | None:
        """Return the number of operations for one row, summed over components; None if one is unknown."""
        parts = [row_flops(component) for component in self.components]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Return n samples of shape (n,) + event_shape."""
        n = _validation.count("n", n, low=0)
        device = None if generator is None else generator.device
        level = torch.rand(n, generator=generator, dtype=torch.float64, device=device)
        bounds = self.weights.cumsum(0).to(level.device)
        chosen = torch.searchsorted(bounds, level * bounds[-1], right=True)
        # Only rounding can bring a level to the last bound; the last component of positive weight takes it.
        chosen = chosen.clamp_max(int(self.weights.nonzero()[-1]))
        rows = [(chosen == k).nonzero()[:, 0] for k in range(len(self.components))]
        parts = [draw(component, len(r), generator) for component, r in zip(self.components, rows, strict=True)]
        dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
        x = torch.empty((n, *self.event_shape), dtype=dtype, device=parts[0].device)
        for part, where in zip(parts, rows, strict=True):
            x[where.to(x.device, non_blocking=True)] = part.to(dtype)
        return x

    def _combine(self, log_probs: list[Tensor]) -> Tensor:
        dtype = functools.reduce(torch.promote_types, (part.dtype for part in log_probs))
        weighed = [
            part.to(dtype) + float(log_weight)
            for part, log_weight in zip(log_probs, self.weights.log(), strict=True)
            if float(log_weight) > -float("inf")
        ]
        return torch.logsumexp(torch.stack(weighed), 0)

    def __repr__(self) -> str:
        parts = ", ".join(f"{float(w):.3g} * {c}" for w, c in zip(self.weights, self.components, strict=True))
        return f"NoiseMixture({parts})"


register(NoiseMixture, stand_ins={"weights": lambda noise: noise.given_weights})
