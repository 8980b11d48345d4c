"""The paper's figure of pairs (f1, f0): concave in r for the double-ELBO rules, f0 convex for the logarithmic.

fvnce reproduce pairs --out out
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..report.figures import legend, new_figure, plot, save
from .rules import RULES


@dataclass(frozen=True)
class Settings:
    """What the paper leaves to the eye."""

    largest_ratio: float = 4.0
    """The right end of the r axis."""
    points: int = 801
    """Points per curve."""


def run(out: Path, settings: Settings | None = None) -> list[Path]:
    """Draw the figure into ``out``."""
    settings = settings or Settings()
    r = torch.linspace(0.0, settings.largest_ratio, settings.points + 1, dtype=torch.float64)[1:]
    figure, (left, right) = new_figure(2)
    for curve, rule in RULES:
        plot(left, r.numpy(), rule.f1(r.log()).numpy(), curve)
        plot(right, r.numpy(), rule.f0(r.log()).numpy(), curve)
    left.set(title="(a) earned by data", xlabel=r"$r = p_\theta / p_n$", ylabel="$f_1(r)$", ylim=(-3.2, 2.2))
    right.set(title="(b) earned by noise", xlabel=r"$r = p_\theta / p_n$", ylabel="$f_0(r)$", ylim=(-4.2, 1.2))
    legend(left, "lower right")
    return save(figure, out, "pairs")
