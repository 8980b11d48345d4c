"""The paper's two figures of scoring rules, and the style of all figures.

    fvnce reproduce pairs losses --out out

For the double-ELBO rules both functions of a pair (f1, f0) are concave in r; for the logarithmic rule f0 is convex. As
losses −f1 and −f0 of the logit Δ = log r, the logarithmic rule (soft-plus) only penalizes mistakes, while the
double-ELBO rules also reward confident recognition of a data sample without bound. The paper does not state the limits
of the axes.

Curves differ in lightness and dash as well as in hue, so that they can be distinguished in gray. Figures are written as
PNG and PDF.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from ..io import atomic_write
from ..scoring import Logarithmic, PowerRule, ScoringRule
from .setting import Options, Result, ResultFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "pdf.fonttype": 42,
}


#: All normalized: label, color (dark to light), dash, rule. Dashed is the logarithmic rule, whose f0 is convex in r;
#: for the others both functions are concave.
RULES: list[tuple[str, str, str, ScoringRule]] = [
    ("(α, β) = (0, 0)", "#0b2e59", "-", PowerRule(0.0, 0.0, clip=None).normalized()),
    ("(α, β) = (1/2, 0)", "#c23b22", "-.", PowerRule(0.5, 0.0, clip=None).normalized()),
    ("(α, β) = (0, 1)", "#e8a33d", ":", PowerRule(0.0, 1.0, clip=None).normalized()),
    ("logarithmic", "#555555", "--", Logarithmic().normalized()),
]
#: Number of points of a curve, and the limits of the axes of r and Δ.
POINTS, LARGEST_DELTA = 801, 4.0


def pairs(out: Path, options: Options) -> Result:
    """Draw the figure of f1 and f0 against r."""
    r = torch.linspace(0.0, LARGEST_DELTA, POINTS + 1, dtype=torch.float64)[1:]
    figure, axes = _two_panels(r, r.log(), 1, r"$r = p_\theta / p_n$")
    axes[0].set(title="(a) reward for data", ylabel="$f_1(r)$", ylim=(-3.2, 2.2))
    axes[1].set(title="(b) reward for noise", ylabel="$f_0(r)$", ylim=(-4.2, 1.2))
    axes[0].legend(loc="lower right", frameon=False)
    files = save(figure, out, "pairs")
    reading = (
        "f1 is the reward for a data sample, f0 that for a noise sample. For the double-ELBO rules both are concave in "
        "r, so both terms have an evidence lower bound; for the logarithmic rule of ordinary NCE (dashed) f0 is convex."
    )
    caption = "Scaled and shifted so that f1(1) = f0(1) = 0 and f1'(1) = 1."
    alt = "Two panels of four curves each: f1 and f0 against the ratio r from 0 to 4."
    return Result("Pairs (f1, f0)", [reading], [ResultFigure(files[0], caption, alt)], files=files)


def losses(out: Path, options: Options) -> Result:
    """Draw the figure of −f1 and −f0 against Δ."""
    delta = torch.linspace(-LARGEST_DELTA, LARGEST_DELTA, POINTS, dtype=torch.float64)
    figure, axes = _two_panels(delta, delta, -1, r"$\Delta = \log r$")
    axes[0].set(title="(a) class 1: data", ylabel="$-f_1$", ylim=(-4.5, 4.5))
    axes[1].set(title="(b) class 0: noise", ylabel="$-f_0$", ylim=(-2.0, 7.0))
    axes[1].legend(loc="upper left", frameon=False)
    files = save(figure, out, "losses")
    reading = (
        "As losses of a classifier with logit Δ, the rules differ where the classifier is right. The logarithmic rule "
        "(soft-plus) penalizes mistakes and rewards confidence by at most a constant. The double-ELBO rules reward "
        "confidently recognized data without bound, and penalize noise that is taken for data exponentially."
    )
    caption = "Losses of a data sample and of a noise sample."
    alt = "Two panels of four curves each: minus f1 and minus f0 against the log-ratio from -4 to 4."
    title = "The same rules as classification losses"
    return Result(title, [reading], [ResultFigure(files[0], caption, alt)], files=files)


def _two_panels(x: Tensor, delta: Tensor, sign: int, xlabel: str) -> tuple[Figure, Sequence[Axes]]:
    """Draw sign·f1 and sign·f0 of every rule at ``delta`` against x, in two panels."""
    figure, axes = new_figure(2)
    for label, color, dash, rule in RULES:
        for axis, f in zip(axes, (rule.f1, rule.f0), strict=True):
            axis.plot(x.numpy(), (sign * f(delta)).numpy(), dash, color=color, label=label)
            axis.set(xlabel=xlabel)
    return figure, axes


# The style.


def new_figure(columns: int, *, width: float = 7.0, height: float = 2.9) -> tuple[Figure, Sequence[Axes]]:
    """Make a figure with a row of axes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.pdf`` into ``out`` atomically."""
    return [save_as(figure, out / f"{name}.{suffix}") for suffix in ("png", "pdf")]


def save_as(figure: Figure, path: Path) -> Path:
    """Write one png, pdf or svg file atomically, in the format of the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lower().removeprefix(".")
    # Without the date, so that the same figure gives the same file.
    metadata = {{"png": "Software", "pdf": "CreationDate", "svg": "Date"}[kind]: None}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "fvnce"}), atomic_write(path) as file:
        figure.savefig(file, dpi=200, metadata=metadata, format=kind)
    return path


def panels(
    out: Path,
    name: str,
    parts: Sequence[tuple[str, Tensor]],
    shape: tuple[int, int],
    *,
    differences: Sequence[tuple[str, Tensor]] = (),
    rows: Sequence[str] = (),
) -> list[Path]:
    """Draw one sheet of images for each part, under its title; ``rows`` names the rows of the first sheet.

    Parts are gray values in [0, 1]; ``differences``, drawn after them, have a color for each sign.
    """
    count = len(parts) + len(differences)
    figure, axes = new_figure(count, width=2.1 * count + 0.6 * bool(differences), height=2.5)
    for axis, (title, images) in zip(axes, parts, strict=False):
        axis.imshow(1 - _sheet(images.clamp(0, 1), shape, 0.25), cmap="gray", vmin=0, vmax=1)
        axis.set_title(title)
    largest = max((float(images.abs().max()) for _, images in differences), default=1.0)
    for axis, (title, images) in zip(axes[len(parts) :], differences, strict=True):
        drawn = axis.imshow(_sheet(images, shape, 0.0), cmap="RdBu_r", vmin=-largest, vmax=largest)
        axis.set_title(title)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.grid(visible=False)
        axis.spines[:].set_visible(False)
    if rows:
        places = [(row + 0.5) * (shape[0] + 2) - 0.5 for row in range(len(rows))]
        axes[0].set_yticks(places, list(rows), fontsize=7)
        axes[0].tick_params(length=0)
    if differences:
        figure.colorbar(drawn, ax=axes[-1], shrink=0.8, label="gray value")
    return save(figure, out, name)


def _sheet(images: Tensor, shape: tuple[int, int], gap: float) -> np.ndarray:
    """Arrange images in one picture, eight per row, separated by thin lines."""
    (height, width), rows = shape, len(images) // 8
    grid = images[: 8 * rows].reshape(rows, 8, height, width).numpy()
    padded = np.pad(grid, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=gap)
    return padded.transpose(0, 2, 1, 3).reshape(rows * (height + 2), 8 * (width + 2))
