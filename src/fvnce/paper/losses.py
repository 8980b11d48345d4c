"""The paper's figure of the same rules as classification losses −f1, −f0 of the logit Δ = log r.

    fvnce reproduce losses --out out

The logarithmic rule (soft-plus) only punishes mistakes. The double-ELBO rules also pay, without end, for a data
sample that is confidently recognised.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..pages.figures import legend, new_figure, plot, save
from ..pages.page import Picture, Section
from .pairs import RULES
from .setting import Options


@dataclass(frozen=True)
class Settings:
    """What the paper leaves to the eye."""

    largest_logit: float = 4.0
    """The Δ axis runs from minus to plus this."""
    points: int = 801
    """Points per curve."""


def run(out: Path, options: Options) -> Section:
    """Draw the figure into ``out``."""
    settings = Settings()
    delta = torch.linspace(-settings.largest_logit, settings.largest_logit, settings.points, dtype=torch.float64)
    figure, (left, right) = new_figure(2)
    for curve, rule in RULES:
        plot(left, delta.numpy(), rule.loss(1, delta).numpy(), curve)
        plot(right, delta.numpy(), rule.loss(0, delta).numpy(), curve)
    left.set(title="(a) class 1: data", xlabel=r"$\Delta = \log r$", ylabel="$-f_1$", ylim=(-4.5, 4.5))
    right.set(title="(b) class 0: noise", xlabel=r"$\Delta = \log r$", ylabel="$-f_0$", ylim=(-2.0, 7.0))
    legend(right, "upper left")
    files = save(figure, out, "losses")
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
        settings=asdict(settings),
        files=files,
    )
