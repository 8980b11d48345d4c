"""The paper's figure of pairs (f1, f0): concave in r for the double-ELBO rules, f0 convex for the logarithmic.

fvnce reproduce pairs --out out
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..pages.figures import Curve, legend, new_figure, plot, save
from ..pages.page import Picture, Section
from ..scoring import Logarithmic, PowerRule, ScoringRule
from .setting import Options

#: All normalised. Dashed is the logarithmic rule, whose f0 is convex in r; for the others both functions are concave.
RULES: list[tuple[Curve, ScoringRule]] = [
    (Curve("(α, β) = (0, 0)", "#0b2e59"), PowerRule(0.0, 0.0, clip=None).normalised()),
    (Curve("(α, β) = (1/2, 0)", "#c23b22", "-."), PowerRule(0.5, 0.0, clip=None).normalised()),
    (Curve("(α, β) = (0, 1)", "#e8a33d", ":"), PowerRule(0.0, 1.0, clip=None).normalised()),
    (Curve("logarithmic", "#555555", "--"), Logarithmic().normalised()),
]


@dataclass(frozen=True)
class Settings:
    """What the paper leaves to the eye."""

    largest_ratio: float = 4.0
    """The right end of the r axis."""
    points: int = 801
    """Points per curve."""


def run(out: Path, options: Options) -> Section:
    """Draw the figure into ``out``."""
    settings = Settings()
    r = torch.linspace(0.0, settings.largest_ratio, settings.points + 1, dtype=torch.float64)[1:]
    figure, (left, right) = new_figure(2)
    for curve, rule in RULES:
        plot(left, r.numpy(), rule.f1(r.log()).numpy(), curve)
        plot(right, r.numpy(), rule.f0(r.log()).numpy(), curve)
    left.set(title="(a) earned by data", xlabel=r"$r = p_\theta / p_n$", ylabel="$f_1(r)$", ylim=(-3.2, 2.2))
    right.set(title="(b) earned by noise", xlabel=r"$r = p_\theta / p_n$", ylabel="$f_0(r)$", ylim=(-4.2, 1.2))
    legend(left, "lower right")
    files = save(figure, out, "pairs")
    return Section(
        "Pairs (f1, f0)",
        [
            "A data sample earns f1 and a noise sample f0. For the double-ELBO rules both are concave in r, so "
            "an evidence lower bound exists for both terms; for the logarithmic rule of ordinary NCE (dashed) f0 is "
            "convex."
        ],
        pictures=[
            Picture(
                files[0],
                "Normalised to f1(1) = f0(1) = 0 and f1'(1) = 1.",
                "Two panels of four curves each: f1 and f0 against the ratio r from 0 to 4.",
            )
        ],
        settings=asdict(settings),
        files=files,
    )
