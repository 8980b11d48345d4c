"""The rules that the paper's two figures of scoring rules compare, all normalised."""

from __future__ import annotations

from ..report.figures import Curve
from ..scoring import Logarithmic, PowerRule, ScoringRule

#: Solid where both functions are concave in r, dashed for the logarithmic rule, whose f0 is convex.
RULES: list[tuple[Curve, ScoringRule]] = [
    (Curve("(α, β) = (0, 0)", "#0b2e59"), PowerRule(0.0, 0.0, clip=None).normalised()),
    (Curve("(α, β) = (1/2, 0)", "#c23b22"), PowerRule(0.5, 0.0, clip=None).normalised()),
    (Curve("(α, β) = (0, 1)", "#e8a33d"), PowerRule(0.0, 1.0, clip=None).normalised()),
    (Curve("logarithmic", "#555555", "--"), Logarithmic().normalised()),
]
