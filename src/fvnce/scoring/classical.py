"""The classical symmetric rules, for comparison: proper, with f1 concave in r, but f0 not concave.

All but the exponential are written with ℓ₊ = log σ(Δ) = log μ and ℓ₋ = log σ(−Δ) = log(1−μ), so that no tail is lost
to 1 − μ.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .. import _validation
from .rule import SmoothRule


class _Symmetric(SmoothRule):
    """S(0, μ) = S(1, 1−μ), that is f0(Δ) = f1(−Δ): a member gives f1 and its slope."""

    @abstractmethod
    def _value1(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope1(self, delta: Tensor) -> Tensor: ...

    @property
    def variational(self) -> bool:
        """False: f0 is not concave in r, so the noise term has no evidence lower bound."""
        return False

    def unclipped(self) -> SmoothRule:
        """Return the rule itself, which grows at most linearly in Δ and needs no clip."""
        return self

    def __str__(self) -> str:
        return f"{type(self).__name__.lower()}()"

    def _value(self, outcome: int, delta: Tensor) -> Tensor:
        return self._value1(delta) if outcome == 1 else self._value1(-delta)

    def _slope(self, outcome: int, delta: Tensor) -> Tensor:
        return self._slope1(delta) if outcome == 1 else -self._slope1(-delta)


@dataclass(frozen=True)
class Logarithmic(_Symmetric):
    """S(1, μ) = log μ: maximum likelihood of the classifier, the rule of ordinary NCE (Eq. NCE_r).

    >>> Logarithmic().f0(torch.tensor(0.0))  # −soft-plus(Δ)
    tensor(-0.6931)
    """

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pair ℓ₋ and −μ."""
        with torch.no_grad():
            return logsigmoid(-delta), -torch.sigmoid(delta)

    def _value1(self, delta: Tensor) -> Tensor:
        return logsigmoid(delta)

    def _slope1(self, delta: Tensor) -> Tensor:
        return torch.exp(logsigmoid(-delta))


@dataclass(frozen=True)
class Quadratic(_Symmetric):
    """S(1, μ) = −(1−μ)²: the Brier score.

    >>> Quadratic().f1(torch.tensor(0.0))
    tensor(-0.2500)
    """

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return log 2 + ℓ₊ + 2ℓ₋ and 1 − 3μ."""
        with torch.no_grad():
            return math.log(2) + logsigmoid(delta) + 2 * logsigmoid(-delta), 1 - 3 * torch.sigmoid(delta)

    def _value1(self, delta: Tensor) -> Tensor:
        return -torch.exp(2 * logsigmoid(-delta))

    def _slope1(self, delta: Tensor) -> Tensor:
        return 2 * torch.exp(logsigmoid(delta) + 2 * logsigmoid(-delta))


@dataclass(frozen=True)
class Spherical(_Symmetric):
    """S(1, μ) = μ/√(μ² + (1−μ)²) = √σ(2Δ).

    >>> Spherical().f1(torch.tensor(0.0))
    tensor(0.7071)
    """

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return ½ log σ(2Δ) + log σ(−2Δ) and 1 − 3σ(2Δ)."""
        with torch.no_grad():
            return logsigmoid(2 * delta) / 2 + logsigmoid(-2 * delta), 1 - 3 * torch.sigmoid(2 * delta)

    def _value1(self, delta: Tensor) -> Tensor:
        return torch.exp(logsigmoid(2 * delta) / 2)

    def _slope1(self, delta: Tensor) -> Tensor:
        return torch.exp(logsigmoid(2 * delta) / 2 + logsigmoid(-2 * delta))


@dataclass(frozen=True)
class Exponential(_Symmetric):
    """S(1, μ) = −√((1−μ)/μ) = −e^(−Δ/2): the rule of boosting, and of eNCE (Liu et al. 2021; Eq. eNCE).

    Mistakes weigh exponentially: where data and noise lie far apart the other rules are flat and this one is steep, so
    that the curvature at the truth has a condition number that is polynomial in the distance, and not exponential.

    Args:
        clip: where a mistake is greater than this, |Δ| > clip on the wrong side, the function follows its tangent. None
            is the rule itself, which overflows.

    >>> Exponential().f1(torch.tensor([0.0, -2.0]))
    tensor([-1.0000, -2.7183])
    """

    clip: float | None = 40.0

    def __post_init__(self) -> None:
        if self.clip is not None:
            object.__setattr__(self, "clip", _validation.number("clip", self.clip, low=0.0, open_low=True))
            object.__setattr__(self, "tangent_above", (math.inf, self.clip))  # f1 follows its tangent below −clip

    def unclipped(self) -> Exponential:
        """Return the rule without its clip."""
        return Exponential(None)

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return −log 2 − Δ/2 and −1/2."""
        with torch.no_grad():
            return -math.log(2) - delta / 2, torch.full_like(delta, -0.5)

    def _value1(self, delta: Tensor) -> Tensor:
        inner = self._inner(delta)
        beyond = torch.zeros_like(delta) if self.clip is None else (-self.clip - delta).clamp(min=0)
        return -torch.exp(-inner / 2) * (1 + beyond / 2)

    def _slope1(self, delta: Tensor) -> Tensor:
        return torch.exp(-self._inner(delta) / 2) / 2

    def _inner(self, delta: Tensor) -> Tensor:
        return delta if self.clip is None else delta.clamp(min=-self.clip)

    def __str__(self) -> str:
        return f"exponential({'none' if self.clip is None else f'{self.clip!r}'})"
