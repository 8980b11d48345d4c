"""Small SVG charts in the colors of the page, light or dark.

Groups differ in dash pattern or size as well as in color. Each chart has an alternative text for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ..escaping import markup

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 30, 44
DASHES = ("", "7 4", "2 3", "10 3 2 3")


@dataclass(frozen=True)
class Axes:
    """Ranges of both axes, and their scales in pixels."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    def x(self, value: float) -> float:
        """Return the horizontal position in pixels from the left."""
        return LEFT + (value - self.low_x) / (self.high_x - self.low_x) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the vertical position in pixels from the top."""
        return HEIGHT - BOTTOM - (value - self.low_y) / (self.high_y - self.low_y) * (HEIGHT - TOP - BOTTOM)


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
    parts = [_axes(axes, (label, "share of group"))]
    left = float(LEFT)
    for i, (group, values) in enumerate(shares.items()):
        points = [(axes.x(edges[0]), axes.y(0))]
        for start, stop, share in zip(edges[:-1], edges[1:], values, strict=True):
            points += [(axes.x(start), axes.y(share)), (axes.x(stop), axes.y(share))]
        points.append((axes.x(edges[-1]), axes.y(0)))
        outline = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{DASHES[i]}"' if DASHES[i] else ""
        parts += [f'<path class="area s{i}" d="{outline}"/>', f'<path class="s{i}" d="{outline}"{dash}/>']
        if len(shares) > 1:
            parts.append(f'<path class="s{i}" d="M{left:.0f} 14L{left + 24:.0f} 14"{dash}/>')
            parts.append(f'<text x="{left + 29:.0f}" y="18">{markup(group)}</text>')
            left += 44 + 6.6 * len(group)
    return _figure([*parts, _mark(axes, *mark)], caption, alt)


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
    axes = Axes(*_range(x), *_range(y))
    parts = [_axes(axes, labels)]
    for a, b, group, title in zip(x, y, groups, titles, strict=True):
        place = f'cx="{axes.x(a):.1f}" cy="{axes.y(b):.1f}" r="{3 + group}"'
        parts.append(f'<circle class="p{group}" {place}><title>{markup(title)}</title></circle>')
    for i, name in enumerate(names):
        left = LEFT + 12 + i * 150
        parts.append(f'<circle class="p{i}" cx="{left}" cy="14" r="{4 + i}"/>')
        parts.append(f'<text x="{left + 10}" y="18">{markup(name)}</text>')
    return _figure(parts, caption, alt)


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

    def path(ends: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{axes.x(a):.1f} {axes.y(b):.1f}" for a, b in ends)

    around = [*zip(x, high, strict=True), *reversed([*zip(x, low, strict=True)])]
    parts = [_axes(axes, labels), f'<path class="area s0" d="{path(around)}"/>']
    parts += [f'<path class="s0" d="{path(zip(x, y, strict=True))}"/>', _mark(axes, *mark)]
    return _figure(parts, caption, caption)


def bar(
    name: str, part: float, largest: float, number: str, cell: str = "", *, from_left: bool = False
) -> dict[str, Any]:
    """Return the position and width in per cent of an HTML bar that starts at the middle, or at the left end.

    >>> bar("age", -1.0, 2.0, "-1")
    {'name': 'age', 'cell': '', 'number': '-1', 'kind': 'down', 'left': 25.0, 'width': 25.0}
    """
    width = round(min(1.0, abs(part) / largest) * (100 if from_left else 50), 1)
    left = 0.0 if from_left else 50.0 if part > 0 else 50 - width
    kind = "up" if part > 0 else "down"
    return {"name": name, "cell": cell, "number": number, "kind": kind, "left": left, "width": width}


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


def _axes(axes: Axes, labels: tuple[str, str]) -> str:
    parts = []
    for value in ticks(axes.low_x, axes.high_x):
        at = axes.x(value)
        parts.append(_line(at, TOP, at, HEIGHT - BOTTOM, "grid"))
        parts.append(
            f'<text class="soft" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.6g}</text>'
        )
    for value in ticks(axes.low_y, axes.high_y):
        at = axes.y(value)
        parts.append(_line(LEFT, at, WIDTH - RIGHT, at, "grid"))
        parts.append(f'<text class="soft" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    across, down = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="{across}" y="{HEIGHT - 8}" text-anchor="middle">{markup(labels[0])}</text>')
    turned = f'text-anchor="middle" transform="rotate(-90 12 {down})"'
    parts.append(f'<text x="12" y="{down}" {turned}>{markup(labels[1])}</text>')
    return "".join(parts)


def _mark(axes: Axes, value: float, name: str) -> str:
    at = axes.x(value)
    anchor, shift = ("end", -4) if at > WIDTH / 2 else ("start", 4)
    text = f'<text x="{at + shift:.1f}" y="{TOP + 11}" text-anchor="{anchor}">{markup(name)}</text>'
    return _line(at, TOP, at, HEIGHT - BOTTOM, "mark") + text


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _figure(parts: list[str], caption: str, alt: str) -> Markup:
    svg = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{markup(alt)}">'
    return Markup(f"<figure>{svg}{''.join(parts)}</svg><figcaption>{markup(caption)}</figcaption></figure>")
