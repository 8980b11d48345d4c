"""Sections on why rows score high: the highest-scoring rows with every part of their scores, and columns by importance.

The score of a row is base + rest + Σ parts of columns, negative parts included. The importance of a column is its share
in the variance of the score over the training rows; the shares of all columns, and of what belongs to no column, sum to
one (:mod:`fvnce.detection.explanation`). For images both are maps: red pixels raise the score, blue ones lower it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...detection import Explanation
from .analysis import Analysis, heat_uri, picture_uri, take
from .page import Section, block

#: Rows of the list, and parts of each that are seen at once.
TOP, SEEN = 10, 6
#: Columns of the list of importance that are seen at once.
SHOWN = 15


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the highest-scoring unlabelled rows, and columns, or pixels, by importance."""
    reading = [
        "The highest-scoring unlabelled training rows. Each score is the sum of its parts: bars to the right raise the "
        "score, bars to the left lower it. All rows start from base; rest belongs to no single column."
    ]
    entries = top_rows(analysis)
    largest = max((abs(part) for entry in entries for _, part, _ in entry["parts"]), default=1.0) or 1.0
    top = block("top_anomalies", entries=[_shown(entry, largest) for entry in entries])
    yield Section("Top anomalies", reading, blocks=[top])
    shares = np.asarray(analysis.run.detector.feature_importances_, dtype=np.float64)
    if analysis.is_image:
        heat = heat_uri(shares.reshape(analysis.rows.shape[1:]))
        reading = ["Red pixels raise the scores of anomalous images; blue ones lower them."]
        yield Section("Pixels by importance", reading, blocks=[block("importance_map", uri=heat)])
        return
    reading = [
        "How much of the difference in score between rows each column makes. High-scoring rows differ most, and so "
        "count most. Below zero: the column lowers the scores of high-scoring rows."
    ]
    order, columns = np.argsort(-shares, kind="stable").tolist(), analysis.run.layout.columns
    largest = float(np.abs(shares).max()) or 1.0
    from_left = bool((shares >= 0).all())  # without bars to the left, all of the width is for those to the right
    lines = [_bar(columns[i], float(shares[i]), largest, f"{shares[i]:.1%}", from_left=from_left) for i in order]
    bars = block("importance", lines=lines[:SHOWN], others=lines[SHOWN:], from_left=from_left)
    yield Section("Columns by importance", reading, blocks=[bars])


def top_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the highest-scoring unlabelled rows with all parts of their scores as (name, part, value of the row)."""
    chosen = np.flatnonzero(~analysis.known)
    chosen = chosen[np.argsort(-analysis.anomaly[chosen], kind="stable")[:TOP]]
    rows, run = take(analysis.rows, chosen), analysis.run
    probability = run.detector.calibration_.probability(analysis.anomaly[chosen])
    explanation = run.detector.explain(run.layout.prepare(rows))
    entries, cells = [], [[] for _ in chosen] if analysis.is_image else analysis.cells(chosen.tolist())
    for i, index in enumerate(chosen.tolist()):
        rest, base = float(explanation.rest[i]), float(explanation.base)
        entry: dict[str, Any] = {
            "name": analysis.name(index),
            "score": float(analysis.anomaly[index]),
            "probability": float(probability[i]),
            "parts": _parts(analysis, explanation, i, cells[i]),
            "whole": [*([("rest", rest, "")] if rest else []), ("base", base, "")],
        }
        if analysis.is_image:
            entry["picture"] = picture_uri(np.asarray(rows[i], dtype=np.float64))
            entry["heat"] = heat_uri(explanation.total[i])
        entries.append(entry)
    return entries


def _parts(analysis: Analysis, explanation: Explanation, i: int, cells: list[str]) -> list[tuple[str, float, str]]:
    """Return the parts of columns, the largest in size first; of an image the sums of both signs."""
    values = explanation.total[i].ravel()
    if analysis.is_image:
        sums = {"red pixels": values[values > 0].sum(), "blue pixels": values[values < 0].sum()}
        return [(name, float(value), "") for name, value in sums.items() if value]
    names = analysis.run.layout.columns
    return [(names[j], float(values[j]), cells[j]) for j in np.argsort(-np.abs(values), kind="stable").tolist()]


def _shown(entry: dict[str, Any], largest: float) -> dict[str, Any]:
    lines, whole = (
        [_bar(name, part, largest, f"{part:+.3f}", cell) for name, part, cell in entry[key]]
        for key in ("parts", "whole")
    )
    # One or two more take no more place than a line that would hide them.
    seen = SEEN if len(lines) > SEEN + 2 else len(lines)
    return {
        "name": entry["name"],
        "score": f"score {entry['score']:.4g}, P(outlier) = {entry['probability']:.2f}",
        "sum": f"{entry['score']:.3f}",
        "parts": lines[:seen],
        "others": lines[seen:],
        "others_sum": f"{sum(part for _, part, _ in entry['parts'][seen:]):+.3f}",
        "whole": whole,
        "picture": entry.get("picture"),
        "heat": entry.get("heat"),
    }


def _bar(
    name: str, part: float, largest: float, number: str, cell: str = "", *, from_left: bool = False
) -> dict[str, Any]:
    """Return a bar that grows from the middle, to the right if positive: its start and width in per cent.

    >>> _bar("age", -1.0, 2.0, "-1")
    {'name': 'age', 'cell': '', 'number': '-1', 'kind': 'down', 'left': 25.0, 'width': 25.0}
    """
    width = round(min(1.0, abs(part) / largest) * (100 if from_left else 50), 1)
    left = 0.0 if from_left else 50.0 if part > 0 else 50 - width
    kind = "up" if part > 0 else "down"
    return {"name": name, "cell": cell, "number": number, "kind": kind, "left": left, "width": width}
