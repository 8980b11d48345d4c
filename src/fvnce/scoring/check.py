r"""Does a pair (f1, f0) have the double-ELBO property? Four laws, examined in float64.

With φ_k = df_k/dΔ and r = e^Δ, each law of the paper's first lemma is a sign in Δ:

    f_k concave in r      φ_k' − φ_k ≤ 0
    compatible            φ0 + r φ1 = 0
    G convex              φ1 − φ0 + d/dΔ[(1+r)φ1 + (1+1/r)φ0] ≥ 0

and is judged relative to the size of the terms that make it up. Derivatives at points know nothing of jumps and kinks,
so the same laws are examined between points as well, by chords and in integrated form (``chords``).

An examination is evidence, not a proof: it says nothing beyond its range, and a feature that lies between two points
and leaves value and derivatives at both as they were is not seen. The built-in families need none: their property
follows from their formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import _checks
from .chords import Sampled, chord_violations, examined, sample
from .rule import ScoringRule

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Law:
    """One law: the worst violation found, relative to the terms of the law, and the Δ where it is.

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
    """What :func:`check_double_elbo` found. The laws speak of the unclipped rule.

    >>> from fvnce import Logarithmic
    >>> found = check_double_elbo(Logarithmic(), points=201)
    >>> found.proper, found.holds, found.f0_concave.holds
    (True, False, False)
    """

    rule: str
    f1_concave: Law
    f0_concave: Law
    compatible: Law
    generator_convex: Law
    reach: float
    """Examined for |Δ| ≤ reach, and nowhere else."""
    spacing: float
    """The mean distance in Δ between two points examined. What is much narrower may be missed."""
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
        lines = [
            f"{self.rule} {verdict} the double-ELBO property",
            f"  examined for |Δ| ≤ {self.reach:g}, at points and between them, {self.spacing:.2g} apart",
        ]
        lines += [f"  {law}" for law in self.laws]
        if self.holds and self.valid_below < math.inf:
            lines.append(f"  clipped: the laws hold for Δ < {self.valid_below:.6g}")
        return "\n".join(lines)


def check_double_elbo(rule: ScoringRule, *, reach: float = 30.0, points: int = 20_001) -> DoubleElboReport:
    """Examine the four laws of the unclipped rule for |Δ| ≤ reach, and how far they survive the clip.

    Derivatives are examined at points, chords and integrals between neighbours and between points far apart: on a grid,
    at as many points at random (the same in every call), and ever closer where values, slopes and curvatures fit one
    another least, so that small jumps and kinks are found too. A bump is found if it is wider than the points' spacing,
    0.0015 by default. Nothing is said of |Δ| > reach.

    Args:
        rule: any rule.
        reach: the largest |Δ|.
        points: of the grid.

    >>> from fvnce import Logarithmic, PowerRule
    >>> check_double_elbo(PowerRule(alpha=0.25)).holds
    True
    >>> check_double_elbo(PowerRule(alpha=0.25)).valid_below  # T/(1+α)
    8.0
    >>> report = check_double_elbo(Logarithmic())
    >>> report.holds, report.f1_concave.holds, report.f0_concave.holds, report.proper
    (False, True, False, True)
    """
    if not isinstance(rule, ScoringRule):
        raise TypeError(f"rule must be a scoring rule such as PowerRule(alpha=0), found {rule!r}")
    reach = _checks.number("reach", reach, low=0.0, open_low=True)
    grid = torch.linspace(-reach, reach, _checks.count("points", points, low=3), dtype=torch.float64)
    found = examined(rule.unclipped(), grid)
    chords = chord_violations(found)
    laws = []
    for name, violation in _violations(found).items():
        groups = [Law(name, *_worst(*group)) for group in ((violation, found.delta), *chords[name])]
        # What fails nearby says better where than what fails far apart.
        laws.append(next((law for law in groups if not law.holds), max(groups, key=lambda law: law.worst)))
    f1_concave, f0_concave, compatible, generator_convex = laws
    valid_below = _valid_below(rule, grid) if all(law.holds for law in laws) else -math.inf
    return DoubleElboReport(
        rule=repr(rule),
        f1_concave=f1_concave,
        f0_concave=f0_concave,
        compatible=compatible,
        generator_convex=generator_convex,
        reach=reach,
        spacing=reach / points,
        valid_below=valid_below,
    )


def _worst(violation: Tensor, delta: Tensor) -> tuple[float, float]:
    at = int(violation.argmax())
    return float(violation[at]), float(delta[at])


def _violations(found: Sampled) -> dict[str, Tensor]:
    """How far each law is from holding at each point, relative to its terms; at most 0 where it holds."""
    (phi1, phi0), (psi1, psi0) = found.slope, found.curvature
    finite = found.value.isfinite().all(0)
    r = found.delta.exp()
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


def _valid_below(rule: ScoringRule, grid: Tensor) -> float:
    """The first Δ at which the rule, clip included, breaks a law at a point, located by bisection."""

    def broken(delta: Tensor) -> Tensor:
        violations = torch.stack(list(_violations(sample(rule, delta)).values()))
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
