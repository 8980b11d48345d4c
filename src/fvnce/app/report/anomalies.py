"""Sections of what is strange and why: the strangest rows with every part of their scores, and columns by importance.

Top anomalies are the strangest rows that are no known outliers, with

    score = base + rest + Σ parts of columns,

those below zero too. The importance of a column is its share in the variance of the score over the training rows;
shares of columns, with that of what belongs to no column, sum to one (:mod:`fvnce.detection.explanation` says why). For
images both are maps, red where a pixel makes the image strange and blue where it makes it usual.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...detection import Explanation
from ...pages import png_uri
from ...pages.page import Section, render
from .context import Context, grey_or_colour, heat_png, png, short, take

#: Rows of the list, and parts of each that are seen at once.
TOP, SEEN = 10, 6
#: Columns that have a bar of their own.
SHOWN = 15


def build(context: Context) -> dict[str, Any]:
    """The rows with the highest scores, highest first; the share of each column, largest first, or of each pixel."""
    shares = np.asarray(context.run.detector.feature_importances_, dtype=np.float64)
    if context.image:
        return {"top": _top(context), "importance": {"heat": heat_png(context.fold_channels(shares))}}
    order = np.argsort(-shares, kind="stable")
    columns = context.run.layout.columns
    return {
        "top": _top(context),
        "importance": {"columns": [columns[i] for i in order], "shares": short(shares[order])},
    }


def show(facts: dict[str, Any], record: dict[str, Any]) -> list[Section]:
    """Each row with its score and bars for all parts of it, or a map; bars of columns, or a map."""
    largest = max((abs(part) for entry in facts["top"] for _, part, _ in entry["parts"]), default=1.0) or 1.0
    reading = [
        "The strangest training rows without a label. Each score is the sum of its parts: bars to the right make the "
        "row stranger, bars to the left more usual. Base is what all rows start from, rest what belongs to no column."
    ]
    block = render("fvnce.app", "top_anomalies.html", entries=[_shown(entry, largest) for entry in facts["top"]])
    return [Section("Top anomalies", reading, blocks=[block]), _show_importance(facts["importance"])]


def _top(context: Context) -> list[dict[str, Any]]:
    positions = np.flatnonzero(~context.known)
    positions = positions[np.argsort(-context.anomaly[positions], kind="stable")[:TOP]]
    part = take(context.rows, positions)
    run = context.run
    probability = run.detector.calibration_.probability(context.anomaly[positions])
    explanation = run.detector.explain(run.layout.prepare(part))
    found = []
    for i, position in enumerate(positions.tolist()):
        rest, base = float(explanation.rest[i]), float(explanation.base)
        entry: dict[str, Any] = {
            "name": context.name(position) or str(int(context.numbers[position]) + 1),
            "score": float(context.anomaly[position]),
            "probability": float(probability[i]),
            "parts": _parts(context, explanation, i, position),
            "whole": [*([["rest", rest, ""]] if rest else []), ["base", base, ""]],
        }
        if context.image:
            picture = np.asarray(part[i], dtype=np.float64)
            entry["picture"] = png(grey_or_colour(picture, float(picture.min()), float(picture.max())))
            entry["heat"] = heat_png(context.fold_channels(explanation.total[i]))
        found.append(entry)
    return found


def _parts(context: Context, explanation: Explanation, i: int, position: int) -> list[list[Any]]:
    """Name, part and value of every column, the largest part in size first; of an image both signs summed."""
    values = explanation.total[i].ravel()
    if context.image:
        sums = {"red pixels": values[values > 0].sum(), "blue pixels": values[values < 0].sum()}
        return [[name, float(value), ""] for name, value in sums.items() if value]
    names, cells = context.data.layout.columns, context.row(position)
    return [[names[j], float(values[j]), cells[j]] for j in np.argsort(-np.abs(values), kind="stable").tolist()]


def _shown(entry: dict[str, Any], largest: float) -> dict[str, Any]:
    number = entry["name"] if entry["name"].isascii() and entry["name"].isdecimal() else ""
    parts = [_line(part, largest) for part in entry["parts"]]
    # One or two more take no more place than a line that would hide them.
    seen = SEEN if len(parts) > SEEN + 2 else len(parts)
    others = entry["parts"][seen:]
    return {
        "name": f"row {int(number):,}" if 0 < len(number) < 20 else entry["name"],
        "score": f"score {entry['score']:.4g}, P(outlier) = {entry['probability']:.2f}",
        "sum": f"{entry['score']:.3f}",
        "parts": parts[:seen],
        "others": parts[seen:],
        "others_sum": f"{sum(part for _, part, _ in others):+.3f}",
        "whole": [_line(part, largest) for part in entry["whole"]],
        "picture": png_uri(entry["picture"]) if "picture" in entry else None,
        "heat": png_uri(entry["heat"]) if "picture" in entry else None,
    }


def _line(part: list[Any], largest: float) -> dict[str, Any]:
    name, value, cell = part
    return {"name": name, "cell": cell, "told": f"{value:+.3f}", **bar(value, largest)}


def _show_importance(found: dict[str, Any]) -> Section:
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
