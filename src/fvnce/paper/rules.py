"""The paper's two figures of rules: as pairs (f1, f0) of r, and as classification losses of the logit Δ = log r.

    fvnce reproduce pairs losses --out out

For the double-ELBO rules both functions are concave in r; for the logarithmic f0 is convex. As losses −f1 and −f0, the
logarithmic rule (soft-plus) only punishes mistakes, and the double-ELBO rules also pay, without end, for a data sample
that is confidently recognised. The paper leaves the ends of the axes to the eye.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

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
Words = dict[str, Any]
#: Points of a curve, and where the axes of r and of Δ end.
POINTS, LARGEST_RATIO, LARGEST_LOGIT = 801, 4.0, 4.0


def pairs(out: Path, options: Options) -> Section:
    """f1 and f0 against r."""
    r = torch.linspace(0.0, LARGEST_RATIO, POINTS + 1, dtype=torch.float64)[1:]
    panels: list[Words] = [
        {"title": "(a) earned by data", "ylabel": "$f_1(r)$", "ylim": (-3.2, 2.2)},
        {"title": "(b) earned by noise", "ylabel": "$f_0(r)$", "ylim": (-4.2, 1.2)},
    ]
    files = _figure(out, "pairs", (r, r"$r = p_\theta / p_n$"), r.log(), panels, (0, "lower right"))
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
        settings={"largest_ratio": LARGEST_RATIO, "points": POINTS},
        files=files,
    )


def losses(out: Path, options: Options) -> Section:
    """−f1 and −f0 against Δ."""
    delta = torch.linspace(-LARGEST_LOGIT, LARGEST_LOGIT, POINTS, dtype=torch.float64)
    panels: list[Words] = [
        {"title": "(a) class 1: data", "ylabel": "$-f_1$", "ylim": (-4.5, 4.5)},
        {"title": "(b) class 0: noise", "ylabel": "$-f_0$", "ylim": (-2.0, 7.0)},
    ]
    files = _figure(out, "losses", (delta, r"$\Delta = \log r$"), delta, panels, (1, "upper left"), sign=-1)
    return Section(
        "The same rules as classification losses",
        [
            "Read as losses of a classifier with logit Δ, the soft-plus loss of the logarithmic rule only punishes "
            "mistakes, while the double-ELBO losses go on paying for data that is recognised with confidence, and "
            "punish noise that is taken for data exponentially."
        ],
        pictures=[
            Picture(
                files[0],
                "Losses of a data sample and of a noise sample.",
                "Two panels of four curves each: minus f1 and minus f0 against the log-ratio from -4 to 4.",
            )
        ],
        settings={"largest_logit": LARGEST_LOGIT, "points": POINTS},
        files=files,
    )


def _figure(
    out: Path,
    name: str,
    horizontal: tuple[Tensor, str],
    delta: Tensor,
    panels: list[Words],
    legend_at: tuple[int, Literal["lower right", "upper left"]],
    *,
    sign: int = 1,
) -> list[Path]:
    """f1 and f0 of every rule at Δ, times the sign, in a panel each, of which one has the legend."""
    figure, axes = new_figure(2)
    x, label = horizontal
    for curve, rule in RULES:
        plot(axes[0], x.numpy(), (sign * rule.f1(delta)).numpy(), curve)
        plot(axes[1], x.numpy(), (sign * rule.f0(delta)).numpy(), curve)
    for axis, words in zip(axes, panels, strict=True):
        axis.set(xlabel=label, **words)
    legend(axes[legend_at[0]], legend_at[1])
    return save(figure, out, name)
