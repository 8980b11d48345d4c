"""The paper's figure of the same rules as classification losses −f1, −f0 of the logit Δ = log r.

    fvnce reproduce losses --out out

The logarithmic rule (soft-plus) only punishes mistakes. The double-ELBO rules also pay, without end, for a data
sample that is confidently recognised.
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

    largest_logit: float = 4.0
    """The Δ axis runs from minus to plus this."""
    points: int = 801
    """Points per curve."""


def run(out: Path, settings: Settings | None = None) -> list[Path]:
    """Draw the figure into ``out``."""
    settings = settings or Settings()
    delta = torch.linspace(-settings.largest_logit, settings.largest_logit, settings.points, dtype=torch.float64)
    figure, (left, right) = new_figure(2)
    for curve, rule in RULES:
        plot(left, delta.numpy(), rule.loss(1, delta).numpy(), curve)
        plot(right, delta.numpy(), rule.loss(0, delta).numpy(), curve)
    left.set(title="(a) class 1: data", xlabel=r"$\Delta = \log r$", ylabel="$-f_1$", ylim=(-4.5, 4.5))
    right.set(title="(b) class 0: noise", xlabel=r"$\Delta = \log r$", ylabel="$-f_0$", ylim=(-2.0, 7.0))
    legend(right, "upper left")
    return save(figure, out, "losses")
