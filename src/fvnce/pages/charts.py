"""Small charts as SVG: inside a page they take its colours, light or dark; as files they bring their own.

Curves differ in dash as well as in hue. Each chart carries a sentence for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from . import asset, markup

Numbers = Sequence[float | None]

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 30, 44
DASHES = ("", "7 4", "2 3", "10 3 2 3")
_ALONE = (
    "svg { --ink: #1a1a1a; --soft: #5c5c5c; --line: #d9d9d9; --c0: #0b4f9e; --c1: #b3261e; --c2: #7a5200; "
    "--c3: #55595f; background: #ffffff; }"
)


@dataclass(frozen=True)
class Chart:
    """A chart: its SVG for a page, what it shows in words, and attributes that it has in a page alone."""

    name: str
    svg: str
    caption: str
    attributes: str = ""

    def figure(self) -> Markup:
        """For a page."""
        svg = self.svg.replace("<svg ", f"<svg {self.attributes} ", 1) if self.attributes else self.svg
        return Markup(f"<figure>{svg}<figcaption>{markup(self.caption)}</figcaption></figure>")

    def file(self) -> str:
        """For a file of its own."""
        opening, _, rest = self.svg.partition(">")
        style = _ALONE + asset(__package__, "chart.css")
        return f'{opening} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{rest}\n'


@dataclass(frozen=True)
class Axes:
    """The axes: what is drawn where."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return LEFT + (value - self.low_x) / (self.high_x - self.low_x) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return HEIGHT - BOTTOM - (value - self.low_y) / (self.high_y - self.low_y) * (HEIGHT - TOP - BOTTOM)


def line_chart(
    name: str,
    x: Numbers,
    curves: Mapping[str, Numbers],
    *,
    labels: tuple[str, str],
    caption: str,
    alt: str,
    range_x: tuple[float, float] | None = None,
    range_y: tuple[float, float] | None = None,
    diagonal: bool = False,
    dots: bool = False,
) -> Chart:
    """Curves over one axis; None is a gap."""
    every = [v for values in curves.values() for v in values if v is not None]
    low, high = range_y or _range(every)
    if range_y is None and len(every) > 20:
        # A first loss a thousand times the rest would flatten the curve.
        ordered = sorted(every)
        low, high = _range([ordered[int(0.01 * len(every))], ordered[min(len(every) - 1, int(0.985 * len(every)))]])
    axes = Axes(*(range_x or _range([v for v in x if v is not None])), low, high)
    parts = [_axes(axes, labels)]
    if diagonal:
        parts.append(_line(axes.x(0), axes.y(0), axes.x(1), axes.y(1), "axis"))
    for i, values in enumerate(curves.values()):
        points = [
            (axes.x(a), min(HEIGHT - BOTTOM, max(TOP, axes.y(b)))) if a is not None and b is not None else None
            for a, b in zip(x, values, strict=True)
        ]
        parts.append(_path(points, i))
        if dots:
            parts += [f'<circle class="p{i % 2}" cx="{p[0]:.1f}" cy="{p[1]:.1f}" r="3.5"/>' for p in points if p]
    return _finish(name, parts, list(curves), caption, alt)


def histogram_chart(
    name: str,
    edges: Sequence[float],
    counts: Mapping[str, Sequence[int]],
    *,
    label: str,
    caption: str,
    alt: str,
    mark: tuple[float, str] | None = None,
) -> Chart:
    """Histograms of groups, each as shares of its own group, so that a small group is seen beside a large one."""
    shares = {group: [c / max(1, sum(values)) for c in values] for group, values in counts.items()}
    highest = max((v for values in shares.values() for v in values), default=1.0)
    low, high = edges[0], edges[-1]
    if mark is not None:
        low, high = min(low, mark[0]), max(high, mark[0])
    # The label of a mark needs a place above the bars.
    axes = Axes(low, high if high > low else low + 1, 0.0, highest * (1.05 if mark is None else 1.16) or 1.0)
    parts = [_axes(axes, (label, "share of group"))]
    for i, values in enumerate(shares.values()):
        points: list[tuple[float, float] | None] = [(axes.x(edges[0]), axes.y(0))]
        for left, right, value in zip(edges[:-1], edges[1:], values, strict=True):
            points += [(axes.x(left), axes.y(value)), (axes.x(right), axes.y(value))]
        points.append((axes.x(edges[-1]), axes.y(0)))
        parts += [_path(points, i, area=True), _path(points, i)]
    if mark is not None:
        at = axes.x(mark[0])
        parts.append(_line(at, TOP, at, HEIGHT - BOTTOM, "mark"))
        anchor, shift = ("end", -4) if at > WIDTH / 2 else ("start", 4)
        parts.append(f'<text x="{at + shift:.1f}" y="{TOP + 11}" text-anchor="{anchor}">{markup(mark[1])}</text>')
    return _finish(name, parts, list(counts), caption, alt)


def scatter_chart(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    groups: Sequence[int],
    names: Sequence[str],
    titles: Sequence[str],
    *,
    labels: tuple[str, str],
    caption: str,
    alt: str,
) -> Chart:
    """Points of two groups, each with a title that shows on hover."""
    axes = Axes(*_range(x), *_range(y))
    parts = [_axes(axes, labels)]
    for i, (a, b, group, title) in enumerate(zip(x, y, groups, titles, strict=True)):
        shape = f'cx="{axes.x(a):.1f}" cy="{axes.y(b):.1f}"'
        parts.append(
            f'<circle class="p{group}" {shape} r="{3 + group}" data-i="{i}"><title>{markup(title)}</title></circle>'
        )
    for i, label in enumerate(names):
        left = LEFT + 12 + i * 150
        parts.append(f'<circle class="p{i}" cx="{left}" cy="14" r="{4 + i}"/>')
        parts.append(f'<text x="{left + 10}" y="18">{markup(label)}</text>')
    return _finish(name, parts, [], caption, alt)


def ticks(low: float, high: float, about: int = 5, least: float = 0.0) -> list[float]:
    """Round numbers between two, at least so far apart.

    >>> ticks(0, 1), ticks(-3.2, 7)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [-2.0, 0.0, 2.0, 4.0, 6.0])
    """
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(least, next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.8))
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 12) + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    space = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
    return low - space, high + space


def _axes(axes: Axes, labels: tuple[str, str]) -> str:
    parts = []
    # Half an epoch is no place for a number.
    for value in ticks(axes.low_x, axes.high_x, least=1.0 if labels[0] in ("epoch", "step") else 0.0):
        at = axes.x(value)
        parts.append(_line(at, TOP, at, HEIGHT - BOTTOM, "grid"))
        parts.append(
            f'<text class="soft" x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:.6g}</text>'
        )
    for value in ticks(axes.low_y, axes.high_y):
        at = axes.y(value)
        parts.append(_line(LEFT, at, WIDTH - RIGHT, at, "grid"))
        parts.append(f'<text class="soft" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{markup(labels[0])}</text>')
    parts.append(
        f'<text x="12" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 12 {(TOP + HEIGHT - BOTTOM) / 2})">{markup(labels[1])}</text>'
    )
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _path(points: Sequence[tuple[float, float] | None], index: int, *, area: bool = False) -> str:
    text, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        text.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "L"
    dash = f' stroke-dasharray="{DASHES[index % 4]}"' if DASHES[index % 4] and not area else ""
    return f'<path class="{"area " if area else ""}s{index % 4}" d="{"".join(text)}"{dash}/>'


def _finish(name: str, parts: list[str], legend: list[str], caption: str, alt: str) -> Chart:
    left = float(LEFT)
    for i, label in enumerate(legend if len(legend) > 1 else []):
        dash = f' stroke-dasharray="{DASHES[i % 4]}"' if DASHES[i % 4] else ""
        parts.append(f'<path class="s{i % 4}" d="M{left:.0f} 14L{left + 24:.0f} 14"{dash}/>')
        parts.append(f'<text x="{left + 29:.0f}" y="18">{markup(label)}</text>')
        left += 44 + 6.6 * len(label)
    head = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{markup(alt)}">'
    return Chart(name, f"{head}{''.join(parts)}</svg>", caption)
