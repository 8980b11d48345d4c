r"""Proper scoring rules for classifying data (outcome 1) against noise (outcome 0).

A rule is a pair of functions of the log-ratio Δ = log r, r = p_θ/p_n, with μ = r/(1+r) = σ(Δ):

    f1(Δ) = S(1, μ)   the score of a data sample,      f0(Δ) = S(0, μ)   the score of a noise sample.

The pair is proper when it is *compatible*, f0'(r) = −r f1'(r), and G(μ) = μ f1 + (1−μ) f0 is convex. It has the
*double-ELBO* property if both are also concave in r, so that Jensen's inequality bounds both terms of

    J(θ) = E_data f1(log r_θ) + E_noise f0(log r_θ).

Rules form a convex cone: ``0.9 * PowerRule(1/64) + 0.1 * PowerRule(0)`` is a rule.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from .. import _validation
from .check import check_double_elbo, slope_of


class ScoringRule(ABC):
    """Scoring rule: a pair (f1, f0) of element-wise functions of Δ. Base class of all rules.

    >>> from fvnce import PowerRule
    >>> rule = 0.5 * PowerRule(alpha=0) + PowerRule(alpha=1)
    >>> isinstance(rule, ScoringRule), rule.variational, rule.f1(torch.zeros(1)), rule.f0(torch.zeros(1))
    (True, True, tensor([0.]), tensor([-1.]))
    """

    #: The Δ above which f1, and the Δ above which f0, is replaced by its tangent: the clip, in Δ.
    tangent_above: tuple[float, float] = (math.inf, math.inf)

    @cached_property
    def variational(self) -> bool:
        """Whether the unclipped rule has the double-ELBO property, by its formula or else by a numerical check."""
        return check_double_elbo(self).holds

    @abstractmethod
    def unclipped(self) -> ScoringRule:
        """Return the same rule without a clip."""

    @abstractmethod
    def _evaluate(self, outcome: int, delta: Tensor) -> Tensor:
        """Return f1 for outcome 1 and f0 for outcome 0."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the rule as text that :func:`fvnce.scoring.parse` reads."""

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return log df1/dΔ of the unclipped rule and its derivative in Δ, which is in [0, 1] for a double-ELBO rule.

        By compatibility, log(−df0/dΔ) is larger by Δ. Both are detached from the graph.
        """
        # In float64, whose exponentials have seven times the range.
        with torch.inference_mode(False), torch.enable_grad():
            point = delta.detach().double().clone().requires_grad_()
            first = slope_of(self.unclipped().f1(point), point)
            second = slope_of(first, point)
        return first.detach().log().to(delta.dtype), (second / first).detach().to(delta.dtype)

    def f1(self, delta: Tensor) -> Tensor:
        """Return the score of a data sample at log-ratio ``delta``, of any shape."""
        return self._evaluate(1, _validation.floating("delta", delta))

    def f0(self, delta: Tensor) -> Tensor:
        """Return the score of a noise sample at log-ratio ``delta``, of any shape."""
        return self._evaluate(0, _validation.floating("delta", delta))

    def loss(self, outcome: int, delta: Tensor) -> Tensor:
        """Return the rule as a classification loss of the logit Δ: −f1 for data, −f0 for noise.

        Args:
            outcome: 1 for data, 0 for noise.
            delta: log-ratios, of any shape.

        >>> from fvnce import Logarithmic
        >>> Logarithmic().loss(1, torch.tensor(0.0))  # soft-plus(−Δ)
        tensor(0.6931)
        """
        return -self._evaluate(_validation.outcome(outcome), _validation.floating("delta", delta))

    def score(self, outcome: int, mu: Tensor) -> Tensor:
        """Return S(outcome, μ), where μ in (0, 1) is the predicted probability of outcome 1.

        The paper writes S(0, 1−μ) for ``score(0, mu)``.

        Args:
            outcome: 1 for data, 0 for noise.
            mu: predicted probabilities, strictly between 0 and 1.

        >>> from fvnce import Quadratic
        >>> Quadratic().score(1, torch.tensor(0.5))  # −(1−μ)²
        tensor(-0.2500)
        """
        return self._evaluate(_validation.outcome(outcome), torch.logit(_validation.probability("mu", mu)))

    def generator(self, mu: Tensor) -> Tensor:
        """Return G(μ) = μ S(1, μ) + (1−μ) S(0, μ), the convex function that generates the rule.

        >>> from fvnce import Logarithmic
        >>> Logarithmic().generator(torch.tensor(0.5))  # the negative entropy
        tensor(-0.6931)
        """
        mu = _validation.probability("mu", mu)
        return mu * self.score(1, mu) + (1 - mu) * self.score(0, mu)

    def normalized(self) -> ScoringRule:
        """Return the rule scaled and shifted so that f1 = f0 = 0 and f1' = 1 at r = 1.

        >>> from fvnce import PowerRule
        >>> PowerRule(1.0, 3.0).normalized().f1(torch.tensor([0.0, 1.0]))  # r − 1
        tensor([0.0000, 1.7183])
        """
        return Normalized(self)

    def normalised(self) -> ScoringRule:
        """Return :meth:`normalized`, of which this is the deprecated name."""
        warnings.warn("normalised() is deprecated; use normalized()", DeprecationWarning, stacklevel=2)
        return self.normalized()

    def __add__(self, other: object) -> ScoringRule:
        if not isinstance(other, ScoringRule):
            return NotImplemented
        return combine([(1.0, self), (1.0, other)])

    def __radd__(self, other: object) -> ScoringRule:
        # sum() starts with the number 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, weight: object) -> ScoringRule:
        return combine([(_validation.number("the weight of a rule", weight, low=0.0), self)])

    __rmul__ = __mul__


class SmoothRule(ScoringRule):
    """A rule defined by f and df/dΔ that continues along its tangents above the two Δ of ``tangent_above``."""

    @abstractmethod
    def _value(self, outcome: int, delta: Tensor) -> Tensor:
        """Return f1 for outcome 1 and f0 for outcome 0, without the tangent."""

    @abstractmethod
    def _slope(self, outcome: int, delta: Tensor) -> Tensor:
        """Return the derivative of :meth:`_value` in Δ, differentiable again."""

    def _autograd_is_exact(self, outcome: int) -> bool:
        """Return whether autograd's derivative of ``_value``, which costs less, loses nothing either."""
        return False

    def _evaluate(self, outcome: int, delta: Tensor) -> Tensor:
        threshold = self.tangent_above[1 - outcome]
        inner = delta if threshold == math.inf or _all_below(delta, threshold) else delta.clamp(max=threshold)
        if inner is delta and self._autograd_is_exact(outcome):
            return self._value(outcome, delta)
        hidden, dual = _validation.values_are_hidden(), forward_ad.unpack_dual(delta).tangent
        differentiated = hidden or dual is not None or (delta.requires_grad and torch.is_grad_enabled())
        if inner is delta and differentiated and not hidden and dual is None:
            exact: Tensor = _OfRule.apply(delta, self, outcome)  # type: ignore[no-untyped-call]
            return exact
        with torch.no_grad():
            result = self._value(outcome, inner)
        if inner is delta and not differentiated:
            return result
        slope = self._slope(outcome, inner)
        if inner is not delta:
            with torch.no_grad():
                result = along_tangent(result, slope, (delta - threshold).clamp(min=0))  # −∞ − (−∞) is not 0
        return with_slope(delta, result, slope) if differentiated else result


def _all_below(delta: Tensor, threshold: float) -> bool:
    """Return whether no Δ is above a threshold, where to look at them does not wait for an accelerator."""
    if delta.device.type != "cpu" or not delta.numel() or _validation.values_are_hidden():
        return False
    return bool(delta.detach().max() <= threshold)


def along_tangent(value: Tensor, slope: Tensor, beyond: Tensor) -> Tensor:
    """Return value + slope·beyond, with 0·∞ = 0."""
    return torch.where((slope == 0) | (beyond == 0), value, torch.addcmul(value, slope, beyond))


def with_slope(delta: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """Return ``value`` as a function of ``delta`` whose derivative is ``slope``.

    A formula that is accurate in value can lose its derivative to cancellation (expm1 far below zero, a difference of
    powers). Here the derivative has a formula of its own, which autograd differentiates for second derivatives.
    """
    function: type[Function] = _WithSlope
    if _validation.values_are_hidden():
        function = _WithSlopeCompiled if torch.compiler.is_compiling() else _WithSlopeTransformed
    result: Tensor = function.apply(delta, value.detach(), slope)
    return result


class _WithSlope(Function):
    """Forward returns ``value``; backward multiplies by ``slope``, which carries its own graph.

    Uses the older form of autograd functions: a third of the cost, but without function transforms.
    """

    @staticmethod
    def forward(ctx: Any, delta: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return grad_outputs[0] * ctx.saved_tensors[0], None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        (slope,) = ctx.saved_tensors
        return torch.zeros_like(slope) if tangents[0] is None else tangents[0] * slope


class _OfRule(Function):
    """As :class:`_WithSlope`, for a rule's slope that is evaluated in the backward pass: usually without a graph."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, rule: SmoothRule, outcome: int) -> Tensor:
        ctx.save_for_backward(delta)
        ctx.rule, ctx.outcome = rule, outcome
        value = rule._value(outcome, delta)
        return value.clone() if value is delta else value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return grad_outputs[0] * ctx.rule._slope(ctx.outcome, ctx.saved_tensors[0]), None, None


class _WithSlopeCompiled(Function):
    """The newer form without a forward-mode rule, for torch.compile, which cannot trace one."""

    generate_vmap_rule = True
    backward = _WithSlope.backward

    @staticmethod
    def forward(delta: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.save_for_forward(inputs[2])


class _WithSlopeTransformed(_WithSlopeCompiled):
    """The newer form with a forward-mode rule, for function transforms."""

    jvp = _WithSlope.jvp


@dataclass(frozen=True, repr=False, eq=False)
class Combination(ScoringRule):
    """Weighted sum of rules Σ wᵢ·ruleᵢ with wᵢ > 0, made by ``+`` and ``*``; the empty sum is the zero rule."""

    parts: tuple[tuple[float, ScoringRule], ...]

    def __post_init__(self) -> None:
        thresholds = [(math.inf, math.inf), *(rule.tangent_above for _, rule in self.parts)]
        object.__setattr__(self, "tangent_above", tuple(map(min, zip(*thresholds, strict=True))))

    def __eq__(self, other: object) -> bool:
        # Equality does not depend on the order of the parts.
        return isinstance(other, Combination) and frozenset(self.parts) == frozenset(other.parts)

    def __hash__(self) -> int:
        return hash(frozenset(self.parts))

    def _evaluate(self, outcome: int, delta: Tensor) -> Tensor:
        total = torch.zeros_like(delta)
        for weight, rule in self.parts:
            total = total + weight * rule._evaluate(outcome, delta)
        return total

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log of the sum of the slopes, and its derivative."""
        if not self.parts:
            return torch.full_like(delta, -math.inf), torch.zeros_like(delta)
        # The weight of each part is a difference of logs, all of which are infinite at ±∞.
        delta = delta.clamp(torch.finfo(delta.dtype).min / 4, torch.finfo(delta.dtype).max / 4)
        logs, rates = [], []
        for weight, rule in self.parts:
            log, rate = rule.log_slope(delta)
            logs.append(math.log(weight) + log)
            rates.append(rate)
        stacked = torch.stack(logs)
        return stacked.logsumexp(0), (stacked.softmax(0) * torch.stack(rates)).sum(0)

    @cached_property
    def variational(self) -> bool:
        """Whether the sum has the double-ELBO property.

        A sum of rules with the property has it. The converse does not hold: a small part of a classical rule can be
        outweighed, so a sum with such a part is checked as a whole.
        """
        return all(rule.variational for _, rule in self.parts) or check_double_elbo(self).holds

    def unclipped(self) -> ScoringRule:
        """Return the sum of the parts without their clips."""
        return combine((weight, rule.unclipped()) for weight, rule in self.parts)

    def __str__(self) -> str:
        return "+".join(f"{'' if w == 1 else number_text(w) + '*'}{rule}" for w, rule in self.parts) or "0*power(0)"

    def __repr__(self) -> str:
        return " + ".join(f"{'' if w == 1 else f'{w!r}*'}{rule!r}" for w, rule in self.parts) or "0.0*PowerRule()"


def combine(parts: Iterable[tuple[float, ScoringRule]]) -> ScoringRule:
    """Return Σ wᵢ·ruleᵢ in its simplest form: sums flattened, equal rules merged, zero weights dropped."""
    merged: dict[ScoringRule, float] = {}
    for weight, rule in parts:
        for inner, part in rule.parts if isinstance(rule, Combination) else ((1.0, rule),):
            merged[part] = merged.get(part, 0.0) + weight * inner
    kept = tuple((weight, rule) for rule, weight in merged.items() if weight > 0)
    return kept[0][1] if len(kept) == 1 and kept[0][0] == 1 else Combination(kept)


@dataclass(frozen=True, repr=False)
class Normalized(ScoringRule):
    """Normalized rule (f1 − f1(1), f0 − f0(1)) / f1'(1), the form in which the paper's figures compare rules."""

    rule: ScoringRule

    def __post_init__(self) -> None:
        object.__setattr__(self, "tangent_above", self.rule.tangent_above)
        slope = self._constants[2]
        if not slope > 0:
            raise ValueError(f"rule must have f1'(1) > 0 to be normalized, found f1'(1) = {slope:g} for {self.rule!r}")

    @cached_property
    def _constants(self) -> tuple[float, float, float]:
        """Return f0, f1 and df1/dΔ at r = 1."""
        with torch.enable_grad():
            one = torch.zeros((), dtype=torch.float64, requires_grad=True)
            f1 = self.rule.f1(one)
            slope = slope_of(f1, one)
        return float(self.rule.f0(one.detach())), float(f1.detach()), float(slope.detach())

    def _evaluate(self, outcome: int, delta: Tensor) -> Tensor:
        return (self.rule._evaluate(outcome, delta) - self._constants[outcome]) / self._constants[2]

    def log_slope(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-slope of the rule minus its value at r = 1, and its derivative."""
        log, rate = self.rule.log_slope(delta)
        return log - math.log(self._constants[2]), rate

    @property
    def variational(self) -> bool:
        """Whether the original rule has the property: a positive factor and constants do not change the laws."""
        return self.rule.variational

    def unclipped(self) -> ScoringRule:
        """Return the normalized unclipped rule."""
        return Normalized(self.rule.unclipped())

    def normalized(self) -> ScoringRule:
        """Return the rule itself, which is already normalized."""
        return self

    def __str__(self) -> str:
        return f"normalized({self.rule})"

    def __repr__(self) -> str:
        return f"({self.rule!r}).normalized()"


def number_text(value: float) -> str:
    """Return the shortest text that reads back as exactly this number, as a fraction such as 1/64 if possible.

    >>> number_text(1 / 64), number_text(0.9), number_text(2.0)
    ('1/64', '0.9', '2')
    """
    numerator, denominator = value.as_integer_ratio()
    if denominator == 1 and abs(numerator) < 10**6:
        return str(numerator)
    if denominator <= 4096 and 0 < numerator < 100 and len(repr(value)) > 4:
        return f"{numerator}/{denominator}"
    return repr(value)
