"""Named scorers, and scores at a glance.

Scorers of scikit-learn expect the score of class 1 to be high, and detectors give outliers low scores.
``scoring="roc_auc"`` in a search would therefore choose the *worst* detector: it reads ``decision_function``, which is
high for inliers. ``outlier_auroc`` reads the anomaly score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def outlier_auroc(estimator: Any, X: Any, y: Any) -> float:
    """AUROC of y = 1 under the anomaly score, for ``scoring=outlier_auroc``."""
    return float(roc_auc_score(_both(y), -np.asarray(estimator.score_samples(X))))


def outlier_average_precision(estimator: Any, X: Any, y: Any) -> float:
    """Average precision of y = 1 under the anomaly score."""
    return float(average_precision_score(_both(y), -np.asarray(estimator.score_samples(X))))


def _both(y: Any) -> Any:
    truth = np.asarray(y) == 1
    if truth.all() or not truth.any():
        raise ValueError(f"y must hold outliers (1) and other rows, found {int(truth.sum())} outliers in {len(truth)}")
    return truth


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
    ax.legend()
    return ax
