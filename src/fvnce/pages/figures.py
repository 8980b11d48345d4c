"""Figures: one style, legible in print and in grey, written as PNG and PDF.

Curves differ in lightness and in dash as well as in hue, so that a grey print still tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from ..serialization import atomic_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import NDArray
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


@dataclass(frozen=True)
class Curve:
    """A labelled line: its colour (dark to light across a figure) and dash."""

    label: str
    colour: str
    dash: str = "-"


def new_figure(columns: int, *, width: float = 7.0, height: float = 2.9) -> tuple[Figure, Sequence[Axes]]:
    """A row of axes in the house style."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


def plot(axes: Axes, x: NDArray, y: NDArray, curve: Curve) -> None:  # type: ignore[type-arg]
    """One curve."""
    axes.plot(x, y, curve.dash, color=curve.colour, label=curve.label)


def legend(axes: Axes, where: Literal["lower right", "upper left"]) -> None:
    """Name the curves, without a frame."""
    axes.legend(loc=where, frameon=False)


def save(figure: Figure, out: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.pdf`` into ``out``, each complete or not at all."""
    return [save_as(figure, out / f"{name}.{suffix}") for suffix in ("png", "pdf")]


def save_as(figure: Figure, path: Path) -> Path:
    """Write one png, pdf or svg file, as its name ends, complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lower().removeprefix(".")
    # Without the date, the same figure is the same file.
    metadata = {{"png": "Software", "pdf": "CreationDate", "svg": "Date"}[kind]: None}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "fvnce"}), atomic_write(path) as file:
        figure.savefig(file, dpi=200, metadata=metadata, format=kind)
    return path


def _sheet(images: Tensor, shape: tuple[int, int], columns: int, gap: float) -> np.ndarray:
    """Images as one picture with a thin gap of one value between them."""
    height, width = shape
    count = len(images) // columns * columns
    grid = images[:count].reshape(count // columns, columns, height, width).numpy()
    padded = np.pad(grid, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=gap)
    return padded.transpose(0, 2, 1, 3).reshape(count // columns * (height + 2), columns * (width + 2))


def panels(
    out: Path,
    name: str,
    parts: Sequence[tuple[str, Tensor]],
    shape: tuple[int, int],
    *,
    differences: Sequence[tuple[str, Tensor]] = (),
    rows: Sequence[str] = (),
    columns: int = 8,
) -> list[Path]:
    """A figure of one sheet for each part, under its title, in ``out``; ``rows`` names the rows of the first sheet.

    Parts hold grey values in [0, 1]; ``differences``, drawn after them, have a colour for each sign.
    """
    count = len(parts) + len(differences)
    figure, axes = new_figure(count, width=2.1 * count + 0.6 * bool(differences), height=2.5)
    for axis, (title, images) in zip(axes, parts, strict=False):
        axis.imshow(1 - _sheet(images.clamp(0, 1), shape, columns, 0.25), cmap="gray", vmin=0, vmax=1)
        axis.set_title(title)
    largest = max((float(images.abs().max()) for _, images in differences), default=1.0)
    for axis, (title, images) in zip(axes[len(parts) :], differences, strict=True):
        drawn = axis.imshow(_sheet(images, shape, columns, 0.0), cmap="RdBu_r", vmin=-largest, vmax=largest)
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
        figure.colorbar(drawn, ax=axes[-1], shrink=0.8, label="grey value")
    return save(figure, out, name)
