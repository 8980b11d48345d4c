"""Small SVG charts in the colors of the page, light or dark: positions in pixels, which ``chart.html`` draws.

Groups differ in dash pattern or size as well as in color. Each chart has an alternative text for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from markupsafe import Markup

from .page import render


@dataclass(frozen=True)
class Axes:
    """Ranges of both axes, and their scales in pixels."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float
    width: ClassVar[int] = 440
    height: ClassVar[int] = 270
    #: Edges of the area between the axes.
    left: ClassVar[int] = 60
    right: ClassVar[int] = 428
    top: ClassVar[int] = 30
    bottom: ClassVar[int] = 226

    def x(self, value: float) -> float:
        """Return the horizontal position in pixels from the left."""
        return round(self.left + (value - self.low_x) / (self.high_x - self.low_x) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        """Return the vertical position in pixels from the top."""
        return round(self.bottom - (value - self.low_y) / (self.high_y - self.low_y) * (self.bottom - self.top), 1)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        """Return the path of an SVG line through points."""
        return "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in points)


def histogram_chart(
    edges: Sequence[float],
    counts: Mapping[str, Sequence[float]],
    *,
    label: str,
    mark: tuple[float, str],
    caption: str,
    alt: str,
) -> Markup:
    """Plot a histogram of each group, normalized by the size of the group so that small groups stay visible.

    Args:
        edges: edges of the bins.
        counts: number or fraction of rows in each bin, by group.
        label: label of the horizontal axis.
        mark: position and name of a vertical line.
        caption: caption of the chart.
        alt: alternative text for screen readers.
    """
    shares = {group: [count / (sum(values) or 1) for count in values] for group, values in counts.items()}
    highest = max((share for values in shares.values() for share in values), default=1.0)
    low, high = min(edges[0], mark[0]), max(edges[-1], mark[0])
    # Leave space above the bars for the name of the mark.
    axes = Axes(low, high if high > low else low + 1, 0.0, highest * 1.16 or 1.0)
    outlines = []
    for values in shares.values():
        tops = [(edge, share) for bin_, share in zip(pairwise(edges), values, strict=True) for edge in bin_]
        outlines.append(axes.path([(edges[0], 0.0), *tops, (edges[-1], 0.0)]))
    lines = [*zip(shares, outlines, outlines, strict=True)]
    return _chart(axes, (label, "share of group"), caption, alt, lines=lines, mark=mark)


def scatter_chart(
    x: Sequence[float],
    y: Sequence[float],
    groups: Sequence[int],
    names: Sequence[str],
    titles: Sequence[str],
    *,
    labels: tuple[str, str],
    caption: str,
    alt: str,
) -> Markup:
    """Plot the points of two groups.

    Args:
        x: horizontal coordinates.
        y: vertical coordinates.
        groups: 0 or 1 for each point.
        names: names of the groups.
        titles: tooltip of each point.
        labels: labels of the axes.
        caption: caption of the chart.
        alt: alternative text for screen readers.
    """
    points = [*zip(x, y, groups, titles, strict=True)]
    return _chart(Axes(*_range(x), *_range(y)), labels, caption, alt, points=points, names=names)


def curve_chart(
    x: Sequence[float],
    y: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    *,
    labels: tuple[str, str],
    mark: tuple[float, str],
    caption: str,
) -> Markup:
    """Plot a curve that starts at zero with a band; the caption is also the alternative text.

    Args:
        x: horizontal coordinates.
        y: vertical coordinates of the curve.
        low: lower ends of the band.
        high: upper ends of the band.
        labels: labels of the axes.
        mark: position and name of a vertical line.
        caption: caption of the chart.
    """
    axes = Axes(0.0, max(1.0, *x), 0.0, 1.16 * max(1.0, *high))
    band = [*zip(x, high, strict=True), *reversed([*zip(x, low, strict=True)])]
    lines = [("", axes.path(band), axes.path(zip(x, y, strict=True)))]
    return _chart(axes, labels, caption, caption, lines=lines, mark=mark)


def ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two limits.

    >>> ticks(0, 1), ticks(-3.2, 7)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-2.0, 0.0, 2.0, 4.0, 6.0])
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.8)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 12) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    space = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
    return low - space, high + space


def _chart(axes: Axes, labels: tuple[str, str], caption: str, alt: str, **shown: Any) -> Markup:
    """Render lines, each with its name, area and path, points of groups, and a mark."""
    given = {"lines": (), "points": (), "names": (), "mark": None, **shown, "labels": labels}
    return render("chart.html", axes=axes, ticks=ticks, caption=caption, alt=alt, **given)
