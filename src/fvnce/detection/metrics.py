"""Named scorers. Those of scikit-learn expect the score of class 1 to be high, and detectors give outliers low scores.

``scoring="roc_auc"`` in a search would therefore choose the *worst* detector: it reads ``decision_function``, which is
high for inliers. ``outlier_auroc`` reads the anomaly score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score


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
