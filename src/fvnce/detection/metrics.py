"""Scores at a glance; the older names of the scorers in :mod:`fvnce.detection.scorers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .scorers import average_precision as outlier_average_precision
from .scorers import roc_auc as outlier_auroc

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["outlier_auroc", "outlier_average_precision", "plot_scores"]


def plot_scores(anomaly: NDArray[np.float64], threshold: float, y: Any = None, ax: Axes | None = None) -> Axes:
    """Histogram of anomaly scores on a logarithmic axis, with the threshold; with y, outliers apart."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(5, 3), layout="constrained").subplots()
    edges = np.histogram_bin_edges(anomaly, 50).tolist()
    known = np.zeros(len(anomaly), dtype=bool) if y is None else np.asarray(y) == 1
    if known.shape != anomaly.shape:
        raise ValueError(f"y must hold one label for each of the {len(anomaly)} rows, found shape {known.shape}")
    ax.hist(anomaly[~known], edges, color="0.7", label="rows")
    if known.any():
        ax.hist(anomaly[known], edges, color="0.15", label="outliers (y = 1)")
    ax.axvline(threshold, color="C1", linestyle="--", label="threshold")
    ax.set(xlabel="anomaly score", ylabel="rows", yscale="log")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)  # above, where no bar is
    return ax
