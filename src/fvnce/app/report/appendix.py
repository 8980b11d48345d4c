"""Appendix: histograms of the scores of the training rows, and the rows along their first two principal components."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .analysis import Analysis, Array, take
from .charts import histogram_chart, scatter_chart
from .page import Section

#: Bins of a histogram.
BINS = 40
#: The most points, and the most highest-scoring rows and known outliers among them.
POINTS, HIGHEST, KNOWN = 600, 50, 150
#: Columns shown in the title of a point.
CELLS = 8


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield the histograms and the scatter plot."""
    yield _scores(analysis)
    yield _plane(analysis)


def _scores(analysis: Analysis) -> Section:
    """Return histograms of scores, with known outliers as a separate group."""
    known, threshold = analysis.known, analysis.run.threshold
    groups = {"training rows": analysis.anomaly[~known]}
    if known.any():
        groups["known outliers"] = analysis.anomaly[known]
    # Scores beyond the quantiles 0.001 and 0.999 are counted in the end bins.
    low, high = np.quantile(analysis.anomaly, [0.001, 0.999])
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts = {name: np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0].tolist() for name, v in groups.items()}
    chart = histogram_chart(
        edges.tolist(),
        counts,
        label="anomaly score",
        mark=(threshold, "threshold"),
        caption="Scores of the training rows; the bars of each group sum to one.",
        alt=f"Histogram of anomaly scores with the threshold at {threshold:.4g}",
    )
    reading = "Higher scores are more anomalous. The model was trained on these rows, so their scores look too good"
    instead = "; the verdict uses held-out rows." if analysis.run.detector.evidence_.auroc is not None else "."
    return Section("Scores", [f"{reading}{instead}"], charts=[chart], appendix=True)


def _plane(analysis: Analysis) -> Section:
    """Return the section with a scatter plot of some rows."""
    chosen = _choose(analysis)
    encoded = analysis.run.detector.preprocess(take(analysis.rows, chosen))
    at, share = principal_plane(encoded)
    known = analysis.known[chosen].astype(int).tolist()
    chart = scatter_chart(
        at[:, 0].tolist(),
        at[:, 1].tolist(),
        known,
        ["rows", "known outliers"] if any(known) else ["rows"],
        _titles(analysis, chosen.tolist()),
        labels=("first component", "second component"),
        caption="Each point is a row; hover over it to see its values.",
        alt=f"{len(chosen)} rows as points in two dimensions",
    )
    reading = [
        f"Rows, encoded in {encoded.shape[1]} columns as the model sees them, along their first two principal "
        f"components, which hold {share:.0%} of the variance."
    ]
    return Section("Rows in two dimensions", reading, charts=[chart], appendix=True)


def principal_plane(values: Array) -> tuple[Array, float]:
    """Project rows on the first two principal components; return coordinates and their fraction of the variance.

    >>> at, share = principal_plane(np.array([[0.0, 0.0, 5.0], [4.0, 0.0, 5.0]]))
    >>> np.abs(at).round(3).tolist(), round(share, 3)
    ([[2.0, 0.0], [2.0, 0.0]], 1.0)
    """
    centered = values - values.mean(0)
    _, size, directions = np.linalg.svd(centered, full_matrices=False)
    if directions.shape[0] < 2:
        directions = np.vstack([directions, np.zeros_like(directions)])[:2]
        size = np.append(size, 0.0)
    # The sign of a component is arbitrary; this choice is the same on every machine.
    largest = directions[:2][np.arange(2), np.abs(directions[:2]).argmax(1)]
    directions = directions[:2] * np.sign(largest + 1e-300)[:, None]
    total = float((size**2).sum()) or 1.0
    return centered @ directions.T, float((size[:2] ** 2).sum() / total)


def _choose(analysis: Analysis) -> NDArray[np.int64]:
    """Return the highest-scoring rows, known outliers, and a random choice of the rest."""
    order = np.argsort(-analysis.anomaly, kind="stable")
    first = np.concatenate([order[:HIGHEST], np.flatnonzero(analysis.known)[:KNOWN]])
    candidates = np.concatenate([first, analysis.rng.permutation(len(order))])
    return np.array(sorted(list(dict.fromkeys(candidates.tolist()))[:POINTS]))


def _titles(analysis: Analysis, chosen: list[int]) -> list[str]:
    names = [(analysis.name(index), f"score {analysis.anomaly[index]:.4g}") for index in chosen]
    if analysis.is_image:
        return [f"{name} · {score}" for name, score in names]
    columns, titles = analysis.run.layout.columns, []
    for (name, score), cells in zip(names, analysis.cells(chosen), strict=True):
        listed = ", ".join(f"{column} {value}" for column, value in list(zip(columns, cells, strict=True))[:CELLS])
        titles.append(f"{name}: {listed}{', …' if len(columns) > CELLS else ''} · {score}")
    return titles
