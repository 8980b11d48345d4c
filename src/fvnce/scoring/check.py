r"""Does a pair (f1, f0) have the double-ELBO property? Four laws, examined in float64 on a grid of Δ.

With φ_k = df_k/dΔ and r = e^Δ, each law of the paper's first lemma is a sign in Δ:

    f_k concave in r      φ_k' − φ_k ≤ 0
    compatible            φ0 + r φ1 = 0
    G convex              φ1 − φ0 + d/dΔ[(1+r)φ1 + (1+1/r)φ0] ≥ 0

and is judged relative to the size of the terms that make it up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._autograd import slope_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rule import ScoringRule

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Law:
    """One law: the worst violation over the grid, relative to the terms of the law, and the Δ where it is."""

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
    """What :func:`check_double_elbo` found. The laws speak of the unclipped rule."""

    rule: str
    f1_concave: Law
    f0_concave: Law
    compatible: Law
    generator_convex: Law
    valid_below: float
    """The Δ below which the rule as it is, clip included, obeys all four laws; infinity if it always does,
    minus infinity if even the unclipped rule does not."""

    @property
    def laws(self) -> tuple[Law, Law, Law, Law]:
        """The four laws."""
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
        lines = [f"{self.rule} {verdict} the double-ELBO property"]
        lines += [f"  {law}" for law in self.laws]
        if self.holds and self.valid_below < math.inf:
            lines.append(f"  clipped: the laws hold for Δ < {self.valid_below:.6g}")
        return "\n".join(lines)


def check_double_elbo(rule: ScoringRule, *, reach: float = 30.0, points: int = 2401) -> DoubleElboReport:
    """Examine the four laws of the unclipped rule for |Δ| ≤ reach, and how far they survive the clip.

    >>> from fvnce import Logarithmic, PowerRule
    >>> check_double_elbo(PowerRule(alpha=0.25)).holds
    True
    >>> check_double_elbo(PowerRule(alpha=0.25)).valid_below  # T/(1+α)
    8.0
    >>> report = check_double_elbo(Logarithmic())
    >>> report.holds, report.f1_concave.holds, report.f0_concave.holds, report.proper
    (False, True, False, True)
    """
    grid = torch.linspace(-reach, reach, points, dtype=torch.float64)
    violations = _violations(rule.unclipped(), grid)
    laws = []
    for name, violation in violations.items():
        worst = int(violation.argmax())
        laws.append(Law(name, float(violation[worst]), float(grid[worst])))
    f1_concave, f0_concave, compatible, generator_convex = laws
    valid_below = _valid_below(rule, grid) if all(law.holds for law in laws) else -math.inf
    return DoubleElboReport(repr(rule), f1_concave, f0_concave, compatible, generator_convex, valid_below)


def _violations(rule: ScoringRule, grid: Tensor) -> dict[str, Tensor]:
    """How far each law is from holding at each Δ, relative to its terms; at most 0 where it holds."""
    f1, phi1, psi1 = _derivatives(rule.f1, grid)
    f0, phi0, psi0 = _derivatives(rule.f0, grid)
    finite = torch.stack([f1, f0]).isfinite().all(0)
    r = grid.exp()
    violations = {
        "f1 concave": _relative(psi1, -phi1),
        "f0 concave": _relative(psi0, -phi0),
        "compatible": _relative(phi0, r * phi1).abs(),
        "G convex": -_relative(phi1, -phi0, (1 + r) * psi1, r * phi1, (1 + 1 / r) * psi0, -phi0 / r),
    }
    return {
        name: torch.where(finite, violation, math.inf).nan_to_num(nan=math.inf)
        for name, violation in violations.items()
    }


def _relative(*terms: Tensor) -> Tensor:
    """The sum of the terms over the sum of their sizes."""
    stacked = torch.stack(terms)
    size = stacked.abs().sum(0)
    return torch.where(size > 0, stacked.sum(0) / size, torch.zeros_like(size))


def _derivatives(function: Callable[[Tensor], Tensor], grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative in Δ."""
    with torch.enable_grad():
        delta = grid.clone().requires_grad_()
        value = function(delta)
        first = slope_of(value, delta)
        second = slope_of(first, delta)
    return value.detach(), first.detach(), second.detach()


def _valid_below(rule: ScoringRule, grid: Tensor) -> float:
    """The first Δ at which the rule, clip included, breaks a law, located by bisection."""

    def broken(delta: Tensor) -> Tensor:
        violations = torch.stack(list(_violations(rule, delta).values()))
        return (violations > TOLERANCE).any(0)

    if math.isfinite(rule.clipped_above):
        around = rule.clipped_above + torch.linspace(-1.0, 1.0, 9, dtype=torch.float64)
        grid = torch.cat([grid, around]).sort().values
    where = broken(grid).nonzero()
    if len(where) == 0:
        return math.inf
    first = int(where[0])
    if first == 0:
        return -math.inf
    low, high = float(grid[first - 1]), float(grid[first])
    while high - low > 1e-12 * max(1.0, abs(high)):
        middle = (low + high) / 2
        if broken(torch.tensor([middle], dtype=torch.float64)).item():
            high = middle
        else:
            low = middle
    return round(high, 10)
