"""What the paper's figures share: the rules that are compared, and sheets of small images side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..pages.figures import Curve, new_figure, save
from ..scoring import Logarithmic, PowerRule, ScoringRule

#: All normalised. Solid where both functions are concave in r, dashed for the logarithmic rule, whose f0 is convex.
RULES: list[tuple[Curve, ScoringRule]] = [
    (Curve("(α, β) = (0, 0)", "#0b2e59"), PowerRule(0.0, 0.0, clip=None).normalised()),
    (Curve("(α, β) = (1/2, 0)", "#c23b22"), PowerRule(0.5, 0.0, clip=None).normalised()),
    (Curve("(α, β) = (0, 1)", "#e8a33d"), PowerRule(0.0, 1.0, clip=None).normalised()),
    (Curve("logarithmic", "#555555", "--"), Logarithmic().normalised()),
]


def sheet(images: Tensor, shape: tuple[int, int], columns: int) -> np.ndarray:
    """Images as one picture with a thin gap between them."""
    height, width = shape
    count = len(images) // columns * columns
    grid = images[:count].clamp(0, 1).reshape(count // columns, columns, height, width).numpy()
    padded = np.pad(1 - grid, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=0.75)
    return padded.transpose(0, 2, 1, 3).reshape(count // columns * (height + 2), columns * (width + 2))


def panels(
    out: Path, name: str, parts: Sequence[tuple[str, Tensor]], shape: tuple[int, int], columns: int = 8
) -> list[Path]:
    """A figure of one sheet for each part, under its title, in ``out``."""
    figure, axes = new_figure(len(parts), width=2.1 * len(parts), height=2.5)
    for axis, (title, images) in zip(axes, parts, strict=True):
        axis.imshow(sheet(images, shape, columns), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title)
        axis.axis("off")
    return save(figure, out, name)
