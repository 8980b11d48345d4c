"""Appendix with histograms of the scores of the training rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .analysis import Analysis
from .charts import histogram_chart
from .page import Section

#: Bins of a histogram.
BINS = 40


def sections(analysis: Analysis) -> Iterator[Section]:
    """Yield histograms of scores, with known outliers as a separate group."""
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
    yield Section("Scores", [f"{reading}{instead}"], charts=[chart], appendix=True)
