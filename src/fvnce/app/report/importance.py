"""The section of columns by importance: the share of each in the variance of the score over the training rows.

Shares of columns, with that of what belongs to no column, sum to one; :mod:`fvnce.detection.explanation` says why. For
images it is a map.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...pages.escape import png_uri
from ...pages.page import Section, render
from .. import shapes
from .context import Context, short
from .images import heat_png

#: Columns that have a bar of their own.
SHOWN = 15


def _check_importance(value: Any, place: str) -> None:
    if isinstance(value, dict) and "heat" in value:
        shapes.record({"heat": shapes.picture})(value, place)
        return
    shapes.alike({"columns": shapes.names, "shares": shapes.gaps})(value, place)


check = shapes.record({"importance": _check_importance})


def build(context: Context) -> dict[str, Any]:
    """The share of each column, largest first, or of each pixel."""
    shares = np.asarray(context.run.scorer.detector.feature_importances_, dtype=np.float64)
    if context.image:
        return {"importance": {"heat": heat_png(context.fold_channels(shares))}}
    order = np.argsort(-shares, kind="stable")
    columns = context.run.scorer.layout.columns
    return {"importance": {"columns": [columns[i] for i in order], "shares": short(shares[order])}}


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section:
    """Bars, or a map."""
    found = facts["importance"]
    if "heat" in found:
        reading = ["Red pixels make strange images strange; blue ones lower the scores of strange images."]
        block = render("fvnce.app", "importance_map.html", uri=png_uri(found["heat"]))
        return Section("Pixels by importance", reading, blocks=[block])
    parts = [(name, share or 0.0) for name, share in zip(found["columns"], found["shares"], strict=True)]
    largest = max((abs(share) for _, share in parts), default=0.0) or 1.0
    bars = [{"name": name, "told": f"{share:.1%}", **bar(share, largest)} for name, share in parts]
    middle = any(share < 0 for _, share in parts)
    if not middle:  # no side is needed for what is below zero
        bars = [{**line, "left": 0.0, "width": 2 * line["width"]} for line in bars]
    reading = [
        "How much of the difference in score between rows each column makes. Strange rows differ most, and so count "
        "most. Below zero: the column makes strange rows look more usual."
    ]
    block = render("fvnce.app", "importance.html", bars=bars[:SHOWN], others=bars[SHOWN:], middle=middle)
    return Section("Columns by importance", reading, blocks=[block])


def bar(part: float, largest: float) -> dict[str, Any]:
    """A bar that grows from the middle, to the right if positive: its kind, start and width in per cent.

    >>> bar(-1.0, 2.0)
    {'kind': 'down', 'left': 25.0, 'width': 25.0}
    """
    width = round(min(1.0, abs(part) / largest) * 50, 1)
    return {"kind": "up" if part > 0 else "down", "left": 50.0 if part > 0 else 50 - width, "width": width}
