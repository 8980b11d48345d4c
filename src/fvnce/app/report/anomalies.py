"""Sections on why rows score high: the highest-scoring rows with every part of their scores, and columns by importance.

The score of a row is base + rest + Σ parts of columns, negative parts included. Base is the mean score of training
rows. The importance of a column is its share in the deviations of parts over training rows; the shares sum to one
(:mod:`fvnce.detection.explanation`). For images both are maps: red pixels raise the score, blue ones lower it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection import Explanation
from ...detection.rows import Array
from .analysis import Analysis, heat_uri, picture_uri, take
from .page import Section, block

#: Rows of the list, and parts of each that are seen at once.
TOP, SEEN = 10, 6
#: Columns of the list of importance that are seen at once.
SHOWN = 15


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the highest-scoring unlabelled rows, and columns, or pixels, by importance."""
    parts = (
        "Each score is the sum of its parts: bars to the right raise the score, bars to the left lower it. All rows "
        "start from base, the mean score of training rows; rest belongs to no single column."
    )
    scores, two = analysis.scores, analysis.run.detector.novelty_threshold_ is not None
    lists = [("Top anomalies", "The highest-scoring unlabelled training rows.", scores.anomaly)]
    if two:
        novel = np.where(scores.kind == "known", -np.inf, scores.novelty)
        lists = [
            ("Like the known outliers", "The unlabelled training rows that score highest.", scores.anomaly),
            (
                "Unlike anything",
                "The unlabelled training rows that are most unlike all others, and not like the known outliers. "
                f"{int(((scores.kind == 'novel') & ~analysis.known).sum()):,} are flagged, whatever the labels.",
                novel,
            ),
        ]
    for title, about, ranking in lists:
        entries = top_rows(analysis, ranking)
        largest = max((abs(part) for entry in entries for _, part, _ in entry["parts"]), default=1.0) or 1.0
        top = block("top_anomalies", entries=[_shown(entry, largest) for entry in entries])
        yield Section(title, [f"{about} {parts}"], blocks=[top])
    shares = np.asarray(analysis.run.detector.feature_importances_, dtype=np.float64)
    if analysis.is_image:
        heat = heat_uri(shares.reshape(analysis.rows.shape[1:]))
        reading = ["Pixels in which scores differ most between images are red."]
        yield Section("Pixels by importance", reading, blocks=[block("importance_map", uri=heat)])
        return
    reading = [
        "How much of the difference in score between rows each column makes. High-scoring rows differ most, and so "
        "count most. The shares of all columns sum to one."
    ]
    order, columns = np.argsort(-shares, kind="stable").tolist(), analysis.run.layout.columns
    largest = float(np.abs(shares).max()) or 1.0
    lines = [_bar(columns[i], float(shares[i]), largest, f"{shares[i]:.1%}", from_left=True) for i in order]
    bars = block("importance", lines=lines[:SHOWN], others=lines[SHOWN:], from_left=True)
    yield Section("Columns by importance", reading, blocks=[bars])


def top_rows(analysis: Analysis, ranking: Array) -> list[dict[str, Any]]:
    """Return the unlabelled rows that rank highest with all parts of their scores as (name, part, value of the row).

    Rows that are equal in every column are one entry, which says how many there are.
    """
    unlabelled = np.flatnonzero(~analysis.known)
    groups = _distinct(analysis, unlabelled[np.argsort(-ranking[unlabelled], kind="stable")], ranking)
    chosen = np.array([group[0] for group in groups], dtype=np.int64)
    rows, run = take(analysis.rows, chosen), analysis.run
    probability = run.detector.probability_of(analysis.scores)[chosen]
    prepared = run.layout.prepare(rows)
    explanation = run.detector.explain(prepared)
    words = [[] for _ in chosen] if analysis.is_image else run.detector.reasons(prepared)
    entries, cells = [], [[] for _ in chosen] if analysis.is_image else analysis.cells(chosen.tolist())
    for i, group in enumerate(groups):
        index, rest, base = group[0], float(explanation.rest[i]), float(explanation.base)
        copies = "" if len(group) == 1 else f", one of {len(group):,} identical rows"
        entry: dict[str, Any] = {
            "name": f"{analysis.name(index)}{copies}",
            "score": float(analysis.anomaly[index]),
            "probability": float(probability[i]),
            "parts": _parts(analysis, explanation, i, cells[i]),
            "words": words[i],
            "whole": [*([("rest", rest, "")] if rest else []), ("base", base, "")],
        }
        if analysis.is_image:
            entry["picture"] = picture_uri(np.asarray(rows[i], dtype=np.float64))
            entry["heat"] = heat_uri(explanation.total[i])
        entries.append(entry)
    return entries


def _distinct(analysis: Analysis, order: NDArray[np.int64], ranking: Array) -> list[list[int]]:
    """Return the first different rows of an order, each with its copies, which score the same and so follow it."""
    groups: list[list[int]] = []
    for index in order.tolist():
        if not np.isfinite(ranking[index]):
            break
        first = groups[-1][0] if groups else None
        same = first is not None and ranking[first] == ranking[index] and not analysis.is_image
        if first is not None and same and analysis.values(first) == analysis.values(index):
            groups[-1].append(index)
            continue
        if len(groups) == TOP:
            break
        groups.append([index])
    return groups


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
        "words": entry["words"],
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
