r"""Proper scoring rules for telling data (outcome 1) from noise (outcome 0).

A rule is a pair of functions of the log-ratio Δ = log r, r = p_θ/p_n, with μ = r/(1+r) = σ(Δ):

    f1(Δ) = S(1, μ)   what a data sample earns,      f0(Δ) = S(0, μ)   what a noise sample earns.

The pair is proper when it is *compatible*, f0'(r) = −r f1'(r), and G(μ) = μ f1 + (1−μ) f0 is convex. It has the
*double-ELBO* property when moreover both are concave in r, so that Jensen's inequality bounds both terms of

    J(θ) = E_data f1(log r_θ) + E_noise f0(log r_θ).

Rules form a convex cone: ``0.9 * PowerRule(1/64) + 0.1 * PowerRule(0)`` is a rule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import _checks
from ._autograd import slope_of, with_slope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class ScoringRule(ABC):
    """A pair (f1, f0), element-wise in Δ.

    A member states each function together with its derivative in Δ and the Δ above which it is replaced by its
    tangent (infinity where it never is); everything else follows.

    >>> from fvnce import PowerRule
    >>> rule = 0.5 * PowerRule(alpha=0) + PowerRule(alpha=1)
    >>> isinstance(rule, ScoringRule), rule.variational, rule.f1(torch.zeros(1)), rule.f0(torch.zeros(1))
    (True, True, tensor([0.]), tensor([-1.]))
    """

    @property
    @abstractmethod
    def variational(self) -> bool:
        """Whether the unclipped rule has the double-ELBO property."""

    @abstractmethod
    def unclipped(self) -> ScoringRule:
        """The same rule without any clip."""

    @abstractmethod
    def _f1(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _f0(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def __str__(self) -> str:
        """The rule as text that :func:`fvnce.scoring.parse` reads back."""

    @property
    def tangent_above(self) -> tuple[float, float]:
        """The Δ above which f1, and the Δ above which f0, is replaced by its tangent: the clip, seen from Δ."""
        return math.inf, math.inf

    @property
    def clipped_above(self) -> float:
        """The smaller of the two."""
        return min(self.tangent_above)

    def condition(self, delta: Tensor) -> Tensor:
        """How many times the rounding of one operation its values and slopes may be off, relatively."""
        return torch.ones_like(delta)

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """log df1/dΔ of the unclipped rule, and its own derivative in Δ, in [0, 1] for a double-ELBO rule.

        By compatibility, log(−df0/dΔ) is Δ more. No gradient flows through either.
        """
        # In float64, whose exponentials reach seven times as far.
        with torch.inference_mode(False), torch.enable_grad():
            point = delta.detach().double().clone().requires_grad_()
            first = slope_of(self.unclipped().f1(point), point)
            second = slope_of(first, point)
        return first.detach().log().to(delta.dtype), (second / first).detach().to(delta.dtype)

    def f1(self, delta: Tensor) -> Tensor:
        """What a data sample earns at log-ratio ``delta``, any shape."""
        return self._f1(_checks.floating("delta", delta))

    def f0(self, delta: Tensor) -> Tensor:
        """What a noise sample earns at log-ratio ``delta``, any shape."""
        return self._f0(_checks.floating("delta", delta))

    def loss(self, outcome: int, delta: Tensor) -> Tensor:
        """The rule as a classification loss of the logit Δ: −f1 for data, −f0 for noise.

        >>> from fvnce import Logarithmic
        >>> Logarithmic().loss(1, torch.tensor(0.0))  # soft-plus(−Δ)
        tensor(0.6931)
        """
        return -self.f1(delta) if _checks.outcome(outcome) else -self.f0(delta)

    def score(self, outcome: int, mu: Tensor) -> Tensor:
        """S(outcome, μ), where μ in (0, 1) is the probability of outcome 1 whatever the outcome.

        The paper writes S(0, 1−μ) for what is ``score(0, mu)`` here.

        >>> from fvnce import Quadratic
        >>> Quadratic().score(1, torch.tensor(0.5))  # −(1−μ)²
        tensor(-0.2500)
        """
        delta = torch.logit(_checks.probability("mu", mu))
        return self.f1(delta) if _checks.outcome(outcome) else self.f0(delta)

    def generator(self, mu: Tensor) -> Tensor:
        """G(μ) = μ S(1, μ) + (1−μ) S(0, μ), the convex function that generates the rule.

        >>> from fvnce import Logarithmic
        >>> Logarithmic().generator(torch.tensor(0.5))  # the negative entropy
        tensor(-0.6931)
        """
        mu = _checks.probability("mu", mu)
        return mu * self.score(1, mu) + (1 - mu) * self.score(0, mu)

    def normalised(self) -> ScoringRule:
        """The rule scaled and shifted so that f1 = f0 = 0 and f1' = 1 at r = 1.

        >>> from fvnce import PowerRule
        >>> PowerRule(1.0, 3.0).normalised().f1(torch.tensor([0.0, 1.0]))  # r − 1
        tensor([0.0000, 1.7183])
        """
        return Normalised(self)

    def __add__(self, other: object) -> ScoringRule:
        if not isinstance(other, ScoringRule):
            return NotImplemented
        return combine([(1.0, self), (1.0, other)])

    def __radd__(self, other: object) -> ScoringRule:
        # sum() starts from the number 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, weight: object) -> ScoringRule:
        return combine([(_checks.number("the weight of a rule", weight, low=0.0), self)])

    __rmul__ = __mul__


class SmoothRule(ScoringRule):
    """A rule stated by values and slopes: f_k, df_k/dΔ, and the Δ above which f_k follows its tangent."""

    @abstractmethod
    def _value1(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope1(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _value0(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope0(self, delta: Tensor) -> Tensor: ...

    def _f1(self, delta: Tensor) -> Tensor:
        return _evaluate(delta, self.tangent_above[0], self._value1, self._slope1)

    def _f0(self, delta: Tensor) -> Tensor:
        return _evaluate(delta, self.tangent_above[1], self._value0, self._slope0)


def _evaluate(
    delta: Tensor, threshold: float, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
) -> Tensor:
    """f(Δ) where Δ is below the threshold t, and the tangent f(t) + f'(t)(Δ − t) above it."""
    inner = delta if threshold == math.inf else delta.clamp(max=threshold)
    with torch.no_grad():
        result = value(inner)
    if result is delta:  # log r: no slope is more exact than autograd's
        return delta
    differentiated = (
        _checks.values_are_hidden()
        or (delta.requires_grad and torch.is_grad_enabled())
        or forward_ad.unpack_dual(delta).tangent is not None
    )
    if inner is delta and not differentiated:
        return result
    inner_slope = slope(inner)
    if inner is not delta:
        with torch.no_grad():
            result = along_tangent(result, inner_slope, (delta - threshold).clamp(min=0))  # −∞ − (−∞) is not 0
    return with_slope(delta, result, inner_slope) if differentiated else result


def along_tangent(value: Tensor, slope: Tensor, beyond: Tensor) -> Tensor:
    """value + slope·beyond, where a slope of 0 leads nowhere however far."""
    return torch.where((slope == 0) | (beyond == 0), value, torch.addcmul(value, slope, beyond))


@dataclass(frozen=True, repr=False, eq=False)
class Combination(ScoringRule):
    """Σ wᵢ·ruleᵢ with wᵢ > 0: a point of the cone. Made by ``+`` and ``*``; the empty sum is the zero rule."""

    parts: tuple[tuple[float, ScoringRule], ...]

    def __eq__(self, other: object) -> bool:
        # A sum is the same sum in any order.
        return isinstance(other, Combination) and frozenset(self.parts) == frozenset(other.parts)

    def __hash__(self) -> int:
        return hash(frozenset(self.parts))

    def _f1(self, delta: Tensor) -> Tensor:
        return sum((w * rule._f1(delta) for w, rule in self.parts), start=torch.zeros_like(delta))

    def _f0(self, delta: Tensor) -> Tensor:
        return sum((w * rule._f0(delta) for w, rule in self.parts), start=torch.zeros_like(delta))

    @property
    def tangent_above(self) -> tuple[float, float]:
        """The smallest thresholds of the parts."""
        thresholds = [rule.tangent_above for _, rule in self.parts]
        return min((f1 for f1, _ in thresholds), default=math.inf), min((f0 for _, f0 in thresholds), default=math.inf)

    def condition(self, delta: Tensor) -> Tensor:
        """That of the worst part."""
        return torch.stack([torch.ones_like(delta), *(rule.condition(delta) for _, rule in self.parts)]).amax(0)

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """The log of the sum of the slopes."""
        if not self.parts:
            return torch.full_like(delta, -math.inf), torch.zeros_like(delta)
        # The share of each part is a difference of logs, which are all infinite at ±∞.
        delta = delta.clamp(torch.finfo(delta.dtype).min / 4, torch.finfo(delta.dtype).max / 4)
        logs, rates = zip(*(rule.log_slope(delta) for _, rule in self.parts), strict=True)
        weighted = torch.stack([math.log(w) + log for (w, _), log in zip(self.parts, logs, strict=True)])
        return weighted.logsumexp(0), (weighted.softmax(0) * torch.stack(rates)).sum(0)

    @cached_property
    def variational(self) -> bool:
        """Whether the sum has the double-ELBO property.

        The cone is closed under sums, so parts that have it suffice. They are not necessary: a little of a
        classical rule can be outweighed, so a sum with such a part is examined as a whole.
        """
        if all(rule.variational for _, rule in self.parts):
            return True
        from .check import check_double_elbo

        return check_double_elbo(self).holds

    def unclipped(self) -> ScoringRule:
        """Every part without its clip."""
        return combine((w, rule.unclipped()) for w, rule in self.parts)

    def __str__(self) -> str:
        if not self.parts:
            return "0*power(0)"
        return "+".join(f"{'' if w == 1 else number_text(w) + '*'}{rule}" for w, rule in self.parts)

    def __repr__(self) -> str:
        if not self.parts:
            return "0.0*PowerRule()"
        return " + ".join(f"{'' if w == 1 else f'{w!r}*'}{rule!r}" for w, rule in self.parts)


def combine(parts: Iterable[tuple[float, ScoringRule]]) -> ScoringRule:
    """Σ wᵢ·ruleᵢ in its simplest form: sums flattened, equal rules merged, zero weights dropped."""
    merged: dict[ScoringRule, float] = {}
    for weight, rule in parts:
        inner = rule.parts if isinstance(rule, Combination) else ((1.0, rule),)
        for w, part in inner:
            merged[part] = merged.get(part, 0.0) + weight * w
    kept = tuple((w, rule) for rule, w in merged.items() if w > 0)
    if len(kept) == 1 and kept[0][0] == 1:
        return kept[0][1]
    return Combination(kept)


@dataclass(frozen=True, repr=False)
class Normalised(ScoringRule):
    """(f1 − f1(1), f0 − f0(1)) / f1'(1): the form in which rules are compared in the paper's figures."""

    rule: ScoringRule

    def __post_init__(self) -> None:
        _, slope, _ = self._constants
        if not slope > 0:
            raise ValueError(f"rule must have f1'(1) > 0 to be normalised, found f1'(1) = {slope:g} for {self.rule!r}")

    @cached_property
    def _constants(self) -> tuple[float, float, float]:
        """f1, df1/dΔ and f0 at r = 1."""
        with torch.enable_grad():
            one = torch.zeros((), dtype=torch.float64, requires_grad=True)
            f1 = self.rule.f1(one)
            slope = slope_of(f1, one)
        return float(f1.detach()), float(slope.detach()), float(self.rule.f0(one.detach()))

    def _f1(self, delta: Tensor) -> Tensor:
        f1_at_1, slope, _ = self._constants
        return (self.rule._f1(delta) - f1_at_1) / slope

    def _f0(self, delta: Tensor) -> Tensor:
        _, slope, f0_at_1 = self._constants
        return (self.rule._f0(delta) - f0_at_1) / slope

    @property
    def tangent_above(self) -> tuple[float, float]:
        """As the rule itself."""
        return self.rule.tangent_above

    def condition(self, delta: Tensor) -> Tensor:
        """As the rule itself."""
        return self.rule.condition(delta)

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """That of the rule, over its slope at r = 1."""
        log, rate = self.rule.log_slope(delta)
        return log - math.log(self._constants[1]), rate

    @property
    def variational(self) -> bool:
        """As the rule itself: a positive factor and constants change no law."""
        return self.rule.variational

    def unclipped(self) -> ScoringRule:
        """The normalised unclipped rule."""
        return Normalised(self.rule.unclipped())

    def normalised(self) -> ScoringRule:
        """Itself."""
        return self

    def __str__(self) -> str:
        return f"normalised({self.rule})"

    def __repr__(self) -> str:
        return f"({self.rule!r}).normalised()"


def number_text(value: float) -> str:
    """The shortest text that reads back as exactly this number, as a small binary fraction where it is one.

    >>> number_text(1 / 64), number_text(0.9), number_text(2.0)
    ('1/64', '0.9', '2')
    """
    numerator, denominator = value.as_integer_ratio()
    if denominator == 1 and abs(numerator) < 10**6:
        return str(numerator)
    if denominator <= 4096 and 0 < numerator < 100 and len(repr(value)) > 4:
        return f"{numerator}/{denominator}"
    return repr(value)
