r"""Rules built from other descriptions: a weight w = f1', a generator G, or the two functions themselves.

A weight makes the laws visible. With w(r) = f1'(r) ≥ 0,

    f1(r) = ∫₁ʳ w(s) ds,      f0(r) = −∫₁ʳ s·w(s) ds,

is proper, and has the double-ELBO property exactly when w is non-increasing and r·w(r) is non-decreasing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .. import _checks
from .check import check_double_elbo
from .rule import ScoringRule, SmoothRule, along_tangent

Function = Callable[[Tensor], Tensor]

#: f0 grows like r² at most, and e^(2·35) · 1e4 is still a float32.
MAX_CLIP = 35.0
#: The Δ between which r, and r² at the upper end, can still be represented in float64.
LOWEST, HIGHEST = -700.0, 350.0
SMALLEST_SLOPE = 1e-300
#: Gauss–Legendre quadrature on [−1, 1], and the polynomial through its nodes at −1, 0 and 1.
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
PREDICTOR = np.linalg.solve(
    np.polynomial.legendre.legvander(NODES, 15).T, np.polynomial.legendre.legvander(np.array([-1.0, 0.0, 1.0]), 15).T
)
#: A panel of half a unit of Δ is 7e-15 wide then, over which even a jump of the weight is lost in rounding.
MOST_HALVINGS, MOST_PANELS = 46, 10_000


def from_weight(weight: Function, *, clip: float | None = 10.0) -> ScoringRule:
    r"""The rule with f1'(r) = w(r), f1 = f0 = 0 at r = 1.

    Args:
        weight: w, an element-wise, differentiable torch function of r > 0 with w ≥ 0.
        clip: the Δ above which f1 and f0 follow their tangents, ``None`` for never.

    Integrals are evaluated in float64 by Gauss–Legendre quadrature between knots whose integrals are tabulated
    once, and which lie close together around a kink of w. Below Δ = −700 and above 350, where r or r² leaves float64,
    f1 is continued along its tangent, which is again a weight that obeys the laws. The rule holds the user's function,
    so it has no text form and is hashed by identity.

    ``variational`` examines the rule as :func:`~fvnce.scoring.check_double_elbo` does. A kink of w is allowed and a
    jump is not: downwards, r·w would fall.

    >>> rule = from_weight(lambda r: 1 / (1 + r) ** 0.5)
    >>> rule.variational
    True
    >>> from_weight(lambda r: 1 / (1 + r) ** 2).variational  # falls faster than 1/r
    False
    """
    return _WeightRule(weight, _clip(clip))


def from_generator(generator: Function, *, clip: float | None = None) -> ScoringRule:
    r"""The rule S(1, μ) = G + (1−μ)G', S(0, μ) = G − μG' of a convex generator G on (0, 1) (Eq. bin_PSR).

    Args:
        generator: G, an element-wise torch function of μ, twice differentiable by autograd.
        clip: the Δ above which f1 and f0 follow their tangents, ``None`` for |Δ| > 30 alone.

    A float64 μ cannot come closer to 1 than 1e-16, so outside |Δ| ≤ 30 the functions follow their tangents;
    where the rule is known in closed form, prefer that.

    >>> rule = from_generator(lambda mu: mu * mu.log() + (1 - mu) * (1 - mu).log())
    >>> rule.f1(torch.tensor(0.0))  # the logarithmic rule
    tensor(-0.6931)
    """
    return _GeneratorRule(generator, _clip(clip))


def from_pair(f1: Function, f0: Function) -> ScoringRule:
    """The rule of two functions of Δ as they are, differentiated by autograd; nothing is assumed of them.

    >>> from_pair(lambda d: d, lambda d: -d.exp()).variational
    True
    """
    return _PairRule(f1, f0)


def _clip(clip: float | None) -> float | None:
    return None if clip is None else _checks.number("clip, if not None,", clip, low=0.0, high=MAX_CLIP)


class _Unwritable:
    """What rules made of a user's functions share: they cannot be written as text."""

    def __str__(self) -> str:
        raise ValueError(
            f"{self!r} is made of Python functions and has no text form; "
            "use built-in rules and their sums where a rule must be written down"
        )


class _WeightRule(_Unwritable, SmoothRule):
    def __init__(self, weight: Function, clip: float | None) -> None:
        self._weight = weight
        self._clip = clip
        self._table  # noqa: B018  a weight that is negative or not finite is refused here

    @property
    def tangent_above(self) -> tuple[float, float]:
        """The clip, for both."""
        threshold = math.inf if self._clip is None else self._clip
        return threshold, threshold

    @cached_property
    def variational(self) -> bool:
        """Whether w is non-increasing and r·w non-decreasing, examined numerically."""
        return check_double_elbo(self).holds

    def unclipped(self) -> ScoringRule:
        """The rule of the same weight without a clip."""
        return self if self._clip is None else _WeightRule(self._weight, None)

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor]:
        """Knots in Δ, and (∫₁ʳ w, −∫₁ʳ s·w) at each."""
        near = np.arange(0.0, 40.5, 0.5)
        far = np.geomspace(40.5, -LOWEST, 60)
        positive = np.concatenate([near, far[far < HIGHEST], [HIGHEST]])
        knots = torch.tensor(np.concatenate([-np.concatenate([near[1:], far])[::-1], positive]))
        weights = self._w(knots)
        bad = ~(weights.isfinite() & (weights >= 0))
        # Far out, r itself may exceed what the user's formula can square; judge where rules are compared.
        bad &= knots.abs() <= 40
        if bad.any():
            at = int(bad.nonzero()[0])
            raise ValueError(
                "weight must be finite and >= 0 for every r > 0, "
                f"found {weights[at].item():g} at r = {math.exp(knots[at]):g}"
            )
        knots = self._refined(knots)
        panels = self._integrals(knots[:-1], knots[1:])
        zero = int((knots == 0).nonzero())
        # Sum outwards from Δ = 0, so that the small integrals are not differences of large ones.
        right = torch.cat([panels.new_zeros(2, 1), panels[:, zero:].cumsum(1)], dim=1)
        left = -panels[:, :zero].flip(1).cumsum(1).flip(1)
        return knots, torch.cat([left, right], dim=1)

    def _refined(self, knots: Tensor) -> Tensor:
        """More knots where φ at the ends and middle of a panel is not what its nodes predict: at kinks and jumps."""
        found, left, right = [knots], knots[:-1], knots[1:]
        for _ in range(MOST_HALVINGS):
            middle = (left + right) / 2
            at_nodes, known = (self._phi(left, right, points) for points in (NODES, np.array([-1.0, 0.0, 1.0])))
            surprise = (at_nodes @ torch.from_numpy(PREDICTOR) - known).abs().amax(-1)
            # Δ itself is rounded, which e^Δ multiplies.
            rough = surprise > 1e-13 * (1 + left.abs()) * at_nodes.abs().amax(-1)
            found.append(middle[rough])
            left = torch.cat([left[rough], middle[rough]])
            right = torch.cat([middle[rough], right[rough]])
            if len(left) == 0 or len(left) > MOST_PANELS:
                break
        every: Tensor = torch.cat(found).unique()
        return every

    def _phi(self, start: Tensor, stop: Tensor, points: np.ndarray) -> Tensor:
        """φ = r·w(r) at the given points of (−1, 1) in each panel, shape (panels, points)."""
        t = ((start + stop) / 2).unsqueeze(-1) + (stop - start).unsqueeze(-1) / 2 * torch.from_numpy(points).to(start)
        return t.exp() * self._w(t)

    def _w(self, delta: Tensor) -> Tensor:
        return self._weight(delta.exp())

    def _integrals(self, start: Tensor, stop: Tensor) -> Tensor:
        """∫ φ dΔ and −∫ e^Δ φ dΔ from start to stop, with φ = r·w(r), by 16-point Gauss–Legendre."""
        nodes, weights = (torch.from_numpy(a).to(start.device) for a in (NODES, WEIGHTS))
        half = (stop - start) / 2
        t = ((start + stop) / 2).unsqueeze(-1) + half.unsqueeze(-1) * nodes
        r = t.exp()
        phi = r * self._w(t)
        return torch.stack([half * (phi * weights).sum(-1), -half * (r * phi * weights).sum(-1)])

    def _values(self, delta: Tensor, which: int) -> Tensor:
        knots, integrals = (part.to(delta.device) for part in self._table)
        x = delta.double().clamp(LOWEST, HIGHEST)
        nearest = (torch.bucketize(x, knots[:-1], right=True) - 1).clamp(min=0).reshape(-1)
        # gather, as indexing by a single number asks for its value, which vmap does not give
        start, known = (values.gather(0, nearest).reshape(x.shape) for values in (knots, integrals[which]))
        value = known + self._integrals(start, x)[which]
        beyond = delta.double() - x
        slope = self._slope1(x) if which == 0 else self._slope0(x)
        # A slope of e^-700 adds nothing at any Δ; only at −∞ would it make a finite limit infinite.
        slope = torch.where(slope.abs() < SMALLEST_SLOPE, 0.0, slope)
        return along_tangent(value, slope, beyond).to(delta.dtype)

    def _value1(self, delta: Tensor) -> Tensor:
        return self._values(delta, 0)

    def _value0(self, delta: Tensor) -> Tensor:
        return self._values(delta, 1)

    def _slope1(self, delta: Tensor) -> Tensor:
        x = delta.double().clamp(LOWEST, HIGHEST)
        return (x.exp() * self._w(x)).to(delta.dtype)

    def _slope0(self, delta: Tensor) -> Tensor:
        # Beyond the ends the weight is continued as const/r, so f0 goes on as const·r there.
        return -(delta.double().exp() * self._slope1(delta.double())).to(delta.dtype)

    def __repr__(self) -> str:
        return f"from_weight({_name(self._weight)}, clip={self._clip})"


class _GeneratorRule(_Unwritable, SmoothRule):
    _REACH = 30.0

    def __init__(self, generator: Function, clip: float | None) -> None:
        self._generator = generator
        self._clip = clip

    @property
    def tangent_above(self) -> tuple[float, float]:
        """The clip, for both; without one, the end of what float64 resolves."""
        threshold = self._REACH if self._clip is None else self._clip
        return threshold, threshold

    @cached_property
    def variational(self) -> bool:
        """Whether the double-ELBO property holds, examined numerically where 1−μ is still accurate."""
        return check_double_elbo(self, reach=12.0).holds

    def condition(self, delta: Tensor) -> Tensor:
        """1/(1−μ): the generator is given a rounded μ."""
        return 1 + delta.exp()

    def unclipped(self) -> ScoringRule:
        """The rule of the same generator without a clip."""
        return self if self._clip is None else _GeneratorRule(self._generator, None)

    def generator(self, mu: Tensor) -> Tensor:
        """The generator it was made from."""
        return self._generator(_checks.probability("mu", mu))

    def _derivatives(self, delta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """μ, 1−μ, G, G', G'' at μ = σ(Δ)."""
        x = delta.double().clamp(min=-self._REACH)
        with torch.enable_grad():
            mu = torch.sigmoid(x)
            if not mu.requires_grad:
                mu = mu.detach().requires_grad_()
            value = self._generator(mu)
            (first,) = torch.autograd.grad(value.sum(), mu, create_graph=True)
            (second,) = torch.autograd.grad(
                first.sum(), mu, create_graph=True, allow_unused=True, materialize_grads=True
            )
        results = mu, torch.sigmoid(-x), value, first, second
        return results if delta.requires_grad else tuple(t.detach() for t in results)  # type: ignore[return-value]

    def _value1(self, delta: Tensor) -> Tensor:
        _, one_minus_mu, value, first, _ = self._derivatives(delta)
        return self._below_reach(delta, value + one_minus_mu * first, self._slope1(delta))

    def _value0(self, delta: Tensor) -> Tensor:
        mu, _, value, first, _ = self._derivatives(delta)
        return self._below_reach(delta, value - mu * first, self._slope0(delta))

    def _below_reach(self, delta: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        excess = (delta.double() + self._REACH).clamp(max=0.0)
        return along_tangent(value, slope.double(), excess).to(delta.dtype)

    def _slope1(self, delta: Tensor) -> Tensor:
        mu, one_minus_mu, _, _, second = self._derivatives(delta)
        return (mu * one_minus_mu**2 * second).to(delta.dtype)

    def _slope0(self, delta: Tensor) -> Tensor:
        mu, one_minus_mu, _, _, second = self._derivatives(delta)
        return (-(mu**2) * one_minus_mu * second).to(delta.dtype)

    def __repr__(self) -> str:
        return f"from_generator({_name(self._generator)}, clip={self._clip})"


class _PairRule(_Unwritable, ScoringRule):
    def __init__(self, f1: Function, f0: Function) -> None:
        self._functions = f1, f0

    def _f1(self, delta: Tensor) -> Tensor:
        return self._functions[0](delta)

    def _f0(self, delta: Tensor) -> Tensor:
        return self._functions[1](delta)

    @cached_property
    def variational(self) -> bool:
        """Whether the double-ELBO property holds, examined numerically."""
        return check_double_elbo(self).holds

    def unclipped(self) -> ScoringRule:
        """Itself."""
        return self

    def __repr__(self) -> str:
        f1, f0 = self._functions
        return f"from_pair({_name(f1)}, {_name(f0)})"


def _name(function: Function) -> str:
    return getattr(function, "__qualname__", repr(function))
