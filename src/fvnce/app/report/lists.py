"""Lists of the rows to review: those like the known outliers, and novel ones; without known outliers a single list.

Each list has its own threshold, and a curve of the outliers to expect among its highest rows. The score of a row is
base + rest + Σ parts of columns, including negative parts. Base is the mean score of the training rows. For images the
parts are maps: red pixels raise the score, blue pixels lower it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...detection import Explanation, Finds
from ...detection.rows import Array
from .analysis import Analysis, heat_uri, picture_uri, take
from .charts import curve_chart
from .page import Section, block, plain, plural
from .verdict import CHANCE

#: Rows shown in a list.
TOP = 10
#: The fewest alarms that a curve shows, and its length as a multiple of the flagged rows.
ALARMS, TIMES = 20, 3
TITLES = {"known": "Like the known outliers", "novel": "Novel rows"}
#: Basis of the expected number of outliers where the threshold is a convention.
CONVENTION = "by the precision of such thresholds on other tables"
PARTS = (
    "Each score is the sum of its parts: bars to the right raise it, bars to the left lower it. Base is the mean score "
    "of the training rows; the rest cannot be attributed to a single column."
)


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield a section for each list, with its threshold and a curve."""
    two, first = analysis.run.detector.novelty_threshold_ is not None, True
    for name, finds in analysis.finds.items():
        measure, ranking = ranking_of(analysis, name)
        entries = top_rows(analysis, finds.rows, ranking)
        largest = max((abs(part) for entry in entries for _, part, _ in entry["parts"]), default=1.0) or 1.0
        charts = [_curve(finds)] if doubt(analysis, name) in ("", CONVENTION) and _says(finds) else []
        reading = [*about(analysis, name, finds), *([PARTS] if first else [])]
        title, first = TITLES[name] if two else "Top anomalies", False
        shown = block("top_anomalies", entries=entries, measure=measure, largest=largest)
        yield Section(title, reading, charts=charts, blocks=[shown])


def ranking_of(analysis: Analysis, name: str) -> tuple[str, Array]:
    """Return the name and the values of what ranks a list, which its threshold is compared with."""
    if name == "novel" and analysis.run.detector.novelty_threshold_ is not None:
        return "novelty", analysis.scores.novelty
    return "score", analysis.anomaly


def doubt(analysis: Analysis, name: str) -> str:
    """Return why held-out rows cannot tell how many outliers a list holds; empty if they can."""
    detector, auroc = analysis.run.detector, analysis.run.detector.evidence_.auroc
    if detector.clean:
        return "all unlabeled rows are taken as normal"
    if name == "novel" or not detector.calibration_.known:
        return CONVENTION
    few = f"{plural(detector.n_known_, 'known outlier')} {'is' if detector.n_known_ == 1 else 'are'} too few"
    return few if auroc is None or auroc.low <= CHANCE else ""


def about(analysis: Analysis, name: str, finds: Finds) -> list[str]:
    """Return sentences on the rows of a list, its threshold, and the outliers to expect among the flagged rows."""
    detector, flagged, reason = analysis.run.detector, finds.flagged, doubt(analysis, name)
    if by_convention := reason == CONVENTION:
        of_labels = str(detector.evidence_.reason or "known outliers score like other rows when held out")
        new_kind = name == "novel" and detector.n_known_
        reason = "no label marks outliers of a new kind" if new_kind else of_labels.removesuffix(" (y = 1)")
    text = plain(
        "list.md",
        name=name,
        detector=detector,
        flagged=flagged,
        number=expected(finds, flagged) if flagged else "",
        doubt=reason,
        by_convention=by_convention,
        top=TOP if len(finds.rows) > TOP else None,
    )
    return text.splitlines()


def expected(finds: Finds, alarms: int) -> str:
    """Return the expected number of outliers among the highest rows of a list, in words."""
    number, low, high = (round(float(end[alarms - 1])) for end in (finds.finds, finds.low, finds.high))
    return f"about {plural(number, 'outlier')} (90\u00a0% interval {low:,} to {high:,})"


def _most(finds: Finds) -> int:
    return min(len(finds.rows), max(ALARMS, TIMES * finds.flagged))


def _says(finds: Finds) -> bool:
    """Return whether a curve says anything: a row is flagged, or the interval of outliers does not begin at 0."""
    return bool(finds.flagged or (len(finds.rows) and round(float(finds.low[_most(finds) - 1]))))


def _curve(finds: Finds) -> Any:
    """Plot the expected number of outliers among the highest rows of a list against the number of rows."""
    flagged, most = finds.flagged, _most(finds)
    places = sorted({k for k in (flagged // 2, flagged, 2 * flagged) if 0 < k <= most} or {most})
    points = "; ".join(f"among {plural(k, 'row')}, {expected(finds, k)}" for k in places)
    return curve_chart(
        range(most + 1),
        *([0.0, *values[:most].tolist()] for values in (finds.finds, finds.low, finds.high)),
        labels=("rows reviewed, highest first", "expected outliers"),
        mark=(float(flagged), "flagged"),
        caption=f"Expected outliers by the number of rows reviewed: {points}. The band is the interval.",
    )


def top_rows(analysis: Analysis, order: NDArray[np.int64], ranking: Array) -> list[dict[str, Any]]:
    """Return the first rows of an order, with the parts of their scores as (name, part, value of the row).

    Rows that are equal in every column are one entry, which gives their number.
    """
    groups = _distinct(analysis, order, ranking)
    chosen = np.array([group[0] for group in groups], dtype=np.int64)
    rows, run = take(analysis.rows, chosen), analysis.run
    prepared = run.layout.prepare(rows)
    explanation = run.detector.explain(prepared)
    words = [[] for _ in chosen] if analysis.is_image else run.detector.reasons(prepared)
    cells = [[] for _ in chosen] if analysis.is_image else analysis.cells(chosen.tolist())
    entries = []
    for i, group in enumerate(groups):
        rest, base = float(explanation.rest[i]), float(explanation.base)
        copies = "" if len(group) == 1 else f", one of {len(group):,} identical rows"
        entry: dict[str, Any] = {
            "name": f"{analysis.name(group[0])}{copies}",
            "score": float(analysis.anomaly[group[0]]),
            "value": float(ranking[group[0]]),
            "flagged": bool(analysis.scores.flagged[group[0]]),
            "parts": _parts(analysis, explanation, i, cells[i]),
            "words": words[i],
            "whole": [*([("rest", rest, "")] if rest else []), ("base", base, "")],
            "picture": picture_uri(np.asarray(rows[i], dtype=np.float64)) if analysis.is_image else None,
            "heat": heat_uri(explanation.total[i]) if analysis.is_image else None,
        }
        entries.append(entry)
    return entries


def _distinct(analysis: Analysis, order: NDArray[np.int64], ranking: Array) -> list[list[int]]:
    """Return the first distinct rows of an order, each with its copies, which have the same score and so follow it."""
    groups: list[list[int]] = []
    for index in order.tolist():
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
    """Return the parts of columns by decreasing magnitude; for an image the sums of positive and negative parts."""
    values = explanation.total[i].ravel()
    if analysis.is_image:
        sums = {"red pixels": values[values > 0].sum(), "blue pixels": values[values < 0].sum()}
        return [(name, float(value), "") for name, value in sums.items() if value]
    names = analysis.run.layout.columns
    return [(names[j], float(values[j]), cells[j]) for j in np.argsort(-np.abs(values), kind="stable").tolist()]
