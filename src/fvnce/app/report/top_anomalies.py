"""The section of top anomalies: the strangest rows that are no known outliers, with every part of their scores.

    score = base + rest + Σ parts of columns,

those below zero too. For images the parts are a map, red where it makes the image strange and blue where it makes it
usual, and the sums of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...detection import Explanation
from ...pages.escape import png_uri
from ...pages.page import Section, render
from .. import shapes
from .context import Context, take
from .images import grey_or_colour, heat_png, png
from .importance import bar

#: Rows of the list, and parts of each that are seen at once.
TOP, SEEN = 10, 6


def _part(value: Any, place: str) -> None:
    shapes.list_of(lambda value, place: None, length=3)(value, place)
    shapes.text(value[0], place)
    shapes.number(value[1], place)
    shapes.text(value[2], place)


def _anomaly(value: Any, place: str) -> None:
    shapes.record(
        {
            "name": shapes.text,
            "score": shapes.reported,
            "probability": shapes.or_none(shapes.reported),
            "parts": shapes.list_of(_part),
            "whole": shapes.list_of(_part),
        }
    )(value, place)
    if "picture" in value or "heat" in value:
        shapes.record({"picture": shapes.picture, "heat": shapes.picture})(value, place)


check = shapes.record({"top": shapes.list_of(_anomaly)})


def build(context: Context) -> dict[str, Any]:
    """The rows with the highest scores, highest first."""
    positions = np.flatnonzero(~context.known)
    positions = positions[np.argsort(-context.anomaly[positions], kind="stable")[:TOP]]
    part = take(context.rows, positions)
    scorer = context.run.scorer
    probability = scorer.probability(context.anomaly[positions])
    explanation = scorer.detector.explain(scorer.layout.prepare(part))
    found = []
    for i, position in enumerate(positions.tolist()):
        entry: dict[str, Any] = {
            "name": context.name(position) or str(int(context.numbers[position]) + 1),
            "score": float(context.anomaly[position]),
            "probability": None if probability is None else float(probability[i]),
            "parts": _parts(context, explanation, i, position),
            "whole": [
                [name, value, ""]
                for name, value in (("rest", float(explanation.rest[i])), ("base", float(explanation.base)))
                if value or name == "base"
            ],
        }
        if context.image:
            picture = np.asarray(part[i], dtype=np.float64)
            entry["picture"] = png(grey_or_colour(picture, float(picture.min()), float(picture.max())))
            entry["heat"] = heat_png(context.fold_channels(explanation.total[i]))
        found.append(entry)
    return {"top": found}


def _parts(context: Context, explanation: Explanation, i: int, position: int) -> list[list[Any]]:
    """Name, part and value of every column, the largest part in size first; of an image both signs summed."""
    values = explanation.total[i].ravel()
    if context.image:
        sums = {"red pixels": values[values > 0].sum(), "blue pixels": values[values < 0].sum()}
        return [[name, float(value), ""] for name, value in sums.items() if value]
    names, cells = context.data.layout.columns, context.row(position)
    return [[names[j], float(values[j]), cells[j]] for j in np.argsort(-np.abs(values), kind="stable").tolist()]


def show(facts: dict[str, Any], record: dict[str, Any]) -> Section:
    """Each row with its score and bars for all parts of it; an image with a map of where it is strange."""
    largest = max((abs(part) for entry in facts["top"] for _, part, _ in entry["parts"]), default=1.0) or 1.0
    reading = [
        "The strangest training rows without a label. Each score is the sum of its parts: bars to the right make the "
        "row stranger, bars to the left more usual. Base is what all rows start from, rest what belongs to no column."
    ]
    block = render("fvnce.app", "top_anomalies.html", entries=[_shown(entry, largest) for entry in facts["top"]])
    return Section("Top anomalies", reading, blocks=[block])


def _shown(entry: dict[str, Any], largest: float) -> dict[str, Any]:
    number = entry["name"] if entry["name"].isascii() and entry["name"].isdecimal() else ""
    chance = "" if entry["probability"] is None else f", P(outlier) = {entry['probability']:.2f}"
    parts = [_line(part, largest) for part in entry["parts"]]
    # One or two more take no more place than a line that would hide them.
    seen = SEEN if len(parts) > SEEN + 2 else len(parts)
    others = entry["parts"][seen:]
    return {
        "name": f"row {int(number):,}" if 0 < len(number) < 20 else entry["name"],
        "score": f"score {entry['score']:.4g}{chance}",
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
