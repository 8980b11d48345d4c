r"""Numerical check of the double-ELBO property of a pair (f1, f0): four laws, in float64.

With φ_k = df_k/dΔ and r = e^Δ, the paper's first lemma states laws that are inequalities at every Δ:

    f_k concave in r      φ_k' − φ_k ≤ 0
    compatible            φ0 + r φ1 = 0
    G convex              φ1 − φ0 + d/dΔ[(1+r)φ1 + (1+1/r)φ0] ≥ 0

Violations are measured relative to the size of the terms. At a jump or a kink, autograd returns the derivative of one
side and hides it, so each law is also checked between points a < b, with D_k = f_k(b) − f_k(a):

    f_k concave in r      the slope φ_k/r does not rise from a to b, and the chord D_k/(r_b − r_a) lies between
                          the slopes at its ends
    compatible            −D_0 lies between r_a D_1 and r_b D_1: it is the integral of r df1
    G convex              r_a D_1 ≤ −D_0 ≤ r_b D_1: no forecast earns more than the true one

The check is evidence, not a proof: it covers a range of Δ only, and misses a feature between two points that changes
neither value nor derivatives at them. Built-in families are not checked: their property follows from their formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import _validation

#: The largest relative violation that counts as rounding.
TOLERANCE = 1e-9
#: Rounding error of a value, relative to the largest values nearby.
ROUNDING = 1e-14
#: How many of the intervals in which values, slopes and curvatures disagree most are halved, and how often.
SUSPECTS, HALVINGS = 16, 24
#: How many pairs of points far apart are drawn.
FAR_PAIRS = 20_000


@runtime_checkable
class Checkable(Protocol):
    """The part of a scoring rule that a check needs; see :class:`~fvnce.scoring.ScoringRule`."""

    @property
    def tangent_above(self) -> tuple[float, float]: ...  # noqa: D102
    def unclipped(self) -> Checkable: ...  # noqa: D102
    def f1(self, delta: Tensor) -> Tensor: ...  # noqa: D102
    def f0(self, delta: Tensor) -> Tensor: ...  # noqa: D102


@dataclass(frozen=True)
class Law:
    """One law: its worst violation, relative to the terms of the law, and the Δ at which it occurs.

    Attributes:
        name: the law.
        worst: the relative violation; the law holds if this is within rounding.
        at: the Δ of the worst violation.

    >>> print(Law("f0 concave", worst=0.25, at=1.5))
    f0 concave     fails: violated by 0.25 (relative) at Δ = 1.5
    """

    name: str
    worst: float
    at: float

    @property
    def holds(self) -> bool:
        """Whether the worst violation is within rounding."""
        return self.worst <= TOLERANCE

    def __str__(self) -> str:
        verdict = "holds" if self.holds else f"fails: violated by {self.worst:.3g} (relative) at Δ = {self.at:.4g}"
        return f"{self.name:14s} {verdict}"


@dataclass(frozen=True)
class DoubleElboReport:
    """Result of :func:`check_double_elbo`; the laws are those of the unclipped rule.

    Attributes:
        rule: its ``repr``.
        f1_concave: whether f1 is concave in r, so that the data term has a bound.
        f0_concave: whether f0 is concave in r, so that the noise term has a bound.
        compatible: whether f0' = −r f1', which makes the true ratio stationary.
        generator_convex: whether G is convex; with ``compatible``, the rule is proper.
        reach: the laws were checked for |Δ| ≤ reach only.
        spacing: the mean distance in Δ between two points. A much narrower feature may be missed.
        valid_below: the Δ below which the rule with its clip obeys all four laws: the start of the clip, infinity
            without a clip, minus infinity if the unclipped rule already violates a law.

    >>> from fvnce import Logarithmic
    >>> report = check_double_elbo(Logarithmic(), points=201)
    >>> report.proper, report.holds, report.f0_concave.holds
    (True, False, False)
    """

    rule: str
    f1_concave: Law
    f0_concave: Law
    compatible: Law
    generator_convex: Law
    reach: float
    spacing: float
    valid_below: float

    @property
    def laws(self) -> tuple[Law, Law, Law, Law]:
        """The four laws, in the order of the attributes."""
        return self.f1_concave, self.f0_concave, self.compatible, self.generator_convex

    @property
    def holds(self) -> bool:
        """Whether the unclipped rule has the double-ELBO property."""
        return all(law.holds for law in self.laws)

    @property
    def proper(self) -> bool:
        """Whether the unclipped rule is a proper scoring rule: compatible, with G convex."""
        return self.compatible.holds and self.generator_convex.holds

    def __str__(self) -> str:
        verdict = "has" if self.holds else "does not have"
        lines = [
            f"{self.rule} {verdict} the double-ELBO property",
            f"  examined for |Δ| ≤ {self.reach:g}, at points and between them, {self.spacing:.2g} apart",
        ]
        lines += [f"  {law}" for law in self.laws]
        if self.holds and self.valid_below < math.inf:
            lines.append(f"  clipped: the laws hold for Δ < {self.valid_below:.6g}")
        return "\n".join(lines)


def check_double_elbo(rule: Checkable, *, reach: float = 30.0, points: int = 20_001) -> DoubleElboReport:
    """Check the double-ELBO property of a rule numerically: four laws of the unclipped rule for |Δ| ≤ reach.

    Derivatives are checked at points; chords and integrals are checked between neighboring and between distant points.
    The points are a grid, equally many random ones (the same in every call), and refinements where values, slopes and
    curvatures disagree most, which finds small jumps and kinks. A bump is found if it is wider than the spacing of the
    points, 0.0015 by default.

    Args:
        rule: the scoring rule.
        reach: the largest |Δ|.
        points: the number of points of the grid.

    Returns:
        A report that prints as a table of the laws.

    >>> from fvnce import Logarithmic, PowerRule
    >>> check_double_elbo(PowerRule(alpha=0.25)).holds
    True
    >>> check_double_elbo(PowerRule(alpha=0.25)).valid_below  # T/(1+α)
    8.0
    >>> report = check_double_elbo(Logarithmic())
    >>> report.holds, report.f1_concave.holds, report.f0_concave.holds, report.proper
    (False, True, False, True)
    """
    if not isinstance(rule, Checkable):
        raise TypeError(f"rule must be a scoring rule such as PowerRule(alpha=0), found {rule!r}")
    reach = _validation.number("reach", reach, low=0.0, open_low=True)
    grid = torch.linspace(-reach, reach, _validation.count("points", points, low=3), dtype=torch.float64)
    sampled = _sample_closely(rule.unclipped(), grid)
    index = torch.arange(len(sampled.delta))
    drawn = torch.randint(len(index), (2, FAR_PAIRS), generator=torch.Generator().manual_seed(1)).sort(0).values
    far = drawn[:, drawn[0] < drawn[1]]
    # A violation at a point or between neighbors is located better than one between distant points.
    groups = [_at_points(sampled), _between(sampled, index[:-1], index[1:]), _between(sampled, far[0], far[1])]
    laws = []
    for name in groups[0]:
        by_group = [Law(name, float(worst.max()), float(at[worst.argmax()])) for worst, at in (g[name] for g in groups)]
        laws.append(next((law for law in by_group if not law.holds), max(by_group, key=lambda law: law.worst)))
    valid_below = min(rule.tangent_above) if all(law.holds for law in laws) else -math.inf
    f1, f0, compatible, convex = laws
    return DoubleElboReport(repr(rule), f1, f0, compatible, convex, reach, reach / points, valid_below)


def slope_of(value: Tensor, delta: Tensor) -> Tensor:
    """Return d value / dΔ element-wise, differentiable again; zero where value does not depend on Δ."""
    if not value.requires_grad:
        return torch.zeros_like(delta)
    (slope,) = torch.autograd.grad(value.sum(), delta, create_graph=True, materialize_grads=True)
    return slope


@dataclass(frozen=True)
class _Sampled:
    """Samples of f1 and f0: Δ of shape (n,); values, slopes and curvatures in Δ of shape (2, n)."""

    delta: Tensor
    value: Tensor
    slope: Tensor
    curvature: Tensor

    def at(self, index: Tensor) -> _Sampled:
        return _Sampled(*(tensor[..., index] for tensor in vars(self).values()))

    def __add__(self, other: _Sampled) -> _Sampled:
        return _Sampled(*(torch.cat(both, -1) for both in zip(vars(self).values(), vars(other).values(), strict=True)))


def _sample(rule: Checkable, delta: Tensor) -> _Sampled:
    with torch.enable_grad():
        point = delta.clone().requires_grad_()
        values = [rule.f1(point), rule.f0(point)]
        slopes = [slope_of(value, point) for value in values]
        curvatures = [slope_of(slope, point) for slope in slopes]
    value, slope, curvature = (torch.stack(kind).detach() for kind in (values, slopes, curvatures))
    return _Sampled(delta, value, slope, curvature)


def _sample_closely(rule: Checkable, grid: Tensor) -> _Sampled:
    """Sample a grid, equally many random points, and refinements around kinks and jumps."""
    random = torch.rand(len(grid) - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sampled = _sample(rule, torch.cat([grid, grid[0] + (grid[-1] - grid[0]) * random]).unique())
    index = torch.arange(len(sampled.delta))
    rough = _roughness(sampled.at(index[:-1]), sampled.at(index[1:]))
    suspects = torch.cat([kind.topk(min(SUSPECTS, len(kind))).indices for kind in rough]).unique()
    a, b = sampled.at(suspects), sampled.at(suspects + 1)
    for _ in range(HALVINGS):
        middle = _sample(rule, (a.delta + b.delta) / 2)
        sampled = sampled + middle
        # As h shrinks, the mismatch of the slope stays constant at a kink; that of the value, over h, grows at a jump.
        left = _roughness(a, middle).amax(0) >= _roughness(middle, b).amax(0)
        index = torch.arange(len(left))
        a, b = (a + middle).at(index + len(left) * ~left), (middle + b).at(index + len(left) * ~left)
    order = sampled.delta.argsort(stable=True)
    new = torch.cat([torch.ones(1, dtype=torch.bool), sampled.delta[order].diff() > 0])
    return sampled.at(order[new])


def _roughness(a: _Sampled, b: _Sampled) -> Tensor:
    """Return how far values and slopes are from the prediction by the next derivative, shape (4, intervals)."""
    h, size = b.delta - a.delta, a.slope.abs() + b.slope.abs()
    value = (b.value - a.value - h * (a.slope + b.slope) / 2).abs()
    slope = (b.slope - a.slope - h * (a.curvature + b.curvature) / 2).abs()
    surprise, scale = torch.cat([value, slope]), torch.cat([h * size, size])
    return torch.where(surprise > 0, surprise / scale, 0.0).nan_to_num(nan=math.inf)


#: For each law, the relative violations (at most 0 where it holds) and their Δ.
_Violations = dict[str, tuple[Tensor, Tensor]]


def _at_points(s: _Sampled) -> _Violations:
    (phi1, phi0), (psi1, psi0), r = s.slope, s.curvature, s.delta.exp()
    terms = {
        "f1 concave": (psi1, -phi1),
        "f0 concave": (psi0, -phi0),
        "compatible": (phi0, r * phi1),
        "G convex": (-phi1, phi0, -(1 + r) * psi1, -r * phi1, -(1 + 1 / r) * psi0, phi0 / r),
    }
    violations = {}
    for name, parts in terms.items():
        total, size = torch.stack(parts).sum(0), torch.stack(parts).abs().sum(0)
        excess = _relative(total.abs() if name == "compatible" else total, torch.zeros_like(size), size)
        violations[name] = torch.where(s.value.isfinite().all(0), excess, math.inf), s.delta
    return violations


def _between(s: _Sampled, left: Tensor, right: Tensor) -> _Violations:
    a, b = s.at(left), s.at(right)
    h = b.delta - a.delta
    # Rounding error of a value: that of the largest value below it, or at r ≤ e, as large values may have canceled.
    largest = s.value.abs().cummax(1).values
    around_one = int((s.delta <= 1).sum()) - 1
    off = (ROUNDING * torch.maximum(largest, largest[:, around_one : around_one + 1]))[:, right]

    # Concave: chord and slopes in r, all times r_a.
    up = torch.expm1(h)
    chord = (b.value - a.value) / up
    at_a, at_b = a.slope, b.slope * (-h).exp()
    size = at_a.abs() + at_b.abs()
    slack = 2 * off / up + ROUNDING * size
    concave = torch.stack(
        [
            _relative(at_b - at_a, ROUNDING * size, size),
            _relative(chord - at_a, slack, size + chord.abs()),
            _relative(at_b - chord, slack, size + chord.abs()),
        ]
    ).amax(0)

    # Compatible and proper: −D_0 against r_a D_1 and r_b D_1, all over r_b.
    high = b.value[0] - a.value[0]
    low = high * (-h).exp()
    d0 = (b.value[1] - a.value[1]) * (-b.delta).exp()
    slack, size = 2 * (off[0] + off[1] * (-b.delta).exp()), high.abs() + d0.abs()
    # If f1 is not monotone in the interval, its change is less than its variation.
    turning = -torch.expm1(-h) * h * torch.maximum(a.slope[0].abs(), b.slope[0].abs())
    turning = torch.where(a.slope[0] * b.slope[0] < 0, turning, 0.0)
    outside = torch.maximum(torch.minimum(low, high) + d0, -d0 - torch.maximum(low, high))
    improper = torch.maximum(low + d0, -d0 - high)
    return {
        "f1 concave": (concave[0], b.delta),
        "f0 concave": (concave[1], b.delta),
        "compatible": (_relative(outside, slack + turning, size + turning), b.delta),
        "G convex": (_relative(improper, slack, size), b.delta),
    }


def _relative(excess: Tensor, slack: Tensor, size: Tensor) -> Tensor:
    """Return (excess − slack)/size, infinite where it is NaN."""
    return torch.where(size > 0, (excess - slack) / size, torch.zeros_like(size)).nan_to_num(nan=math.inf)
